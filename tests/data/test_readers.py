import builtins
import contextlib
import gzip
import hashlib
import os
import pickle
import subprocess

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st

from clnp.data import readers
from clnp.data.readers import Published, read_binary, read_idx, read_pickle, read_python
from clnp.errors import DataError
from support.data_files import idx, opcodes, pickled

PIXELS = np.random.default_rng(0).integers(0, 256, (5, 3072), dtype=np.uint8)
LABELS = [3, 0, 9, 9, 1]


@pytest.fixture
def path(tmp_path):
    return tmp_path / "file"


def read(path, content: bytes):
    path.write_bytes(content)
    return read_pickle(path)


def message_of(path, content=None, call=read_pickle, *args, **options) -> str:
    """The message of the error without the path at its start."""
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(DataError) as caught:
        call(path, *args, **options)
    message = str(caught.value)
    assert message.startswith(str(path))
    assert len(message.splitlines()) == 1
    return message.removeprefix(str(path)).removeprefix(" ")


@pytest.mark.parametrize("shape", [(5,), (3, 2, 4), (300,), (0,), (2, 0, 3), (1, 1, 1, 1)])
@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_an_idx_file_is_read_gzipped_or_not(path, shape, pack):
    path.write_bytes(pack(idx(shape)))
    found = read_idx(path)
    assert found.dtype == torch.uint8
    assert torch.equal(found, torch.arange(found.numel()).to(torch.uint8).reshape(shape))
    found += 1  # Without a warning that the memory is not writable.


def test_a_part_of_an_idx_file_is_refused(path):
    whole = idx((2, 3))
    for size in range(len(whole)):
        message = message_of(path, whole[:size], read_idx)
        if size < 4:
            start = whole[:size].hex(" ") or "missing"
            assert message == f"is not an idx file: its first bytes are {start}"
        elif size < 12:
            assert message == "is truncated: it has no data. Download it again"
        else:
            assert message == (
                f"is truncated: it has {size} bytes, and its shape (2, 3) needs 18. "
                "Download it again"
            )


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (idx((2, 3)) + b"!", "is too long: it has 19 bytes, and its shape (2, 3) needs 18. "),
        (idx((2**32 - 1, 2**32 - 1), b"few"), "is truncated: it has 15 bytes, and its shape "),
        (idx((1,), bytes(8), kind=9), "is an idx file of signed bytes; it must be one of bytes"),
        (idx((1,), bytes(8), kind=14), "is an idx file of doubles; it must be one of bytes"),
        (b"<html>404</html>", "is not an idx file: its first bytes are 3c 68 74 6d"),
        (b"\0\0\x07\x01", "is not an idx file: its first bytes are 00 00 07 01"),
        (b"\0\0\x08\0", "is not an idx file: its first bytes are 00 00 08 00"),
    ],
)
def test_a_file_that_is_not_idx_is_refused(path, content, message):
    assert message_of(path, content, read_idx).startswith(message)


def test_a_part_of_a_gzip_file_is_refused(path):
    whole = gzip.compress(idx((50,)))
    for size in range(2, len(whole)):
        message = message_of(path, whole[:size], read_idx)
        assert message.startswith("is a damaged gzip file: ")
        assert message.endswith(". Download it again")


@given(place=st.integers(0, 10**9), change=st.integers(1, 255))
def test_a_changed_byte_of_a_gzip_file_is_found_or_harmless(tmp_path_factory, place, change):
    path = tmp_path_factory.getbasetemp() / "changed.gz"
    whole = bytearray(gzip.compress(idx((50,)), mtime=0))
    whole[place % len(whole)] ^= change
    path.write_bytes(whole)
    with contextlib.suppress(DataError):
        assert torch.equal(read_idx(path), torch.arange(50).to(torch.uint8))


