import dataclasses
import gzip
import hashlib
import os
import pickle
import re

import numpy as np
import pytest
import torch

from clnp.data.catalog import CATALOG, Remote, load
from clnp.errors import DataError
from data.test_download import archive_of
from data.test_idx import idx
from support.python2 import pickled
from support.website import nobody, serving

IDX = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte")
IDX += ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")
BATCHES = tuple(f"data_batch_{number}" for number in range(1, 6))


@pytest.fixture(autouse=True)
def _no_network(monkeypatch):
    """Every address is one where nobody listens, unless a test says otherwise."""
    monkeypatch.setenv("no_proxy", "*")
    site = nobody()
    for name, entry in CATALOG.items():
        remotes = [dataclasses.replace(each, url=site + each.name) for each in entry.remotes]
        monkeypatch.setitem(CATALOG, name, dataclasses.replace(entry, remotes=tuple(remotes)))


def message_of(name, directory) -> str:
    with pytest.raises(DataError) as caught:
        load(name, directory)
    assert len(str(caught.value).splitlines()) == 1
    return str(caught.value)


def idx_files(num_train=4, num_test=3, side=2) -> dict[str, bytes]:
    """A small MNIST: labels 0, 1, 2, ..., and images that count on from file to file."""
    return {
        IDX[0]: idx((num_train, side, side)),
        IDX[1]: idx((num_train,)),
        IDX[2]: idx((num_test, side, side), bytes(range(100, 100 + num_test * side**2))),
        IDX[3]: idx((num_test,)),
    }


def write(folder, files) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / name).write_bytes(content)


def samples(number: int) -> tuple[np.ndarray, list[int]]:
    """Two images and labels that no other number has."""
    pixels = np.random.default_rng(number).integers(0, 256, (2, 3072), dtype=np.uint8)
    return pixels, [number, number + 1]


def records(number: int, *, coarse: bool = False) -> bytes:
    pixels, labels = samples(number)
    columns = [np.array(labels, dtype=np.uint8)[:, None]]
    if coarse:
        columns.insert(0, np.full((2, 1), 250, dtype=np.uint8))
    return np.concatenate([*columns, pixels], axis=1).tobytes()


def batch(number: int, *, labels: str = "labels") -> dict:
    pixels, numbers = samples(number)
    return {"data": pixels, labels: numbers, "filenames": ["a.png", "b.png"]}


def expected(numbers) -> tuple[torch.Tensor, torch.Tensor]:
    pairs = [samples(number) for number in numbers]
    images = torch.tensor(np.concatenate([pixels for pixels, _ in pairs])).reshape(-1, 3, 32, 32)
    return images, torch.tensor([label for _, labels in pairs for label in labels])


def same(pair, other) -> bool:
    return all(map(torch.equal, pair, other))


@pytest.mark.parametrize(
    ("name", "folder"),
    [
        ("mnist", "MNIST/raw"),
        ("mnist", "MNIST"),
        ("mnist", "mnist"),
        ("mnist", "."),
        ("fashion-mnist", "FashionMNIST/raw"),
        ("fashion-mnist", "FashionMNIST"),
        ("fashion-mnist", "fashion-mnist"),
        ("fashion-mnist", "."),
    ],
)
@pytest.mark.parametrize("gzipped", ["all", "none", "some"])
def test_idx_files_are_found_wherever_people_have_them(tmp_path, name, folder, gzipped):
    for number, (file, content) in enumerate(idx_files().items()):
        if gzipped == "all" or (gzipped == "some" and number % 2):
            file, content = f"{file}.gz", gzip.compress(content)
        write(tmp_path / folder, {file: content})
    data = load(name, tmp_path)
    assert (data.name, data.num_classes, data.largest) == (name, 10, 255.0)
    assert data.shape == (1, 2, 2)
    assert same(data.train, (torch.arange(16).reshape(4, 1, 2, 2), torch.arange(4)))
    assert same(data.test, (torch.arange(100, 112).reshape(3, 1, 2, 2), torch.arange(3)))
    assert data.train[0].dtype == data.test[0].dtype == torch.uint8
    assert data.train[1].dtype == data.test[1].dtype == torch.int64


def test_a_file_that_torchvision_has_gunzipped_is_read_like_that(tmp_path):
    write(tmp_path / "MNIST/raw", idx_files())
    write(tmp_path / "MNIST/raw", {f"{each}.gz": b"not read" for each in IDX})
    assert len(load("mnist", tmp_path).train[0]) == 4


