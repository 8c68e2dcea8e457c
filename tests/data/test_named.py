import os
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch

from clnp import extras
from clnp.data import datasets
from clnp.data.named import KNOWN, data_directory, digits, find, is_there, read_arrays, stand_in
from clnp.errors import DataError


def arrays(**others):
    """Six training and three test samples of three classes, in bytes."""
    return {
        "x_train": np.arange(6 * 4, dtype=np.uint8).reshape(6, 2, 2) * 10,
        "y_train": np.array([0, 1, 2, 0, 1, 2]),
        "x_test": np.full((3, 2, 2), 255, dtype=np.uint8),
        "y_test": np.array([2, 1, 0], dtype=np.uint8),
        **others,
    }


@pytest.fixture
def path(tmp_path):
    return tmp_path / "mine.npz"


def message_of(call, *args) -> str:
    with pytest.raises(DataError) as caught:
        call(*args)
    message = str(caught.value)
    assert len(message.splitlines()) == 1
    return message


class Trap:
    """Makes a directory when it is unpickled."""

    def __init__(self, path) -> None:
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


def test_every_fifth_digit_is_for_testing():
    data = digits()
    assert (data.name, data.num_classes, data.largest) == ("digits", 10, 16.0)
    assert (data.mean, data.deviation) == ((), ())
    sizes = {"train": 1438, "test": 359}
    for part, (x, y) in (("train", data.train), ("test", data.test)):
        assert (x.dtype, x.shape) == (torch.uint8, (sizes[part], 1, 8, 8))
        assert (y.dtype, y.shape) == (torch.int64, (sizes[part],))
    # As `sklearn.datasets.load_digits` returns them, whose import takes seconds.
    assert data.train[1][:8].tolist() == [0, 1, 2, 3, 5, 6, 7, 8]
    assert data.test[1][:2].tolist() == [4, 9]
    assert data.train[0][0, 0, 0].tolist() == [0, 0, 5, 13, 9, 1, 0, 0]
    assert data.test[0][0, 0, 7].tolist() == [0, 0, 0, 2, 16, 4, 0, 0]


def test_digits_without_scikit_learn_name_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn", None)  # Python then takes it as not installed.
    assert message_of(find, "digits") == (
        "the data set 'digits' is a part of scikit-learn, which is not installed. Install it "
        f"with {extras.command('demo')}"
    )
    assert not is_there("digits")


def test_bytes_are_kept_and_divided_by_255(path):
    given = arrays()
    np.savez(path, **given)
    data = read_arrays(path)
    assert (data.name, data.num_classes, data.largest) == ("mine", 3, 255.0)
    assert (data.shape, data.mean, data.deviation) == ((2, 2), (), ())
    for part, (x, y) in (("train", data.train), ("test", data.test)):
        assert torch.equal(x, torch.tensor(given[f"x_{part}"]))
        assert (x.dtype, y.dtype) == (torch.uint8, torch.int64)
        assert y.tolist() == given[f"y_{part}"].tolist()


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", ">f4"])
def test_floating_point_numbers_become_float32_and_are_not_divided(path, dtype):
    x = np.linspace(-3, 3, 12).reshape(6, 2).astype(dtype)
    # Compressed, and with an array that is ignored.
    np.savez_compressed(path, **arrays(x_train=x, x_test=x[:3], comment=np.zeros(1)))
    data = read_arrays(path)
    assert data.largest == 1.0
    assert data.train[0].dtype == data.test[0].dtype == torch.float32
    assert torch.equal(data.train[0], torch.tensor(x.astype(np.float32)))
    assert torch.equal(data.test[0], data.train[0][:3])


def test_numbers_that_are_too_large_for_float32_become_infinite(path):
    # They are refused when the task is loaded. Until then there is no warning.
    np.savez(path, **arrays(x_train=np.full((6, 2), 1e300), x_test=np.zeros((3, 2))))
    assert bool(read_arrays(path).train[0].isinf().all())


@pytest.mark.parametrize(("part", "labels"), [("test", [0, 5, 1]), ("train", [0, 0, 0, 5, 0, 0])])
def test_a_class_of_only_one_part_counts(path, part, labels):
    np.savez(path, **arrays(**{f"y_{part}": np.array(labels)}))
    assert read_arrays(path).num_classes == 6


UNREADABLE = "cannot be read as an npz file of the arrays x_train, y_train, x_test, y_test: "


