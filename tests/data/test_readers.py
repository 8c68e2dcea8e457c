import contextlib
import gzip
import hashlib
import os
import pickle

import numpy as np
import pytest
import torch

from clnp.data.readers import Published, read_binary, read_idx, read_python
from clnp.errors import DataError
from support.data_files import idx, pickled

PIXELS = np.random.default_rng(0).integers(0, 256, (5, 3072), dtype=np.uint8)
LABELS = [3, 0, 9, 9, 1]


@pytest.fixture
def path(tmp_path):
    return tmp_path / "file"


def message_of(path, content=None, call=read_python, *args, **options) -> str:
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
            start = whole[:size].hex(" ") or "nothing"
            assert message.startswith(f"is not an idx file of bytes: it begins with {start}. Down")
        elif size < 12:
            assert message == "is truncated: it has no data. Download it again"
        else:
            assert message == (
                f"is truncated: it has {size} bytes, and its shape (2, 3) needs 18. "
                "Download it again"
            )


NOT_IDX = "is not an idx file of bytes: it begins with "


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (idx((2, 3)) + b"!", "is too long: it has 19 bytes, and its shape (2, 3) needs 18. "),
        (idx((2**32 - 1, 2**32 - 1), b"few"), "is truncated: it has 15 bytes, and its shape "),
        (idx((1,), bytes(8), kind=14), NOT_IDX + "00 00 0e 01. "),
        (b"<html>404</html>", NOT_IDX + "3c 68 74 6d. "),
        (b"\0\0\x08\0", NOT_IDX + "00 00 08 00. "),
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


def test_a_changed_byte_of_a_gzip_file_is_found_or_harmless(path):
    whole = gzip.compress(idx((50,)), mtime=0)
    for place in range(len(whole)):
        for change in (1, 255):
            changed = bytearray(whole)
            changed[place] ^= change
            path.write_bytes(changed)
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


@pytest.mark.parametrize("pack", [pickled, pickle.dumps])
def test_a_pickled_batch_is_read_as_binary_records_are(path, tmp_path, pack):
    path.write_bytes(pack(batch(fine_labels=[5, 6, 7, 8, 99])))
    (tmp_path / "binary").write_bytes(records(LABELS))
    for found, expected in zip(read_python(path), read_binary(tmp_path / "binary"), strict=True):
        assert torch.equal(found, expected)
        assert found.dtype == expected.dtype
    assert read_python(path, labels="fine_labels")[1].tolist() == [5, 6, 7, 8, 99]


def test_a_pickle_in_parts_of_a_thousand_labels_with_a_memo_is_read(path):
    """As `cPickle` of Python 2 writes it."""
    numbers = [n % 10 for n in range(2500)]
    content = b"\x80\x02}q\x01(U\x06labelsq\x02]q\x03"
    for first in range(0, 2500, 1000):
        part = numbers[first : first + 1000]
        content += b"(" + b"".join(b"K" + bytes([n]) for n in part) + b"e"
    pixels = np.arange(2500 * 3072, dtype=np.uint32).astype(np.uint8).reshape(2500, 3072)
    path.write_bytes(content + pickled({"data": pixels})[4:-2] + b"u.")
    images, labels = read_python(path)
    assert labels.tolist() == numbers
    assert torch.equal(images.flatten(1), torch.from_numpy(pixels))


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"labels": LABELS}, "has 5 labels and 0 bytes of pixels. It must have 3072 for each"),
        ({"data": PIXELS}, "has 0 labels and 15360 bytes of pixels. It must have 3072 for each"),
        (batch(data=PIXELS.astype(int)), "has 5 labels and 122880 bytes of pixels. "),
        (batch(labels=LABELS[:4]), "has 4 labels and 15360 bytes of pixels. "),
        (
            batch(data=np.asfortranarray(PIXELS)),
            "is damaged or not a pickled batch: its array is in Fortran order. ",
        ),
    ],
)
def test_a_pickle_that_is_not_a_batch_is_refused(path, value, message):
    assert message_of(path, pickle.dumps(value, protocol=4), read_python).startswith(message)


class Trap:
    """Makes a directory when it is unpickled."""

    def __init__(self, path) -> None:
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


def test_a_pickle_is_not_executed(path, tmp_path):
    trap = Trap(tmp_path / "executed")
    path.write_bytes(pickle.dumps(batch(more=trap)))
    assert read_python(path)[1].tolist() == LABELS
    assert not trap.path.exists()
    pickle.loads(path.read_bytes())
    assert trap.path.is_dir()  # The trap works.


@pytest.mark.parametrize("content", [b"<html>404</html>", b"name,label\nrose,1\n", b"\0" * 99])
def test_a_file_that_is_not_a_pickle_is_refused(path, content):
    assert message_of(path, content).startswith("is damaged or not a pickled batch: ")


def test_a_part_of_a_pickle_is_refused(path):
    for whole in (pickled(batch()), pickle.dumps(batch())):
        for size in [*range(60), *range(60, len(whole), 3000), len(whole) - 1]:
            assert message_of(path, whole[:size]).startswith("is damaged or not a pickled batch: ")
