import gzip
import hashlib
import os
import pickle
import re
import tarfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from clnp.data import datasets
from clnp.data.datasets import DATASETS, extract, fetch, load
from clnp.errors import DataError
from support.data_files import archive, idx, pickled
from support.website import no_server, serving

CONTENT = bytes(range(256)) * 3000
MD5 = hashlib.md5(CONTENT).hexdigest()
IDX = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte")
IDX += ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")
BATCHES = tuple(f"data_batch_{number}" for number in range(1, 6))


@pytest.fixture(autouse=True)
def _no_network(monkeypatch):
    """No address has a server, unless a test starts one."""
    monkeypatch.setenv("no_proxy", "*")
    site = no_server()
    for name, entry in DATASETS.items():
        remotes = {site + url.rpartition("/")[2]: md5 for url, md5 in entry.remotes.items()}
        monkeypatch.setitem(DATASETS, name, replace(entry, remotes=remotes))


@pytest.fixture
def site(tmp_path):
    (tmp_path / "www").mkdir()
    (tmp_path / "www" / "data.bin").write_bytes(CONTENT)
    with serving(tmp_path / "www") as site:
        yield site


@pytest.fixture
def path(tmp_path):
    (tmp_path / "here").mkdir()
    return tmp_path / "here" / "data.bin"


def message_of(call, *args, **options) -> str:
    with pytest.raises(DataError) as caught:
        call(*args, **options)
    assert len(str(caught.value).splitlines()) == 1
    return str(caught.value)


def test_a_file_with_the_right_checksum_is_kept(site, path):
    fetch(f"{site.url}data.bin", path, md5=MD5)
    assert path.read_bytes() == CONTENT
    assert os.listdir(path.parent) == ["data.bin"]
    (path.parent / "plain").touch()
    assert path.stat().st_mode == (path.parent / "plain").stat().st_mode


@pytest.mark.parametrize("fault", [None, "unsized"])
def test_progress_goes_from_nothing_to_everything(site, path, fault):
    site.faults["data.bin"] = fault
    calls = []
    fetch(f"{site.url}data.bin", path, md5=MD5, on_progress=lambda *args: calls.append(args))
    total = len(CONTENT) if fault is None else None
    assert calls[0] == ("data.bin", 0, total)
    assert calls[-1] == ("data.bin", len(CONTENT), total)
    assert len(calls) > 3
    assert [each[1] for each in calls] == sorted(each[1] for each in calls)


@pytest.mark.parametrize(
    ("url", "fault", "message"),
    [
        ("{site}gone.bin", None, "failed after 0 bytes: HTTP Error 404: File not found"),
        ("{no_server}data.bin", None, "failed after 0 bytes: .*refused>"),
        ("{site}data.bin", "truncated", "failed after 384000 bytes: 384000 bytes are missing"),
        ("{site}data.bin", "closed", "failed after 0 bytes: .*"),
        ("{site}data.bin", "silent", "failed after .* bytes: timed out"),
    ],
)
def test_a_download_that_fails_changes_nothing(site, path, url, fault, message):
    url = url.format(site=site.url, no_server=no_server())
    site.faults["data.bin"] = fault
    for content in (None, b"old"):
        if content is not None:
            path.write_bytes(content)
        found = message_of(fetch, url, path, md5=MD5, timeout=0.2)
        assert re.fullmatch(f"{re.escape(url)} {message}", found)
        assert os.listdir(path.parent) == ([] if content is None else ["data.bin"])
    assert path.read_bytes() == b"old"


def test_a_file_with_a_wrong_checksum_is_not_kept(site, path):
    assert message_of(fetch, f"{site.url}data.bin", path, md5="1234") == (
        f"{site.url}data.bin is not the published file and was not kept: its MD5 is {MD5}, not 1234"
    )
    assert os.listdir(path.parent) == []


def test_an_interrupted_download_leaves_nothing(site, path):
    def interrupt(name, done, total):
        if done > 0:
            assert len(os.listdir(path.parent)) == 1
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fetch(f"{site.url}data.bin", path, md5=MD5, on_progress=interrupt)
    assert os.listdir(path.parent) == []


def test_a_path_that_cannot_be_written_is_named(site, tmp_path):
    path = tmp_path / "no" / "such" / "data.bin"
    assert message_of(fetch, f"{site.url}data.bin", path, md5=MD5) == (
        f"{path} cannot be written: No such file or directory"
    )
    assert site.asked == []


