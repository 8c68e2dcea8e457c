import pytest

from clnp.methods.method import OURS, is_ours, method_of
from clnp.methods.registry import NAMES


@pytest.mark.parametrize(
    ("record", "method"), [({}, OURS), ({"method": OURS}, OURS), ({"method": "ewc"}, "ewc")]
)
def test_a_record_names_its_method_unless_it_is_ours(record, method):
    assert method_of(record) == method
    assert is_ours(record) == (method == OURS)


def test_ours_is_the_first_of_the_methods():
    assert NAMES[0] == OURS
    assert OURS not in NAMES[1:]
