"""Data sets by name: what is built in, what can be downloaded, and arrays of your own.

`digits` comes with scikit-learn; `catalog.py` lists those that are read from the files of their
authors. Any other name is a file `NAME.npz` in the data directory with the arrays `x_train`,
`y_train`, `x_test` and `y_test`: bytes of 0 to 255 or floating-point numbers, and one whole number
for each sample. No array in it may hold Python objects, which could execute code.
"""

import importlib.util
import math
import os
from pathlib import Path
from zipfile import is_zipfile

import numpy as np
import torch

from clnp.errors import DataError, unknown_name

from . import catalog
from .catalog import OnProgress
from .labelled import LabelledData

KNOWN = ("digits", *catalog.CATALOG)
MOST_CLASSES = 1_000_000
"""Larger labels are taken to be something else."""
DIGITS: tuple[int, ...] = (1, 8, 8)
"""The shape of a handwritten digit of scikit-learn's."""
DIGITS_FILE = ("datasets", "data", "digits.csv.gz")
NUM_RANDOM = 1000
"""How many samples stand in for a part of a data set."""
ARRAYS = ("x_train", "y_train", "x_test", "y_test")


def find(
    name: str,
    directory: str | os.PathLike[str] | None = None,
    *,
    on_progress: OnProgress | None = None,
) -> LabelledData:
    """The data set of that name; its files are in `directory`, or else where `data_directory` says.

    What `catalog.py` knows and is not there is downloaded; `on_progress` is told how far that is.
    """
    if name == "digits":
        return digits()
    chosen = data_directory(directory)
    if name in catalog.CATALOG:
        return catalog.load(name, chosen, on_progress=on_progress)
    path = chosen / f"{name}.npz"
    if not os.path.isfile(path):
        raise DataError(
            f"{unknown_name('data set', name, KNOWN)}, and there is no file {path}; say where it "
            "is: --data DIRECTORY, or CLNP_DATA"
        )
    return read_arrays(path)


def is_there(name: str, directory: str | os.PathLike[str] | None = None) -> bool:
    """Whether `find` would find the data set of that name without downloading it."""
    if name == "digits":
        return importlib.util.find_spec("sklearn") is not None
    chosen = data_directory(directory)
    if name in catalog.CATALOG:
        return catalog.is_there(name, chosen)
    return os.path.isfile(chosen / f"{name}.npz")


def stand_in(name: str, directory: str | os.PathLike[str] | None = None) -> LabelledData:
    """Random samples that are like those of a known data set in all but what they show.

    Of arrays of one's own nobody knows the shape: a `DataError`.
    """
    if name not in KNOWN:
        return find(name, directory)
    if name == "digits":
        num_classes, shape, largest, figures = 10, DIGITS, 16, {}
    else:
        entry = catalog.CATALOG[name]
        num_classes, shape, largest = entry.num_classes, entry.shape, 255
        figures = {"mean": entry.mean, "deviation": entry.deviation}
    draw, device = torch.Generator().manual_seed(0), torch.device("cpu")
    sizes = (NUM_RANDOM, *shape)
    parts = [
        torch.randint(largest + 1, sizes, generator=draw, dtype=torch.uint8, device=device)
        for _ in range(2)
    ]
    labels = torch.arange(NUM_RANDOM, device=device) % num_classes
    train, test = ((part, labels) for part in parts)
    return LabelledData(name, train, test, num_classes, largest=float(largest), **figures)


def data_directory(directory: str | os.PathLike[str] | None = None) -> Path:
    """Where data sets are: the directory, or else $CLNP_DATA, or else the cache of this user."""
    chosen = directory if directory is not None else os.environ.get("CLNP_DATA")
    if chosen:
        return Path(os.path.expanduser(chosen))
    cache = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(cache) if os.path.isabs(cache) else Path("~/.cache").expanduser()) / "clnp"


def digits() -> LabelledData:
    """1,797 handwritten digits of 8 x 8 pixels, every fifth of them for testing."""
    x, y = map(torch.from_numpy, _digits())
    apart = torch.arange(len(x), device="cpu") % 5 == 4
    return LabelledData("digits", (x[~apart], y[~apart]), (x[apart], y[apart]), 10, largest=16.0)


