import pytest

from clnp.errors import ArgumentError
from clnp.training.criterion import CRITERIA, criterion_of

MODULE = "size = 3\ndef largest(net, batches):\n    return {}\n"


@pytest.fixture
def own(tmp_path, monkeypatch):
    (tmp_path / "own_criteria.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(__import__("sys").modules, "own_criteria", raising=False)


def test_a_function_is_imported_by_its_path(own):
    found = criterion_of("own_criteria:largest")
    assert (found.__module__, found.__name__) == ("own_criteria", "largest")
    assert criterion_of(found) is found
    assert [criterion_of(name) for name in CRITERIA] == list(CRITERIA)


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("own_criteria.more:largest", "cannot be imported: No module named 'own_criteria.more'"),
        ("other_criteria:largest", "cannot be imported: No module .* put the directory of its mod"),
        ("own_criteria:smallest", "cannot be imported: module 'own_criteria' has no attribute"),
        ("own_criteria:size", "of type int. It must be a function of the network and its batches"),
    ],
)
def test_paths_that_lead_nowhere_are_refused(own, path, message):
    with pytest.raises(ArgumentError, match=f"importance is '{path}', which .*{message}") as caught:
        criterion_of(path)
    assert caught.value.argument == "importance"
