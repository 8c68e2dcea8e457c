import builtins
import collections
import io
import os
import pickle
import subprocess

import numpy as np
import pytest

from clnp.data import readers
from clnp.data.readers import read_pickle
from clnp.errors import DataError
from support.python2 import opcodes, pickled


@pytest.fixture
def path(tmp_path):
    return tmp_path / "data_batch_1"


def read(path, content: bytes):
    path.write_bytes(content)
    return read_pickle(path)


def message_of(path, content: bytes) -> str:
    with pytest.raises(DataError) as caught:
        read(path, content)
    assert str(caught.value).startswith(f"{path} ")
    assert len(str(caught.value).splitlines()) == 1
    return str(caught.value).removeprefix(f"{path} ")


class Trap:
    """Makes a directory when it is unpickled, in one way or another."""

    def __init__(self, path, call=None) -> None:
        self.path, self.call = path, call

    def __reduce__(self):
        if self.call is None:
            return os.mkdir, (str(self.path),)
        return self.call, (f"__import__('os').mkdir({str(self.path)!r})",)


class StateTrap:
    """Has a state that is set by a function."""

    def __reduce__(self):
        return list, (), None, None, None, os.system


def the_same(found, expected) -> bool:
    if isinstance(expected, np.ndarray):
        return (
            isinstance(found, np.ndarray)
            and found.dtype.newbyteorder("=") == expected.dtype.newbyteorder("=")
            and found.shape == expected.shape
            and np.array_equal(found, expected)
        )
    if isinstance(expected, dict):
        return found.keys() == expected.keys() and all(
            the_same(found[key], expected[key]) for key in expected
        )
    if isinstance(expected, list | tuple):
        return type(found) is type(expected) and all(map(the_same, found, expected))
    return type(found) is type(expected) and found == expected


ARRAYS = [
    np.arange(24, dtype=np.uint8).reshape(2, 3, 4),
    np.asfortranarray(np.arange(6, dtype=np.uint8).reshape(2, 3)),
    np.arange(24, dtype=np.uint8).reshape(4, 6)[::2, ::3],
    np.arange(-3, 3),
    np.array([1.5, -2.0], dtype=">f4"),
    np.array([[True, False]]),
    np.array(7, dtype=np.int16),
]


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize("array", ARRAYS)
def test_arrays_of_python_3_are_read(path, protocol, array):
    assert the_same(read(path, pickle.dumps(array, protocol=protocol)), array)


def test_an_array_without_numbers_keeps_its_shape(path):
    array = np.zeros((0, 3072), dtype=np.uint8)
    for content in (pickled(array), *(pickle.dumps(array, protocol=each) for each in (3, 4, 5))):
        assert the_same(read(path, content), array)


@pytest.mark.parametrize("core", [b"numpy.core", b"numpy._core"])
@pytest.mark.parametrize("protocol", [2, 5])
def test_arrays_are_read_wherever_numpy_had_its_functions(path, core, protocol):
    array = np.arange(6, dtype=np.uint8)
    content = pickle.dumps(array, protocol=2)
    if protocol == 5:
        # In the words of protocol 2, in which a name has no length.
        content = (
            b"\x80\x05cnumpy._core.numeric\n_frombuffer\n(C\x06\0\1\2\3\4\5"
            + b"cnumpy\ndtype\nX\x02\0\0\0u1\x89\x88\x87R(K\x06tX\x01\0\0\0CtR."
        )
    for name in (b"numpy.core", b"numpy._core"):
        content = content.replace(b"c" + name + b".", b"c" + core + b".")
    assert b"c" + core + b"." in content
    assert the_same(read(path, content), array)


@pytest.mark.parametrize("array", [each for each in ARRAYS if each.flags.c_contiguous])
def test_arrays_of_python_2_are_read(path, array):
    assert the_same(read(path, pickled(array)), array)


def test_text_of_python_2_comes_out_as_bytes(path):
    batch = {"labels": [6, 9], "data": ARRAYS[0], "filenames": ["a.png", "caf\xe9.png"]}
    found = read(path, pickled(batch))
    assert the_same(
        found, {b"labels": [6, 9], b"data": ARRAYS[0], b"filenames": [b"a.png", b"caf\xe9.png"]}
    )


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_plain_values_of_python_3_are_read(path, protocol):
    value = {"a": [1, -(2**70), None, True, 0.5], b"b": (b"\0\xff", "\u20ac"), "c": {3: ARRAYS[0]}}
    assert the_same(read(path, pickle.dumps(value, protocol=protocol)), value)


def test_what_is_read_can_be_written_to(path):
    found = read(path, pickle.dumps(np.zeros(3, dtype=np.uint8), protocol=2))
    found[0] = 7
    assert found.tolist() == [7, 0, 0]


