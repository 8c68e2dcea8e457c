import copy

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import clnp
import clnp.core.pruning.activity as activity_module
from clnp.core.pruning.activity import Activity, inputs_of, up_to
from clnp.errors import ArgumentError, DivergedError
from support.networks import (
    NETWORKS,
    Concatenating,
    ConvNet,
    Residual,
    copied_state,
    example,
    first,
    learn,
    make,
    mlp,
    same_state,
)


def reading(model: nn.Module, batches: list[Tensor]) -> dict[str, Tensor]:
    """Mean |x| at the input of each layer of a plain model, over batch and space, by hooks."""
    seen: dict[str, list[Tensor]] = {}

    def record(path: str, x: Tensor) -> None:
        dims = [d for d in range(x.ndim) if d != 1]
        rows = x.abs().double().mean([d for d in dims if d > 0]) if x.ndim > 2 else x.abs().double()
        seen.setdefault(path, []).append(rows)

    hooks = [
        module.register_forward_pre_hook(lambda _, args, path=path: record(path, args[0]))
        for path, module in model.named_modules()
        if isinstance(module, nn.Linear | nn.Conv2d)
    ]
    with torch.no_grad():
        for x in batches:
            model(x)
    for hook in hooks:
        hook.remove()
    return {path: torch.cat(parts).mean(0) for path, parts in seen.items()}


def begun(model: nn.Module, x: Tensor) -> clnp.ContinualNet:
    """A network in float64 with an open task that starts with the weights of `model`."""
    net = clnp.ContinualNet(model, x)
    net.begin_task("a", initial=model)
    return net


def test_activity_of_a_dense_network_is_the_mean_at_the_readers_input():
    model = mlp().double()
    batches = [torch.randn(num, 6).double() for num in (8, 3)]
    found = begun(model, batches[0]).measure_activity(batches)
    x = torch.cat(batches)
    h1 = F.relu(model.fc1(x))
    h2 = F.relu(model.fc2(h1))
    assert list(found) == ["fc1", "fc2"]
    torch.testing.assert_close(found["fc1"], h1.abs().mean(0).detach(), rtol=1e-12, atol=0)
    torch.testing.assert_close(found["fc2"], h2.abs().mean(0).detach(), rtol=1e-12, atol=0)


def test_activity_of_channels_is_averaged_over_space_and_after_norm_and_flatten():
    model = ConvNet().double().eval()
    for norm in (model.bn1, model.bn2):
        nn.init.uniform_(norm.running_mean), nn.init.uniform_(norm.weight, 0.5, 2)
    batches = [torch.randn(num, 3, 8, 8).double() for num in (4, 2)]
    found = begun(model, batches[0]).measure_activity(batches)
    expected = reading(model, batches)
    flattened = expected["fc1"].view(5, 9).mean(1)
    torch.testing.assert_close(found["conv1"], expected["conv2"], rtol=1e-12, atol=1e-15)
    torch.testing.assert_close(found["conv2"], flattened, rtol=1e-12, atol=1e-15)
    torch.testing.assert_close(found["fc1"], expected["fc2"], rtol=1e-12, atol=1e-15)


def test_a_neuron_with_several_readers_counts_with_the_largest():
    model = Residual().double().eval()
    with torch.no_grad():  # the second reader sees less of three neurons, and more of the others
        model.outer.bias.copy_(torch.tensor([-5.0, -5, -5, 5, 5, 5]))
    x = torch.randn(5, 3, 6, 6).double()
    found = begun(model, x).measure_activity([x])
    expected = reading(model, [x])
    stream = torch.maximum(expected["inner"], expected["fc"])
    assert (expected["inner"] > expected["fc"]).tolist() == [True] * 3 + [False] * 3
    torch.testing.assert_close(found["stem"], stream, rtol=1e-12, atol=1e-15)
    torch.testing.assert_close(found["inner"], expected["outer"], rtol=1e-12, atol=1e-15)


