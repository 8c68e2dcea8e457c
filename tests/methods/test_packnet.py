import pytest
import torch
from torch import nn
from torch.nn import functional as F

import clnp
from clnp import Experiment, LearnerConfig, Training
from clnp.errors import CapacityError
from clnp.methods import runner
from clnp.methods.dense import DenseNet
from clnp.methods.packnet import PackNet, packed, survivors
from clnp.methods.single import Finetune
from clnp.records import EpochEnded, RoundEnded, TaskEnded
from support.forgetting import forgotten, labelled, method_of, permuted_rule
from support.networks import NETWORKS, copied_state, example, same_state
from support.runs import break_off, untimed


def mask(*values):
    return torch.tensor(values, dtype=torch.bool)


def test_the_larger_free_weights_survive():
    weight = torch.tensor([9.0, -4.0, 3.0, 2.0, -1.0])
    free = mask(0, 1, 1, 1, 1)
    assert torch.equal(survivors(weight, free, 0.5), mask(0, 1, 1, 0, 0))
    assert torch.equal(survivors(weight, free, 0.75), mask(0, 1, 0, 0, 0))
    assert torch.equal(survivors(weight, free, 0.6), mask(0, 1, 1, 0, 0))  # round(2.4) = 2
    assert torch.equal(survivors(weight, free, 0.01), free)
    assert torch.equal(survivors(weight, mask(0, 0, 0, 0, 0), 0.5), mask(0, 0, 0, 0, 0))


def test_what_equals_the_cut_goes():
    weight = torch.tensor([0.0, 0.0, 0.0, 1.0])
    assert torch.equal(survivors(weight, mask(1, 1, 1, 1), 0.25), mask(0, 0, 0, 1))


