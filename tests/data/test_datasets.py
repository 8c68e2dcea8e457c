import os
import pickle
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch

from clnp.data import catalog, datasets
from clnp.data.datasets import KNOWN, data_directory, digits, find, is_there, read_arrays, stand_in
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
    from sklearn.datasets import load_digits

    data = digits()
    assert (data.name, data.num_classes, data.largest) == ("digits", 10, 16.0)
    assert (data.mean, data.deviation) == ((), ())
    images, labels = (torch.tensor(each) for each in load_digits(return_X_y=True))
    test = torch.arange(len(labels)) % 5 == 4
    for (x, y), chosen in ((data.train, ~test), (data.test, test)):
        assert (x.dtype, y.dtype) == (torch.uint8, torch.int64)
        assert torch.equal(x, images[chosen].reshape(-1, 1, 8, 8).to(torch.uint8))
        assert torch.equal(y, labels[chosen])


def test_digits_are_read_without_importing_scikit_learn():
    code = "import sys; from clnp.data.datasets import digits; digits(); "
    code += "sys.exit('sklearn' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_digits_are_read_from_scikit_learn_if_their_file_is_elsewhere(monkeypatch):
    expected = digits()
    monkeypatch.setattr(datasets, "DIGITS_FILE", ("no", "such.csv.gz"))
    found = digits()
    for part, other in ((found.train, expected.train), (found.test, expected.test)):
        assert all(map(torch.equal, part, other))
        assert [each.dtype for each in part] == [each.dtype for each in other]


def test_digits_without_scikit_learn_name_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn", None)  # Python then takes it as not installed.
    assert message_of(find, "digits") == (
        "the data set 'digits' is a part of scikit-learn, which is not installed: "
        "pip install 'clnp[demo]'"
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


def test_bytes_and_floats_cannot_be_mixed(path):
    np.savez(path, **arrays(x_test=np.ones((3, 2, 2))))
    assert message_of(read_arrays, path) == (
        f"{path}: x_train is uint8 and x_test float64; both must be uint8, or both floating point"
    )
    np.savez(path, **arrays(x_train=np.ones((6, 2, 2), dtype=np.float32)))
    assert "x_train is float32 and x_test uint8; both must" in message_of(read_arrays, path)


@pytest.mark.parametrize(("part", "labels"), [("test", [0, 5, 1]), ("train", [0, 0, 0, 5, 0, 0])])
def test_a_class_of_only_one_part_counts(path, part, labels):
    np.savez(path, **arrays(**{f"y_{part}": np.array(labels)}))
    assert read_arrays(path).num_classes == 6


@pytest.mark.parametrize("name", ["x_train", "y_train", "x_test", "y_test"])
def test_a_missing_array_is_named(path, name):
    given = arrays()
    del given[name]
    np.savez(path, **given)
    assert message_of(read_arrays, path) == (
        f"{path} has no array {name}; it must contain x_train, y_train, x_test, y_test"
    )


ONE_EACH = "they must have one entry for each sample, and samples at least one number"


@pytest.mark.parametrize("part", ["train", "test"])
@pytest.mark.parametrize(
    ("x", "y", "message"),
    [
        (
            np.zeros((3, 2), dtype=np.int64),
            np.zeros(3, dtype=int),
            "x_{part} is int64; it must be uint8 (0 to 255) or floating point",
        ),
        (
            np.zeros((3, 2)),
            np.zeros(3),
            "y_{part} is float64 of shape (3,); it must be one integer for each sample",
        ),
        (
            np.zeros((3, 2)),
            np.zeros((3, 2), dtype=int),
            "y_{part} is int64 of shape (3, 2); it must be one integer for each sample",
        ),
        (
            np.zeros((3, 2)),
            np.array(["rose", "tulip", "rose"]),
            "y_{part} is <U5 of shape (3,); it must be one integer for each sample",
        ),
        (np.zeros((3, 2)), np.zeros(2, dtype=int), "x_{part} has shape (3, 2) and y_{part} (2,); "),
        (np.zeros(3), np.zeros(3, dtype=int), "x_{part} has shape (3,) and y_{part} (3,); "),
        (np.zeros((3, 0)), np.zeros(3, dtype=int), "x_{part} has shape (3, 0) and y_{part} (3,); "),
        (np.zeros((0, 2)), np.zeros(0, dtype=int), "x_{part} has shape (0, 2) and y_{part} (0,); "),
        (np.zeros((3, 2)), np.array([0, -1, 1]), "y_{part} has the label -1; labels count from 0"),
        (
            np.zeros((3, 2)),
            np.array([0, 10**6, 1]),
            "y_{part} has the label 1000000; labels count from 0",
        ),
    ],
)
def test_arrays_of_another_kind_are_refused(path, part, x, y, message):
    np.savez(path, **arrays(**{f"x_{part}": x, f"y_{part}": y}))
    message = message.format(part=part) + (ONE_EACH if message.endswith("; ") else "")
    assert message_of(read_arrays, path) == f"{path}: {message}"


def test_samples_of_another_shape_are_refused(path):
    np.savez(path, **arrays(x_test=np.zeros((3, 4), dtype=np.uint8)))
    assert message_of(read_arrays, path) == (
        f"{path}: samples of x_train have shape (2, 2) and those of x_test (4,); they must have "
        "the same"
    )


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"name,label\nrose,1\n",
        b"PK\x03\x04 and no more",
        b"\x93NUMPY\x01\x00",
        pickle.dumps({"x_train": [1]}),
    ],
)
def test_a_file_of_another_kind_is_refused(path, content):
    path.write_bytes(content)
    assert message_of(read_arrays, path) == f"{path} is not an npz file, or is truncated"