def test_a_file_that_cannot_be_opened_is_named(tmp_path):
    gone = message_of(tmp_path / "gone", None, read_idx)
    assert gone == "cannot be read: No such file or directory"
    assert message_of(tmp_path, None, read_idx) == "cannot be read: Is a directory"


@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_a_file_of_the_published_length_must_have_its_checksum(path, pack):
    whole, changed = idx((6,)), idx((6,), b"\0\1\2\3\4\6")
    md5, other = (hashlib.md5(each).hexdigest() for each in (whole, changed))
    published = Published("train-images", len(whole), md5)
    path.write_bytes(pack(whole))
    assert read_idx(path, published).tolist() == list(range(6))
    assert message_of(path, pack(changed), read_idx, published) == (
        f"is damaged or of another data set: its MD5 is {other}, and that of train-images is "
        f"{md5}. Download it again"
    )
    path.write_bytes(pack(idx((5,))))
    assert read_idx(path, published).tolist() == list(range(5))


def records(*labels) -> bytes:
    columns = [np.array(each, dtype=np.uint8)[:, None] for each in labels]
    return np.concatenate([*columns, PIXELS], axis=1).tobytes()


def test_binary_records_are_a_label_and_three_planes(path):
    path.write_bytes(records(LABELS))
    images, labels = read_binary(path)
    assert (images.dtype, images.shape) == (torch.uint8, (5, 3, 32, 32))
    assert images.is_contiguous()
    assert (labels.dtype, labels.tolist()) == (torch.int64, LABELS)
    # Red, green and blue, each row by row.
    for place, (channel, row, column) in (
        (0, (0, 0, 0)),
        (1024 + 33, (1, 1, 1)),
        (3071, (2, 31, 31)),
    ):
        assert images[:, channel, row, column].tolist() == PIXELS[:, place].tolist()


def test_the_finer_of_two_labels_is_used(path):
    path.write_bytes(records([0, 1, 2, 3, 4], [99, 0, 50, 7, 7]))
    images, labels = read_binary(path, num_labels=2)
    assert labels.tolist() == [99, 0, 50, 7, 7]
    assert torch.equal(images.flatten(1), torch.tensor(PIXELS))


@pytest.mark.parametrize("change", [-1, 1, -3072])
def test_a_part_of_a_record_is_refused(path, change):
    whole = records(LABELS)
    content = whole[:change] if change < 0 else whole + bytes(change)
    assert message_of(path, content, read_binary) == (
        f"is truncated or of another kind: it has {15365 + change} bytes, which is not a multiple "
        "of 3073. Download it again"
    )


def batch(**others):
    return {"batch_label": "one", "labels": LABELS, "data": PIXELS, "filenames": ["a"], **others}


@pytest.mark.parametrize(
    "pack",
    [
        pickled,
        pickle.dumps,
        lambda value: pickle.dumps(value, protocol=2),
        lambda value: pickle.dumps({key.encode(): each for key, each in value.items()}, protocol=5),
    ],
)
def test_a_pickled_batch_is_read_as_binary_records_are(path, tmp_path, pack):
    path.write_bytes(pack(batch(fine_labels=[5, 6, 7, 8, 99])))
    (tmp_path / "binary").write_bytes(records(LABELS))
    for found, expected in zip(read_python(path), read_binary(tmp_path / "binary"), strict=True):
        assert torch.equal(found, expected)
        assert found.dtype == expected.dtype
    assert read_python(path, labels="fine_labels")[1].tolist() == [5, 6, 7, 8, 99]


def test_labels_may_be_an_array(path):
    path.write_bytes(pickle.dumps(batch(labels=np.array(LABELS, dtype=np.uint8))))
    assert read_python(path)[1].tolist() == LABELS