def test_only_the_given_members_are_extracted(tmp_path, path):
    members = {
        "../outside": b"no",
        "/outside": b"no",
        "folder/../../outside": b"no",
        "folder/one.bin": b"1" * 100_000,
        "folder/two.bin": b"2",
        "folder/readme": b"no",
    }
    file = archive(path.parent / "all.tar.gz", members)
    one, two = extract(file, ["folder/one.bin", "folder/two.bin"])
    assert (one.name, two.name) == ("one.bin", "two.bin")
    assert one.read_bytes() == b"1" * 100_000
    assert two.read_bytes() == b"2"
    assert sorted(os.listdir(path.parent)) == ["all.tar.gz", "one.bin", "two.bin"]
    assert os.listdir(tmp_path) == ["here"]


def test_missing_members_are_named(tmp_path):
    file = archive(tmp_path / "all.tar.gz", {"a": b"1", "one.bin": (tarfile.DIRTYPE, "")})
    message = f"{file} does not contain one.bin, two.bin"
    assert message_of(extract, file, ["a", "one.bin", "two.bin"]) == message


def test_a_damaged_archive_is_named(tmp_path):
    file = archive(tmp_path / "all.tar.gz", {"other": b"1", "a": os.urandom(50_000)})
    whole = file.read_bytes()
    for content in (b"", b"<html>404</html>", whole[:30], whole[: len(whole) // 2]):
        file.write_bytes(content)
        assert message_of(extract, file, ["a"]).startswith(f"{file} cannot be unpacked: ")


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
    return {"data": pixels, labels: numbers, "coarse_labels": [7, 7]}


def expected(*numbers) -> tuple[torch.Tensor, torch.Tensor]:
    pairs = [samples(number) for number in numbers]
    images = torch.tensor(np.concatenate([pixels for pixels, _ in pairs])).reshape(-1, 3, 32, 32)
    return images, torch.tensor([label for _, labels in pairs for label in labels])


def same(pair, other) -> bool:
    return all(map(torch.equal, pair, other))


@pytest.mark.parametrize(
    ("name", "folder", "gzipped"),
    [
        ("mnist", "MNIST/raw", "all"),
        ("mnist", "MNIST", "none"),
        ("mnist", "mnist", "some"),
        ("mnist", ".", "none"),
        ("fashion-mnist", "FashionMNIST/raw", "none"),
        ("fashion-mnist", ".", "all"),
    ],
)
def test_idx_files_are_found_in_the_usual_folders(tmp_path, name, folder, gzipped):
    for number, (file, content) in enumerate(idx_files().items()):
        if gzipped == "all" or (gzipped == "some" and number % 2):
            file, content = f"{file}.gz", gzip.compress(content)
        write(tmp_path / folder, {file: content})
    data = load(name, tmp_path)
    assert (data.name, data.num_classes, data.largest) == (name, 10, 255.0)
    assert (data.mean, data.deviation) == (DATASETS[name].mean, DATASETS[name].deviation)
    assert same(data.train, (torch.arange(16).reshape(4, 1, 2, 2), torch.arange(4)))
    assert same(data.test, (torch.arange(100, 112).reshape(3, 1, 2, 2), torch.arange(3)))
    assert data.train[0].dtype == data.test[0].dtype == torch.uint8
    assert data.train[1].dtype == data.test[1].dtype == torch.int64


def test_a_plain_file_has_priority_over_a_gzipped_one(tmp_path):
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
    assert same(data.train, expected(*range(5)))
    assert same(data.test, expected(8))


@pytest.mark.parametrize("form", ["binary", "python"])
def test_cifar100_has_its_fine_labels(tmp_path, form):
    if form == "binary":
        files = {"train.bin": records(98, coarse=True), "test.bin": records(5, coarse=True)}
    else:
        numbers = {"train": 98, "test": 5}
        files = {k: pickle.dumps(batch(n, labels="fine_labels")) for k, n in numbers.items()}
    write(tmp_path / f"cifar-100-{form}", files)
    data = load("cifar100", tmp_path)
    assert (data.name, data.num_classes, data.largest) == ("cifar100", 100, 255.0)
    assert same(data.train, expected(98))
    assert same(data.test, expected(5))


def test_entries_are_complete():
    md5s = []
    for entry in DATASETS.values():
        assert len(entry.mean) == len(entry.deviation) == entry.shape[0]
        assert all(0.1 < each < 0.6 for each in entry.mean + entry.deviation)
        layouts = {layout.names[0]: layout for layout in entry.layouts}.values()
        md5s += [each.md5 for layout in layouts for each in (*layout.train, *layout.test)]
        md5s += entry.remotes.values()
    assert len(md5s) == len(set(md5s)) == 4 + 4 + 6 + 6 + 2 + 2 + 4 + 4 + 1 + 1
    assert all(re.fullmatch("[0-9a-f]{32}", each) for each in md5s)


def test_addresses_are_those_of_the_authors():
    # A fixture has changed them, so they are read from the source.
    assert re.findall(r'"(https?://[^"]+)"', Path(datasets.__file__).read_text("utf-8")) == [
        "https://ossci-datasets.s3.amazonaws.com/mnist/",
        "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
        "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
        "https://www.cs.toronto.edu/~kriz/cifar-100-binary.tar.gz",
    ]


def test_missing_files_are_named(tmp_path):
    files = idx_files()
    del files[IDX[0]], files[IDX[3]]
    write(tmp_path / "MNIST/raw", files)
    assert message_of(load, "mnist", tmp_path) == (
        f"mnist is not complete: {tmp_path}/MNIST/raw has no {IDX[0]}, {IDX[3]}. Add the missing "
        "files, or delete the others to download all of them"
    )
    write(tmp_path / "mnist", idx_files())
    assert len(load("mnist", tmp_path).train[0]) == 4


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({IDX[2]: idx_files()[IDX[2]][:-1]}, "{d}/{IDX[2]} is truncated: it has 27 bytes, and "),
        (
            {IDX[0]: idx((5, 2, 2))},
            "{d}/{IDX[0]} has shape (5, 2, 2) and {IDX[1]} (4,). They must have three dimensions "
            "and one, and as many images as labels. Download both again",
        ),
        ({IDX[0]: idx((4,))}, "{d}/{IDX[0]} has shape (4,) and {IDX[1]} (4,). They must "),
        ({IDX[3]: idx((3, 1))}, "{d}/{IDX[2]} has shape (3, 2, 2) and {IDX[3]} (3, 1). They must"),
        ({IDX[0]: idx((0, 2, 2)), IDX[1]: idx((0,))}, "{d} has no training samples. Download the "),
        (
            {IDX[3]: idx((3,), b"\0\x0a\0")},
            "{d}: test labels go from 0 to 10, but mnist has labels from 0 to 9. Down",
        ),
        (
            {IDX[2]: idx((3, 2, 3))},
            "data set 'mnist': training samples are torch.uint8 of shape (1, 2, 2), and test "
            "samples torch.uint8 of shape (1, 2, 3). Both must be the same",
        ),
    ],
)
def test_idx_files_that_do_not_fit_are_named(tmp_path, changed, message):
    write(tmp_path, {**idx_files(), **changed})
    found = message_of(load, "mnist", tmp_path)
    assert found.startswith(message.format(IDX=IDX, d=tmp_path))


