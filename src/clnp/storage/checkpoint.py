"""A network in one safetensors file with a JSON manifest, written atomically, checked when read.

The file's metadata hold the manifest (graph, ledger, certificates, the open task and the SHA-256
of every tensor) and the manifest's own SHA-256. Nothing in it can execute code.
"""

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load as load_tensors, save as save_tensors
from torch import Tensor, nn

from clnp.checks import check_kind, check_path
from clnp.core.certificate import digest_of
from clnp.core.net import ContinualNet, check_net
from clnp.core.record import Record
from clnp.core.structure.axis import Axis
from clnp.devices import on_the_host
from clnp.errors import CheckpointError
from clnp.plain import read as read_record, to_plain

from .atomic import replace_file
from .packing import pack, unpack

FORMAT = "clnp"
VERSION = 1
RESTORE = "Restore a copy of it"
ATTACHED = "attached"
"""The prefix of names of tensors that are not the network's own."""


def save(net: ContinualNet, path: str | PathLike[str], *, attached: Any = None) -> None:
    """Write a network, an open task included, to one safetensors file, atomically.

    Args:
        net: The network.
        path: The file, which holds the old content or the new one at any moment, never a part.
        attached: Data to store with it, such as an optimizer's state dict: nested dictionaries,
            lists, numbers, text and tensors. `clnp.storage.attached(path)` reads it back.

    Example:
        >>> clnp.save(net, "flowers.safetensors")
        >>> net = clnp.load("flowers.safetensors", model)
    """
    check_net(net)
    check_path("path", path)
    record, tensors = net.snapshot()
    write(path, replace(record, attached=attached), tensors)


def load(path: str | PathLike[str], model: nn.Module, *, check: bool = True) -> ContinualNet:
    """Load a network from the file that `save` wrote.

    Args:
        path: The file.
        model: A model like the one that the network was made from. It is copied and stays as it
            is; the network is on its device.
        check: Compare every tensor and every certificate with the hashes in the file. With False a
            damaged file is loaded, for `net.verify()` to say which task it concerns.

    Returns:
        The network, with its ended tasks and, if there was one, its open task.

    Example:
        >>> net = clnp.load("flowers.safetensors", torchvision.models.resnet18())
        >>> net(x, task="flowers")
    """
    check_kind("model", model, nn.Module, "a model like the one that the network was made from")
    record, tensors = read(path, check=check)
    difference = record.description.difference(model)
    if difference is not None:
        raise CheckpointError(f"{path} was made from another model: {difference}")
    record.description.warn(model, str(path))
    try:
        net = ContinualNet.from_snapshot(record, tensors, model)
    except RuntimeError as error:
        raise CheckpointError(f"{path} was made from another model: {error}") from error
    if check:
        net.verify()
    return net


def write(path: str | PathLike[str], record: Record, tensors: Mapping[str, Tensor]) -> None:
    """Write record and tensors to `path`, atomically."""
    beside: dict[str, Tensor] = {}
    packed = pack(record.attached, beside, name=ATTACHED)
    # Copies: tensors may share their memory, which safetensors does not write.
    stored = {
        name: tensor.detach().to("cpu", copy=True).contiguous()
        for name, tensor in {**tensors, **beside}.items()
    }
    sites = [
        {**to_plain(site), "rows": _triples(site.rows), "columns": _triples(site.columns)}
        for site in record.graph.sites.values()
    ]
    graph = {**to_plain(record.graph), "sites": sites}
    digests = {name: digest_of(tensor) for name, tensor in stored.items()}
    plain = to_plain(replace(record, attached=packed))
    manifest = json.dumps({**plain, "graph": graph, "tensors": digests})
    metadata = {
        "format": FORMAT,
        "version": str(VERSION),
        "manifest": manifest,
        "sha256": hashlib.sha256(manifest.encode()).hexdigest(),
    }
    replace_file(Path(os.path.expanduser(path)), save_tensors(stored, metadata))