def test_activity_is_found_in_each_part_of_a_concatenation():
    model = Concatenating().double()
    x = torch.randn(5, 6).double()
    found = begun(model, x).measure_activity([x])
    expected = reading(model, [x])
    torch.testing.assert_close(found["left"], expected["both"][:5], rtol=1e-12, atol=1e-15)
    torch.testing.assert_close(found["right"], expected["both"][11:], rtol=1e-12, atol=1e-15)
    torch.testing.assert_close(found["both"], expected["fc"][:6], rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_activity_counts_in_float64_whatever_the_network_is(dtype):
    model, x = mlp().to(dtype), example("mlp", num=300).to(dtype)
    found = begun(model, x).measure_activity([x])
    h1 = F.relu(model.fc1(x)).detach()
    assert {values.dtype for values in found.values()} == {torch.float64}
    torch.testing.assert_close(found["fc1"], h1.double().mean(0), rtol=1e-12, atol=0)


@pytest.mark.parametrize(
    ("shape", "dim"), [((5, 3), 1), ((5, 3, 4), 1), ((5, 4, 3), 2), ((3, 5), 0)]
)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
def test_sums_of_absolute_values_along_one_dimension(shape, dim, dtype):
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(dtype)
    others = [d for d in range(x.ndim) if d != dim]
    found = activity_module._sums(x, dim)
    assert found.dtype == torch.float64
    torch.testing.assert_close(found, x.double().abs().sum(others), rtol=1e-6, atol=0)


def test_a_group_without_free_neurons_takes_one_place_in_a_concatenation():
    net, x = make("concatenating").double(), example("concatenating").double()
    net.begin_task("a")
    net.prune({"left": [], "both": [0]})
    found = net.measure_activity([x])
    right = F.relu(F.linear(x, net.model.right.weight_free, net.model.right.bias_free))
    assert found.num_free() == {"left": 0, "right": 4, "both": 1}
    torch.testing.assert_close(found["right"], right.mean(0).detach(), rtol=1e-12, atol=0)


def test_owned_neurons_are_measured_apart_from_free_ones():
    net, x = make(), example("mlp")
    net.begin_task("a")
    net.end_task(first({"fc1": 3, "fc2": 2}))
    net.begin_task("b")
    found = net.measure_activity([x])
    assert found.num_free() == {"fc1": 4, "fc2": 3}
    assert {group: len(values) for group, values in found.owned.items()} == {"fc1": 3, "fc2": 2}
    plain = net.subnetwork("a")
    h1 = F.relu(plain.fc1(x))
    h2 = F.relu(plain.fc2(h1))
    torch.testing.assert_close(found.owned["fc1"], h1.double().mean(0).detach())
    torch.testing.assert_close(found.owned["fc2"], h2.double().mean(0).detach())


def test_the_last_layer_of_a_single_head_is_not_reused():
    net, x = make(head="single"), example("mlp")
    learn(net, "a", x)
    net.begin_task("b")
    owned = net.measure_activity([x]).owned
    assert torch.equal(owned["fc2"], torch.zeros(3, dtype=torch.float64))
    assert bool((owned["fc1"] > 0).any())


def test_a_full_layer_reads_no_free_neuron():
    net, x = make(), example("mlp")
    net.begin_task("a")
    net.end_task(first({"fc1": 3}))
    net.begin_task("b")
    found = net.measure_activity([x])
    assert torch.equal(found["fc1"], torch.zeros(4, dtype=torch.float64))
    assert found.num_free() == {"fc1": 4, "fc2": 0}


def test_batches_may_be_tensors_pairs_lists_and_generators():
    net, x = make(), example("mlp")
    net.begin_task("a")
    whole = net.measure_activity([x])
    y = torch.zeros(8)
    for batches in ([(x, y)], [[x, y]], [(x,)], iter([x]), ((x, y) for _ in range(1)), [((x,), y)]):
        found = net.measure_activity(batches)
        assert all(torch.equal(found[group], whole[group]) for group in whole)


def test_inputs_are_taken_from_a_batch():
    x, device = torch.ones(1), torch.device("cpu")
    assert inputs_of(x, device) == ((x,), {})
    assert inputs_of((x, 3), device) == ((x,), {})
    assert inputs_of([[x, 7], 3], device) == ((x, 7), {})
    assert inputs_of({"a": x, "b": 7}, device) == ((), {"a": x, "b": 7})
    assert inputs_of(({"a": x}, 3), device) == ((), {"a": x})


@pytest.mark.parametrize("batch", [(), []])
def test_an_empty_batch_is_refused(batch):
    net = make()
    net.begin_task("a")
    with pytest.raises(ArgumentError, match=r"a batch is empty\. Give at least the input"):
        net.measure_activity([batch])


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        (
            {"x": 2, "labels": 3},
            r"forward\(x: .*: got an unexpected keyword argument 'labels'",
        ),
        ({}, "missing a required argument: 'x'"),
        (({1: 2}, 3), r"forward.* Give its inputs by name, and targets beside them, \(inputs, tar"),
    ],
)
def test_a_dictionary_that_forward_does_not_take_is_refused(batch, message):
    net = make()
    net.begin_task("a")
    with pytest.raises(ArgumentError, match=f"^a batch is a dictionary that .*{message}"):
        net.measure_activity([batch])
    assert net.measure_activity([({"x": example("mlp")}, 3)])


