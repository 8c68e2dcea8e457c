"""What a graph tells about its layers, and the table that describes it."""

import pytest

from clnp.core.structure.axis import Segment
from clnp.core.structure.graph import Graph, Site
from clnp.errors import ArgumentError

A, B = (Segment("a", 4),), (Segment("b", 12),)
GRAPH = Graph(
    {"a": 4, "b": 12},
    {
        "a": Site("a", "Conv2d", A, (Segment(None, 3),)),
        "norm": Site("norm", "BatchNorm2d", A, A),
        "residual": Site("residual", "Conv2d", A, A),
        "depthwise": Site("depthwise", "DepthwiseConv2d", A, A),
        "b": Site("b", "Linear", B, A),
        "fc": Site("fc", "Linear", (), (*A, *B)),
    },
    "fc",
)


def test_layers_that_mix():
    assert [path for path, site in GRAPH.sites.items() if site.mixes] == [
        "a",
        "residual",
        "b",
        "fc",
    ]
    assert [site.path for site in GRAPH.readers("a")] == ["residual", "b", "fc"]


def test_group_named():
    assert GRAPH.group_named("a") == "a"
    assert GRAPH.group_named("norm") == "a"
    with pytest.raises(ArgumentError, match="unknown group 'fc'"):
        GRAPH.group_named("fc")


def test_str():
    assert str(GRAPH).splitlines() == [
        "group  neurons  made by   acted on by  read by",
        "-----  -------  --------  -----------  --------",
        "a            4  a         norm         residual",
        "                residual  depthwise    b",
        "                                       fc",
        "b           12  b                      fc",
        "16 neurons; classifier: fc",
    ]
    assert repr(GRAPH) == "Graph(2 groups, 16 neurons, classifier='fc')"
