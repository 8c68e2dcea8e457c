"""What people do with any module: dtypes, autocast, compile, devices, copies, modes."""

import copy
import subprocess
import sys

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import clnp

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
NETWORKS = {
    "mlp": (lambda: clnp.MLP(20, (24, 18), 5), (16, 20)),
    "narrow": (lambda: clnp.NarrowCNN(5, widths=(6, 7, 8, 9, 10), image_size=12), (8, 3, 12, 12)),
    "wide": (lambda: clnp.WideCNN(5, widths=(6, 7, 8, 9, 10)), (8, 3, 28, 28)),
}


def learn_three_tasks(name, *, head, device, dtype=torch.float32, autocast=False, compiled=False):
    """Three tasks; after each, every ended task must answer as when it ended, to the last bit."""
    make, shape = NETWORKS[name]
    torch.manual_seed(0)
    x = torch.randn(*shape, device=device, dtype=dtype)
    net = clnp.ContinualNet(make().to(device, dtype), x, head=head)
    run = torch.compile(net) if compiled else net
    outputs = {}

    def ended(task, network=None):
        with torch.no_grad(), torch.autocast(device, torch.bfloat16, enabled=autocast):
            return run(x, task=task) if network is None else network(x)

    for task in ("a", "b", "c"):
        y = torch.randint(0, 5, (len(x),), device=device)
        net.begin_task(task)
        optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2, weight_decay=0.1)
        net.train()
        for _ in range(4):
            with torch.autocast(device, torch.bfloat16, enabled=autocast):
                loss = F.cross_entropy(run(x).float(), y)
            (loss + net.l1_penalty(1e-5)).backward()
            optimizer.step()
            optimizer.zero_grad()
            assert loss.isfinite()
        activity = net.measure_activity([x])
        keep = {g: a.argsort(descending=True)[: max(1, len(a) // 3)] for g, a in activity.items()}
        net.end_task(keep)
        outputs[task] = ended(task)
        for earlier, output in outputs.items():
            assert torch.equal(ended(earlier), output), (task, earlier)
            assert torch.equal(ended(earlier, net.subnetwork(earlier)), output), (task, earlier)
    net.verify()
    return net, x, outputs


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("head", ["multi", "single"])
@pytest.mark.parametrize("name", NETWORKS)
def test_dtypes(name, head, dtype, device):
    net, _, outputs = learn_three_tasks(name, head=head, device=device, dtype=dtype)
    assert outputs["a"].dtype == dtype
    assert all(
        tensor.dtype in (dtype, torch.uint8, torch.int64) for tensor in net.state_dict().values()
    )


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("head", ["multi", "single"])
@pytest.mark.parametrize("name", NETWORKS)
def test_autocast(name, head, device):
    net, *_ = learn_three_tasks(name, head=head, device=device, autocast=True)
    assert net.model.get_submodule(net.graph.classifier).weight.dtype == torch.float32


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("head", ["multi", "single"])
@pytest.mark.filterwarnings("ignore")  # What the compiler itself warns about is not ours.
def test_compile(head, device):
    torch.compiler.reset()
    learn_three_tasks("mlp", head=head, device=device, compiled=True)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.filterwarnings("ignore")
def test_a_compiled_step_is_that_of_the_network_itself(device):
    torch.compiler.reset()
    torch.manual_seed(0)
    x = torch.randn(8, 20, device=device)
    net = clnp.ContinualNet(clnp.MLP(20, (24, 18), 5).to(device), x)
    net.begin_task("a")
    net.end_task({"fc1": range(9), "fc2": range(5)})
    net.begin_task("b")
    torch.testing.assert_close(torch.compile(net, backend="aot_eager")(x), net(x))


@pytest.mark.gpu
def test_moving_between_devices_keeps_certificates():
    net, x, outputs = learn_three_tasks("wide", head="multi", device="cuda")
    certificates = net.certificates
    on_cpu = net.to("cpu")
    on_cpu.verify()
    torch.testing.assert_close(on_cpu(x.cpu(), task="a"), outputs["a"].cpu(), rtol=1e-2, atol=1e-3)
    back = on_cpu.to("cuda")
    back.verify()
    assert back.certificates == certificates
    assert torch.equal(back(x, task="a"), outputs["a"])


@pytest.mark.gpu
def test_batches_are_moved_to_the_device_of_the_network(tmp_path):
    x = torch.randn(8, 20)
    net = clnp.ContinualNet(clnp.MLP(20, (24, 18), 5).cuda(), x.cuda())
    net.begin_task("a")
    assert set(net.measure_activity([(x, None)])) == {"fc1", "fc2"}
    net.end_task()
    net.save(tmp_path / "net.safetensors")
    loaded = clnp.ContinualNet.load(tmp_path / "net.safetensors", clnp.MLP(20, (24, 18), 5))
    assert loaded(x, task="a").device.type == "cpu"
    assert loaded.certificates == net.certificates


def test_moving_the_open_task_keeps_its_optimizer_and_what_is_shown():
    net, x, outputs = learn_three_tasks("mlp", head="multi", device="cpu")
    net.begin_task("d")
    before = list(net.parameters())
    net(x)
    net.to("cpu", torch.float32)
    assert [id(p) for p in net.parameters()] == [id(p) for p in before]
    assert torch.equal(net(x, task="a"), outputs["a"])


def test_deepcopy_is_independent():
    net, x, outputs = learn_three_tasks("wide", head="single", device="cpu")
    twin = copy.deepcopy(net)
    assert twin.certificates == net.certificates
    assert not {p.data_ptr() for p in twin.buffers() if p.numel()} & {
        p.data_ptr() for p in net.buffers() if p.numel()
    }
    twin.begin_task("d")
    with torch.no_grad():
        for tensor in (*twin.parameters(), *twin.buffers()):
            if tensor.is_floating_point():
                tensor.fill_(float("nan"))
    assert net.open_task is None
    net.verify()
    for task, output in outputs.items():
        assert torch.equal(net(x, task=task), output)


def test_an_ended_task_can_be_differentiated_by_its_input():
    net, x, _ = learn_three_tasks("narrow", head="multi", device="cpu")
    x = x.requires_grad_()
    net(x, task="b").sum().backward()
    assert x.grad is not None
    assert x.grad.abs().sum() > 0


def test_gradients_reach_an_input_through_the_frozen_neurons():
    torch.manual_seed(0)
    x = torch.randn(4, 20, requires_grad=True)
    net = clnp.ContinualNet(clnp.MLP(20, (24, 18), 5), torch.zeros(2, 20))
    net.begin_task("a")
    net.end_task()
    net.begin_task("b")
    net(x).sum().backward()
    assert x.grad.abs().sum() > 0


def test_channels_last_input():
    torch.manual_seed(0)
    x = torch.randn(4, 3, 32, 32).to(memory_format=torch.channels_last)
    net = clnp.ContinualNet(NETWORKS["wide"][0]().to(memory_format=torch.channels_last), x)
    net.begin_task("a")
    net(x).sum().backward()
    net.end_task()
    output = net(x, task="a")
    net.begin_task("b")
    net(x).sum().backward()
    assert torch.equal(net(x, task="a"), output)


def test_importing_clnp_does_not_import_the_compiler():
    code = "import sys, clnp; sys.exit('torch._dynamo' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_layers_are_still_the_user_s_own_classes():
    class Fancy(nn.Linear):
        def norm(self):
            return self.in_features

    model = nn.Sequential(Fancy(4, 6), nn.ReLU(), nn.Linear(6, 2))
    net = clnp.ContinualNet(model, torch.zeros(2, 4))
    assert isinstance(net.model[0], Fancy)
    assert net.model[0].norm() == 4
    assert type(model[0]) is Fancy