def test_a_file_of_the_published_length_must_have_its_checksum(tmp_path, monkeypatch):
    files, entry = idx_files(), DATASETS["mnist"]
    published = tuple(
        replace(each, size=len(files[each.name]), md5=hashlib.md5(files[each.name]).hexdigest())
        for each in entry.layouts[0].train
    )
    layouts = (replace(entry.layouts[0], train=published),)
    monkeypatch.setitem(DATASETS, "mnist", replace(entry, layouts=layouts))
    write(tmp_path / "MNIST/raw", files)
    assert load("mnist", tmp_path).train[1].tolist() == [0, 1, 2, 3]
    write(tmp_path / "MNIST/raw", {IDX[1]: idx((4,), b"\0\1\2\2")})
    assert message_of(load, "mnist", tmp_path).startswith(
        f"{tmp_path}/MNIST/raw/{IDX[1]} is damaged or of another data set: its MD5"
    )


def offered(site, monkeypatch, name: str, files: dict[str, bytes]) -> None:
    """Let the data set be downloaded from the web site, which gets these files."""
    write(site.directory, files)
    remotes = {site.url + file: hashlib.md5(content).hexdigest() for file, content in files.items()}
    monkeypatch.setitem(DATASETS, name, replace(DATASETS[name], remotes=remotes))


