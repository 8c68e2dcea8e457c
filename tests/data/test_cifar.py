import pickle

import numpy as np
import pytest
import torch

from clnp.data.readers import read_binary, read_python
from clnp.errors import DataError
from support.python2 import pickled

PIXELS = np.random.default_rng(0).integers(0, 256, (5, 3072), dtype=np.uint8)
LABELS = [3, 0, 9, 9, 1]


@pytest.fixture
def path(tmp_path):
    return tmp_path / "data_batch_1"


def message_of(call, path, **options) -> str:
    with pytest.raises(DataError) as caught:
        call(path, **options)
    return str(caught.value)


def records(*labels) -> bytes:
    """Binary records, with one label of each of the lists before the pixels."""
    columns = [np.array(each, dtype=np.uint8)[:, None] for each in labels]
    return np.concatenate([*columns, PIXELS], axis=1).tobytes()


def test_binary_records_are_a_label_and_three_planes(path):
    path.write_bytes(records(LABELS))
    images, labels = read_binary(path)
    assert images.dtype == torch.uint8
    assert images.shape == (5, 3, 32, 32)
    assert images.is_contiguous()
    assert labels.dtype == torch.int64
    assert labels.tolist() == LABELS
    # Red, green and blue, each row by row.
    for place, (channel, row, column) in (
        (0, (0, 0, 0)),
        (1024 + 33, (1, 1, 1)),
        (3071, (2, 31, 31)),
    ):
        assert images[:, channel, row, column].tolist() == PIXELS[:, place].tolist()


def test_the_finer_of_two_labels_counts(path):
    path.write_bytes(records([0, 1, 2, 3, 4], [99, 0, 50, 7, 7]))
    images, labels = read_binary(path, num_labels=2)
    assert labels.tolist() == [99, 0, 50, 7, 7]
    assert torch.equal(images.flatten(1), torch.tensor(PIXELS))


@pytest.mark.parametrize("change", [-1, 1, -3072])
def test_a_file_that_is_no_whole_number_of_records_is_refused(path, change):
    whole = records(LABELS)
    path.write_bytes(whole[:change] if change < 0 else whole + bytes(change))
    assert message_of(read_binary, path) == (
        f"{path} is truncated or of another kind, get it again: it has {15365 + change} bytes, "
        "which is not a whole number of records of 3073"
    )
    assert "records of 3074" in message_of(read_binary, path, num_labels=2)


def batch(**others):
    return {
        "batch_label": "one",
        "labels": LABELS,
        "data": PIXELS,
        "filenames": ["a"] * 5,
        **others,
    }


@pytest.mark.parametrize(
    "pack",
    [
        pickled,
        pickle.dumps,
        lambda value: pickle.dumps(value, protocol=2),
        lambda value: pickle.dumps({key.encode(): each for key, each in value.items()}, protocol=5),
    ],
)
def test_both_formats_give_the_same(path, tmp_path, pack):
    path.write_bytes(pack(batch()))
    images, labels = read_python(path)
    (tmp_path / "binary").write_bytes(records(LABELS))
    expected_images, expected_labels = read_binary(tmp_path / "binary")
    assert torch.equal(images, expected_images)
    assert torch.equal(labels, expected_labels)
    assert (images.dtype, labels.dtype) == (torch.uint8, torch.int64)


def test_the_labels_are_where_they_are_said_to_be(path):
    path.write_bytes(pickled(batch(fine_labels=[5, 6, 7, 8, 99])))
    assert read_python(path, labels="fine_labels")[1].tolist() == [5, 6, 7, 8, 99]


def test_labels_may_be_an_array(path):
    path.write_bytes(pickle.dumps(batch(labels=np.array(LABELS, dtype=np.uint8))))
    assert read_python(path)[1].tolist() == LABELS


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ([1, 2], " holds a list; a dict is needed"),
        ({"labels": LABELS}, " has no data; it is a file of another kind"),
        ({"data": PIXELS}, " has no labels; it is a file of another kind"),
        (batch(data=b"abc"), ": data is a bytes; uint8 of shape (N, 3072) is needed"),
        (
            batch(data=PIXELS.astype(np.int64)),
            ": data is int64 of shape (5, 3072); uint8 of shape (N, 3072) is needed",
        ),
        (
            batch(data=PIXELS.view(np.int8)),
            ": data is int8 of shape (5, 3072); uint8 of shape (N, 3072) is needed",
        ),
        (
            batch(data=PIXELS[:, :-1]),
            ": data is uint8 of shape (5, 3071); uint8 of shape (N, 3072) is needed",
        ),
        (
            batch(data=PIXELS[0]),
            ": data is uint8 of shape (3072,); uint8 of shape (N, 3072) is needed",
        ),
        (batch(labels=["a"] * 5), ": labels is a list; whole numbers are needed"),
        (batch(labels=[True] * 5), ": labels is a list; whole numbers are needed"),
        (batch(labels=[2**63] * 5), ": labels is a list; whole numbers are needed"),
        (batch(labels=None), ": labels is a NoneType; whole numbers are needed"),
        (batch(labels=np.zeros(5)), ": labels is float64 of shape (5,); whole numbers are needed"),
        (
            batch(labels=LABELS[:4]),
            ": labels has shape (4,) and data (5, 3072); one label is needed for each image",
        ),
    ],
)
def test_a_dict_of_other_things_is_refused(path, value, message):
    path.write_bytes(pickle.dumps(value))
    assert message_of(read_python, path) == f"{path}{message}"


def test_a_pickle_that_would_execute_code_is_refused(path):
    path.write_bytes(pickle.dumps(batch(labels=print)))
    assert message_of(read_python, path).startswith(f"{path} asks for builtins.print, ")
