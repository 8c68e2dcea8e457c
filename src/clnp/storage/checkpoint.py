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

from clnp.core.layers.ledger import Ledger, OpenTask
from clnp.core.record import (
    FORMAT,
    VERSION,
    Certificate,
    Description,
    Record,
    _graph_to_json,
    _metadata,
    digest_of,
)
from clnp.core.structure.axis import Segment
from clnp.core.structure.graph import Graph, Site
from clnp.devices import on_the_host
from clnp.errors import CheckpointError

from .atomic import replace_file
from .packing import pack, unpack

ATTACHED = "attached"
"""What the names of tensors begin with that are not the network's own."""


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


def fill(net: nn.Module, tensors: Mapping[str, Tensor], *, path: str | PathLike[str]) -> None:
    """Put the tensors into `net`, in fresh memory, on the devices that it is on."""
    own = net.state_dict()
    given = [tensors[name] for name in own if name in tensors]
    dtypes = {tensor.dtype for tensor in given if tensor.is_floating_point()}
    if len(dtypes) == 1:
        net.to(dtypes.pop())  # Buffers that are not in the file, too.
    here = {
        name: tensor.to(own[name].device, copy=True) if name in own else tensor
        for name, tensor in tensors.items()
    }
    try:
        net.load_state_dict(here, assign=True)
    except RuntimeError as error:
        raise CheckpointError(f"{path} was made from another model: {error}") from error


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
