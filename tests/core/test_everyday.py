"""What people do with any module: dtypes, autocast, compile, devices, copies, modes, threads."""

import copy
import pickle
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.optim.swa_utils import update_bn

import clnp
from clnp.errors import ForgettingError, TaskError
from support.assembled import Assembled
from support.networks import HEADS, example, first, half, learn, make, train

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
NETWORKS = {
    "mlp": (lambda: clnp.models.MLP(20, (24, 18), 5), (16, 20)),
    "narrow": (
        lambda: clnp.models.NarrowCNN(5, widths=(6, 7, 8, 9, 10), image_size=12),
        (8, 3, 12, 12),
    ),
    "wide": (lambda: clnp.models.WideCNN(5, widths=(6, 7, 8, 9, 10)), (8, 3, 28, 28)),
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
    net = clnp.ContinualNet(clnp.models.MLP(20, (24, 18), 5).to(device), x)
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
    net = clnp.ContinualNet(clnp.models.MLP(20, (24, 18), 5).cuda(), x.cuda())
    net.begin_task("a")
    assert set(net.measure_activity([(x, None)])) == {"fc1", "fc2"}
    net.end_task()
    clnp.save(net, tmp_path / "net.safetensors")
    loaded = clnp.load(tmp_path / "net.safetensors", clnp.models.MLP(20, (24, 18), 5))
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
    net = clnp.ContinualNet(clnp.models.MLP(20, (24, 18), 5), torch.zeros(2, 20))
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


def kaiming(module):
    if isinstance(module, nn.Linear | nn.Conv2d):
        nn.init.kaiming_normal_(module.weight)
        if module.bias is not None:
            nn.init.zeros_(module.bias)


def xavier(module):
    if isinstance(module, nn.Linear | nn.Conv2d):
        nn.init.xavier_uniform_(module.weight)
        if module.bias is not None:
            module.bias.data.fill_(0)


def reset(module):
    if hasattr(module, "reset_parameters"):
        module.reset_parameters()


@pytest.mark.parametrize("init", [kaiming, xavier, reset])
@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("name", ["mlp", "conv", "depthwise"])
@pytest.mark.filterwarnings("ignore:Initializing zero-element tensors")
def test_initialising_all_layers_reaches_the_open_task_only(name, head, init):
    net, x = make(name, head=head), example(name)
    net.apply(init)
    ended = {}
    for task in "ab":
        ended[task] = learn(net, task, x)
        net.apply(init)
        net.begin_task(f"{task}, then nothing")
        net.apply(init)
        net.abandon_task()
    net.begin_task("c")
    layers = [module for module in net.modules() if isinstance(module, nn.Linear | nn.Conv2d)]
    before = [layer.weight.detach().clone() for layer in layers]
    net.apply(init)
    for layer, weight in zip(layers, before, strict=True):
        assert weight.numel() > 0
        assert layer.weight.requires_grad
        assert not torch.equal(layer.weight, weight)
        if layer.bias is not None and init is not reset:
            assert layer.bias.count_nonzero() == 0
    for task, outputs in ended.items():
        assert torch.equal(net(x, task=task), outputs)
    net.verify()
    train(net, x)
    net.end_task()
    net.verify()


@pytest.mark.filterwarnings("ignore:Initializing zero-element tensors")
def test_initialising_a_full_network_reaches_the_head_that_trains():
    net, x = make(), example("mlp")
    net.begin_task("a")
    net.end_task(first({"fc1": 7, "fc2": 4}))
    ended = net(x, task="a")
    net.apply(kaiming)
    net.begin_task("b")
    reuse = net.model.fc2.weight_reuse.detach().clone()  # fc2 reads frozen neurons only.
    net.apply(kaiming)
    assert net.model.fc1.weight.numel() == 0
    assert not torch.equal(net.model.fc2.weight_reuse, reuse)
    net.end_task()
    net.begin_task("c")
    reuse = net.model.fc3.weight_reuse.detach().clone()
    net.apply(kaiming)
    assert not torch.equal(net.model.fc3.weight_reuse, reuse)
    assert torch.equal(net(x, task="a"), ended)
    net.verify()


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("name", ["conv", "depthwise"])
def test_no_tensor_of_a_layer_shares_memory_with_what_is_frozen(name, head):
    net, x = make(name, head=head), example(name)

    def check():
        held = {
            tensor.untyped_storage().data_ptr()
            for name, tensor in net.named_buffers()
            if tensor.numel() and not name.endswith("_free")
        }
        for module in net.modules():
            for attribute in ("weight", "bias", "running_mean", "running_var"):
                tensor = getattr(module, attribute, None)
                assert tensor is None or tensor.untyped_storage().data_ptr() not in held

    for task in "ab":
        check()
        learn(net, task, x)
        check()
        net.begin_task(f"{task}, then nothing")
        check()
        net.abandon_task()
    net.begin_task("c")
    net.end_task()
    check()


@pytest.mark.parametrize("head", HEADS)
def test_update_bn_changes_the_statistics_of_the_open_task_only(head, tmp_path):
    net, x = make("conv", head=head), example("conv")
    ended = learn(net, "a", x)
    net.begin_task("b")
    train(net, x)
    other = copy.deepcopy(net)
    batches = [x[:4] + 1, x[4:]]
    with torch.random.fork_rng():
        update_bn(batches, net)
    other.recalibrate(batches)
    assert net.model.bn1.momentum == 0.1
    for norm, like in ((net.model.bn1, other.model.bn1), (net.model.bn2, other.model.bn2)):
        torch.testing.assert_close(norm.running_mean_free, like.running_mean_free)
        torch.testing.assert_close(norm.running_var_free, like.running_var_free)
    assert torch.equal(net(x, task="a"), ended)
    clnp.save(net, tmp_path / "net")
    clnp.load(tmp_path / "net", type(net.model)())
    net.end_task()
    net.verify()


def test_another_memory_format_keeps_the_bits_of_ended_tasks():
    torch.manual_seed(0)
    x = torch.randn(4, 3, 16, 16)
    model = nn.Sequential(
        nn.Conv2d(3, 64, 3), nn.BatchNorm2d(64), nn.ReLU(), nn.Conv2d(64, 64, 3), nn.ReLU()
    )
    # Of sizes by which formats cannot be told: kernels of 1 x 1, one input of each filter.
    model.extend([nn.Conv2d(64, 64, 1), nn.ReLU(), nn.Conv2d(64, 64, 3, groups=64)])
    model.extend([nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 5)])
    net = clnp.ContinualNet(model, x)
    net.begin_task("a")
    net(x).sum().backward()
    net.end_task({"0": range(40), "3": range(48), "5": range(37)})
    before = {task: net(x, task=task) for task in net.tasks}
    together = net.predict_all(x)["a"]
    for change in (
        lambda: net.to(memory_format=torch.channels_last),
        lambda: net.model.to(memory_format=torch.channels_last),
        lambda: net.begin_task("b"),
        lambda: net.to(memory_format=torch.channels_last),
    ):
        change()
        assert all(torch.equal(net(x, task=task), y) for task, y in before.items())
        assert torch.equal(net.predict_all(x)["a"], together)
        assert torch.equal(net.subnetwork("a")(x), before["a"])
    net(x).sum().backward()
    net.end_task()
    assert all(tensor.is_contiguous() for tensor in net.buffers())
    assert torch.equal(net.subnetwork("b")(x), net(x, task="b"))
    net.verify()