def test_a_list_may_hold_itself(path):
    value = [1]
    value.append(value)
    found = read(path, pickle.dumps(value))
    assert found[1] is found


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize(
    ("call", "named"),
    [
        (None, "posix.mkdir"),
        (os.system, "posix.system"),
        (builtins.eval, "builtins.eval"),
        (builtins.exec, "builtins.exec"),
        (subprocess.getoutput, "subprocess.getoutput"),
        (builtins.getattr, "builtins.getattr"),
    ],
)
@pytest.mark.parametrize(
    "hidden",
    [
        lambda trap: trap,
        lambda trap: {"data": ARRAYS[0], "labels": [[1, (2, trap)]]},
        lambda trap: np.array([trap], dtype=object),
        lambda trap: {"data": np.array([[1, None], [trap, 2]], dtype=object)},
    ],
)
def test_what_could_execute_code_is_refused_before_it_does(
    path, tmp_path, protocol, call, named, hidden
):
    trap = Trap(tmp_path / "executed", call)
    message = message_of(path, pickle.dumps(hidden(trap), protocol=protocol))
    if "not one of plain numbers" not in message:  # An array of objects may come first.
        named = named.replace("posix", os.name if os.name == "nt" else "posix")
        named = named.replace("builtins", "__builtin__") if protocol < 3 else named
        named = named.replace("subprocess", "commands") if protocol < 3 else named
        assert message == (
            f"asks for {named}, which could execute code, and was not used; get the file from its "
            "authors"
        )
    assert not trap.path.exists()


def test_the_traps_would_have_worked(tmp_path):
    for number, call in enumerate((None, builtins.eval)):
        trap = Trap(tmp_path / str(number), call)
        pickle.loads(pickle.dumps(trap))
        assert trap.path.is_dir()


@pytest.mark.parametrize(
    ("value", "named"),
    [
        (StateTrap(), "builtins.list"),
        (collections.OrderedDict(a=1), "collections.OrderedDict"),
        ({1, 2}, None),
        (np.uint8(3), "numpy._core.multiarray.scalar"),
        (np.dtype("u1").type, "numpy.uint8"),
        (range(3), "builtins.range"),
        (1j, "builtins.complex"),
        (np.ma.array([1]), "numpy.ma._mareconstruct"),
    ],
)
def test_other_objects_are_refused(path, value, named):
    content = pickle.dumps(value, protocol=4)
    if named is None:  # A set needs no call, and does no harm.
        assert read(path, content) == value
    else:
        first, last = named.split(".")[0], named.rpartition(".")[2]
        message = message_of(path, content)
        assert message.startswith(f"asks for {first}.")
        assert f".{last}, which could execute code" in message


@pytest.mark.parametrize(
    ("array", "reason"),
    [
        (np.array([None, 1], dtype=object), "an array of 'O8' is not one of plain numbers"),
        (np.zeros(2, dtype=[("a", "u1")]), "an array of 'V1' is not one of plain numbers"),
        (np.array(["text"]), "an array of 'U4' is not one of plain numbers"),
        (np.array(["2024-01-01"], dtype="M8[D]"), "an array of 'M8' is not one of plain numbers"),
        (np.array([1j]), "an array of 'c16' is not one of plain numbers"),
    ],
)
def test_arrays_of_other_things_than_numbers_are_refused(path, array, reason):
    for protocol in (2, 4, 5):
        assert message_of(path, pickle.dumps(array, protocol=protocol)) == (
            f"is damaged or not a pickle of plain arrays, get it again: {reason}"
        )


def test_an_array_of_a_class_of_its_own_is_refused(path):
    for array in (np.zeros(2).view(np.recarray), np.zeros(2).view(np.matrix)):
        assert "asks for numpy" in message_of(path, pickle.dumps(array, protocol=2))
    other = b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\ndtype\n" + opcodes((0,)) + b"U\x01btR."
    assert "an array is of a class of its own" in message_of(path, b"\x80\x02" + other)


def test_a_name_inside_an_admitted_name_is_refused(path):
    for module, name in (
        ("numpy", "ndarray.tofile"),
        ("numpy", "dtype.__class__"),
        ("numpy._core.multiarray", "_reconstruct.__self__"),
        ("numpy", "load"),
        ("clnp.unpickling", "_Array"),
    ):
        stacked = b"".join(b"\x8c" + bytes([len(each)]) + each.encode() for each in (module, name))
        assert message_of(path, b"\x80\x04" + stacked + b"\x93.").startswith(
            f"asks for {module}.{name}, "
        )


NDARRAY = b"cnumpy\nndarray\n"
DTYPE = b"cnumpy\ndtype\n"
RECONSTRUCT = b"cnumpy.core.multiarray\n_reconstruct\n"
FROM_BUFFER = b"cnumpy.core.numeric\n_frombuffer\n"
EMPTY = RECONSTRUCT + b"(" + NDARRAY + opcodes((0,)) + b"U\x01btR"
BYTES = DTYPE + opcodes(("u1", 0, 1)) + b"R"