def small(*, shared=False):
    """2-2-2 with weights that are written in by hand."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 2))
    net = DenseNet(model, "2", shared_head=shared)
    strategy = PackNet(prune=0.5, retrain_epochs=0).strategy(net)
    return net, strategy


def begin(net, strategy, name):
    net.begin_task(name, 2)
    strategy.begin(len(net.tasks), None)


def end(net, strategy):
    strategy.end(len(net.tasks), None)
    net.end_task()


def write(weight, values):
    with torch.no_grad():
        weight.copy_(torch.tensor(values))


def test_owners_and_zeros_by_hand():
    net, strategy = small()
    begin(net, strategy, "a")
    weight = net.trunk()["0.weight"]
    write(weight, [[4.0, -1.0], [2.0, -3.0]])
    end(net, strategy)
    assert list(strategy.owners) == ["0.weight"]  # Heads of their own are not packed.
    assert strategy.owners["0.weight"].dtype == torch.uint8
    assert strategy.owners["0.weight"].tolist() == [[1, 0], [0, 1]]
    assert weight.tolist() == [[4.0, 0.0], [0.0, -3.0]]
    begin(net, strategy, "b")
    write(weight, [[4.0, -0.5], [0.1, -3.0]])
    end(net, strategy)
    assert strategy.owners["0.weight"].tolist() == [[1, 2], [0, 1]]
    assert weight.tolist() == [[4.0, -0.5], [0.0, -3.0]]


def test_a_shared_head_is_packed_as_any_layer():
    net, strategy = small(shared=True)
    begin(net, strategy, "a")
    assert list(strategy.owners) == ["0.weight", "2.layers.0.weight"]
    write(net.trunk()["2.layers.0.weight"], [[1.0, 2.0], [3.0, 4.0]])
    end(net, strategy)
    assert strategy.owners["2.layers.0.weight"].tolist() == [[0, 0], [1, 1]]


@pytest.mark.parametrize("name", ["conv", "depthwise"])
def test_weights_of_linear_layers_and_convolutions_are_packed(name):
    model = NETWORKS[name][0]()
    classifier = list(model._modules)[-1]
    net = DenseNet(model, classifier, shared_head=False)
    net.begin_task("a", 4)
    layers = {n: m for n, m in model.named_children() if isinstance(m, nn.Linear | nn.Conv2d)}
    assert set(packed(net)) == {f"{n}.weight" for n in layers if n != classifier}


def test_a_task_answers_with_its_own_weights_and_earlier_ones():
    net, strategy = small()
    for name, values in (("a", [[4.0, -1.0], [2.0, -3.0]]), ("b", [[4.0, -0.5], [0.1, -3.0]])):
        begin(net, strategy, name)
        weight = net.trunk()["0.weight"]
        write(weight, values)
        end(net, strategy)
    begin(net, strategy, "c")
    write(weight, [[4.0, -0.5], [0.7, -3.0]])
    before = copied_state(net.model)
    place = weight.data_ptr()
    with strategy.running(0):
        assert weight.tolist() == [[4.0, 0.0], [0.0, -3.0]]
    with strategy.running(1):
        assert weight.tolist() == [[4.0, -0.5], [0.0, -3.0]]
    with strategy.running(2):  # The open task trains what is free.
        assert weight.tolist() == [[4.0, -0.5], [pytest.approx(0.7), -3.0]]
    with pytest.raises(ZeroDivisionError), strategy.running(0):
        _ = 1 / 0
    assert same_state(net.model.state_dict(), before)
    assert weight.data_ptr() == place


def test_masks_are_counted_in_bits():
    net, strategy = small()
    assert strategy.stored_bytes() == {"masks": 0}
    sizes = []
    for name in "abcd":
        begin(net, strategy, name)
        end(net, strategy)
        sizes.append(strategy.stored_bytes()["masks"])
    # 4 weights, 1 bit for one task, 2 for up to three, 3 for four.
    assert sizes == [1, 1, 1, 2]


def test_a_byte_holds_255_tasks():
    _, strategy = small()
    strategy.begin(254, None)
    with pytest.raises(CapacityError, match="packnet: 255 tasks have ended"):
        strategy.begin(255, None)


OPTIMIZERS = {
    "adam": {"optimizer": "AdamW", "lr": 0.01, "optimizer_options": {"weight_decay": 0.1}},
    "sgd": {
        "optimizer": "SGD",
        "lr": 0.05,
        "optimizer_options": {"momentum": 0.9, "weight_decay": 0.1},
    },
}


def method(network="mlp", *, head="multi", optimizer="adam", device="cpu", graph=False, **options):
    torch.manual_seed(0)
    training = Training(epochs=2, batch_size=16, cuda_graph=graph, **OPTIMIZERS[optimizer])
    settings = PackNet(**{"prune": 0.5, "retrain_epochs": 2, **options}, training=training)
    return method_of(settings, network, head=head, device=device)


@pytest.mark.parametrize(
    ("network", "head"), [("mlp", "multi"), ("conv", "single"), ("depthwise", "multi")]
)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_what_is_owned_never_moves_and_outputs_stay(network, head, optimizer):
    made = method(network, head=head, optimizer=optimizer)
    x = example(network, num=20, seed=9)
    outputs, state = {}, {}
    for number, name in enumerate("abc"):
        made.learn(labelled(name, network=network, seed=number))
        after, owners = copied_state(made.net.model), made.strategy.owners
        assert any((owner == number + 1).any() for owner in owners.values())
        for earlier, tensor in state.items():
            if earlier in owners:
                fixed = (owners[earlier] > 0) & (owners[earlier] <= number)
                assert torch.equal(after[earlier][fixed], tensor[fixed])
                new = owners[earlier] == number + 1
                assert (after[earlier][new] != tensor[new]).all()
            else:  # Biases, BatchNorm with its statistics, and the heads of earlier tasks.
                assert torch.equal(after[earlier], tensor)
        state = after
        outputs[name] = made.predict(x, name)
        for earlier in outputs:
            assert torch.equal(made.predict(x, earlier), outputs[earlier])


@pytest.mark.gpu
@pytest.mark.parametrize("network", ["mlp", "conv"])
def test_captured_steps_hold_weights_too(network):
    x = example(network, num=20, seed=9).cuda()
    outputs = []
    for graph in (True, False):
        made = method(network, head="single", device="cuda", graph=graph)
        made.learn(labelled("a", network=network))
        first = made.predict(x, "a")
        made.learn(labelled("b", network=network, seed=1))
        assert torch.equal(made.predict(x, "a"), first)
        outputs.append(made.predict(x, "b"))
    if network == "mlp":  # Dropout draws other numbers in a captured step.
        assert torch.allclose(*outputs, atol=0.05)


@pytest.mark.parametrize("network", ["mlp", "conv"])
def test_in_the_first_task_biases_and_norms_are_trained_and_retrained(network, monkeypatch):
    made = method(network)
    begun, seen = [], []
    fit = runner.Fit

    def spy(net, *arguments, **options):
        seen.append(copied_state(net.model))
        return fit(net, *arguments, **options)

    original = made.strategy.begin
    monkeypatch.setattr(runner, "Fit", spy)
    monkeypatch.setattr(
        made.strategy,
        "begin",
        lambda index, data: (
            begun.append(copied_state(made.net.model)),
            original(index, data),
        ),
    )
    made.learn(labelled("a", network=network))
    _, pruned = seen
    now = copied_state(made.net.model)
    others = [n for n in made.net.trunk() if n not in made.strategy.owners]
    others += [n for n in now if n.endswith("running_mean")]
    assert len(others) >= 2
    for name in others:
        assert not torch.equal(pruned[name], begun[0][name])
        assert not torch.equal(now[name], pruned[name])


def test_retraining_is_shorter_and_slower_and_moves_survivors_alone(monkeypatch):
    made = method(retrain_epochs=3)
    made.learn(labelled("a"))
    seen = []
    fit = runner.Fit

    def spy(net, data, training, *, seed, rule):
        seen.append((copied_state(net.model), training, seed))
        return fit(net, data, training, seed=seed, rule=rule)

    monkeypatch.setattr(runner, "Fit", spy)
    made.learn(labelled("b", seed=1))
    (_, _, first), (pruned, training, second) = seen
    assert first != second
    assert training.epochs == 3
    assert training.lr == pytest.approx(0.001)
    assert training.optimizer == "AdamW"
    for name, owners in made.strategy.owners.items():
        now = made.net.trunk()[name]
        assert (now[owners == 0] == 0).all()
        assert (pruned[name][owners == 0] == 0).all()
        assert torch.equal(now[owners == 1], pruned[name][owners == 1])
        assert (now[owners == 2] != pruned[name][owners == 2]).any()


def test_held_weights_have_no_part_in_the_norm_of_the_gradient():
    net, strategy = small(shared=True)
    begin(net, strategy, "a")
    write(net.trunk()["0.weight"], [[4.0, 1.0], [2.0, 3.0]])
    end(net, strategy)
    begin(net, strategy, "b")
    F.cross_entropy(net(torch.ones(3, 2)), torch.tensor([0, 1, 1])).backward()
    strategy.rule().after_backward()
    for name, weight in net.trunk().items():
        owned = strategy.owners.get(name, torch.ones_like(weight)) > 0
        assert (weight.grad[owned] == 0).all()
    assert any(weight.grad.any() for weight in net.parameters())


def experiment(baseline, *, head="single", epochs=8, patience=None):
    torch.manual_seed(0)
    training = Training(epochs=epochs, lr=0.01, batch_size=32, patience=patience)
    config = LearnerConfig(training=training)
    model = clnp.models.MLP(12, (40, 40), 3)
    return Experiment(
        model, torch.zeros(2, 12), permuted_rule(), config, head=head, baseline=baseline
    )


def test_a_run_forgets_nothing(tmp_path):
    plainly = experiment(Finetune()).run(tmp_path / "finetune")
    result = experiment(PackNet(retrain_epochs=4)).run(tmp_path / "packnet")
    assert forgotten(plainly) > 10
    assert forgotten(result) == 0
    assert [record.unchanged for record in result.tasks] == [True] * 3
    assert min(result.scores[-1]) > 60
    num_weights = 12 * 40 + 40 * 40 + 40 * 3
    assert result.stored_bytes["masks"] == num_weights * 2 // 8


def test_retraining_is_logged_as_fine_tuning(tmp_path):
    events = []
    made = experiment(PackNet(retrain_epochs=2), epochs=3)
    result = made.run(tmp_path / "run", on_event=events.append)
    of_task = [
        event
        for event in events
        if isinstance(event, EpochEnded | RoundEnded | TaskEnded) and event.task == "t1"
    ]
    keys = ("candidate", "round", "number", "num_epochs")
    assert [(type(event), *(getattr(event, key, None) for key in keys)) for event in of_task] == [
        *((EpochEnded, 0, None, number, 3) for number in range(3)),
        *((EpochEnded, None, 0, number, 2) for number in range(2)),
        (RoundEnded, None, 0, None, None),
        (TaskEnded, None, None, None, None),
    ]
    *_, last, ended, learned = of_task
    assert ended.kept is True
    assert ended.score == last.score  # Of the weights of the last epoch.
    # The candidate is the training alone.
    assert result.tasks[1].candidates[0].num_epochs == 3
    assert learned.score == result.tasks[1].score


@pytest.mark.parametrize("patience", [None, 1])
def test_packnet_resumes_within_retraining(tmp_path, patience):
    made, events = experiment(PackNet(retrain_epochs=3), epochs=2, patience=patience), []
    whole = made.run(tmp_path / "whole")
    broken = {"task": "t1", "round": 0, "number": 1}
    break_off(made, tmp_path / "broken", EpochEnded, 1, **broken)
    torch.manual_seed(99)  # Nothing may depend on the state of the generator.
    result = made.run(tmp_path / "broken", on_event=events.append)
    assert untimed(result) == untimed(whole)
    first = next(event for event in events if isinstance(event, EpochEnded))
    # The epoch that was not saved, and none before.
    assert {key: getattr(first, key) for key in broken} == broken


def test_packnet_resumes(tmp_path):
    made = experiment(PackNet(retrain_epochs=1), epochs=2)
    whole = made.run(tmp_path / "whole")
    for kind, number in ((EpochEnded, 5), (TaskEnded, 2)):
        broken = tmp_path / kind.__name__
        break_off(made, broken, kind, number)
        assert untimed(made.run(broken)) == untimed(whole)


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [("cosine", "cosine"), ("constant", "constant"), ("milestones", "constant")],
)
def test_it_retrains_slower_and_as_the_training_goes_on(schedule, expected):
    training = Training(epochs=40, lr=0.02, schedule=schedule, milestones=(30,), patience=5)
    net, _ = small()
    strategy = PackNet(retrain_epochs=7, training=training).strategy(net)
    begin(net, strategy, "a")
    strategy.end(0, None)
    found = strategy.retraining().training
    assert (found.epochs, found.schedule, found.patience) == (7, expected, 5)
    assert found.lr == pytest.approx(0.002)
    assert PackNet(retrain_epochs=0).strategy(net).retraining() is None