def test_a_damaged_file_is_refused(path):
    np.savez(path, **arrays())
    whole = bytearray(path.read_bytes())
    for size in range(0, len(whole), 97):
        path.write_bytes(whole[:size])
        assert message_of(read_arrays, path) == f"{path} is not an npz file, or is truncated"
    whole[whole.index(b"\xff" * 12)] = 254  # in x_test
    path.write_bytes(whole)
    assert message_of(read_arrays, path) == (
        f"{path} cannot be read as an npz file of plain arrays: Bad CRC-32 for file 'x_test.npy'"
    )


def test_a_zip_file_of_something_else_is_refused(path):
    with zipfile.ZipFile(path, "w") as file:
        for name in arrays():
            file.writestr(f"{name}.npy", b"garbage")
    assert f"{path}: x_train is |S7; it must be uint8" in message_of(read_arrays, path)
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("readme.txt", b"hello")
    assert "has no array x_train; it must contain" in message_of(read_arrays, path)


@pytest.mark.parametrize("name", ["x_train", "y_test"])
def test_objects_are_refused_and_not_executed(path, tmp_path, name):
    trap = Trap(tmp_path / "executed")
    np.savez(path, **arrays(**{name: np.array([trap], dtype=object)}))
    with np.load(path, allow_pickle=True) as file:
        assert file[name].tolist() == [None]
    trap.path.rmdir()  # It works.
    assert message_of(read_arrays, path) == (
        f"{path} cannot be read as an npz file of plain arrays: Object arrays cannot be loaded "
        "when allow_pickle=False"
    )
    assert not trap.path.exists()


def test_a_pickle_in_front_of_a_zip_file_is_refused(path, tmp_path):
    trap = Trap(tmp_path / "executed")
    np.savez(path, **arrays())
    path.write_bytes(pickle.dumps(trap) + path.read_bytes())
    assert message_of(read_arrays, path) == (
        f"{path} cannot be read as an npz file of plain arrays: This file contains pickled "
        "(object) data"
    )
    assert not trap.path.exists()


def test_a_long_message_of_numpy_is_cut(path):
    name = "x" * 20_000  # numpy explains on several lines that a long header may be an attack.
    np.savez(path, **arrays(x_train=np.zeros(3, dtype=[(name, np.uint8)])))
    message = message_of(read_arrays, path)
    assert message.startswith(f"{path} cannot be read as an npz file of plain arrays: Header info")
    assert "allow_pickle" not in message


def test_a_file_that_cannot_be_opened_is_not_called_damaged(path):
    path.symlink_to(path)
    message = message_of(read_arrays, path)
    assert message.startswith(f"{path} cannot be read as an npz file of plain arrays: [Errno ")


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
        "unknown data set 'digit'; did you mean 'digits'? Known: digits, mnist, fashion-mnist, "
        f"cifar10, cifar100, and there is no file {tmp_path}/digit.npz. Set the directory with "
        "--data or CLNP_DATA"
    )
    (tmp_path / "flowers.npz").mkdir()
    assert "there is no file" in message_of(find, "flowers")
    assert os.listdir(tmp_path) == ["flowers.npz"]


@pytest.mark.parametrize("name", catalog.CATALOG)
def test_a_data_set_of_the_catalog_is_in_the_same_directory(tmp_path, monkeypatch, name):
    asked = []
    monkeypatch.setattr(catalog, "load", lambda *args, **options: asked.append((args, options)))
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
        entry = catalog.CATALOG[name]
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