@pytest.mark.parametrize("form", ["bin", "py"])
def test_cifar10_is_five_batches_and_one_for_testing(tmp_path, form):
    if form == "bin":
        files = {f"{each}.bin": records(n) for n, each in enumerate(BATCHES)}
        write(tmp_path / "cifar-10-batches-bin", {**files, "test_batch.bin": records(8)})
    else:
        files = {each: pickled(batch(n)) for n, each in enumerate(BATCHES)}
        write(tmp_path / "cifar-10-batches-py", {**files, "test_batch": pickled(batch(8))})
    data = load("cifar10", tmp_path)
    assert (data.name, data.num_classes, data.largest) == ("cifar10", 10, 255.0)
    assert same(data.train, expected(range(5)))
    assert same(data.test, expected([8]))


@pytest.mark.parametrize("form", ["binary", "python"])
def test_cifar100_has_its_fine_labels(tmp_path, form):
    if form == "binary":
        files = {"train.bin": records(98, coarse=True), "test.bin": records(5, coarse=True)}
    else:
        files = {
            "train": pickle.dumps({**batch(98, labels="fine_labels"), "coarse_labels": [7, 7]}),
            "test": pickle.dumps({**batch(5, labels="fine_labels"), "coarse_labels": [7, 7]}),
        }
    write(tmp_path / f"cifar-100-{form}", files)
    data = load("cifar100", tmp_path)
    assert (data.name, data.num_classes, data.largest) == ("cifar100", 100, 255.0)
    assert same(data.train, expected([98]))
    assert same(data.test, expected([5]))


@pytest.mark.parametrize(("name", "num_channels"), [("mnist", 1), ("cifar10", 3), ("cifar100", 3)])
def test_there_is_a_mean_and_a_deviation_for_each_channel(name, num_channels):
    entry = CATALOG[name]
    assert len(entry.mean) == len(entry.deviation) == num_channels
    assert all(0.1 < each < 0.6 for each in entry.mean + entry.deviation)


def test_mean_and_deviation_come_with_the_data(tmp_path):
    write(tmp_path, idx_files())
    data = load("mnist", tmp_path)
    assert (data.mean, data.deviation) == ((0.1307,), (0.3081,))


def test_checksums_have_the_right_length_and_differ():
    md5s = [
        each.md5
        for entry in CATALOG.values()
        for layout in {layout.names[0]: layout for layout in entry.layouts}.values()
        for each in (*layout.train, *layout.test)
    ]
    md5s += [
        remote.checksum.removeprefix("md5:")
        for entry in CATALOG.values()
        for remote in entry.remotes
    ]
    assert len(md5s) == len(set(md5s)) == 4 + 4 + 6 + 6 + 2 + 2 + 4 + 4 + 1 + 1
    assert all(re.fullmatch("[0-9a-f]{32}", each) for each in md5s)


@pytest.mark.parametrize("missing", IDX)
def test_a_missing_file_is_named(tmp_path, missing):
    files = idx_files()
    del files[missing]
    write(tmp_path / "MNIST/raw", files)
    assert message_of("mnist", tmp_path) == (
        f"mnist is not complete: {tmp_path}/MNIST/raw has no {missing}; add what is missing, or "
        "remove the other files to have all of them downloaded"
    )


def test_all_missing_files_are_named(tmp_path):
    write(tmp_path / "cifar-10-batches-py", {"data_batch_2": b"", "test_batch": b""})
    assert "has no data_batch_1, data_batch_3, data_batch_4, data_batch_5; " in message_of(
        "cifar10", tmp_path
    )


def test_a_complete_layout_is_taken_before_an_incomplete_one(tmp_path):
    write(tmp_path / "MNIST/raw", {IDX[0]: b""})
    write(tmp_path / "mnist", idx_files())
    assert len(load("mnist", tmp_path).train[0]) == 4


@pytest.mark.parametrize("file", IDX)
def test_a_truncated_file_is_named(tmp_path, file):
    files = idx_files()
    write(tmp_path, {**files, file: files[file][:-1]})
    assert message_of("mnist", tmp_path).startswith(f"{tmp_path / file} is truncated, get it again")


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({IDX[0]: idx((5, 2, 2))}, "{IDX[0]} has 5 images and {IDX[1]} 4 labels; get them again"),
        ({IDX[0]: idx((4,))}, "{IDX[0]} has shape (4,); images have three axes and labels one"),
        ({IDX[3]: idx((3, 1))}, "{IDX[3]} has shape (3, 1); images have three axes and labels one"),
        ({IDX[0]: idx((0, 2, 2)), IDX[1]: idx((0,))}, "{IDX[1]} holds no sample; get it again"),
        (
            {IDX[3]: idx((3,), b"\0\x0a\0")},
            "{IDX[3]} is damaged or of another data set, get it again: it has the label 10, and "
            "there are only 10 classes",
        ),
    ],
)
def test_idx_files_that_do_not_fit_are_named(tmp_path, changed, message):
    write(tmp_path, {**idx_files(), **changed})
    assert message_of("mnist", tmp_path) == f"{tmp_path}/{message.format(IDX=IDX)}"


