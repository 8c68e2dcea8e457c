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
from clnp.data.labelled import LabelledData, Prepare
from clnp.errors import ArgumentError, DataError
from support.terminal import SRC


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
    assert isinstance(caught.value, RuntimeError)
    return str(caught.value)


class Trap:
    """Makes a file when it is unpickled."""

    def __init__(self, path) -> None:
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


def test_digits_are_whole_and_every_fifth_is_for_testing():
    from sklearn.datasets import load_digits

    data = digits()
    assert (data.name, data.num_classes, data.largest) == ("digits", 10, 16.0)
    assert data.shape == (1, 8, 8)
    (x, y), (x_test, y_test) = data.train, data.test
    assert x.shape == (1438, 1, 8, 8)
    assert x_test.shape == (359, 1, 8, 8)
    assert x.dtype == x_test.dtype == torch.uint8
    assert y.dtype == y_test.dtype == torch.int64
    images, labels = load_digits(return_X_y=True)
    for place in (0, 1, 2, 3, 5, 8, 1796):
        if place % 5 != 4:
            here = place - (place + 1) // 5
            assert x[here].flatten().tolist() == images[place].tolist()
            assert y[here] == labels[place]
    assert x_test[1].flatten().tolist() == images[9].tolist()
    assert y_test.tolist() == labels[4::5].tolist()


def test_all_digits_are_in_both_parts_and_go_up_to_the_largest():
    data = digits()
    for x, y in (data.train, data.test):
        assert y.unique().tolist() == list(range(10))
        assert (int(x.min()), int(x.max())) == (0, 16)


def test_digits_are_read_without_importing_what_they_come_with():
    read = "import sys; from clnp import datasets; datasets.digits()"
    code = f"{read}; sys.exit('sklearn' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": SRC}, check=True)


def test_digits_that_lie_elsewhere_are_found(monkeypatch):
    expected = digits()
    monkeypatch.setattr(datasets, "DIGITS_FILE", ("no", "such.csv.gz"))
    found = digits()
    for (x, y), (own_x, own_y) in ((found.train, expected.train), (found.test, expected.test)):
        assert torch.equal(x, own_x)
        assert torch.equal(y, own_y)
        assert (x.dtype, y.dtype) == (own_x.dtype, own_y.dtype)


def test_digits_without_scikit_learn_say_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn", None)  # Python then takes it as not installed.
    assert message_of(find, "digits") == (
        "the data set 'digits' comes with scikit-learn, which is not installed: "
        "pip install 'clnp[demo]'"
    )


def test_bytes_are_kept_as_they_are_and_divided_by_255(path):
    given = arrays()
    np.savez(path, **given)
    data = read_arrays(path)
    assert (data.name, data.num_classes, data.largest) == ("mine", 3, 255.0)
    assert data.shape == (2, 2)
    for part, (x, y) in (("train", data.train), ("test", data.test)):
        assert torch.equal(x, torch.tensor(given[f"x_{part}"]))
        assert x.dtype == torch.uint8
        assert y.dtype == torch.int64
        assert y.tolist() == given[f"y_{part}"].tolist()


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", ">f4"])
def test_floating_point_numbers_become_float32_and_are_not_divided(path, dtype):
    x = np.linspace(-3, 3, 12).reshape(6, 2).astype(dtype)
    # Compressed, and with an array more than is asked for.
    np.savez_compressed(path, **arrays(x_train=x, x_test=x[:3], comment=np.zeros(1)))
    data = read_arrays(path)
    assert data.largest == 1.0
    assert data.train[0].dtype == data.test[0].dtype == torch.float32
    assert torch.equal(data.train[0], torch.tensor(x.astype(np.float32)))
    assert torch.equal(data.test[0], data.train[0][:3])


def test_numbers_that_are_too_large_for_float32_become_infinite(path):
    x = np.full((6, 2), 1e300)
    np.savez(path, **arrays(x_train=x, x_test=np.zeros((3, 2))))
    # That is told when the task is loaded; a warning of numpy would come before it.
    assert bool(read_arrays(path).train[0].isinf().all())