def test_a_missing_array_is_named(path):
    given = arrays()
    del given["x_test"]
    np.savez(path, **given)
    assert message_of(read_arrays, path) == (
        f"{path} {UNREADABLE}\"There is no item named 'x_test.npy' in the archive\""
    )


SAMPLES = "It must have samples of uint8 (0 to 255) or of floating-point numbers"
LABELS = "It must have one integer for each of the 3 samples"


@pytest.mark.parametrize(
    ("x", "y", "message"),
    [
        (np.zeros((3, 2), dtype=np.int64), [0, 0, 0], "x_{part} is int64 of shape (3, 2). SAMPLES"),
        (np.zeros(3), [0, 0, 0], "x_{part} is float64 of shape (3,). SAMPLES"),
        (np.zeros((3, 0)), [0, 0, 0], "x_{part} is float64 of shape (3, 0). SAMPLES"),
        (np.zeros((0, 2)), [], "x_{part} is float64 of shape (0, 2). SAMPLES"),
        (np.zeros((3, 2)), [0.0, 0.0, 0.0], "y_{part} is float64 of shape (3,). LABELS"),
        (np.zeros((3, 2)), [[0], [0], [0]], "y_{part} is int64 of shape (3, 1). LABELS"),
        (np.zeros((3, 2)), ["rose", "tulip", "rose"], "y_{part} is <U5 of shape (3,). LABELS"),
        (np.zeros((3, 2)), [0, 0], "y_{part} is int64 of shape (2,). LABELS"),
        (np.zeros((3, 2)), [0, -1, 1], "y_{part} goes from -1 to 1. Labels count from 0"),
        (np.zeros((3, 2)), [0, 10**6, 1], "y_{part} goes from 0 to 1000000. Labels count from 0"),
    ],
)
def test_arrays_of_another_kind_are_refused(path, x, y, message):
    for part in ("train", "test"):
        np.savez(path, **arrays(**{f"x_{part}": x, f"y_{part}": np.array(y)}))
        expected = message.replace("SAMPLES", SAMPLES).replace("LABELS", LABELS)
        assert message_of(read_arrays, path) == f"{path}: {expected.format(part=part)}"


def test_samples_of_another_shape_or_type_are_refused(path):
    for x_test in (np.zeros((3, 4), dtype=np.uint8), np.ones((3, 2, 2))):
        np.savez(path, **arrays(x_test=x_test))
        message = "data set 'mine': training samples are torch.uint8 of shape (2, 2), and test"
        assert message_of(read_arrays, path).startswith(message)


@pytest.mark.parametrize(
    "content", [b"", b"name,label\nrose,1\n", b"PK\x03\x04 and no more", b"\x93NUMPY\x01\x00"]
)
def test_a_file_of_another_kind_is_refused(path, content):
    path.write_bytes(content)
    assert message_of(read_arrays, path) == f"{path} {UNREADABLE}File is not a zip file"


def test_a_damaged_file_is_refused(path):
    np.savez(path, **arrays())
    whole = bytearray(path.read_bytes())
    for size in range(0, len(whole), 97):
        path.write_bytes(whole[:size])
        assert message_of(read_arrays, path) == f"{path} {UNREADABLE}File is not a zip file"
    whole[whole.index(b"\xff" * 12)] = 254  # in x_test
    path.write_bytes(whole)
    assert message_of(read_arrays, path) == (f"{path} {UNREADABLE}Bad CRC-32 for file 'x_test.npy'")


def test_a_zip_file_of_something_else_is_refused(path):
    with zipfile.ZipFile(path, "w") as file:
        for name in arrays():
            file.writestr(f"{name}.npy", b"garbage, and more of it")
    assert message_of(read_arrays, path).startswith(f"{path} {UNREADABLE}the magic string is not ")


@pytest.mark.parametrize("name", ["x_train", "y_test"])
def test_objects_are_refused_and_not_executed(path, tmp_path, name):
    trap = Trap(tmp_path / "executed")
    np.savez(path, **arrays(**{name: np.array([trap], dtype=object)}))
    with np.load(path, allow_pickle=True) as file:
        assert file[name].tolist() == [None]
    trap.path.rmdir()  # It works.
    assert message_of(read_arrays, path) == (
        f"{path} {UNREADABLE}Object arrays cannot be loaded when allow_pickle=False"
    )
    assert not trap.path.exists()


