import pickle
import re

import pytest

from clnp import errors
from clnp.errors import ArgumentError, ClnpError, GraphError, Problem, unknown_name

TREE = {
    "GraphError": ValueError,
    "ArgumentError": ValueError,
    "TaskError": RuntimeError,
    "CapacityError": RuntimeError,
    "PruningError": ValueError,
    "DivergedError": RuntimeError,
    "ForgettingError": RuntimeError,
    "CheckpointError": RuntimeError,
    "RecipeError": ValueError,
    "DataError": RuntimeError,
    "RunError": RuntimeError,
    "ExportError": RuntimeError,
    "StoppedError": RuntimeError,
}


@pytest.mark.parametrize(("name", "builtin"), TREE.items())
def test_an_error_is_one_of_clnp_and_a_built_in_one(name, builtin):
    kind = getattr(errors, name)
    assert issubclass(kind, ClnpError)
    assert issubclass(kind, builtin)
    assert kind.__doc__


def test_the_tree_at_the_top_of_the_file_is_complete():
    drawn = dict(re.findall(r"── (\w+)\((\w+)\)", errors.__doc__))
    assert drawn == {name: builtin.__name__ for name, builtin in TREE.items()}
    kinds = {
        name
        for name, value in vars(errors).items()
        if isinstance(value, type) and issubclass(value, ClnpError) and value is not ClnpError
    }
    assert kinds == set(TREE)


def test_an_argument_error_can_name_the_argument():
    error = ArgumentError("epochs cannot be 0", argument="epochs")
    copy = pickle.loads(pickle.dumps(error))
    assert (str(copy), copy.argument) == ("epochs cannot be 0", "epochs")
    assert ArgumentError("no").argument is None


def test_a_problem_says_where_what_and_what_to_do():
    problem = Problem("blocks.0.norm", "LayerNorm mixes channels", "Use BatchNorm")
    assert str(problem) == "blocks.0.norm: LayerNorm mixes channels. Use BatchNorm"


def test_a_graph_error_lists_all_problems():
    one, two = Problem("a", "bad", "Fix it"), Problem("b.c", "worse", "Leave it")
    error = GraphError(iter([one, two]))
    assert error.problems == (one, two)
    assert str(error) == (
        "this model cannot be used as it is, 2 problems:\n"
        "  - a: bad. Fix it\n"
        "  - b.c: worse. Leave it"
    )
    assert ", 1 problem:\n  - a" in str(GraphError([one]))


def test_a_graph_error_has_one_line_for_problems_of_a_kind():
    norms = [Problem(f"blocks.{i}.norm", "LayerNorm mixes", "Use BatchNorm") for i in range(18)]
    grouped = [
        Problem(f"blocks.{i}.conv", f"Conv2d has {2 << i} groups of 'blocks.{i}'", "Use one")
        for i in range(4)
    ]
    lines = [
        Problem("a", "'linear' uses weights (net.py:7)", "Call it"),
        Problem("b", "'linear' uses weights (net.py:8)", "Call it"),
    ]
    outputs = [Problem("(model)", f"returns {i} neurons", "Name it") for i in range(9)]
    error = GraphError([norms[0], *grouped, *norms[1:], *lines])
    assert error.problems == (norms[0], *grouped, *norms[1:], *lines)
    assert str(error) == (
        "this model cannot be used as it is, 24 problems of 4 kinds:\n"
        "  - blocks.0.norm, blocks.1.norm, blocks.2.norm and 15 more: LayerNorm mixes. Use "
        "BatchNorm\n"
        "  - blocks.0.conv, blocks.1.conv, blocks.2.conv and 1 more: Conv2d has 2 groups of "
        "'blocks.0', and so on. Use one\n"
        "  - a: 'linear' uses weights (net.py:7). Call it\n"
        "  - b: 'linear' uses weights (net.py:8). Call it"
    )
    assert ", 18 problems of 1 kind:\n  - blocks" in str(GraphError(norms))
    assert str(GraphError(grouped[:3])).count("\n") == 3, "details of a few are all shown"
    assert str(GraphError(outputs)).count("\n") == 9, "a path says nothing without its finding"
    assert "  - a, b: bad. Fix it" in str(GraphError([Problem(x, "bad", "Fix it") for x in "ab"]))


def test_a_graph_error_can_be_pickled():
    error = GraphError([Problem("a", "bad", "Fix it")])
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is GraphError
    assert copy.problems == error.problems
    assert str(copy) == str(error)


@pytest.mark.parametrize(
    ("name", "known", "expected"),
    [
        ("fc9", ["fc1"], "unknown group 'fc9'. Did you mean 'fc1'? Known: fc1"),
        ("fc9", iter(["conv", "fc1"]), "unknown group 'fc9'. Did you mean 'fc1'? Known: conv, fc1"),
        ("xyz", ["fc1", "fc2"], "unknown group 'xyz'. Known: fc1, fc2"),
        ("fc9", [], "unknown group 'fc9'. Known: none yet"),
        (3, ["fc1"], "unknown group 3. Known: fc1"),
    ],
)
def test_an_unknown_name_comes_with_the_nearest_known_one(name, known, expected):
    assert unknown_name("group", name, known) == expected


def test_errors_know_the_exit_code_of_the_command_line():
    codes = {name: getattr(errors, name).code for name in TREE}
    assert {name for name, code in codes.items() if code == 1} == {
        "DivergedError",
        "ForgettingError",
        "CheckpointError",
        "ExportError",
    }
    assert codes["StoppedError"] == 130
    assert codes["RunError"] == ClnpError.code == 2


def test_out_of_memory_is_known_however_it_is_said():
    class OutOfMemoryError(RuntimeError):
        pass

    for error in (
        MemoryError(),
        OutOfMemoryError("CUDA"),
        RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: 3200000000 bytes"),
    ):
        assert errors.is_out_of_memory(error)
    assert not errors.is_out_of_memory(RuntimeError("shapes do not match"))
