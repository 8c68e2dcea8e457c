"""Data sets by name.

`digits` is a part of scikit-learn, and `datasets.py` lists those that can be downloaded. Any other
name is a file `NAME.npz` in the data directory with the arrays `x_train`, `y_train`, `x_test` and
`y_test`: uint8 or floating-point samples, and integer labels that count from 0. Arrays of Python
objects are refused, because they could execute code.
"""

import importlib.util
import os
from pathlib import Path
from zipfile import ZipFile

import numpy as np
import torch
from torch import Tensor

from clnp import extras
from clnp.errors import DataError, unknown_name

from . import datasets
from .datasets import OnProgress
from .labelled import LabelledData

KNOWN = ("digits", *datasets.DATASETS)
MOST_CLASSES = 1_000_000
"""Larger labels are assumed to be something else."""
DIGITS: tuple[int, ...] = (1, 8, 8)
"""Shape of a handwritten digit of scikit-learn."""
NUM_RANDOM = 1000
"""Number of random samples that replace a part of a data set."""
ARRAYS = ("x_train", "y_train", "x_test", "y_test")


def find(
    name: str,
    directory: str | os.PathLike[str] | None = None,
    *,
    on_progress: OnProgress | None = None,
) -> LabelledData:
    """Return the data set of that name, downloaded if it is in the table and not on disk.

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
    if name in datasets.DATASETS:
        return datasets.load(name, chosen, on_progress=on_progress)
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
    if name in datasets.DATASETS:
        return datasets.is_there(name, chosen)
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
        entry = datasets.DATASETS[name]
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
    found = importlib.util.find_spec("sklearn")
    if found is None:
        raise DataError(
            "the data set 'digits' is a part of scikit-learn, which is not installed. Install it "
            f"with {extras.command('demo')}"
        )
    # Importing scikit-learn would take seconds.
    file = Path(found.origin or "").parent / "datasets" / "data" / "digits.csv.gz"
    numbers = torch.from_numpy(np.loadtxt(file, delimiter=",", dtype=np.uint8))
    x, y = numbers[:, :-1].reshape(-1, *DIGITS), numbers[:, -1].to(torch.int64)
    apart = torch.arange(len(x), device="cpu") % 5 == 4
    return LabelledData("digits", (x[~apart], y[~apart]), (x[apart], y[apart]), 10, largest=16.0)


def read_arrays(path: Path) -> LabelledData:
    """Return the data set in an npz file."""
    arrays = {}
    try:
        with ZipFile(path) as file:
            for name in ARRAYS:
                with file.open(f"{name}.npy") as stored:
                    arrays[name] = np.lib.format.read_array(stored, allow_pickle=False)
    except Exception as error:  # A damaged file makes numpy and zipfile raise all kinds of errors.
        # The further sentences suggest to allow pickles, which could execute code.
        reason = str(error).partition(". ")[0].partition("\n")[0]
        raise DataError(
            f"{path} cannot be read as an npz file of the arrays {', '.join(ARRAYS)}: {reason}"
        ) from error
    train, test = (
        _tensors(path, part, arrays[f"x_{part}"], arrays[f"y_{part}"]) for part in ("train", "test")
    )
    num_classes = 1 + int(max(train[1].max(), test[1].max()))
    largest = 255.0 if train[0].dtype == torch.uint8 else 1.0
    return LabelledData(path.stem, train, test, num_classes, largest=largest)


def _tensors(path: Path, part: str, x: "np.ndarray", y: "np.ndarray") -> tuple[Tensor, Tensor]:
    is_number = x.dtype == np.uint8 or np.issubdtype(x.dtype, np.floating)
    if not is_number or x.ndim < 2 or x.size == 0:
        raise DataError(
            f"{path}: x_{part} is {x.dtype} of shape {x.shape}. It must have samples of uint8 (0 "
            "to 255) or of floating-point numbers"
        )
    if not np.issubdtype(y.dtype, np.integer) or y.shape != x.shape[:1]:
        raise DataError(
            f"{path}: y_{part} is {y.dtype} of shape {y.shape}. It must have one integer for each "
            f"of the {len(x)} samples"
        )
    if y.min() < 0 or y.max() >= MOST_CLASSES:
        raise DataError(f"{path}: y_{part} goes from {y.min()} to {y.max()}. Labels count from 0")
    with np.errstate(over="ignore"):  # Numbers that are too large are refused as infinite.
        inputs = x if x.dtype == np.uint8 else x.astype(np.float32)
    return torch.tensor(inputs, device="cpu"), torch.tensor(y.astype(np.int64), device="cpu")