def test_missing_idx_files_are_downloaded_once(tmp_path, site, monkeypatch):
    name, folder = "mnist", "MNIST/raw"
    files = {f"{file}.gz": gzip.compress(content) for file, content in idx_files().items()}
    offered(site, monkeypatch, name, files)
    directory = tmp_path / "not" / "yet"
    calls = []
    data = load(name, directory, on_progress=lambda *args: calls.append(args))
    assert same(data.train, (torch.arange(16).reshape(4, 1, 2, 2), torch.arange(4)))
    assert sorted(os.listdir(directory / folder)) == sorted(files)
    assert os.listdir(directory) == [folder.split("/")[0]]
    assert [file for file, done, total in calls if done == total] == list(files)
    assert same(load(name, directory).train, data.train)
    assert site.asked == list(files)


@pytest.mark.parametrize("name", ["cifar10", "cifar100"])
def test_a_missing_archive_is_downloaded_once_and_unpacked(tmp_path, site, monkeypatch, name):
    layout = DATASETS[name].layouts[0]
    files = {
        f"{layout.folder}/{file}": records(number, coarse=name == "cifar100")
        for number, file in enumerate(layout.names)
    }
    packed = archive(tmp_path / f"{name}.tar.gz", {"../evil": b"no", "readme": b"no", **files})
    offered(site, monkeypatch, name, {packed.name: packed.read_bytes()})
    directory = tmp_path / "data"
    data = load(name, directory)
    assert same(data.train, expected(*range(len(layout.train))))
    assert same(data.test, expected(len(layout.train)))
    assert sorted(os.listdir(directory / layout.folder)) == sorted(layout.names)
    assert os.listdir(directory) == [layout.folder]
    load(name, directory)
    assert site.asked == [packed.name]


def test_without_a_network_the_files_and_their_folder_are_named(tmp_path):
    directory = tmp_path / "data"
    message = message_of(load, "cifar10", directory)
    [url] = DATASETS["cifar10"].remotes
    assert message.startswith(
        f"cifar10 is not in {directory} and cannot be downloaded: {url} failed after 0 bytes: "
    )
    files = ", ".join([*(f"{each}.bin" for each in BATCHES), "test_batch.bin"])
    folder = directory / "cifar-10-batches-bin"
    assert message.endswith(f". Check the connection, or put {files} into {folder}, gzipped or not")
    assert os.listdir(directory) == []


def test_a_download_that_fails_half_way_can_be_repeated(tmp_path, site, monkeypatch):
    files = {f"{file}.gz": gzip.compress(content) for file, content in idx_files().items()}
    offered(site, monkeypatch, "mnist", files)
    last = f"{IDX[3]}.gz"
    directory = tmp_path / "data"
    site.faults[last] = "truncated"
    assert " bytes are missing. Check " in message_of(load, "mnist", directory)
    assert os.listdir(directory) == []
    site.faults.clear()
    (site.directory / last).write_bytes(b"other")
    assert f"{site.url}{last} is not the published file" in message_of(load, "mnist", directory)
    assert os.listdir(directory) == []

    def interrupt(name, done, total):
        if name.startswith("t10k-labels"):
            raise KeyboardInterrupt

    (site.directory / last).write_bytes(files[last])
    with pytest.raises(KeyboardInterrupt):
        load("mnist", directory, on_progress=interrupt)
    assert os.listdir(directory) == []
    assert len(load("mnist", directory).test[0]) == 3


def test_an_archive_without_the_files_is_refused(tmp_path, site, monkeypatch):
    packed = archive(tmp_path / "a.tar.gz", {"cifar-100-binary/train.bin": b""})
    offered(site, monkeypatch, "cifar100", {"a.tar.gz": packed.read_bytes()})
    message = message_of(load, "cifar100", tmp_path / "data")
    assert "a.tar.gz does not contain cifar-100-binary/test.bin. Check the " in message


def test_a_directory_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "file").touch()
    message = message_of(load, "mnist", tmp_path / "file")
    assert message.startswith(
        f"mnist is not in {tmp_path / 'file'} and cannot be downloaded: [Errno 17] File exists: "
    )