def read(path: str | PathLike[str], *, check: bool = True) -> tuple[Record, dict[str, Tensor]]:
    """Read the record and the tensors at `path`, on the CPU, and check every byte of them.

    With `check=False`, damaged tensors are accepted if their names are right.
    """
    check_path("path", path)
    try:
        data = Path(os.path.expanduser(path)).read_bytes()
    except FileNotFoundError:
        raise CheckpointError(f"{path} does not exist. Check the path") from None
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror}") from error
    metadata = _metadata(path, data)
    manifest = metadata.get("manifest", "")
    if hashlib.sha256(str(manifest).encode()).hexdigest() != metadata.get("sha256"):
        raise CheckpointError(
            f"{path} is corrupted: its manifest does not match its SHA-256. {RESTORE}"
        )
    try:
        fields = json.loads(manifest)
        digests = fields.pop("tensors")
        record = _record_of(fields)
        with on_the_host():
            tensors = load_tensors(data)
    except (SafetensorError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(f"{path} is corrupted: {error}. {RESTORE}") from error
    for name in digests.keys() | tensors.keys():
        if name not in tensors or (check and digest_of(tensors[name]) != digests.get(name)):
            found = f"tensor {name} does not match its SHA-256"
            raise CheckpointError(f"{path} is corrupted: {found}. {RESTORE}")
    found = unpack(record.attached, tensors)
    own = {name: tensor for name, tensor in tensors.items() if not name.startswith(ATTACHED)}
    return replace(record, attached=found), own


def attached(path: str | PathLike[str]) -> Any:
    """Read the data that was saved with a network.

    Args:
        path: The file that `save` wrote.

    Returns:
        The data, with tensors on the CPU and lists in place of tuples.

    Example:
        >>> clnp.save(net, "flowers.safetensors", attached=optimizer.state_dict())
        >>> optimizer.load_state_dict(clnp.storage.attached("flowers.safetensors"))
    """
    record, _ = read(path)
    return record.attached


def _record_of(manifest: dict[str, Any]) -> Record:
    sites = {}
    for site in manifest["graph"]["sites"]:
        axes = {name: [_segment(*entry) for entry in site[name]] for name in ("rows", "columns")}
        sites[site["path"]] = {**site, **axes}
    return read_record(Record, {**manifest, "graph": {**manifest["graph"], "sites": sites}})


def _metadata(path: str | PathLike[str], data: bytes) -> dict[str, str]:
    """Return the metadata of a safetensors file that is whole and made by clnp."""
    foreign = CheckpointError(f"{path} is not a clnp checkpoint. {RESTORE}")
    size = int.from_bytes(data[:8], "little")
    if len(data) < 9 or data[8:9] != b"{":
        raise foreign
    if len(data) < 8 + size:
        raise CheckpointError(
            f"{path} is truncated: its header ends after {8 + size} bytes, "
            f"the file after {len(data)}. {RESTORE}"
        )
    try:
        header = json.loads(data[8 : 8 + size])
        metadata: dict[str, str] = header.pop("__metadata__", {})
        end = max((entry["data_offsets"][1] for entry in header.values()), default=0)
    except (ValueError, KeyError, TypeError, AttributeError, IndexError):
        raise CheckpointError(
            f"{path} is corrupted: its header cannot be read. {RESTORE}"
        ) from None
    if not isinstance(metadata, dict) or metadata.get("format") != FORMAT:
        raise foreign
    if metadata.get("version") != str(VERSION):
        raise CheckpointError(
            f"{path} has format version {metadata.get('version')}, this clnp reads {VERSION}. "
            "Use the clnp that wrote it"
        )
    if len(data) != 8 + size + end:
        what = "truncated" if len(data) < 8 + size + end else "corrupted"
        raise CheckpointError(f"{path} is {what}: {len(data)} bytes, expected {8 + size + end}")
    return metadata


def _triples(axis: Axis) -> list[list[object]]:
    """Return an axis as lists, which take less space than dictionaries."""
    return [[segment.group, segment.size, segment.span] for segment in axis]


def _segment(group: str | None, size: int, span: int) -> dict[str, object]:
    return {"group": group, "size": size, "span": span}