def test_arrays_are_refused_with_what_to_do():
    net, array = make(), example("mlp").numpy()
    net.begin_task("a")
    for batch in (array, (array, 0), ((array,), 0), {"x": array}):
        with pytest.raises(ArgumentError, match=r"holds an ndarray. Give tensors, .*from_numpy"):
            net.measure_activity([batch])


def test_no_batch_at_all_is_refused():
    net = make()
    net.begin_task("a")
    for batches in ([], [torch.zeros(0, 6)]):
        with pytest.raises(ArgumentError, match="no sample was given: mean activity needs data"):
            net.measure_activity(batches)


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_activity_that_is_no_number_means_that_the_task_diverged(value):
    net = make()
    net.begin_task("a")
    with torch.no_grad():
        net.model.fc1.bias_free[2] = value
    with pytest.raises(DivergedError, match="the activity of fc1 is NaN or infinite: the task has"):
        net.measure_activity([example("mlp")])


@pytest.mark.parametrize("training", [True, False])
def test_measuring_is_done_in_evaluation_mode_and_changes_nothing(training):
    net, x = make("conv"), example("conv")
    learn(net, "a", x)
    net.begin_task("b")
    net.train(training)
    net.model.bn1.eval()
    modes = {name: module.training for name, module in net.named_modules()}
    before, rng = copied_state(net), torch.get_rng_state()
    one = net.measure_activity([x, x])
    assert {name: module.training for name, module in net.named_modules()} == modes
    assert same_state(net.state_dict(), before)
    assert torch.equal(torch.get_rng_state(), rng)
    assert all(parameter.grad is None for parameter in net.parameters())
    net.eval()
    other = net.measure_activity([x, x])
    assert all(torch.equal(one[group], other[group]) for group in one)


def test_activity_is_a_mapping_with_a_short_description():
    activity = Activity({"a": torch.tensor([0.0, 2.0]), "b": torch.zeros(1)}, {"a": torch.ones(3)})
    assert len(activity) == 2
    assert dict(activity).keys() == {"a", "b"}
    assert activity.num_free() == {"a": 2, "b": 1}
    assert repr(activity) == "Activity(a: 1 of 2 fire, b: 0 of 1 fire)"
    assert copy.deepcopy(activity).owned["a"].tolist() == [1, 1, 1]


def share(means: Tensor, weight: Tensor) -> Tensor:
    """Of what the rows of a Linear layer's weight receive, the part that comes from each input."""
    given = means.double() * weight.detach().double().abs().sum(0)
    return given / given.sum()


def test_sums_up_to_each_share():
    shares = torch.tensor([3.0, 0.0, 1.0, 1.0])
    assert up_to(shares).tolist() == [5, 0, 2, 2]
    assert up_to(torch.zeros(0)).tolist() == []


def test_contribution_is_activity_times_outgoing_weight_summed_from_the_smallest():
    model, x = mlp().double(), torch.randn(9, 6).double()
    found = begun(model, x).measure_contribution(x.split(4))
    h1 = F.relu(model.fc1(x)).detach()
    h2 = F.relu(model.fc2(h1)).detach()
    for group, means, reader in (("fc1", h1, model.fc2), ("fc2", h2, model.fc3)):
        shares = share(means.mean(0), reader.weight)
        expected = torch.stack([shares[shares <= each].sum() for each in shares])
        torch.testing.assert_close(found[group], expected, rtol=1e-9, atol=1e-12)
        assert float(found[group].max()) == pytest.approx(1.0)