def test_bytes_and_floats_may_not_be_mixed(path):
    # Dividing one of them would be silent nonsense.
    np.savez(path, **arrays(x_test=np.ones((3, 2, 2))))
    assert message_of(read_arrays, path) == (
        f"{path}: x_train is uint8 and x_test float64; both must be bytes of 0 to 255, or both "
        "floating point"
    )
    np.savez(path, **arrays(x_train=np.ones((6, 2, 2), dtype=np.float32)))
    assert "x_train is float32 and x_test uint8; both must" in message_of(read_arrays, path)


def test_a_class_that_only_one_part_has_counts(path):
    np.savez(path, **arrays(y_test=np.array([0, 5, 1])))
    assert read_arrays(path).num_classes == 6
    np.savez(path, **arrays(y_train=np.array([0, 0, 0, 8, 0, 0])))
    assert read_arrays(path).num_classes == 9


@pytest.mark.parametrize("name", ["x_train", "y_train", "x_test", "y_test"])
def test_a_missing_array_is_named(path, name):
    given = arrays()
    del given[name]
    np.savez(path, **given)
    assert message_of(read_arrays, path) == (
        f"{path} has no array {name}; it must hold x_train, y_train, x_test, y_test"
    )


@pytest.mark.parametrize("part", ["train", "test"])
@pytest.mark.parametrize(
    ("x", "y", "message"),
    [
        (
            np.zeros((3, 2), dtype=np.int64),
            np.zeros(3, dtype=np.int64),
            "x_{part} is int64; it must be uint8, bytes of 0 to 255, or floating point",
        ),
        (
            np.zeros((3, 2), dtype=bool),
            np.zeros(3, dtype=np.int64),
            "x_{part} is bool; it must be uint8, bytes of 0 to 255, or floating point",
        ),
        (
            np.zeros((3, 2)),
            np.zeros(3),
            "y_{part} is float64 of shape (3,); it must be one whole number for each sample",
        ),
        (
            np.zeros((3, 2)),
            np.zeros((3, 2), dtype=np.int64),
            "y_{part} is int64 of shape (3, 2); it must be one whole number for each sample",
        ),
        (
            np.zeros((3, 2)),
            np.array(["rose", "tulip", "rose"]),
            "y_{part} is <U5 of shape (3,); it must be one whole number for each sample",
        ),
        (
            np.zeros((3, 2)),
            np.zeros(2, dtype=np.int64),
            "x_{part} has shape (3, 2) and y_{part} (2,); they must have one entry for each "
            "sample, and samples at least one number",
        ),
        (
            np.zeros(3),
            np.zeros(3, dtype=np.int64),
            "x_{part} has shape (3,) and y_{part} (3,); they must have one entry for each "
            "sample, and samples at least one number",
        ),
        (
            np.zeros((3, 0)),
            np.zeros(3, dtype=np.int64),
            "x_{part} has shape (3, 0) and y_{part} (3,); they must have one entry for each "
            "sample, and samples at least one number",
        ),
        (
            np.zeros((0, 2)),
            np.zeros(0, dtype=np.int64),
            "x_{part} has shape (0, 2) and y_{part} (0,); they must have one entry for each "
            "sample, and samples at least one number",
        ),
        (np.zeros((3, 2)), np.array([0, -1, 1]), "y_{part} holds -1; labels count from 0"),
    ],
)
def test_arrays_of_another_kind_are_refused(path, part, x, y, message):
    np.savez(path, **arrays(**{f"x_{part}": x, f"y_{part}": y}))
    assert message_of(read_arrays, path) == f"{path}: {message.format(part=part)}"