def state_of(content, dtype=BYTES, shape=(2,)) -> bytes:
    """An array with that state, in opcodes."""
    return EMPTY + b"(K\x01" + opcodes(shape) + dtype + b"\x89" + content + b"tb"


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (NDARRAY + opcodes((2**40,)) + b"R", "an array is made in an unusual way"),
        (NDARRAY + b")\x81", None),
        (DTYPE + b")\x81", None),
        (b"(i" + NDARRAY[1:], "an array is made in an unusual way"),
        (RECONSTRUCT + b"}U\x01aK\x01sb", "a function has no state"),
        (RECONSTRUCT + b"N}U\x0c__defaults__)s\x86b", "a function has no state"),
        (NDARRAY + b"}b", "a function has no state"),
        (BYTES + opcodes((3, "|", "a", None, None, -1, -1, 0)) + b"b", "an array has fields"),
        (BYTES + opcodes((3, "|", None, "a", {}, -1, -1, 0)) + b"b", "an array has fields"),
        (BYTES + opcodes((3, "O", None, None, None, -1, -1, 0)) + b"b", "byte order b'O'"),
        (DTYPE + opcodes(("O", 0, 1)) + b"R", "an array of 'O' is not one of plain numbers"),
        (DTYPE + opcodes(("u1,O", 0, 1)) + b"R", "an array of 'u1,O' is not one of plain numbers"),
        (DTYPE + opcodes(({}, 0, 1)) + b"R", "dict where text is needed"),
        (state_of(opcodes([1, 2])), "an array does not hold plain numbers"),
        (state_of(opcodes(b"abc")), "an array of shape (2,) and type uint8 has 3 bytes"),
        (state_of(opcodes(b"ab"), shape=(2**62, 4)), "and type uint8 has 2 bytes"),
        (state_of(opcodes(b"ab"), shape=(-1, -2)), "the shape of an array is not one"),
        (state_of(opcodes(b"ab"), shape=[2]), "the shape of an array is not one"),
        (state_of(opcodes(b"ab"), dtype=opcodes("O")), "an array does not hold plain numbers"),
        (EMPTY + b"}b", None),
        (FROM_BUFFER + b"(C\x02ab" + BYTES + opcodes((3,)) + b"U\x01CtR", "has 2 bytes"),
        (b"c_codecs\nencode\nX\x01\0\0\0aU\x05rot13\x86R", "another encoding than latin1"),
        (b"c_codecs\nencode\nU\x01aU\x06latin1\x86R", "another encoding than latin1"),
        (b"U\x02osU\x06system\x86R", None),
        (b"]U\x01a\x85R", None),
        (b"\x82\x01", "unregistered extension code 1"),
        (b"P7\n", "A load persistent id instruction was encountered"),
        (b"U\x01aQ", "A load persistent id instruction was encountered"),
    ],
)
def test_abuse_of_what_is_admitted_is_refused(path, content, reason):
    before = {key: vars(each.function).copy() for key, each in readers.ADMITTED.items()}
    message = message_of(path, b"\x80\x02" + content + b".")
    prefix = "is damaged or not a pickle of plain arrays, get it again: "
    assert message.startswith(prefix)
    assert reason is None or reason in message
    after = {key: vars(each.function) for key, each in readers.ADMITTED.items()}
    assert before == after
    assert the_same(read(path, pickled(ARRAYS[0])), ARRAYS[0])


def test_a_part_of_a_pickle_is_refused_however_short(path):
    for whole in (pickled({"data": ARRAYS[0]}), pickle.dumps({"data": ARRAYS[0]}, protocol=5)):
        for size in range(len(whole)):
            assert message_of(path, whole[:size]).startswith(
                "is damaged or not a pickle of plain arrays, get it again: "
            )


def test_a_pickle_that_is_too_long_is_refused(path):
    for whole in (pickled([1]), pickle.dumps([1], protocol=5)):
        assert message_of(path, whole + whole) == (
            "is too long, get it again: bytes follow the end of the pickle"
        )


@pytest.mark.parametrize("content", [b"<html>404</html>", b"name,label\nrose,1\n", b"\0" * 99])
def test_a_file_of_another_kind_is_refused(path, content):
    assert message_of(path, content).startswith("is damaged or not a pickle of plain arrays, ")


def test_the_python_2_pickles_of_these_tests_are_what_pickle_takes_them_for():
    # What the oracle for such files writes is read by Python's own unpickler, without numpy's.
    value = {"labels": [1, 2, -3], "name": "a" * 300, "pair": (None, "b")}
    assert pickle.Unpickler(io.BytesIO(pickled(value)), encoding="latin1").load() == value