def test_contribution_of_channels_counts_each_place_that_flatten_makes_of_them():
    model = ConvNet().double().eval()
    x = torch.randn(4, 3, 8, 8).double()
    found = begun(model, x).measure_contribution([x])
    entries = share(reading(model, [x])["fc1"], model.fc1.weight)
    torch.testing.assert_close(found["conv2"], up_to(entries.view(5, 9).sum(1)))
    strength = model.conv2.weight.detach().abs().sum((0, 2, 3))
    given = reading(model, [x])["conv2"] * strength
    torch.testing.assert_close(found["conv1"], up_to(given / given.sum()))


def test_a_neuron_that_nobody_listens_to_contributes_nothing_however_loud_it_is():
    net, x = make("conv"), example("conv")
    net.begin_task("a")
    with torch.no_grad():
        net.model.conv2.weight_free[:, 1] = 0
    assert float(net.measure_activity([x])["conv1"][1]) > 0
    contribution = net.measure_contribution([x])
    assert float(contribution["conv1"][1]) == 0
    assert 1 not in net.plan_pruning(contribution, thresholds=0.0).keep["conv1"]


def test_what_earlier_tasks_give_counts_as_received():
    net, x = make().double(), example("mlp").double()
    net.begin_task("a")
    net.end_task(first({"fc1": 3, "fc2": 2}))
    net.begin_task("b")
    found = net.measure_contribution([x])
    activity = net.measure_activity([x])
    means = torch.cat([activity.owned["fc1"], activity["fc1"]])
    fc2 = net.model.fc2
    shares = share(means, torch.cat([fc2.weight_reuse, fc2.weight_free], 1))
    torch.testing.assert_close(torch.cat([found.owned["fc1"], found["fc1"]]), up_to(shares))


def test_contribution_in_a_concatenation_with_network_input():
    model, x = Concatenating().double(), torch.randn(5, 6).double()
    found = begun(model, x).measure_contribution([x])
    means = reading(model, [x])
    given = means["both"] * model.both.weight.detach().abs().sum(0)
    total = given[:5].sum() + given[11:].sum()  # The input in between is no neuron.
    torch.testing.assert_close(found["right"], up_to(given[11:] / total))
    directly = share(means["fc"], model.fc.weight)[6:]
    torch.testing.assert_close(found["left"], up_to(torch.maximum(given[:5] / total, directly)))


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("head", ["multi", "single"])
def test_every_group_of_every_network_has_contributions(name, head):
    net, x = make(name, head=head), example(name)
    learn(net, "a", x)
    net.begin_task("b")
    found = net.measure_contribution([x])
    assert found.num_free() == net.ledger.free()
    for group, values in found.items():
        assert bool((values >= 0).all())
        assert float(torch.cat([values, found.owned[group]]).max()) <= len(net.graph.sites) + 1e-9
        assert bool((values > 0).any()) or not len(values)


def test_a_task_that_has_nothing_left_contributes_nothing():
    net, x = make(), example("mlp")
    net.begin_task("a")
    with torch.no_grad():
        net.model.fc3.weight_free.zero_()
    assert torch.equal(net.measure_contribution([x])["fc2"], torch.zeros(5, dtype=torch.float64))


@pytest.mark.parametrize("layer", [nn.Linear, nn.Conv1d])
def test_a_single_sample_is_no_batch(layer):
    x = torch.randn(5, 6, 9) if layer is nn.Conv1d else torch.randn(5, 6)
    kernel = (1,) if layer is nn.Conv1d else ()
    net = clnp.ContinualNet(nn.Sequential(layer(6, 5, *kernel), nn.ReLU(), layer(5, 2, *kernel)), x)
    net.begin_task("a")
    with pytest.raises(
        ArgumentError, match=r"is given a single sample, of shape .* give x\[None\]"
    ):
        net.measure_activity(list(x))
    whole, one_by_one = net.measure_activity([x]), net.measure_activity(x.split(1))
    for group, values in whole.items():
        torch.testing.assert_close(one_by_one[group], values)
