"""`ContinualNet` against Algorithm 1 on a dense network with masks, for random architectures.

The two store the same numbers in other places: the network keeps neurons sorted by owner, the
oracle leaves every neuron where it is. `Places` is that correspondence, and `compare` holds all
that must agree.
"""

import pytest
import torch
from hypothesis import assume, given, settings, strategies as st
from torch import Tensor
from torch.nn import functional as F

import clnp
from support.architectures import FAMILIES, architectures, keeps
from support.oracle import Oracle

OPTIMIZERS = {
    "sgd": lambda tensors: torch.optim.SGD(tensors, lr=0.1),
    "momentum": lambda tensors: torch.optim.SGD(tensors, lr=0.1, momentum=0.9, weight_decay=0.1),
    # The usual eps would blow up gradients that are zero but for rounding.
    "adamw": lambda tensors: torch.optim.AdamW(tensors, lr=0.01, weight_decay=0.5, eps=1e-4),
}
few = settings(max_examples=settings.default.max_examples // 8)
heads = st.sampled_from(["multi", "single"])


def close(a: Tensor, b: Tensor) -> bool:
    """Equal but for the order of summation, in float64."""
    return torch.allclose(a, b, rtol=1e-9, atol=1e-9)


class Pair:
    """A network and its oracle, which go through the same tasks."""

    def __init__(self, architecture, *, head: str) -> None:
        self.architecture = architecture
        example = architecture.inputs(2, dtype=torch.float64)
        self.net = clnp.ContinualNet(architecture.make().double(), example, head=head)
        self.oracle = Oracle(architecture, single=head == "single")
        self.x = architecture.inputs(6, seed=1, dtype=torch.float64)
        self.more = architecture.inputs(3, seed=2, dtype=torch.float64)

    def begin(self, name: str, num_outputs: int) -> None:
        """Open a task in both; the oracle takes over the random weights of the network."""
        self.net.begin_task(name, num_outputs)
        self.oracle.begin_task(num_outputs)
        for name, parameter in self.net.named_parameters():
            if "norm" in name and "bias" in name:
                torch.nn.init.normal_(parameter)  # A constant channel is then not at a kink.
        with torch.no_grad():
            for name, (places, block) in self.blocks().items():
                path, kind, _ = name
                self.oracle.tensor(path, kind)[places] = block.double()

    def places(self, path: str, name: str, block: str) -> tuple[Tensor, ...]:
        """Where, in a dense tensor of the oracle, the entries of a block of the network lie."""
        oracle = self.oracle
        rows, columns = oracle.axes[path]
        mine = oracle.claimed if block == "frozen" else oracle.open
        if path == oracle.classifier:
            made = torch.arange(oracle.num_outputs)
            if name == "bias" and oracle.single:
                made = made[oracle.num_learned :]
        else:
            made = self.along(rows, mine, with_input=False)
        if name != "weight" or path not in [*oracle.mixing(), oracle.classifier]:
            return (made,)
        read = oracle.claimed if block in ("frozen", "reuse") else oracle.open
        return made[:, None], self.along(columns, read, with_input=block != "reuse")

    @staticmethod
    def along(axis, neurons, *, with_input: bool) -> Tensor:
        """The places of these neurons along a dense axis, one group after the other, in order."""
        places, start = [], 0
        for group, size, span in axis:
            if group is not None or with_input:
                listed = range(size) if group is None else neurons[group]
                places += [start + n * span + entry for n in listed for entry in range(span)]
            start += size * span
        return torch.tensor(places, dtype=torch.long)

    def blocks(self):
        """All that the network stores of the open task's neurons, with its places in the oracle."""
        found = {}
        for full, tensor in (*self.net.named_parameters(), *self.net.named_buffers()):
            path, _, name = full.removeprefix("model.").rpartition(".")
            name, _, block = name.rpartition("_")
            if block in ("free", "reuse") and tensor.ndim:
                found[path, name, block] = (self.places(path, name, block), tensor.detach())
        return found

    def frozen_blocks(self):
        """All that the network stores of ended tasks, heads apart, with its places."""
        found = {}
        for full, tensor in self.net.named_buffers():
            path, _, name = full.removeprefix("model.").rpartition(".")
            name, _, block = name.rpartition("_")
            if block == "frozen" and path != self.oracle.classifier:
                found[path, name] = (self.places(path, name, block), tensor)
        return found

    def compare_groups(self) -> None:
        """The groups of the network are those of the architecture's builder."""
        graph = self.net.graph
        found = {
            path: tuple(
                tuple((s.group, s.size, s.span) for s in axis) for axis in (site.rows, site.columns)
            )
            for path, site in graph.sites.items()
        }
        assert found == self.architecture.axes
        assert graph.groups == self.architecture.groups
        assert graph.classifier == self.architecture.classifier

    def compare_what_may_change(self) -> None:
        """The network's Parameters are the oracle's trainable entries, each of them once."""
        times = {
            (path, name): torch.zeros_like(self.oracle.tensor(path, name), dtype=torch.long)
            for path, name in self.oracle.trained()
        }
        parameters = {name.removeprefix("model.") for name, _ in self.net.named_parameters()}
        for (path, name, block), (places, _) in self.blocks().items():
            if (path, name) in times:
                times[path, name][places] += 1
                parameters.remove(f"{path}.{name}_{block}")
        assert parameters == set()
        for (path, name), count in times.items():
            assert torch.equal(count, self.oracle.may_change(path, name).long()), (path, name)

    def compare_weights(self) -> None:
        """The same numbers in the same places, and zero where the oracle reads nothing."""
        for key, (places, block) in self.blocks().items():
            assert close(self.oracle.tensor(*key[:2])[places], block), key
        for (path, name), (places, block) in self.frozen_blocks().items():
            assert close(self.oracle.tensor(path, name)[places], block), (path, name)

    def compare_open(self) -> None:
        """The same outputs in both modes; in training mode both update their statistics."""
        for training in (False, True):
            self.net.train(training)
            self.oracle.model.train(training)
            assert close(self.net(self.x), self.oracle.forward(self.x))

    def compare_ended(self) -> None:
        """The same outputs of every ended task, in either mode."""
        for number, task in enumerate(self.net.tasks):
            expected = self.oracle.forward(self.x, task=number)
            assert close(self.net(self.x, task=task), expected), task
            assert close(self.net.subnetwork(task)(self.x), expected), task

    def train(self, optimizer: str, *, steps: int = 2, alpha: float = 1e-3) -> None:
        """A few steps in both, in training mode, with an L1 penalty."""
        self.net.train()
        self.oracle.model.train()
        target = torch.arange(len(self.x)) % self.oracle.num_outputs
        make = OPTIMIZERS[optimizer]

        def oracle_loss() -> Tensor:
            penalty = self.oracle.l1_penalty(alpha)
            return F.cross_entropy(self.oracle.forward(self.x), target) + penalty

        self.oracle.step(make, [oracle_loss] * steps)
        assume(not any(norm.at_a_kink for norm in self.oracle.norms()))
        parameters = list(self.net.parameters())
        trained = make(parameters) if parameters else None
        for _ in range(steps):
            loss = F.cross_entropy(self.net(self.x), target) + self.net.l1_penalty(alpha)
            if trained is None:
                continue  # Everything was pruned, and there is no bias.
            trained.zero_grad()
            if loss.requires_grad:
                loss.backward()
            for parameter in parameters:
                # Of a neuron that nobody reads: with None, an optimizer does not even decay it.
                if parameter.grad is None:
                    parameter.grad = torch.zeros_like(parameter)
            trained.step()

    def compare_activity(self) -> clnp.Activity:
        """The same mean activity of free and of owned neurons."""
        batches = [self.x, self.more]
        activity = self.net.measure_activity(batches)
        for owned, found in ((False, activity), (True, activity.owned)):
            expected = self.oracle.activity(batches, owned=owned)
            assert expected.keys() == dict(found).keys()
            for group, values in expected.items():
                assert close(found[group], values), (group, owned)
        return activity

    def dense(self, keep) -> dict[str, list[int]]:
        """The oracle's numbers of the free neurons that the network numbers from 0."""
        return {group: [self.oracle.open[group][n] for n in keep[group]] for group in keep}

    def prune(self, keep) -> dict[str, list[int]]:
        """Prune the task in both; all that is left is to be kept."""
        keep = {group: sorted(neurons) for group, neurons in keep.items()}
        dense = self.dense(keep)
        self.net.prune(keep)
        self.oracle.prune(dense)
        return {group: list(range(len(neurons))) for group, neurons in keep.items()}

    def end(self, keep, *, recalibrate: bool = False) -> None:
        """End the task in both."""
        batches = [self.x, self.more] if recalibrate else None
        dense = self.dense({group: sorted(neurons) for group, neurons in keep.items()})
        self.net.end_task(keep, recalibrate=batches)
        self.oracle.prune(dense)
        if recalibrate:
            self.oracle.recalibrate(batches)
        self.oracle.end_task()

    def has_room(self) -> bool:
        """Whether another task fits: a single head needs neurons of its own."""
        free = self.net.ledger.free()
        read = [group for group, _, _ in self.oracle.axes[self.oracle.classifier][1]]
        return not self.oracle.single or any(free[group] for group in read)


@pytest.mark.parametrize("family", FAMILIES)
@few
@given(data=st.data(), head=heads, seed=st.integers(0, 2**16))
def test_three_tasks_agree(family, data, head, seed):
    torch.manual_seed(seed)
    pair = Pair(data.draw(architectures((family,))), head=head)
    pair.compare_groups()
    for number in range(3):
        if not pair.has_room():
            break
        pair.begin(f"task {number}", data.draw(st.integers(1, pair.architecture.num_outputs)))
        pair.compare_what_may_change()
        pair.compare_open()
        pair.train(data.draw(st.sampled_from(list(OPTIMIZERS))))
        pair.compare_weights()
        pair.compare_open()
        pair.compare_activity()
        pair.compare_ended()
        keep = data.draw(keeps(pair.net.ledger.free()))
        if data.draw(st.booleans()):
            keep = pair.prune(keep)
            pair.compare_what_may_change()
            pair.train("momentum")
            pair.compare_weights()
            pair.compare_open()
        pair.end(keep, recalibrate=data.draw(st.booleans()))
        pair.compare_weights()
        pair.compare_ended()
        owned = {group: len(neurons) for group, neurons in pair.oracle.claimed.items()}
        assert pair.net.ledger.claimed() == owned


@pytest.mark.parametrize("family", FAMILIES)
@few
@given(data=st.data(), head=heads, margin=st.sampled_from([0.0, 17.0, 34.0]))
def test_the_same_neurons_survive(family, data, head, margin):
    torch.manual_seed(0)
    pair = Pair(data.draw(architectures((family,))), head=head)
    target = torch.arange(len(pair.x)) % pair.architecture.num_outputs

    def accuracy(predict) -> float:
        # Rounded, so that two equal logits give the same answer whatever their last bits are.
        return 100 * (predict(pair.x).round(decimals=7).argmax(1) == target).double().mean().item()

    for number in range(2):
        if not pair.has_room():
            break
        pair.begin(f"task {number}", pair.architecture.num_outputs)
        pair.train("adamw", steps=3)
        activity = pair.compare_activity()
        expected = pair.oracle.activity([pair.x, pair.more], owned=False)
        # A threshold between two activities: the last bits of an activity do not matter.
        values = sorted({v for a in activity.values() for v in a.tolist()} | {0.0, 1.0})
        index = data.draw(st.integers(0, len(values) - 2))
        theta = (values[index] + values[index + 1]) / 2
        plan = pair.net.plan_pruning(activity, thresholds=theta)
        assert pair.dense(plan.keep) == pair.oracle.survivors(expected, theta)
        # The highest threshold within the margin.
        plan = pair.net.plan_pruning(
            activity, accuracy, margin=margin, resolution=None, allow_guessing=True
        )
        theta = pair.oracle.highest_theta(expected, accuracy, margin)
        assert plan.thresholds == pytest.approx(dict.fromkeys(plan.keep, theta), abs=1e-9)
        survivors = pair.oracle.survivors(expected, theta)
        assert plan.kept == {group: len(neurons) for group, neurons in survivors.items()}
        pair.end(plan.keep)
        pair.compare_ended()