def test_samples_of_different_shapes_are_refused(tmp_path):
    write(tmp_path, {**idx_files(), IDX[2]: idx((3, 2, 3))})
    assert message_of("mnist", tmp_path) == (
        f"{tmp_path}: training samples have shape (1, 2, 2), and those for testing (1, 2, 3); get "
        "the files again"
    )


def test_a_cifar_file_with_wrong_labels_is_named(tmp_path):
    files = {f"{each}.bin": records(n) for n, each in enumerate(BATCHES)}
    folder = tmp_path / "cifar-10-batches-bin"
    write(folder, {**files, "data_batch_3.bin": records(9), "test_batch.bin": records(0)})
    assert message_of("cifar10", tmp_path) == (
        f"{folder}/data_batch_3.bin is damaged or of another data set, get it again: it has the "
        "label 10, and there are only 10 classes"
    )
    write(folder, {"data_batch_3.bin": b""})
    assert message_of("cifar10", tmp_path) == (
        f"{folder}/data_batch_3.bin holds no sample; get it again"
    )
    folder = tmp_path / "cifar-100-python"
    wrong = pickle.dumps({**batch(0, labels="fine_labels"), "fine_labels": [0, -1]})
    write(folder, {"train": wrong, "test": wrong})
    assert (
        f"{folder}/train is damaged or of another data set, get it again: it has the label -1"
        in (message_of("cifar100", tmp_path))
    )


def test_a_pickle_that_would_execute_code_is_named(tmp_path):
    write(tmp_path / "cifar-100-python", {"train": pickle.dumps(print), "test": b""})
    assert message_of("cifar100", tmp_path).startswith(
        f"{tmp_path}/cifar-100-python/train asks for builtins.print, "
    )


def test_a_file_as_long_as_the_published_one_must_be_that_one(tmp_path, monkeypatch):
    files = idx_files()
    layout = CATALOG["mnist"].layouts[0]
    published = tuple(
        dataclasses.replace(
            each, size=len(files[each.name]), md5=hashlib.md5(files[each.name]).hexdigest()
        )
        for each in layout.train
    )
    layouts = (dataclasses.replace(layout, train=published),)
    monkeypatch.setitem(CATALOG, "mnist", dataclasses.replace(CATALOG["mnist"], layouts=layouts))
    write(tmp_path / "MNIST/raw", files)
    assert load("mnist", tmp_path).train[1].tolist() == [0, 1, 2, 3]
    write(tmp_path / "MNIST/raw", {IDX[1]: idx((4,), b"\0\1\2\2")})
    assert message_of("mnist", tmp_path).startswith(
        f"{tmp_path}/MNIST/raw/{IDX[1]} is damaged or of another data set, get it again: its MD5"
    )


def offered(site, monkeypatch, name: str, files: dict[str, bytes]) -> None:
    """Let the data set come from the web site, which now has these files."""
    write(site.directory, files)
    remotes = tuple(
        Remote(site.url + file, f"md5:{hashlib.md5(content).hexdigest()}")
        for file, content in files.items()
    )
    monkeypatch.setitem(CATALOG, name, dataclasses.replace(CATALOG[name], remotes=remotes))


@pytest.fixture
def site(tmp_path):
    (tmp_path / "www").mkdir()
    with serving(tmp_path / "www") as site:
        yield site


@pytest.mark.parametrize(
    ("name", "folder"), [("mnist", "MNIST/raw"), ("fashion-mnist", "FashionMNIST/raw")]
)
def test_idx_files_that_are_not_there_are_downloaded_once(
    tmp_path, site, monkeypatch, name, folder
):
    files = {f"{file}.gz": gzip.compress(content) for file, content in idx_files().items()}
    offered(site, monkeypatch, name, files)
    directory = tmp_path / "not" / "yet"
    told = []
    data = load(name, directory, on_progress=lambda *args: told.append(args))
    assert same(data.train, (torch.arange(16).reshape(4, 1, 2, 2), torch.arange(4)))
    assert sorted(os.listdir(directory / folder)) == sorted(files)
    assert os.listdir(directory) == [folder.split("/")[0]]
    assert {each[0] for each in told} == set(files)
    assert [file for file, done, total in told if done == total] == list(files)
    again = load(name, directory)
    assert same(again.train, data.train)
    assert same(again.test, data.test)
    assert site.asked == list(files)