UINT8 = "it must be uint8 of shape (N, 3072)"


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ([1, 2], "contains a list; it must be a dict"),
        ({"labels": LABELS}, "has no data; it is a file of another kind"),
        ({"data": PIXELS}, "has no labels; it is a file of another kind"),
        (batch(data=b"abc"), f": data is a bytes; {UINT8}"),
        (batch(data=PIXELS.astype(int)), f": data is int64 of shape (5, 3072); {UINT8}"),
        (batch(data=PIXELS.view(np.int8)), f": data is int8 of shape (5, 3072); {UINT8}"),
        (batch(data=PIXELS[:, :-1]), f": data is uint8 of shape (5, 3071); {UINT8}"),
        (batch(data=PIXELS[0]), f": data is uint8 of shape (3072,); {UINT8}"),
        (batch(labels=["a"] * 5), ": labels is a list; it must be integers"),
        (batch(labels=[True] * 5), ": labels is a list; it must be integers"),
        (batch(labels=[2**63] * 5), ": labels is a list; it must be integers"),
        (batch(labels=None), ": labels is a NoneType; it must be integers"),
        (batch(labels=np.zeros(5)), ": labels is float64 of shape (5,); it must be integers"),
        (
            batch(labels=LABELS[:4]),
            ": labels has shape (4,) and data (5, 3072); there must be one label for each image",
        ),
        (batch(labels=print), "refers to builtins.print, which could execute code, and was not "),
    ],
)
def test_a_pickle_that_is_not_a_batch_is_refused(path, value, message):
    assert message_of(path, pickle.dumps(value), read_python).startswith(message)


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


def same(found, expected) -> bool:
    if isinstance(expected, np.ndarray):
        return (
            isinstance(found, np.ndarray)
            and found.dtype.newbyteorder("=") == expected.dtype.newbyteorder("=")
            and found.shape == expected.shape
            and np.array_equal(found, expected)
        )
    if isinstance(expected, dict):
        return found.keys() == expected.keys() and all(
            same(found[key], expected[key]) for key in expected
        )
    if isinstance(expected, list | tuple):
        return type(found) is type(expected) and all(map(same, found, expected))
    return type(found) is type(expected) and found == expected


PROTOCOLS = range(pickle.HIGHEST_PROTOCOL + 1)
ARRAYS = [
    np.arange(24, dtype=np.uint8).reshape(2, 3, 4),
    np.asfortranarray(np.arange(6, dtype=np.uint8).reshape(2, 3)),
    np.arange(24, dtype=np.uint8).reshape(4, 6)[::2, ::3],
    np.arange(-3, 3),
    np.array([1.5, -2.0], dtype=">f4"),
    np.array([[True, False]]),
    np.array(7, dtype=np.int16),
    np.zeros((0, 3072), dtype=np.uint8),
]


@pytest.mark.parametrize("array", ARRAYS)
def test_arrays_are_read(path, array):
    # For old protocols, Python 3 writes empty bytes as a call, which is refused.
    protocols = PROTOCOLS if array.size else PROTOCOLS[3:]
    contents = [pickle.dumps(array, protocol=protocol) for protocol in protocols]
    if array.flags.c_contiguous:
        contents.append(pickled(array))
    for content in contents:
        assert same(read(path, content), array)


@pytest.mark.parametrize("core", [b"numpy.core", b"numpy._core"])
@pytest.mark.parametrize("protocol", [2, 5])
def test_arrays_of_numpy_1_and_2_are_read(path, core, protocol):
    array = np.arange(6, dtype=np.uint8)
    content = pickle.dumps(array, protocol=2)
    if protocol == 5:
        # With the opcodes of protocol 2, in which a name has no length.
        content = (
            b"\x80\x05cnumpy._core.numeric\n_frombuffer\n(C\x06\0\1\2\3\4\5"
            + b"cnumpy\ndtype\nX\x02\0\0\0u1\x89\x88\x87R(K\x06tX\x01\0\0\0CtR."
        )
    for name in (b"numpy.core", b"numpy._core"):
        content = content.replace(b"c" + name + b".", b"c" + core + b".")
    assert b"c" + core + b"." in content
    assert same(read(path, content), array)


