"""Data sets that can be downloaded: their files, addresses and checksums.

A data set is one entry in `DATASETS`. The folders are those of torchvision, so that one directory
can serve both. Files are only kept if they are complete and have the published checksum.
"""

import hashlib
import http.client
import os
import tarfile
import tempfile
import urllib.request
import zlib
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath

import torch
from torch import Tensor

from clnp.errors import DataError

from .labelled import LabelledData
from .readers import Published, read_binary, read_idx, read_python

OnProgress = Callable[[str, int, int | None], None]
"""Called with the name of a file, its bytes so far, and its size, if that is known."""

CHUNK = 1 << 18


def fetch(
    url: str, path: Path, *, md5: str, on_progress: OnProgress | None = None, timeout: float = 30.0
) -> None:
    """Download a file to `path`, which is only changed if the download succeeds.

    `timeout` is the longest time without data, in seconds.
    """
    hashed = hashlib.md5(usedforsecurity=False)
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with part.open("wb") as file, closing(_chunks(url, timeout)) as chunks:
            for chunk, done, total in chunks:
                hashed.update(chunk)
                file.write(chunk)
                if on_progress is not None:
                    on_progress(path.name, done, total)
        if hashed.hexdigest() != md5:
            raise DataError(
                f"{url} is not the published file and was not kept: its MD5 is "
                f"{hashed.hexdigest()}, not {md5}"
            )
        os.replace(part, path)
    except OSError as error:
        raise DataError(f"{path} cannot be written: {error.strerror or error}") from error
    finally:
        part.unlink(missing_ok=True)


def _chunks(url: str, timeout: float) -> Generator[tuple[bytes, int, int | None]]:
    """Yield chunks, the first of them empty, with the bytes so far and the size of the file."""
    done = 0
    try:
        request = urllib.request.Request(url, headers={"User-Agent": "clnp"})
        with urllib.request.urlopen(request, timeout=timeout) as response:
            length = response.headers.get("Content-Length")
            total = int(length) if length is not None and length.isdecimal() else None
            yield b"", 0, total
            while chunk := response.read(CHUNK):
                done += len(chunk)
                yield chunk, done, total
        if total is not None and done != total:
            raise OSError(f"{total - done} bytes are missing")
    except (OSError, http.client.HTTPException) as error:
        if isinstance(error, urllib.error.HTTPError):
            error.close()
        raise DataError(f"{url} failed after {done} bytes: {error}") from error


def extract(archive: Path, names: Sequence[str]) -> list[Path]:
    """Write the members of these names to the folder of a gzipped tar archive.

    The files are called like the last parts of the names. Other members are ignored.
    """
    paths = {}
    try:
        with tarfile.open(archive, "r:gz") as file:
            for member in file:
                source = file.extractfile(member) if member.name in names else None
                if source is not None:
                    paths[member.name] = archive.with_name(PurePosixPath(member.name).name)
                    paths[member.name].write_bytes(source.read())
    except (tarfile.TarError, EOFError, zlib.error, OSError) as error:
        raise DataError(f"{archive} cannot be unpacked: {error}") from error
    missing = [name for name in names if name not in paths]
    if missing:
        raise DataError(f"{archive} does not contain {', '.join(missing)}")
    return list(paths.values())


Labelled = tuple[Tensor, Tensor]
Files = Sequence[tuple[Path, Published]]
Read = Callable[[Files], Labelled]
"""Reads images and labels from the files of a part of a data set."""


@dataclass(frozen=True)
class Layout:
    """Files in a folder of the data directory, gzipped or not, and the function to read them."""

    folder: str
    train: tuple[Published, ...]
    test: tuple[Published, ...]
    read: Read

    @property
    def names(self) -> list[str]:
        """Names of all files."""
        return [each.name for each in (*self.train, *self.test)]


@dataclass(frozen=True)
class Entry:
    """A data set of bytes; mean and standard deviation of each channel are for bytes / 255.

    `remotes` has the MD5 of each file to download, by address: gzipped data files, or tar archives
    of a whole folder. Downloaded files get the first of the layouts.
    """

    num_classes: int
    shape: tuple[int, ...]
    mean: tuple[float, ...]
    deviation: tuple[float, ...]
    layouts: tuple[Layout, ...]
    remotes: Mapping[str, str]


