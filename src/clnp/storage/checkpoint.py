"""A network in one safetensors file with a JSON manifest, written atomically, checked when read.

The file's metadata hold the manifest (graph, ledger, certificates, the open task and the SHA-256
of every tensor) and the manifest's own SHA-256. Nothing in it can execute code.
"""

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import asdict, replace
from os import PathLike
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load as load_tensors, save as save_tensors
from torch import Tensor, nn

from clnp.core.certificate import Certificate, digest_of
from clnp.core.layers.ledger import Ledger, OpenTask
from clnp.core.net import ContinualNet
from clnp.core.record import Description, Record
from clnp.core.structure.axis import Segment
from clnp.core.structure.graph import Graph, Site
from clnp.devices import on_the_host
from clnp.errors import CheckpointError

from .atomic import replace_file
from .packing import pack, unpack

FORMAT = "clnp"
VERSION = 1
ATTACHED = "attached"
"""What the names of tensors begin with that are not the network's own."""


def save(net: ContinualNet, path: str | PathLike[str], *, attached: Any = None) -> None:
    """Write a network, an open task included, to one safetensors file, atomically.

    Args:
        net: The network.
        path: The file, which holds the old content or the new one at any moment, never a part.
        attached: What to store with it, an optimizer's state dict for example: nested dictionaries,
            lists, numbers, text and tensors. `clnp.storage.attached(path)` reads it back.

    Example:
        >>> clnp.save(net, "flowers.safetensors")
        >>> net = clnp.load("flowers.safetensors", model)
    """
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
    """Write record and tensors to `path`, which holds the old file or the new one, never a part."""
    beside: dict[str, Tensor] = {}
    packed = pack(record.attached, beside, name=ATTACHED)
    # Copies: tensors may share their memory, which safetensors does not write.
    stored = {
        name: tensor.detach().to("cpu", copy=True).contiguous()
        for name, tensor in {**tensors, **beside}.items()
    }
    manifest = json.dumps(
        {
            "graph": _graph_to_json(record.graph),
            "head": record.head,
            "description": record.description.to_json(),
            "ledger": record.ledger.to_json(),
            "certificates": [certificate.to_json() for certificate in record.certificates],
            "num_outputs": list(record.num_outputs),
            "open_task": None if record.open_task is None else asdict(record.open_task),
            "open_free": dict(record.open_free),
            "attached": packed,
            "tensors": {name: digest_of(tensor) for name, tensor in stored.items()},
        }
    )
    metadata = {
        "format": FORMAT,
        "version": str(VERSION),
        "manifest": manifest,
        "sha256": hashlib.sha256(manifest.encode()).hexdigest(),
    }
    replace_file(Path(os.path.expanduser(path)), save_tensors(stored, metadata))


def read(path: str | PathLike[str], *, check: bool = True) -> tuple[Record, dict[str, Tensor]]:
    """The record and the tensors at `path`, on the CPU, every byte of them checked.

    With `check=False` the tensors may be others than were written, if they have the same names.
    """
    try:
        data = Path(os.path.expanduser(path)).read_bytes()
    except FileNotFoundError:
        raise CheckpointError(f"{path}: there is no such file") from None
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror}") from error
    metadata = _metadata(path, data)
    manifest = metadata.get("manifest", "")
    if hashlib.sha256(str(manifest).encode()).hexdigest() != metadata.get("sha256"):
        raise CheckpointError(f"{path} is corrupted: its manifest does not match its SHA-256")
    try:
        fields = json.loads(manifest)
        digests = fields.pop("tensors")
        record = _record_from_json(fields)
        with on_the_host():
            tensors = load_tensors(data)
    except (SafetensorError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(f"{path} is corrupted: {error}") from error
    for name in digests.keys() | tensors.keys():
        if name not in tensors or (check and digest_of(tensors[name]) != digests.get(name)):
            raise CheckpointError(f"{path} is corrupted: tensor {name} does not match its SHA-256")
    found = unpack(record.attached, tensors)
    own = {name: tensor for name, tensor in tensors.items() if not name.startswith(ATTACHED)}
    return replace(record, attached=found), own


def attached(path: str | PathLike[str]) -> Any:
    """What was saved with a network as `attached`, on the CPU; tuples come back as lists."""
    record, _ = read(path)
    return record.attached


def _record_from_json(fields: dict[str, Any]) -> Record:
    graph = fields["graph"]
    sites = {
        site["path"]: Site(
            site["path"],
            site["kind"],
            tuple(Segment(*segment) for segment in site["rows"]),
            tuple(Segment(*segment) for segment in site["columns"]),
        )
        for site in graph["sites"]
    }
    own = (graph["classifier"], tuple(graph["constants"]), graph["num_inputs"])
    fields["graph"] = Graph(graph["groups"], sites, *own)
    fields["description"] = Description.from_json(fields["description"])
    fields["ledger"] = Ledger.from_json(fields["ledger"])
    fields["certificates"] = tuple(Certificate.from_json(c) for c in fields["certificates"])
    if fields["open_task"] is not None:
        fields["open_task"] = OpenTask(**fields["open_task"])
    fields["num_outputs"] = tuple(fields["num_outputs"])
    return Record(**fields)


def _metadata(path: str | PathLike[str], data: bytes) -> dict[str, str]:
    """The metadata of a safetensors file, after a check that it is whole and made by clnp."""
    foreign = CheckpointError(f"{path} is not a clnp checkpoint")
    size = int.from_bytes(data[:8], "little")
    if len(data) < 9 or data[8:9] != b"{":
        raise foreign
    if len(data) < 8 + size:
        raise CheckpointError(
            f"{path} is truncated: its header ends after {8 + size} bytes, "
            f"the file after {len(data)}"
        )
    try:
        header = json.loads(data[8 : 8 + size])
        metadata: dict[str, str] = header.pop("__metadata__", {})
        end = max((entry["data_offsets"][1] for entry in header.values()), default=0)
    except (ValueError, KeyError, TypeError, AttributeError, IndexError):
        raise CheckpointError(f"{path} is corrupted: its header cannot be read") from None
    if not isinstance(metadata, dict) or metadata.get("format") != FORMAT:
        raise foreign
    if metadata.get("version") != str(VERSION):
        raise CheckpointError(
            f"{path} has format version {metadata.get('version')}, this clnp reads {VERSION}; "
            "use the clnp that wrote it"
        )
    if len(data) != 8 + size + end:
        what = "truncated" if len(data) < 8 + size + end else "corrupted"
        raise CheckpointError(f"{path} is {what}: {len(data)} bytes, expected {8 + size + end}")
    return metadata


def _graph_to_json(graph: Graph) -> dict[str, Any]:
    return {
        "groups": dict(graph.groups),
        "sites": [
            {
                "path": site.path,
                "kind": site.kind,
                "rows": [[s.group, s.size, s.span] for s in site.rows],
                "columns": [[s.group, s.size, s.span] for s in site.columns],
            }
            for site in graph.sites.values()
        ],
        "classifier": graph.classifier,
        "constants": list(graph.constants),
        "num_inputs": graph.num_inputs,
    }