def test_samples_of_another_shape_are_refused(path):
    np.savez(path, **arrays(x_test=np.zeros((3, 4), dtype=np.uint8)))
    assert message_of(read_arrays, path) == (
        f"{path}: samples of x_train have shape (2, 2), those of x_test (4,)"
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
    assert message_of(read_arrays, path) == f"{path} is not an npz file, or not all of one"


def test_a_single_array_is_refused(path):
    with path.open("wb") as file:
        np.save(file, np.zeros((3, 2)))
    assert message_of(read_arrays, path) == f"{path} is not an npz file, or not all of one"


def test_a_part_of_a_file_is_refused_however_short(path):
    np.savez(path, **arrays())
    whole = path.read_bytes()
    for size in range(0, len(whole), 97):
        path.write_bytes(whole[:size])
        assert message_of(read_arrays, path) == f"{path} is not an npz file, or not all of one"


def test_a_changed_byte_is_noticed(path):
    np.savez(path, **arrays())
    whole = bytearray(path.read_bytes())
    whole[whole.index(b"\xff" * 12)] = 254  # in x_test
    path.write_bytes(whole)
    assert message_of(read_arrays, path) == (
        f"{path} cannot be read as an npz file of plain arrays: Bad CRC-32 for file 'x_test.npy'"
    )


def test_a_zip_of_something_else_is_refused(path):
    with zipfile.ZipFile(path, "w") as file:
        for name in arrays():
            file.writestr(f"{name}.npy", b"garbage")
    assert message_of(read_arrays, path) == (
        f"{path}: x_train is |S7; it must be uint8, bytes of 0 to 255, or floating point"
    )
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("readme.txt", b"hello")
    assert "has no array x_train; it must hold" in message_of(read_arrays, path)


@pytest.mark.parametrize("name", ["x_train", "y_test"])
def test_objects_are_refused_and_nothing_is_executed(path, tmp_path, name):
    trap = Trap(tmp_path / "executed")
    np.savez(path, **arrays(**{name: np.array([trap], dtype=object)}))
    with np.load(path, allow_pickle=True) as file:
        assert file[name].tolist() == [None]
    trap.path.rmdir()  # So it would have been.
    assert message_of(read_arrays, path) == (
        f"{path} cannot be read as an npz file of plain arrays: Object arrays cannot be loaded "
        "when allow_pickle=False"
    )
    assert not trap.path.exists()


def test_a_pickle_is_refused_without_advice_to_load_it_all_the_same(path, tmp_path):
    trap = Trap(tmp_path / "executed")
    path.write_bytes(pickle.dumps(trap))
    assert message_of(read_arrays, path) == f"{path} is not an npz file, or not all of one"
    # With a zip archive behind it.
    np.savez(path, **arrays())
    path.write_bytes(pickle.dumps(trap) + path.read_bytes())
    assert message_of(read_arrays, path) == (
        f"{path} cannot be read as an npz file of plain arrays: This file contains pickled "
        "(object) data"
    )
    assert not trap.path.exists()


def test_a_message_of_several_lines_is_cut_to_one(path):
    name = "x" * 20_000  # numpy takes a long header for an attack, and says so at length.
    np.savez(path, **arrays(x_train=np.zeros(3, dtype=[(name, np.uint8)])))
    message = message_of(read_arrays, path)
    assert message.startswith(f"{path} cannot be read as an npz file of plain arrays: Header info")
    assert len(message.splitlines()) == 1
    assert "allow_pickle" not in message


def test_a_file_that_cannot_be_opened_is_not_called_damaged(path):
    path.symlink_to(path)
    message = message_of(read_arrays, path)
    assert message.startswith(f"{path} cannot be read as an npz file of plain arrays: [Errno ")


def test_data_is_looked_for_in_the_directory_or_else_where_the_environment_says(
    tmp_path, monkeypatch
):
    for folder, label in (("given", 4), ("environment", 6)):
        (tmp_path / folder).mkdir()
        np.savez(tmp_path / folder / "mine.npz", **arrays(y_test=np.array([0, label, 0])))
    monkeypatch.setenv("CLNP_DATA", str(tmp_path / "environment"))
    assert find("mine").num_classes == 7
    assert find("mine", tmp_path / "given").num_classes == 5
    assert find("mine", str(tmp_path / "given")).num_classes == 5
    assert find("digits", tmp_path / "nowhere").num_classes == 10


def test_a_tilde_is_the_home_directory(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    np.savez(tmp_path / "mine.npz", **arrays())
    assert find("mine", "~").name == "mine"


def test_without_a_directory_data_is_looked_for_in_the_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("CLNP_DATA", "")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for cache in ("", "relative"):  # Neither is a place.
        monkeypatch.setenv("XDG_CACHE_HOME", cache)
        assert data_directory() == tmp_path / "home" / ".cache" / "clnp"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert data_directory() == tmp_path / "home" / ".cache" / "clnp"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert data_directory() == tmp_path / "cache" / "clnp"
    monkeypatch.setenv("CLNP_DATA", "~/data")
    assert data_directory() == tmp_path / "home" / "data"
    assert data_directory("here") == Path("here")
    assert os.listdir(tmp_path) == []


def test_an_unknown_data_set_is_named(tmp_path, monkeypatch):
    monkeypatch.delenv("CLNP_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert message_of(find, "digit") == (
        "unknown data set 'digit'; did you mean 'digits'? Known: digits, mnist, fashion-mnist, "
        f"cifar10, cifar100, and there is no file {tmp_path / 'clnp' / 'digit.npz'}; say where it "
        "is: --data DIRECTORY, or CLNP_DATA"
    )
    assert message_of(find, "flowers", tmp_path / "here") == (
        "unknown data set 'flowers'. Known: digits, mnist, fashion-mnist, cifar10, cifar100, and "
        f"there is no file {tmp_path / 'here' / 'flowers.npz'}; say where it is: --data "
        "DIRECTORY, or CLNP_DATA"
    )
    (tmp_path / "flowers.npz").mkdir()
    monkeypatch.setenv("CLNP_DATA", str(tmp_path))
    assert "there is no file" in message_of(find, "flowers")
    assert os.listdir(tmp_path) == ["flowers.npz"]


def test_a_data_set_of_the_catalog_is_found_where_the_others_are(tmp_path, monkeypatch):
    asked = []

    def load(name, directory, *, on_progress):
        asked.append((name, directory, on_progress))
        return digits()

    monkeypatch.setattr(catalog, "load", load)
    monkeypatch.setenv("CLNP_DATA", str(tmp_path))
    for name in ("mnist", "fashion-mnist", "cifar10", "cifar100"):
        assert find(name).num_classes == 10
        assert asked.pop() == (name, tmp_path, None)
    find("mnist", "~", on_progress=print)
    assert asked.pop() == ("mnist", Path.home(), print)


def test_the_shape_is_that_of_one_sample():
    pair = torch.zeros(5, 3, 2), torch.zeros(5)
    assert LabelledData("a", pair, pair, 1).shape == (3, 2)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
def test_samples_are_divided_and_reordered(dtype):
    stored = torch.arange(24).reshape(4, 1, 2, 3).to(dtype)
    before = stored.clone()
    order = torch.tensor([5, 0, 3, 1, 4, 2])
    inputs = Prepare(16.0, order)(stored)
    assert inputs.dtype == torch.float32
    expected = (stored.float() / 16).flatten(1)[:, order].reshape(stored.shape)
    assert torch.equal(inputs, expected)
    assert torch.equal(Prepare(16.0)(stored), stored.float() / 16)
    assert torch.equal(Prepare(1.0, order)(stored), expected.mul(16).to(dtype))
    assert torch.equal(stored, before)


def test_samples_that_need_no_preparation_are_not_copied():
    stored = torch.zeros(4, 3)
    assert Prepare()(stored) is stored


def test_an_order_is_kept_on_every_device_that_asks_for_it():
    order = torch.tensor([1, 0])
    prepare = Prepare(1.0, order)
    assert prepare(torch.zeros(2, 2, device="meta")).device.type == "meta"
    assert prepare(torch.tensor([[1.0, 2.0]])).tolist() == [[2.0, 1.0]]
    assert set(prepare._orders) == {torch.device("meta"), torch.device("cpu")}
    assert prepare._orders[torch.device("cpu")] is order


def test_mean_and_deviation_are_not_known_of_data_of_your_own(path):
    np.savez(path, **arrays())
    for data in (digits(), read_arrays(path)):
        assert (data.mean, data.deviation) == ((), ())


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
@pytest.mark.parametrize("largest", [1.0, 255.0])
def test_samples_are_standardized_after_the_division(dtype, largest):
    stored = torch.arange(36).reshape(2, 3, 2, 3).to(dtype)
    before = stored.clone()
    mean, deviation = (0.5, 0.25, 0.125), (2.0, 0.5, 0.3)
    inputs = Prepare(largest, mean=mean, deviation=deviation)(stored)
    assert inputs.dtype == torch.float32
    for channel in range(3):
        expected = stored[:, channel].float() / largest
        expected = (expected - torch.tensor(mean[channel])) / torch.tensor(deviation[channel])
        assert torch.equal(inputs[:, channel], expected)
    assert torch.equal(stored, before)


def test_samples_are_standardized_before_they_are_reordered():
    stored = torch.arange(8, dtype=torch.uint8).reshape(2, 2, 2)
    order = torch.tensor([3, 0, 2, 1])
    mean, deviation = (0.5, 0.25), (2.0, 0.5)
    plain = Prepare(16.0, mean=mean, deviation=deviation)(stored)
    inputs = Prepare(16.0, order, mean=mean, deviation=deviation)(stored)
    assert torch.equal(inputs, plain.flatten(1)[:, order].reshape(2, 2, 2))
    assert not torch.equal(inputs, plain)


@pytest.mark.parametrize("shape", [(4, 3), (4, 1, 2, 2), (4, 3, 2)])
def test_one_mean_is_for_all_channels(shape):
    stored = torch.rand(shape)
    inputs = Prepare(mean=(0.5,), deviation=(0.25,))(stored)
    assert torch.equal(inputs, (stored - 0.5) / 0.25)


def test_mean_and_deviation_are_kept_on_every_device_that_asks_for_them():
    prepare = Prepare(mean=(1.0, 2.0), deviation=(1.0, 2.0))
    assert prepare(torch.zeros(2, 2, device="meta")).device.type == "meta"
    assert prepare(torch.tensor([[1.0, 4.0]])).tolist() == [[0.0, 1.0]]
    kept = prepare._scales[torch.device("cpu")]
    assert prepare(torch.tensor([[1.0, 4.0]])).tolist() == [[0.0, 1.0]]
    assert set(prepare._scales) == {torch.device("meta"), torch.device("cpu")}
    assert prepare._scales[torch.device("cpu")] is kept


@pytest.mark.parametrize(
    ("mean", "deviation", "argument", "message"),
    [
        (
            (0.5,),
            (),
            "deviation",
            "mean has 1 numbers and deviation 0; give one of each for every channel",
        ),
        (
            (0.5, 0.5),
            (1.0, 0.0),
            "deviation",
            "deviation is (1.0, 0.0); every number must be more than 0",
        ),
        (
            (0.5,),
            (float("nan"),),
            "deviation",
            "deviation is (nan,); every number must be more than 0",
        ),
        (
            (0.5, 0.5),
            (1.0, 1.0),
            "mean",
            "mean has 2 numbers and samples of shape (3, 4) have 3 channels; give one for each",
        ),
    ],
)
def test_means_that_do_not_fit_are_refused(mean, deviation, argument, message):
    with pytest.raises(ArgumentError) as caught:
        Prepare(mean=mean, deviation=deviation)(torch.zeros(2, 3, 4))
    assert str(caught.value) == message
    assert caught.value.argument == argument


def test_what_stands_in_for_digits_is_like_them_in_all_but_what_it_shows():
    own, other = digits(), stand_in("digits")
    for name in ("name", "num_classes", "largest", "mean", "deviation", "shape"):
        assert getattr(own, name) == getattr(other, name)
    assert own.test[0].dtype == other.test[0].dtype
    assert int(other.test[0].max()) == 16
    assert not torch.equal(other.train[0], other.test[0])


@pytest.mark.parametrize("name", KNOWN)
def test_every_known_data_set_has_a_stand_in_with_all_classes(name):
    found = stand_in(name)
    if name in catalog.CATALOG:
        entry = catalog.CATALOG[name]
        assert (found.num_classes, found.shape) == (entry.num_classes, entry.shape)
        assert (found.mean, found.deviation) == (entry.mean, entry.deviation)
        # All have 10,000 test images; some have one or two labels before each.
        num_labels = entry.layouts[0].test[0].size // 10_000 - found.test[0][0].numel()
        assert num_labels in (0, 1, 2)
    for x, y in (found.train, found.test):
        assert len(x) == len(y)
        assert sorted(set(y.tolist())) == list(range(found.num_classes))


def test_arrays_of_ones_own_have_no_stand_in(tmp_path):
    assert "there is no file" in message_of(stand_in, "mine", tmp_path)


def test_whether_a_data_set_is_there_is_told_without_downloading(path, monkeypatch):
    assert is_there("digits")
    assert not is_there("mnist", path.parent)
    assert not is_there("mine", path.parent)
    np.savez(path, **arrays())
    assert is_there("mine", path.parent)
    monkeypatch.setitem(sys.modules, "sklearn", None)  # Python then takes it as not installed.
    assert not is_there("digits")
