import copy
import hashlib
import json
from dataclasses import replace

import pytest
import torch
from torch import Tensor

import clnp
from clnp.core.certificate import Certificate, certify, digest_of
from clnp.core.layers.ledger import Row
from clnp.errors import ForgettingError
from clnp.plain import read, to_json
from support.networks import HEADS, NETWORKS, example, learn, make

ROW = Row("a", {"fc1": 3}, {"fc1": None})


def flip_bit(tensor: Tensor, *, entry: int, bit: int = 0) -> None:
    """Flip one bit, the last of the mantissa by default, of one entry of the tensor, in place."""
    width = {2: torch.int16, 4: torch.int32, 8: torch.int64}[tensor.element_size()]
    tensor.view(-1).view(width)[entry] ^= 1 << bit


def test_a_digest_is_that_of_dtype_shape_and_bytes():
    tensor = torch.arange(6.0).view(2, 3)
    text = b"torch.float32 [2, 3]\n" + tensor.numpy().tobytes()
    assert digest_of(tensor) == hashlib.sha256(text).hexdigest()


def test_a_digest_does_not_depend_on_strides_or_gradients():
    tensor = torch.randn(3, 4)
    digest = digest_of(tensor)
    assert digest_of(tensor.T.contiguous().T) == digest
    assert digest_of(torch.nn.Parameter(tensor)) == digest


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.int64, torch.bool])
def test_tensors_of_any_dtype_and_shape_have_a_digest(dtype):
    assert digest_of(torch.ones(3).to(dtype)) != digest_of(torch.zeros(3).to(dtype))
    assert digest_of(torch.ones((), dtype=dtype)) != digest_of(torch.ones(1, dtype=dtype))
    assert digest_of(torch.ones(0, 3, dtype=dtype)) != digest_of(torch.ones(0, 4, dtype=dtype))


@pytest.mark.parametrize(
    "other", [torch.zeros(4), torch.zeros(3, dtype=torch.int32), torch.tensor([0.0, 0.0, -0.0])]
)
def test_another_tensor_has_another_digest(other):
    assert digest_of(other) != digest_of(torch.zeros(3))


def test_a_certificate_covers_tensors_and_row():
    tensors = {"fc1.weight": torch.ones(3)}
    certificate = certify(ROW, tensors)
    assert certificate.task == "a"
    assert certificate.tensors == {"fc1.weight": digest_of(torch.ones(3))}
    others = [
        certify(Row("b", ROW.widths, ROW.reused), tensors),
        certify(Row("a", {"fc1": 4}, ROW.reused), tensors),
        certify(Row("a", ROW.widths, {"fc1": 0}), tensors),
        certify(ROW, {"fc2.weight": torch.ones(3)}),
        certify(ROW, {**tensors, "more": torch.ones(1)}),
    ]
    assert len({certificate.digest, *(other.digest for other in others)}) == 6


def test_the_order_of_tensors_does_not_matter():
    tensors = {"a": torch.ones(1), "b": torch.zeros(1)}
    turned = dict(reversed(tensors.items()))
    assert certify(ROW, tensors).digest == certify(ROW, turned).digest


def test_a_certificate_goes_through_json():
    certificate = certify(ROW, {"fc1.weight": torch.ones(3)})
    assert read(Certificate, json.loads(to_json(certificate))) == certificate


def test_a_check_names_task_and_tensor():
    certificate = certify(ROW, {"fc1.weight": torch.ones(3), "fc1.bias": torch.ones(1)})
    certificate.check(certify(ROW, {"fc1.weight": torch.ones(3), "fc1.bias": torch.ones(1)}))
    now = certify(ROW, {"fc1.weight": torch.ones(3), "fc1.bias": torch.zeros(1)})
    expected = (
        "task 'a' has changed: fc1.bias is not what it was when the task ended. "
        "Load a checkpoint from before the change"
    )
    with pytest.raises(ForgettingError, match=expected):
        certificate.check(now)
    with pytest.raises(ForgettingError, match=r"fc1\.bias"):
        certificate.check(certify(ROW, {"fc1.weight": torch.ones(3)}))


def two_tasks(name: str, head: str):
    """A network with the ended tasks a and b, and c open."""
    net, x = make(name, head=head), example(name)
    learn(net, "a", x)
    learn(net, "b", x)
    net.begin_task("c")
    return net


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("name", NETWORKS)
def test_one_flipped_bit_of_anything_that_is_frozen_is_named(name, head):
    net = two_tasks(name, head)
    frozen = {n: t for n, t in net.named_buffers() if t.numel() and not n.endswith("_free")}
    assert frozen
    for buffer, tensor in frozen.items():
        layer = buffer.removeprefix("model.").rpartition(".")[0]
        for entry in {0, tensor.numel() // 2, tensor.numel() - 1}:
            flip_bit(tensor, entry=entry)
            named = rf"task '[ab]' has changed: {layer or buffer.removeprefix('model.')}"
            with pytest.raises(ForgettingError, match=named):
                net.verify()
            flip_bit(tensor, entry=entry)
    net.verify()


def test_the_first_task_that_reads_a_changed_weight_is_named():
    net = two_tasks("mlp", "multi")
    weight = net.model.fc1.weight_frozen
    flip_bit(weight, entry=0)
    with pytest.raises(ForgettingError, match=r"task 'a' has changed: fc1\.weight"):
        net.verify()
    flip_bit(weight, entry=0)
    flip_bit(weight, entry=weight.numel() - 1)
    with pytest.raises(ForgettingError, match=r"task 'b' has changed: fc1\.weight"):
        net.verify()


def test_a_copied_moved_or_reloaded_network_has_the_same_certificates(tmp_path):
    net, x = make("conv"), example("conv")
    learn(net, "a", x)
    learn(net, "b", x)
    clnp.save(net, tmp_path / "net")
    others = [
        copy.deepcopy(net),
        copy.copy(net),
        net.to("cpu"),
        clnp.load(tmp_path / "net", NETWORKS["conv"][0]()),
    ]
    for other in others:
        other.verify()
        assert other.certificates == net.certificates


def test_a_changed_ledger_is_seen():
    net = two_tasks("mlp", "multi")
    first, second = net.ledger.rows
    changed = replace(first, reused={**first.reused, "fc1": 3})
    net.ledger = replace(net.ledger, rows=(changed, second))
    with pytest.raises(ForgettingError, match="task 'a' has changed: its row of the ledger"):
        net.verify()