def test_text_of_python_2_is_read_as_bytes(path):
    found = read(path, pickled({"data": ARRAYS[0], "filenames": ["a.png", "caf\xe9.png"]}))
    assert same(found, {b"data": ARRAYS[0], b"filenames": [b"a.png", b"caf\xe9.png"]})


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_plain_values_are_read(path, protocol):
    value = {"a": [1, -(2**70), None, True, 0.5], b"b": (b"\0\xff", "\u20ac"), "c": {3: ARRAYS[0]}}
    assert same(read(path, pickle.dumps(value, protocol=protocol)), value)


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize(
    ("call", "named"),
    [
        (None, "posix.mkdir"),
        (os.system, "posix.system"),
        (builtins.eval, "builtins.eval"),
        (subprocess.getoutput, "subprocess.getoutput"),
        (builtins.getattr, "builtins.getattr"),
    ],
)
@pytest.mark.parametrize(
    "hidden",
    [
        lambda trap: {"data": ARRAYS[0], "labels": [[1, (2, trap)]]},
        lambda trap: {"data": np.array([[1, None], [trap, 2]], dtype=object)},
    ],
)
def test_a_pickle_that_could_execute_code_is_refused_before_it_does(
    path, tmp_path, protocol, call, named, hidden
):
    trap = Trap(tmp_path / "executed", call)
    message = message_of(path, pickle.dumps(hidden(trap), protocol=protocol))
    if "not one of plain numbers" not in message:  # An array of objects may come first.
        if protocol < 3:
            named = named.replace("builtins", "__builtin__").replace("subprocess", "commands")
        assert message == (
            f"refers to {named}, which could execute code, and was not read. Download the file "
            "from its authors"
        )
    assert not trap.path.exists()


def test_the_traps_work(tmp_path):
    for number, call in enumerate((None, builtins.eval)):
        trap = Trap(tmp_path / str(number), call)
        pickle.loads(pickle.dumps(trap))
        assert trap.path.is_dir()


@pytest.mark.parametrize(
    ("value", "first", "last"),
    [
        (StateTrap(), "builtins", "list"),
        (np.uint8(3), "numpy", "scalar"),
        (np.dtype("u1").type, "numpy", "uint8"),
        (1j, "builtins", "complex"),
        (np.ma.array([1]), "numpy", "_mareconstruct"),
        (np.zeros(2).view(np.recarray), "numpy", "recarray"),
    ],
)
def test_other_objects_are_refused(path, value, first, last):
    message = message_of(path, pickle.dumps(value, protocol=4))
    assert message.startswith(f"refers to {first}.")
    assert f".{last}, which could execute code" in message


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("numpy", "ndarray.tofile"),
        ("numpy", "dtype.__class__"),
        ("numpy._core.multiarray", "_reconstruct.__self__"),
        ("numpy", "load"),
        ("clnp.data.readers", "_Array"),
    ],
)
def test_a_name_near_an_admitted_one_is_refused(path, module, name):
    stacked = b"".join(b"\x8c" + bytes([len(each)]) + each.encode() for each in (module, name))
    message = message_of(path, b"\x80\x04" + stacked + b"\x93.")
    assert message.startswith(f"refers to {module}.{name}, ")


DAMAGED = "is damaged or not a pickle of plain arrays: "