def test_a_long_message_of_numpy_is_cut(path):
    name = "x" * 20_000  # numpy explains on several lines that a long header may be an attack.
    np.savez(path, **arrays(x_train=np.zeros(3, dtype=[(name, np.uint8)])))
    message = message_of(read_arrays, path)
    assert message.startswith(f"{path} {UNREADABLE}Header info")
    assert "allow_pickle" not in message


def test_a_file_that_cannot_be_opened_is_not_called_damaged(path):
    path.symlink_to(path)
    assert message_of(read_arrays, path).startswith(f"{path} {UNREADABLE}[Errno ")


def test_a_directory_has_priority_over_the_environment(tmp_path, monkeypatch):
    for folder, label in (("given", 4), ("environment", 6)):
        (tmp_path / folder).mkdir()
        np.savez(tmp_path / folder / "mine.npz", **arrays(y_test=np.array([0, label, 0])))
    monkeypatch.setenv("CLNP_DATA", str(tmp_path / "environment"))
    monkeypatch.setenv("HOME", str(tmp_path / "given"))
    assert find("mine").num_classes == 7
    for directory in (tmp_path / "given", str(tmp_path / "given"), "~"):
        assert find("mine", directory).num_classes == 5
    assert find("digits", tmp_path / "nowhere").num_classes == 10


def test_without_a_directory_data_is_in_the_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("CLNP_DATA", "")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for cache in ("", "relative"):  # Neither is valid.
        monkeypatch.setenv("XDG_CACHE_HOME", cache)
        assert data_directory() == tmp_path / "home" / ".cache" / "clnp"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert data_directory() == tmp_path / "cache" / "clnp"
    monkeypatch.setenv("CLNP_DATA", "~/data")
    assert data_directory() == tmp_path / "home" / "data"
    assert data_directory("here") == Path("here")
    assert os.listdir(tmp_path) == []


def test_an_unknown_data_set_is_named(tmp_path, monkeypatch):
    monkeypatch.setenv("CLNP_DATA", str(tmp_path))
    assert message_of(find, "digit") == (
        "unknown data set 'digit'. Did you mean 'digits'? Known: digits, mnist, fashion-mnist, "
        f"cifar10, cifar100, and there is no file {tmp_path}/digit.npz. Set the directory with "
        "--data or CLNP_DATA"
    )
    (tmp_path / "flowers.npz").mkdir()
    assert "there is no file" in message_of(find, "flowers")
    assert os.listdir(tmp_path) == ["flowers.npz"]


@pytest.mark.parametrize("name", datasets.DATASETS)
def test_a_data_set_of_the_table_is_in_the_same_directory(tmp_path, monkeypatch, name):
    asked = []
    monkeypatch.setattr(datasets, "load", lambda *args, **options: asked.append((args, options)))
    monkeypatch.setenv("CLNP_DATA", str(tmp_path))
    find(name)
    find(name, "~", on_progress=print)
    assert asked == [
        ((name, tmp_path), {"on_progress": None}),
        ((name, Path.home()), {"on_progress": print}),
    ]


def test_a_data_set_is_there_or_not(path):
    assert is_there("digits")
    assert not is_there("mnist", path.parent)
    assert not is_there("mine", path.parent)
    np.savez(path, **arrays())
    assert is_there("mine", path.parent)


@pytest.mark.parametrize("name", KNOWN)
def test_every_known_data_set_has_a_stand_in_with_all_classes(name):
    found = stand_in(name)
    if name == "digits":
        own = digits()
        for field in ("name", "num_classes", "largest", "mean", "deviation", "shape"):
            assert getattr(own, field) == getattr(found, field)
    else:
        entry = datasets.DATASETS[name]
        assert (found.num_classes, found.shape) == (entry.num_classes, entry.shape)
        assert (found.mean, found.deviation) == (entry.mean, entry.deviation)
        # All have 10,000 test images, with zero, one or two labels in front of each.
        num_labels = entry.layouts[0].test[0].size // 10_000 - found.test[0][0].numel()
        assert num_labels in (0, 1, 2)
    for x, y in (found.train, found.test):
        assert (x.dtype, int(x.max())) == (torch.uint8, found.largest)
        assert len(x) == len(y)
        assert y.unique().tolist() == list(range(found.num_classes))
    assert not torch.equal(found.train[0], found.test[0])


def test_arrays_of_the_user_have_no_stand_in(tmp_path):
    assert "there is no file" in message_of(stand_in, "mine", tmp_path)