def load(name: str, directory: Path, *, on_progress: OnProgress | None = None) -> LabelledData:
    """Return the data set of that name in `DATASETS`; download it if the directory lacks it."""
    entry = DATASETS[name]
    layout = _present(name, entry, directory)
    if layout is None:
        _download(name, entry, directory, on_progress)
        layout = entry.layouts[0]
    folder = directory / layout.folder
    train, test = (
        layout.read([(_path(folder, each.name), each) for each in part])
        for part in (layout.train, layout.test)
    )
    for part, (_, labels) in (("training", train), ("test", test)):
        if len(labels) == 0:
            raise DataError(f"{folder} has no {part} samples. Download the files again")
        low, high = int(labels.min()), int(labels.max())
        if low < 0 or high >= entry.num_classes:
            raise DataError(
                f"{folder}: {part} labels go from {low} to {high}, but {name} has labels from 0 to "
                f"{entry.num_classes - 1}. Download the files again"
            )
    return LabelledData(
        name,
        train,
        test,
        entry.num_classes,
        largest=255.0,
        mean=entry.mean,
        deviation=entry.deviation,
    )


def is_there(name: str, directory: Path) -> bool:
    """Whether the files of the data set are in the directory."""
    return _present(name, DATASETS[name], directory) is not None


def _present(name: str, entry: Entry, directory: Path) -> Layout | None:
    """Return the first layout whose files are all there; None if there are no files."""
    incomplete = []
    for layout in entry.layouts:
        folder = directory / layout.folder
        missing = [each for each in layout.names if not os.path.isfile(_path(folder, each))]
        if not missing:
            return layout
        if len(missing) < len(layout.names):
            incomplete.append(f"{folder} has no {', '.join(missing)}")
    if incomplete:
        raise DataError(
            f"{name} is not complete: {incomplete[0]}. Add the missing files, or delete the others "
            "to download all of them"
        )
    return None


def _path(folder: Path, name: str) -> Path:
    """Return the path of the file, or that of its gzipped form if only that exists."""
    plain, gzipped = folder / name, folder / f"{name}.gz"
    return plain if os.path.isfile(plain) or not os.path.isfile(gzipped) else gzipped


def _download(name: str, entry: Entry, directory: Path, on_progress: OnProgress | None) -> None:
    """Download all files of the first layout or none, as a part would not be completed later."""
    layout = entry.layouts[0]
    folder = directory / layout.folder
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".download-", dir=directory) as temporary:
            arrived: list[Path] = []
            for url, md5 in entry.remotes.items():
                path = Path(temporary, url.rpartition("/")[2])
                fetch(url, path, md5=md5, on_progress=on_progress)
                if path.name.endswith(".tar.gz"):
                    arrived += extract(path, [f"{layout.folder}/{each}" for each in layout.names])
                else:
                    arrived.append(path)
            folder.mkdir(parents=True, exist_ok=True)
            for path in arrived:
                os.replace(path, folder / path.name)
    except (DataError, OSError) as error:
        raise DataError(
            f"{name} is not in {directory} and cannot be downloaded: {error}. Check the "
            f"connection, or put {', '.join(layout.names)} into {folder}, gzipped or not"
        ) from error


def _of_idx(files: Files) -> Labelled:
    """Return images, uint8 [N, 1, height, width], and labels, int64 [N], from a file each."""
    images, labels = (read_idx(path, published) for path, published in files)
    if images.ndim != 3 or labels.ndim != 1 or len(images) != len(labels):
        raise DataError(
            f"{files[0][0]} has shape {tuple(images.shape)} and {files[1][0].name} "
            f"{tuple(labels.shape)}. They must have three dimensions and one, and as many images "
            "as labels. Download both again"
        )
    return images.unsqueeze(1), labels.to(torch.int64)


def _joined(files: Files, *, read: Callable[[Path, Published], Labelled]) -> Labelled:
    """Return images and labels of all files, each read by `read`."""
    parts = [read(path, published) for path, published in files]
    return torch.cat([images for images, _ in parts]), torch.cat([labels for _, labels in parts])


def _mnist(
    folders: tuple[str, ...], site: str, mean: float, deviation: float, md5s: tuple[str, ...]
) -> Entry:
    """Return the entry of MNIST, or of a data set with the same files.

    `md5s` are those of the four files, and then of the same files gzipped.
    """
    parts = ("train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1")
    names = [f"{part}-ubyte" for part in parts]
    images, labels = 16, 8  # bytes before the data
    sizes = (images + 60_000 * 28 * 28, labels + 60_000, images + 10_000 * 28 * 28, labels + 10_000)
    files = tuple(Published(*each) for each in zip(names, sizes, md5s[:4], strict=True))
    return Entry(
        num_classes=10,
        shape=(1, 28, 28),
        mean=(mean,),
        deviation=(deviation,),
        layouts=tuple(Layout(folder, files[:2], files[2:], _of_idx) for folder in folders),
        remotes={f"{site}{name}.gz": md5 for name, md5 in zip(names, md5s[4:], strict=True)},
    )