def _digits() -> "tuple[np.ndarray, np.ndarray]":
    """Images and labels, from the file that scikit-learn has: importing it takes seconds."""
    found = importlib.util.find_spec("sklearn")
    if found is None:
        raise DataError(
            "the data set 'digits' comes with scikit-learn, which is not installed: "
            "pip install 'clnp[demo]'"
        )
    file = Path(found.origin or "").parent.joinpath(*DIGITS_FILE)
    if file.is_file():
        numbers = np.loadtxt(file, delimiter=",", dtype=np.uint8)
        images, labels = numbers[:, :-1], numbers[:, -1]
    else:  # It has been there in all versions so far.
        from sklearn.datasets import load_digits  # type: ignore[import-untyped]

        images, labels = load_digits(return_X_y=True)
    return images.reshape(-1, *DIGITS).astype(np.uint8), labels.astype(np.int64)


def read_arrays(path: Path) -> LabelledData:
    """The data set in an npz file."""
    try:
        if not is_zipfile(path):
            path.open("rb").close()  # It may be one that cannot be opened.
            raise DataError(f"{path} is not an npz file, or not all of one")
        with np.load(path, allow_pickle=False) as file:
            missing = [name for name in ARRAYS if name not in file]
            if missing:
                raise DataError(
                    f"{path} has no array {missing[0]}; it must hold {', '.join(ARRAYS)}"
                )
            # What is no array comes out as bytes.
            arrays = {name: np.asarray(file[name]) for name in ARRAYS}
    except DataError:
        raise
    except Exception as error:  # A damaged file makes numpy and zipfile raise all kinds of errors.
        # The sentences that follow the first tell how to load what could execute code.
        reason = str(error).partition(". ")[0].partition("\n")[0]
        raise DataError(
            f"{path} cannot be read as an npz file of plain arrays: {reason}"
        ) from error
    for part in ("train", "test"):
        _check(path, part, arrays[f"x_{part}"], arrays[f"y_{part}"])
    if arrays["x_train"].shape[1:] != arrays["x_test"].shape[1:]:
        raise DataError(
            f"{path}: samples of x_train have shape {arrays['x_train'].shape[1:]}, "
            f"those of x_test {arrays['x_test'].shape[1:]}"
        )
    bytes_stored = arrays["x_train"].dtype == np.uint8
    if bytes_stored != (arrays["x_test"].dtype == np.uint8):
        raise DataError(
            f"{path}: x_train is {arrays['x_train'].dtype} and x_test {arrays['x_test'].dtype}; "
            "both must be bytes of 0 to 255, or both floating point"
        )
    parts = {}
    for part in ("train", "test"):
        x, y = arrays[f"x_{part}"], arrays[f"y_{part}"]
        with np.errstate(over="ignore"):  # What is too large is refused as infinite.
            inputs = torch.tensor(x if bytes_stored else x.astype(np.float32), device="cpu")
        parts[part] = (inputs, torch.tensor(y.astype(np.int64), device="cpu"))
    num_classes = 1 + max(int(parts[part][1].max()) for part in parts)
    largest = 255.0 if bytes_stored else 1.0
    return LabelledData(path.stem, parts["train"], parts["test"], num_classes, largest=largest)


def _check(path: Path, part: str, x: "np.ndarray", y: "np.ndarray") -> None:
    if x.dtype != np.uint8 and not np.issubdtype(x.dtype, np.floating):
        raise DataError(
            f"{path}: x_{part} is {x.dtype}; it must be uint8, bytes of 0 to 255, or floating point"
        )
    if not np.issubdtype(y.dtype, np.integer) or y.ndim != 1:
        raise DataError(
            f"{path}: y_{part} is {y.dtype} of shape {y.shape}; it must be one whole number for "
            "each sample"
        )
    if x.ndim < 2 or math.prod(x.shape) == 0 or len(x) != len(y):
        raise DataError(
            f"{path}: x_{part} has shape {x.shape} and y_{part} {y.shape}; they must have one "
            "entry for each sample, and samples at least one number"
        )
    if int(y.min()) < 0:
        raise DataError(f"{path}: y_{part} holds {int(y.min())}; labels count from 0")
    if int(y.max()) >= MOST_CLASSES:
        raise DataError(
            f"{path}: y_{part} holds {int(y.max())}; labels count from 0, class by class"
        )