@pytest.mark.parametrize("name", ["cifar10", "cifar100"])
def test_an_archive_is_downloaded_and_unpacked(tmp_path, site, monkeypatch, name):
    layout = CATALOG[name].layouts[0]
    files = {
        f"{layout.folder}/{file}": records(number, coarse=name == "cifar100")
        for number, file in enumerate(layout.names)
    }
    archive = f"{name}.tar.gz"
    archive_of(tmp_path / archive, {"../evil": b"no", "readme": b"no", **files})
    offered(site, monkeypatch, name, {archive: (tmp_path / archive).read_bytes()})
    directory = tmp_path / "data"
    data = load(name, directory)
    assert same(data.train, expected(range(len(layout.train))))
    assert same(data.test, expected([len(layout.train)]))
    assert sorted(os.listdir(directory / layout.folder)) == sorted(layout.names)
    assert os.listdir(directory) == [layout.folder]
    load(name, directory)
    assert site.asked == [archive]


def test_without_network_the_expected_files_and_their_place_are_listed(tmp_path):
    directory = tmp_path / "data"
    url = CATALOG["mnist"].remotes[0].url
    message = message_of("mnist", directory)
    assert message.startswith(
        f"mnist is not in {directory} and cannot be downloaded: {url} cannot be reached: "
    )
    assert message.endswith(
        f"; to do without, put {', '.join(IDX)} into {directory}/MNIST/raw yourself, gzipped or not"
    )
    assert os.listdir(directory) == []


@pytest.mark.parametrize(
    ("name", "places"),
    [
        (
            "cifar10",
            "data_batch_1.bin, data_batch_2.bin, data_batch_3.bin, data_batch_4.bin, "
            "data_batch_5.bin, test_batch.bin into {0}/cifar-10-batches-bin or data_batch_1, "
            "data_batch_2, data_batch_3, data_batch_4, data_batch_5, test_batch into "
            "{0}/cifar-10-batches-py",
        ),
        (
            "cifar100",
            "train.bin, test.bin into {0}/cifar-100-binary or train, test into "
            "{0}/cifar-100-python",
        ),
    ],
)
def test_both_forms_of_cifar_are_listed(tmp_path, name, places):
    assert f"; to do without, put {places.format(tmp_path)} yourself" in message_of(name, tmp_path)


def test_a_download_that_fails_half_way_leaves_nothing_and_can_be_repeated(
    tmp_path, site, monkeypatch
):
    files = {f"{file}.gz": gzip.compress(content) for file, content in idx_files().items()}
    offered(site, monkeypatch, "mnist", files)
    last = f"{IDX[3]}.gz"
    directory = tmp_path / "data"
    for manner, reason in (("truncated", " broke off after "), ("rude", f"{site.url}{last} ")):
        site.manners[last] = manner
        assert reason in message_of("mnist", directory)
        assert os.listdir(directory) == []
    site.manners.clear()
    (site.directory / last).write_bytes(b"other")
    assert f"{site.url}{last} is not the published file, and was not kept: its md5 is " in (
        message_of("mnist", directory)
    )
    (site.directory / last).unlink()
    assert "the server says 404 File not found; to do without, put " in (
        message_of("mnist", directory)
    )
    assert os.listdir(directory) == []
    (site.directory / last).write_bytes(files[last])
    assert len(load("mnist", directory).test[0]) == 3


def test_an_interrupted_download_leaves_nothing(tmp_path, site, monkeypatch):
    files = {f"{file}.gz": gzip.compress(content) for file, content in idx_files().items()}
    offered(site, monkeypatch, "mnist", files)

    def interrupt(name, done, total):
        if name.startswith("t10k-labels"):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        load("mnist", tmp_path / "data", on_progress=interrupt)
    assert os.listdir(tmp_path / "data") == []


def test_an_archive_without_the_files_is_refused(tmp_path, site, monkeypatch):
    archive_of(tmp_path / "a.tar.gz", {"cifar-100-binary/train.bin": b""})
    offered(site, monkeypatch, "cifar100", {"a.tar.gz": (tmp_path / "a.tar.gz").read_bytes()})
    assert "a.tar.gz does not hold cifar-100-binary/test.bin; to do without, put " in (
        message_of("cifar100", tmp_path / "data")
    )


def test_a_directory_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "file").touch()
    message = message_of("mnist", tmp_path / "file")
    assert message.startswith(
        f"mnist is not in {tmp_path / 'file'} and cannot be downloaded: [Errno 17] File exists: "
    )


def test_the_addresses_are_those_of_the_authors():
    import clnp.data.catalog

    # The fixture above has changed them, so they are read from the source.
    with open(clnp.data.catalog.__file__, encoding="utf-8") as file:
        source = file.read()
    assert re.findall(r'"(https?://[^"]+)"', source) == [
        "https://ossci-datasets.s3.amazonaws.com/mnist/",
        "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
        "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
        "https://www.cs.toronto.edu/~kriz/cifar-100-binary.tar.gz",
    ]
