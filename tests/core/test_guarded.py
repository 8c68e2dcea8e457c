import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

import clnp
from clnp.core.record import identity
from clnp.errors import TaskError
from support.networks import example, half, learn, make, mlp


def test_the_record_says_what_the_network_is():
    net = make(head="single")
    learn(net, "a", example("mlp"))
    net.begin_task("b", num_outputs=2)
    record = net.record()
    assert (record.head, record.open_task.name, record.open_task.num_outputs) == ("single", "b", 2)
    assert record.ledger == net.ledger
    assert record.num_outputs == (4,)
    assert record.open_free == net.ledger.free()
    assert record.certificates == (net.certificates["a"],)


def test_a_state_dict_carries_the_identity_of_its_network():
    net = make()
    learn(net, "a", example("mlp"))
    state = net.state_dict()
    assert torch.equal(state["_extra_state"], identity(net.record()))
    net.load_state_dict(state)
    other = make()
    learn(other, "b", example("mlp"))
    with pytest.raises(TaskError, match="this state dict is of a network with another ledger"):
        other.load_state_dict(state)
    other.verify()


def test_the_mode_does_not_change_in_the_middle_of_a_pass():
    net = make()
    changed = threading.Event()
    with net._body.lock:
        thread = threading.Thread(target=lambda: (net.eval(), changed.set()))
        thread.start()
        assert not changed.wait(0.05)
        assert net.training
    thread.join()
    assert not net.training


WAITING = {
    "predict_all": lambda net, path: net.predict_all(example("mlp")),
    "save": lambda net, path: clnp.save(net, path),
    "state_dict": lambda net, path: net.state_dict(),
    "begin_task": lambda net, path: net.begin_task("c"),
    "subnetwork": lambda net, path: net.subnetwork("b"),
    "verify": lambda net, path: net.verify(),
}


@pytest.mark.parametrize("call", WAITING)
def test_a_call_waits_for_a_task_that_is_ending_in_another_thread(call, tmp_path):
    net, x = make(), example("mlp")
    learn(net, "a", x)
    net.begin_task("b")
    begun = threading.Event()

    def ask():
        begun.set()
        return WAITING[call](net, tmp_path / "net.safetensors")

    with ThreadPoolExecutor(1) as pool:
        with net._body.lock:
            asked = pool.submit(ask)
            begun.wait()
            with pytest.raises(TimeoutError):
                asked.result(0.05)
            net.end_task(half(net))
        answer = asked.result()
    assert list(net.predict_all(x)) == ["a", "b"]
    if call == "predict_all":
        assert list(answer) == ["a", "b"]
    if call == "save":
        loaded = clnp.load(tmp_path / "net.safetensors", mlp())
        assert loaded.tasks == ("a", "b")