@pytest.mark.parametrize(
    ("array", "dtype"),
    [
        (np.array([None, 1], dtype=object), "O8"),
        (np.zeros(2, dtype=[("a", "u1")]), "V1"),
        (np.array(["text"]), "U4"),
        (np.array(["2024-01-01"], dtype="M8[D]"), "M8"),
        (np.array([1j]), "c16"),
    ],
)
def test_arrays_of_other_things_than_numbers_are_refused(path, array, dtype):
    for protocol in (2, 4, 5):
        assert message_of(path, pickle.dumps(array, protocol=protocol)) == (
            f"{DAMAGED}an array of '{dtype}' is not one of plain numbers. Download it again"
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
        (NDARRAY + b")\x81", ""),
        (DTYPE + b")\x81", ""),
        (b"(i" + NDARRAY[1:], "an array is made in an unusual way"),
        (RECONSTRUCT + b"(" + DTYPE + opcodes((0,)) + b"U\x01btR", "an array is of another class"),
        (RECONSTRUCT + b"}U\x01aK\x01sb", "a function has no state"),
        (RECONSTRUCT + b"N}U\x0c__defaults__)s\x86b", "a function has no state"),
        (NDARRAY + b"}b", "a function has no state"),
        (BYTES + opcodes((3, "|", "a", None, None, -1, -1, 0)) + b"b", "an array has fields"),
        (BYTES + opcodes((3, "|", None, "a", {}, -1, -1, 0)) + b"b", "an array has fields"),
        (BYTES + opcodes((3, "O", None, None, None, -1, -1, 0)) + b"b", "byte order b'O'"),
        (DTYPE + opcodes(("O", 0, 1)) + b"R", "an array of 'O' is not one of plain numbers"),
        (DTYPE + opcodes(("u1,O", 0, 1)) + b"R", "an array of 'u1,O' is not one of plain numbers"),
        (DTYPE + opcodes(({}, 0, 1)) + b"R", "dict in place of text"),
        (state_of(opcodes([1, 2])), "an array does not have plain numbers"),
        (state_of(opcodes(b"abc")), "an array of shape (2,) and type uint8 has 3 bytes"),
        (state_of(opcodes(b"ab"), shape=(2**62, 4)), "and type uint8 has 2 bytes"),
        (state_of(opcodes(b"ab"), shape=(-1, -2)), "the shape of an array is not a tuple of "),
        (state_of(opcodes(b"ab"), shape=[2]), "the shape of an array is not a tuple of integers"),
        (state_of(opcodes(b"ab"), dtype=opcodes("O")), "an array does not have plain numbers"),
        (EMPTY + b"}b", ""),
        (FROM_BUFFER + b"(C\x02ab" + BYTES + opcodes((3,)) + b"U\x01CtR", "has 2 bytes"),
        (b"c_codecs\nencode\nX\x01\0\0\0aU\x05rot13\x86R", "another encoding than latin1"),
        (b"c_codecs\nencode\nU\x01aU\x06latin1\x86R", "another encoding than latin1"),
        (b"U\x02osU\x06system\x86R", ""),
        (b"]U\x01a\x85R", ""),
        (b"\x82\x01", "unregistered extension code 1"),
        (b"P7\n", "A load persistent id instruction was encountered"),
        (b"U\x01aQ", "A load persistent id instruction was encountered"),
    ],
)
def test_abuse_of_the_admitted_functions_is_refused(path, content, reason):
    before = {key: vars(each.function).copy() for key, each in readers.ADMITTED.items()}
    message = message_of(path, b"\x80\x02" + content + b".")
    assert message.startswith(DAMAGED)
    assert reason in message
    assert before == {key: vars(each.function) for key, each in readers.ADMITTED.items()}
    assert same(read(path, pickled(ARRAYS[0])), ARRAYS[0])


def test_a_part_of_a_pickle_is_refused(path):
    for whole in (pickled({"data": ARRAYS[0]}), pickle.dumps({"data": ARRAYS[0]}, protocol=5)):
        for size in range(len(whole)):
            assert message_of(path, whole[:size]).startswith(DAMAGED)
        assert message_of(path, whole + whole) == "is longer than its pickle. Download it again"


@pytest.mark.parametrize("content", [b"<html>404</html>", b"name,label\nrose,1\n", b"\0" * 99])
def test_a_file_that_is_not_a_pickle_is_refused(path, content):
    assert message_of(path, content).startswith(DAMAGED)