DATASETS = {
    "mnist": _mnist(
        ("MNIST/raw", "MNIST", "mnist", "."),
        "https://ossci-datasets.s3.amazonaws.com/mnist/",
        0.1307,
        0.3081,
        (
            "6bbc9ace898e44ae57da46a324031adb",
            "a25bea736e30d166cdddb491f175f624",
            "2646ac647ad5339dbf082846283269ea",
            "27ae3e4e09519cfbb04c329615203637",
            "f68b3c2dcbeaaa9fbdd348bbdeb94873",
            "d53e105ee54ea40749a09fcbcd1e9432",
            "9fb629c4189551a2d022fa330f9573f3",
            "ec29112dd5afa0611ce80d1b7f02629c",
        ),
    ),
    "fashion-mnist": _mnist(
        ("FashionMNIST/raw", "FashionMNIST", "fashion-mnist", "."),
        "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
        0.2860,
        0.3530,
        (
            "f4a8712d7a061bf5bd6d2ca38dc4d50a",
            "9018921c3c673c538a1fc5bad174d6f9",
            "8181f5470baa50b63fa0f6fddb340f0a",
            "15d484375f8d13e6eb1aabb0c3f46965",
            "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
            "25c81989df183df01b3e8a0aad5dffbe",
            "bef4ecab320f06d8554ea6380940ec79",
            "bb300cfdad3c16e7a12a480ee83cd310",
        ),
    ),
    "cifar10": Entry(
        num_classes=10,
        shape=(3, 32, 32),
        mean=(0.4914, 0.4822, 0.4465),
        deviation=(0.2470, 0.2435, 0.2616),
        layouts=(
            Layout(
                "cifar-10-batches-bin",
                (
                    Published("data_batch_1.bin", 30_730_000, "5dd7e06a14cb22eb9f671a540d1b7c25"),
                    Published("data_batch_2.bin", 30_730_000, "5ea93a67294ea407fff1d09f752e9692"),
                    Published("data_batch_3.bin", 30_730_000, "942cd6a4bcdd0dd3c604fbe906cb4421"),
                    Published("data_batch_4.bin", 30_730_000, "ae636b3ba5c66a11e91e8cb52e771fcb"),
                    Published("data_batch_5.bin", 30_730_000, "53f37980c15c3d472c316c40844f3f0d"),
                ),
                (Published("test_batch.bin", 30_730_000, "803d5f7f4d78ea53de84dbe85f74fb6d"),),
                partial(_joined, read=read_binary),
            ),
            Layout(
                "cifar-10-batches-py",
                (
                    Published("data_batch_1", 31_035_704, "c99cafc152244af753f735de768cd75f"),
                    Published("data_batch_2", 31_035_320, "d4bba439e000b95fd0a9bffe97cbabec"),
                    Published("data_batch_3", 31_035_999, "54ebc095f3ab1f0389bbae665268c751"),
                    Published("data_batch_4", 31_035_696, "634d18415352ddfa80567beed471001a"),
                    Published("data_batch_5", 31_035_623, "482c414d41f54cd18b22e5b47cb7c3cb"),
                ),
                (Published("test_batch", 31_035_526, "40351d587109b95175f43aff81a1287e"),),
                partial(_joined, read=read_python),
            ),
        ),
        remotes={
            "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz": (
                "c32a1d4ab5d03f1284b67883e8d87530"
            ),
        },
    ),
    "cifar100": Entry(
        num_classes=100,
        shape=(3, 32, 32),
        mean=(0.5071, 0.4865, 0.4409),
        deviation=(0.2673, 0.2564, 0.2762),
        layouts=(
            Layout(
                "cifar-100-binary",
                (Published("train.bin", 153_700_000, "6172c7755cfe09b2fe270c85cebc1b15"),),
                (Published("test.bin", 30_740_000, "4499cfba6c016c1be1438163640a0898"),),
                partial(_joined, read=partial(read_binary, num_labels=2)),
            ),
            Layout(
                "cifar-100-python",
                (Published("train", 155_249_918, "16019d7e3df5f24257cddd939b257f8d"),),
                (Published("test", 31_049_661, "f0ef6b0ae62326f3e7ffdfab6717acfc"),),
                partial(_joined, read=partial(read_python, labels="fine_labels")),
            ),
        ),
        remotes={
            "https://www.cs.toronto.edu/~kriz/cifar-100-binary.tar.gz": (
                "03b5dce01913d631647c71ecec9e9cb8"
            ),
        },
    ),
}
