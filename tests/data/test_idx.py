import contextlib
import gzip
import hashlib
import struct

import pytest
import torch
from hypothesis import given, strategies as st

from clnp.data.readers import Published, read_idx
from clnp.errors import DataError


def idx(shape, content=None, *, kind=8) -> bytes:
    """An idx file, with 0, 1, 2 and so on in it unless the content is given."""
    count = torch.Size(shape).numel()
    numbers = bytes(n % 256 for n in range(count)) if content is None else content
    return bytes([0, 0, kind, len(shape)]) + struct.pack(f">{len(shape)}I", *shape) + numbers


@pytest.fixture
def path(tmp_path):
    return tmp_path / "train-images-idx3-ubyte"


def message_of(path, *args) -> str:
    with pytest.raises(DataError) as caught:
        read_idx(path, *args)
    return str(caught.value)


@pytest.mark.parametrize("shape", [(5,), (3, 2, 4), (300,), (0,), (2, 0, 3), (1, 1, 1, 1)])
@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_bytes_come_in_the_shape_that_the_file_says(path, shape, pack):
    path.write_bytes(pack(idx(shape)))
    found = read_idx(path)
    assert found.dtype == torch.uint8
    assert torch.equal(found, torch.arange(found.numel()).to(torch.uint8).reshape(shape))


def test_what_is_read_can_be_written_to(path):
    path.write_bytes(idx((3,)))
    found = read_idx(path)
    found[0] = 7
    assert found.tolist() == [7, 1, 2]


@pytest.mark.parametrize("name", ["images.gz", "images"])
def test_the_content_says_whether_a_file_is_gzipped_not_its_name(tmp_path, name):
    for content in (idx((4,)), gzip.compress(idx((4,)))):
        (tmp_path / name).write_bytes(content)
        assert read_idx(tmp_path / name).tolist() == [0, 1, 2, 3]


def test_a_part_of_a_file_is_refused_however_short(path):
    whole = idx((2, 3))
    for size in range(len(whole)):
        path.write_bytes(whole[:size])
        message = message_of(path)
        if size < 4:
            start = whole[:size].hex(" ") or "none"
            assert message == f"{path} is not an idx file: it begins with the bytes {start}"
        elif size < 12:
            assert message == f"{path} is truncated, get it again: it ends before its data begin"
        else:
            assert message == (
                f"{path} is truncated, get it again: it has {size} bytes, and 18 are needed for "
                "the shape (2, 3) that it says"
            )


def test_a_file_that_is_too_long_is_refused(path):
    path.write_bytes(idx((2, 3)) + b"!")
    assert message_of(path) == (
        f"{path} is too long, get it again: it has 19 bytes, and 18 are needed for the shape "
        "(2, 3) that it says"
    )


def test_an_absurd_shape_is_refused_without_memory_for_it(path):
    path.write_bytes(idx((2**32 - 1, 2**32 - 1), b"few"))
    assert "is truncated, get it again: it has 15 bytes, and 18446744065119617037" in message_of(
        path
    )


@pytest.mark.parametrize(
    ("kind", "named"),
    [
        (9, "signed bytes"),
        (11, "short integers"),
        (12, "integers"),
        (13, "floats"),
        (14, "doubles"),
    ],
)
def test_numbers_of_another_kind_are_refused(path, kind, named):
    path.write_bytes(idx((1,), bytes(8), kind=kind))
    assert message_of(path) == f"{path} is an idx file of {named}; one of bytes is needed"


@pytest.mark.parametrize(
    "content", [b"<html>404</html>", b"\0\0\x07\x01", b"\0\0\x08\0", b"\x80\x02"]
)
def test_a_file_of_another_kind_is_refused(path, content):
    path.write_bytes(content)
    start = content[:4].hex(" ")
    assert message_of(path) == f"{path} is not an idx file: it begins with the bytes {start}"


def test_a_part_of_a_gzip_file_is_refused_however_short(path):
    whole = gzip.compress(idx((50,)))
    for size in range(2, len(whole)):
        path.write_bytes(whole[:size])
        assert message_of(path).startswith(f"{path} is a damaged gzip file, get it again: ")


@given(place=st.integers(0, 10**9), change=st.integers(1, 255))
def test_a_changed_byte_of_a_gzip_file_is_noticed_or_harmless(tmp_path_factory, place, change):
    path = tmp_path_factory.getbasetemp() / "changed.gz"
    whole = bytearray(gzip.compress(idx((50,)), mtime=0))
    whole[place % len(whole)] ^= change
    path.write_bytes(whole)
    with contextlib.suppress(DataError):
        assert torch.equal(read_idx(path), torch.arange(50).to(torch.uint8))


def test_a_file_that_cannot_be_opened_is_named(tmp_path):
    assert message_of(tmp_path / "gone") == (
        f"{tmp_path / 'gone'} cannot be read: No such file or directory"
    )
    assert message_of(tmp_path) == f"{tmp_path} cannot be read: Is a directory"


@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_a_file_as_long_as_the_published_one_must_be_that_one(path, pack):
    whole = idx((6,))
    md5 = hashlib.md5(whole).hexdigest()
    published = Published("train-images-idx3-ubyte", len(whole), md5)
    path.write_bytes(pack(whole))
    assert read_idx(path, published).tolist() == list(range(6))
    changed = idx((6,), b"\0\1\2\3\4\6")
    path.write_bytes(pack(changed))
    assert message_of(path, published) == (
        f"{path} is damaged or of another data set, get it again: its MD5 is "
        f"{hashlib.md5(changed).hexdigest()}, and that of the published train-images-idx3-ubyte "
        f"is {md5}"
    )
    path.write_bytes(pack(idx((5,))))
    assert read_idx(path, published).tolist() == list(range(5))