@pytest.fixture
def busy_threads():
    """Threads that take turns as often as possible."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


@pytest.mark.parametrize("name", ["mlp", "conv"])
def test_threads_may_ask_different_tasks_while_another_trains(name, busy_threads):
    net, x = make(name), example(name)
    ended = {task: learn(net, task, x) for task in "ab"}
    net.begin_task("c")
    alone = copy.deepcopy(net)

    def work(net):
        torch.manual_seed(0)  # The one thread that draws random numbers.
        train(net, x, steps=20)
        net.eval()
        activity = net.measure_activity([x, x])
        assert not any(module.training for module in net.modules())
        plan = net.plan_pruning(activity, lambda predict: float(predict(x)[0, 0]), margin=9.0)
        net.prune(plan)
        net.recalibrate([x, x])
        assert not any(module.training for module in net.modules())
        train(net, x, steps=20)
        net.eval()
        net.end_task(recalibrate=[x])
        return net(x, task="c")

    def ask(task):
        answers = 0
        while not trained.done() or answers < 20:
            with torch.no_grad():
                assert torch.equal(net(x, task=task), ended[task])
            answers += 1

    with ThreadPoolExecutor(4) as pool:
        trained = pool.submit(work, net)
        for asked in [pool.submit(ask, task) for task in "aba"]:
            asked.result()
        assert torch.equal(trained.result(), work(alone))
    assert alone.certificates == net.certificates
    net.verify()


@pytest.mark.parametrize("how", [copy.deepcopy, lambda net: pickle.loads(pickle.dumps(net))])
def test_a_copy_does_not_wait_for_the_network_that_it_was_made_from(how):
    net, x = make(), example("mlp")
    ended = learn(net, "a", x)
    with net._body.lock, ThreadPoolExecutor(1) as pool:
        asked = pool.submit(lambda: how(net)(x, task="a"))
        assert torch.equal(asked.result(timeout=60), ended)


def test_a_module_that_was_put_in_later_is_in_evaluation_mode_for_ended_tasks():
    net, x = make("conv"), example("conv")
    ended = learn(net, "a", x)
    net.model.dropout = nn.Dropout(0.9)
    net.train()
    assert torch.equal(net(x, task="a"), ended)
    assert net.model.dropout.training
    net.begin_task("b")
    net.measure_activity([x])
    assert net.model.dropout.training


def test_gradients_after_inference_mode():
    net, x = make(), example("mlp")
    with torch.inference_mode():
        net.begin_task("a")
    train(net, x)
    with torch.inference_mode():
        net.prune(half(net))
    train(net, x)
    with torch.inference_mode():
        net.end_task()
        ended = net(x, task="a").clone()
    net.begin_task("b")
    with torch.inference_mode():
        net(x)
    for run in (lambda x: net(x, task="a"), net):
        given = x.clone().requires_grad_()
        run(given).sum().backward()
        assert given.grad.abs().sum() > 0
    train(net, x)
    assert torch.equal(net(x, task="a"), ended)


class OwnTrain(nn.Module):
    """Does something of its own when its mode changes; its normalisation stays as it is."""

    def __init__(self):
        super().__init__()
        self.first, self.bn, self.fc = nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 3)
        self.rate = 0.0

    def train(self, mode=True):
        super().train(mode)
        self.bn.eval()
        self.rate = 0.5 if mode else 0.0

    def forward(self, x):
        h = self.bn(self.first(x))
        return self.fc(nn.functional.dropout(h, self.rate) if self.rate else h)


def test_a_model_may_do_something_of_its_own_when_its_mode_changes():
    torch.manual_seed(0)
    x = torch.randn(16, 6)
    net = clnp.ContinualNet(OwnTrain(), x)
    net.begin_task("a")
    net.eval()
    open_before = net(x)
    net.train()
    assert not torch.equal(net(x), open_before)
    activity = net.measure_activity([x])
    assert activity["first"].equal(net.measure_activity([x])["first"])
    assert (net.model.rate, net.model.training, net.model.bn.training) == (0.5, True, False)
    net.end_task({"first": range(4)})
    net.eval()
    before = net(x, task="a")
    net.train()
    assert torch.equal(net(x, task="a"), before)
    assert (net.model.rate, net.model.training, net.model.bn.training) == (0.5, True, False)
    assert torch.equal(net.subnetwork("a")(x), before)


def test_forward_may_take_device_and_dtype_from_the_first_parameter():
    def run(m, x):
        first = next(m.parameters())
        return m.fc(torch.relu(m.first(x.to(first.device, first.dtype))))

    x = torch.randn(4, 6, dtype=torch.float64)
    model = Assembled(run, first=nn.Linear(6, 8), fc=nn.Linear(8, 3))
    for head in ("multi", "single"):
        net = clnp.ContinualNet(model, x, head=head)
        net.begin_task("a")
        net.end_task({"first": range(4)})
        before = net(x, task="a")
        assert torch.equal(net.predict_all(x)["a"], before)
        assert list(net.parameters()) == []
        assert dict(net.named_parameters()) == {}
        net.begin_task("b")
        assert torch.equal(net(x, task="a"), before)
        assert all(parameter.requires_grad for parameter in net.parameters())


def test_layers_may_be_called_by_keyword_and_by_forward():
    def run(m, x):
        h = torch.relu(m.first(input=x))
        return m.fc(input=torch.relu(m.second.forward(m.bn(input=h))))

    def plainly(m, x):
        return m.fc(torch.relu(m.second(m.bn(torch.relu(m.first(x))))))

    torch.manual_seed(0)
    layers = {"first": nn.Linear(6, 8), "bn": nn.BatchNorm1d(8)}
    layers |= {"second": nn.Linear(8, 7), "fc": nn.Linear(7, 3)}
    x = torch.randn(32, 6)
    found = []
    for forward in (run, plainly):
        model = Assembled(forward, **layers)
        net = clnp.ContinualNet(model, x)
        net.begin_task("a", initial=model)
        activity = net.measure_activity(x.split(8))
        net.end_task(net.plan_pruning(activity, thresholds=0.05), recalibrate=x.split(8))
        found.append((activity["first"], activity["second"], net(x, task="a")))
    assert (found[0][0] > 0).any()
    assert all(torch.equal(one, other) for one, other in zip(*found, strict=True))


def test_a_constant_cannot_be_changed_through_a_wrapper_nor_if_the_example_does_not_read_it():
    def run(m, x):
        return m.fc(torch.relu(m.first(x)) * (m.high if x.sum() > 0 else m.low))

    model = Assembled(run, first=nn.Linear(6, 8), fc=nn.Linear(8, 3))
    model.register_buffer("high", torch.tensor(2.0))
    model.register_buffer("low", torch.tensor(3.0))
    x = torch.rand(4, 6)
    net = clnp.ContinualNet(model, x)
    net.begin_task("a")
    net.end_task()
    before = net(-x, task="a")
    for name in ("high", "low"):
        state = net.state_dict()
        state[f"model.{name}"] = state[f"model.{name}"] + 1
        with pytest.raises(TaskError, match=rf"model\.{name} is frozen"):
            net.load_state_dict(state)
        wrapper = nn.ModuleDict({"net": net})
        with pytest.raises(RuntimeError, match=rf"net\.model\.{name} is frozen"):
            wrapper.load_state_dict({f"net.{key}": tensor for key, tensor in state.items()})
        net.verify()
    assert torch.equal(net(-x, task="a"), before)
    net.model.low += 1
    with pytest.raises(ForgettingError, match="low is no longer"):
        net.verify()


@pytest.mark.filterwarnings("ignore")
def test_a_compiled_network_stays_compiled_if_the_compiler_is_reset():
    num_runs = 0

    def backend(graph, inputs):
        def run(*given):
            nonlocal num_runs
            num_runs += 1
            return graph.forward(*given)

        return run

    x = torch.randn(4, 6)
    net = clnp.ContinualNet(clnp.models.MLP(6, (40, 40), 3), x)
    compiled = torch.compile(net, backend=backend)
    for number in range(10):
        net.begin_task(f"t{number}")
        torch.compiler.reset()
        before = num_runs
        outputs = compiled(x)
        assert num_runs > before, number
        assert torch.allclose(outputs, net(x), atol=1e-6)
        outputs.sum().backward()
        net.end_task({group: range(2) for group in net.graph.groups})
    torch.compiler.reset()
