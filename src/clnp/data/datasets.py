"""Data sets by name.

`digits` is a part of scikit-learn, and `catalog.py` lists those that can be downloaded. Any other
name is a file `NAME.npz` in the data directory with the arrays `x_train`, `y_train`, `x_test` and
`y_test`: uint8 or floating-point samples, and integer labels that count from 0. Arrays of Python
objects are refused, because they could execute code.
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
"""Larger labels are assumed to be something else."""
DIGITS: tuple[int, ...] = (1, 8, 8)
"""Shape of a handwritten digit of scikit-learn."""
DIGITS_FILE = ("datasets", "data", "digits.csv.gz")
NUM_RANDOM = 1000
"""Number of random samples that replace a part of a data set."""
ARRAYS = ("x_train", "y_train", "x_test", "y_test")


def find(
    name: str,
    directory: str | os.PathLike[str] | None = None,
    *,
    on_progress: OnProgress | None = None,
) -> LabelledData:
    """Return the data set of that name, downloaded if it is in the catalog and not on disk.

    Args:
        name: One of `KNOWN`, or the name of an npz file without its suffix.
        directory: The directory of data sets; see `data_directory`.
        on_progress: Called during a download with the name of a file, its bytes so far, and its
            size, if that is known.

    Returns:
        Samples and labels as they are stored. `Prepare` turns them into inputs.

    Example:
        >>> x, y = find("mnist").train
        >>> x.shape, y.shape
        (torch.Size([60000, 1, 28, 28]), torch.Size([60000]))
    """
    if name == "digits":
        return digits()
    chosen = data_directory(directory)
    if name in catalog.CATALOG:
        return catalog.load(name, chosen, on_progress=on_progress)
    path = chosen / f"{name}.npz"
    if not os.path.isfile(path):
        raise DataError(
            f"{unknown_name('data set', name, KNOWN)}, and there is no file {path}. Set the "
            "directory with --data or CLNP_DATA"
        )
    return read_arrays(path)


def is_there(name: str, directory: str | os.PathLike[str] | None = None) -> bool:
    """Whether `find` finds the data set without a download."""
    if name == "digits":
        return importlib.util.find_spec("sklearn") is not None
    chosen = data_directory(directory)
    if name in catalog.CATALOG:
        return catalog.is_there(name, chosen)
    return os.path.isfile(chosen / f"{name}.npz")


def stand_in(name: str, directory: str | os.PathLike[str] | None = None) -> LabelledData:
    """Return random samples with the shape, type and classes of a known data set.

    Arrays of the user's own are read instead, because their shape is not known.
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
    """Return the directory of data sets: the given one, $CLNP_DATA, or the user's cache."""
    chosen = directory if directory is not None else os.environ.get("CLNP_DATA")
    if chosen:
        return Path(os.path.expanduser(chosen))
    cache = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(cache) if os.path.isabs(cache) else Path("~/.cache").expanduser()) / "clnp"


def digits() -> LabelledData:
    """Return 1,797 handwritten digits of 8 x 8 pixels; every fifth is a test sample."""
    x, y = map(torch.from_numpy, _digits())
    apart = torch.arange(len(x), device="cpu") % 5 == 4
    return LabelledData("digits", (x[~apart], y[~apart]), (x[apart], y[apart]), 10, largest=16.0)


def _digits() -> "tuple[np.ndarray, np.ndarray]":
    """Return images and labels from the file of scikit-learn, whose import takes seconds."""
    found = importlib.util.find_spec("sklearn")
    if found is None:
        raise DataError(
            "the data set 'digits' is a part of scikit-learn, which is not installed: "
            "pip install 'clnp[demo]'"
        )
    file = Path(found.origin or "").parent.joinpath(*DIGITS_FILE)
    if file.is_file():
        numbers = np.loadtxt(file, delimiter=",", dtype=np.uint8)
        images, labels = numbers[:, :-1], numbers[:, -1]
    else:  # Another version of scikit-learn, so far none.
        from sklearn.datasets import load_digits  # type: ignore[import-untyped]

        images, labels = load_digits(return_X_y=True)
    return images.reshape(-1, *DIGITS).astype(np.uint8), labels.astype(np.int64)


def read_arrays(path: Path) -> LabelledData:
    """Return the data set in an npz file."""
    try:
        if not is_zipfile(path):
            path.open("rb").close()  # Raises an error if there is no permission.
            raise DataError(f"{path} is not an npz file, or is truncated")
        with np.load(path, allow_pickle=False) as file:
            missing = [name for name in ARRAYS if name not in file]
            if missing:
                needed = ", ".join(ARRAYS)
                raise DataError(f"{path} has no array {missing[0]}; it must contain {needed}")
            # A file that is not an array is read as bytes.
            arrays = {name: np.asarray(file[name]) for name in ARRAYS}
    except DataError:
        raise
    except Exception as error:  # A damaged file makes numpy and zipfile raise all kinds of errors.
        # The further sentences suggest to allow pickles, which could execute code.
        reason = str(error).partition(". ")[0].partition("\n")[0]
        raise DataError(
            f"{path} cannot be read as an npz file of plain arrays: {reason}"
        ) from error
    for part in ("train", "test"):
        _check(path, part, arrays[f"x_{part}"], arrays[f"y_{part}"])
    if arrays["x_train"].shape[1:] != arrays["x_test"].shape[1:]:
        raise DataError(
            f"{path}: samples of x_train have shape {arrays['x_train'].shape[1:]} and those of "
            f"x_test {arrays['x_test'].shape[1:]}; they must have the same"
        )
    bytes_stored = arrays["x_train"].dtype == np.uint8
    if bytes_stored != (arrays["x_test"].dtype == np.uint8):
        raise DataError(
            f"{path}: x_train is {arrays['x_train'].dtype} and x_test {arrays['x_test'].dtype}; "
            "both must be uint8, or both floating point"
        )
    parts = {}
    for part in ("train", "test"):
        x, y = arrays[f"x_{part}"], arrays[f"y_{part}"]
        with np.errstate(over="ignore"):  # Numbers that are too large are refused as infinite.
            inputs = torch.tensor(x if bytes_stored else x.astype(np.float32), device="cpu")
        parts[part] = (inputs, torch.tensor(y.astype(np.int64), device="cpu"))
    num_classes = 1 + max(int(parts[part][1].max()) for part in parts)
    largest = 255.0 if bytes_stored else 1.0
    return LabelledData(path.stem, parts["train"], parts["test"], num_classes, largest=largest)


def _check(path: Path, part: str, x: "np.ndarray", y: "np.ndarray") -> None:
    if x.dtype != np.uint8 and not np.issubdtype(x.dtype, np.floating):
        raise DataError(
            f"{path}: x_{part} is {x.dtype}; it must be uint8 (0 to 255) or floating point"
        )
    if not np.issubdtype(y.dtype, np.integer) or y.ndim != 1:
        raise DataError(
            f"{path}: y_{part} is {y.dtype} of shape {y.shape}; it must be one integer for each "
            "sample"
        )
    if x.ndim < 2 or math.prod(x.shape) == 0 or len(x) != len(y):
        raise DataError(
            f"{path}: x_{part} has shape {x.shape} and y_{part} {y.shape}; they must have one "
            "entry for each sample, and samples at least one number"
        )
    for label in (int(y.min()), int(y.max())):
        if not 0 <= label < MOST_CLASSES:
            raise DataError(f"{path}: y_{part} has the label {label}; labels count from 0")
