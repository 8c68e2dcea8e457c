"""The slow, obvious oracle: Algorithm 1 of the paper on a dense network, with masks.

All tensors have their full width and every neuron stays where it is. An *owner* is the number of
the task that claimed a neuron; nobody owns a free one. What a row may read follows from the owners
alone, and is a 0/1 mask that the weight is multiplied with:

    weight[row, column] counts  if  owner(column) <= owner(row),   nobody = infinity, input = -1

Training lets the optimizer move everything and then puts back what the task may not change.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.func import functional_call

from support.architectures import Architecture, Axis

INPUT, NOBODY = -1, 1_000_000
Keep = Mapping[str, Sequence[int]]


class DenseNorm(nn.Module):
    """BatchNorm of which some channels are frozen: those use their stored statistics always."""

    def __init__(self, norm: nn.modules.batchnorm._BatchNorm) -> None:
        super().__init__()
        size = norm.num_features
        self.eps, self.momentum = norm.eps, norm.momentum
        self.weight = nn.Parameter(torch.ones(size)) if norm.affine else None
        self.bias = nn.Parameter(torch.zeros(size)) if norm.affine else None
        self.register_buffer("running_mean", torch.zeros(size))
        self.register_buffer("running_var", torch.ones(size))
        self.frozen = torch.zeros(size, dtype=torch.bool)
        self.num_batches = 0
        self.at_a_kink = False
        """Whether a free channel was constant, and so 0 but for rounding, where ReLU has a kink."""

    def forward(self, x: Tensor) -> Tensor:
        others = [dim for dim in range(x.ndim) if dim != 1]
        mean, variance = self.running_mean, self.running_var
        if self.training:
            batch_mean, batch_variance = x.mean(others), x.var(others, unbiased=False)
            count = x.numel() // x.shape[1]
            shift = 0.0 if self.bias is None else self.bias
            at_zero = (batch_variance < 1e-12) & (abs(shift) < 1e-6) & ~self.frozen
            self.at_a_kink |= bool(at_zero.any())
            self.num_batches += 1
            momentum = 1 / self.num_batches if self.momentum is None else self.momentum
            self.running_mean = self._moved(mean, batch_mean, momentum)
            unbiased = batch_variance * count / (count - 1)
            self.running_var = self._moved(variance, unbiased, momentum)
            mean = torch.where(self.frozen, mean, batch_mean)
            variance = torch.where(self.frozen, variance, batch_variance)
        shape = [1, -1, *[1] * (x.ndim - 2)]
        y = (x - mean.view(shape)) / torch.sqrt(variance.view(shape) + self.eps)
        if self.weight is not None:
            y = y * self.weight.view(shape) + self.bias.view(shape)
        return y

    def _moved(self, old: Tensor, new: Tensor, momentum: float) -> Tensor:
        return torch.where(self.frozen, old, (1 - momentum) * old + momentum * new).detach()


class Oracle:
    """One dense network, in float64, that learns task after task.

    `claimed[g]` lists the neurons that have an owner, in the order in which they were claimed, and
    `open[g]` those that the open task trains.
    """

    def __init__(self, architecture: Architecture, *, single: bool) -> None:
        self.axes, self.classifier = architecture.axes, architecture.classifier
        self.single = single
        self.model = architecture.make().double()
        for path in self.axes:
            layer = self.model.get_submodule(path)
            if isinstance(layer, nn.modules.batchnorm._BatchNorm):
                parent, _, name = path.rpartition(".")
                setattr(self.model.get_submodule(parent), name, DenseNorm(layer).double())
        self.sizes = architecture.groups
        self.owner = {g: torch.full((size,), NOBODY) for g, size in self.sizes.items()}
        self.claimed: dict[str, list[int]] = {group: [] for group in self.sizes}
        self.open: dict[str, list[int]] = {group: [] for group in self.sizes}
        self.heads: list[dict[str, Tensor]] = []
        self.num_outputs = 0
        self.num_learned = 0

    # Where things are.

    def layer(self, path: str) -> nn.Module:
        """The dense layer."""
        return self.model.get_submodule(path)

    def mixing(self) -> list[str]:
        """The layers with a weight from every column to every row, but for the classifier."""
        full = (nn.Linear, nn.Conv1d, nn.Conv2d)
        return [
            path
            for path in self.axes
            if isinstance(self.layer(path), full)
            and getattr(self.layer(path), "groups", 1) == 1
            and path != self.classifier
        ]

    def along(self, axis: Axis, value: Mapping[str, Tensor], *, of_input: int) -> Tensor:
        """A value of each neuron, written along the axis."""
        parts = [
            torch.full((size,), of_input) if group is None else value[group].long()
            for group, size, _ in axis
        ]
        spans = [span for _, _, span in axis]
        return torch.cat(
            [part.repeat_interleave(span) for part, span in zip(parts, spans, strict=True)]
        )

    def chosen(self, neurons: Keep) -> dict[str, Tensor]:
        """A mask of these neurons for each group."""
        masks = {group: torch.zeros(size, dtype=torch.bool) for group, size in self.sizes.items()}
        for group, mask in masks.items():
            mask[list(neurons[group])] = True
        return masks

    # Masks.

    def active(self, task: int | None, keep: Keep | None = None) -> dict[str, Tensor]:
        """Whom a task may read: earlier owners and its own; `keep` picks from the open task's."""
        if task is not None:
            return {group: owner <= task for group, owner in self.owner.items()}
        mine = self.open if keep is None else keep
        return self.chosen({g: [*self.claimed[g], *mine[g]] for g in self.sizes})

    def may_read(self, path: str, active: Mapping[str, Tensor], task: int | None) -> Tensor:
        """Which weights of a mixing layer count: 1 or 0 for each row and column."""
        rows, columns = self.axes[path]
        readable = self.along(columns, active, of_input=1).bool()
        sender = self.along(columns, self.owner, of_input=INPUT)
        if path == self.classifier:
            if self.single:
                readable = readable & (sender == (NOBODY if task is None else task))
            return readable[None, :].double()
        receiver = self.along(rows, self.owner, of_input=INPUT)
        alive = self.along(rows, active, of_input=1).bool()
        return (sender <= receiver[:, None]).double() * alive[:, None] * readable

    def may_change(self, path: str, name: str) -> Tensor:
        """Which entries of a dense tensor the open task may change, True or False for each."""
        tensor = self.tensor(path, name)
        mine, readable = self.chosen(self.open), self.active(None)
        rows, columns = self.axes[path]
        if path == self.classifier:
            if name == "bias":
                learned = self.num_learned if self.single else 0
                return torch.arange(len(tensor)) >= learned
            if self.single:
                readable = mine
            mask = self.along(columns, readable, of_input=1).bool()[None, :]
        else:
            mask = self.along(rows, mine, of_input=0).bool()
            if name == "weight" and path in self.mixing():
                mask = mask[:, None] & self.along(columns, readable, of_input=1).bool()
        return spread_over(mask, tensor).expand(tensor.shape)

    def tensor(self, path: str, name: str) -> Tensor:
        """A dense tensor; for the classifier, that of the open task."""
        if path == self.classifier:
            return self.heads[-1][name]
        return getattr(self.layer(path), name)

    def trained(self) -> list[tuple[str, str]]:
        """The tensors that have entries to train, by layer and name."""
        return [
            (path, name)
            for path in self.axes
            for name in ("weight", "bias")
            if getattr(self.layer(path), name, None) is not None
        ]

    def weights(self) -> list[str]:
        """The layers whose weight the L1 penalty counts: Linear and convolutions."""
        return [p for p in self.axes if not isinstance(self.layer(p), DenseNorm | nn.PReLU)]

    # A task's life.

    def begin_task(self, num_outputs: int) -> None:
        """Open a task in all free neurons; its weights are still to be set."""
        self.num_outputs = num_outputs
        self.open = {
            group: (owner == NOBODY).nonzero().flatten().tolist()
            for group, owner in self.owner.items()
        }
        old = self.layer(self.classifier)
        head = {"weight": torch.zeros(num_outputs, *old.weight.shape[1:], dtype=torch.float64)}
        if old.bias is not None:
            bias = torch.zeros(num_outputs, dtype=torch.float64)
            if self.single:
                longest = max((h["bias"] for h in self.heads), key=len, default=bias[:0])
                bias[: self.num_learned] = longest[:num_outputs]
            head["bias"] = bias
        for tensor in head.values():
            tensor.requires_grad_()
        self.heads.append(head)
        for norm in self.norms():
            norm.num_batches = 0
        self._mark_frozen()

    def norms(self) -> list[DenseNorm]:
        """The norms."""
        return [layer for layer in self.model.modules() if isinstance(layer, DenseNorm)]

    def _mark_frozen(self) -> None:
        mine = self.chosen(self.open)
        for path, (rows, _) in self.axes.items():
            if isinstance(self.layer(path), DenseNorm):
                self.layer(path).frozen = ~self.along(rows, mine, of_input=0).bool()

    def masked(self, task: int | None = None, keep: Keep | None = None) -> dict[str, Tensor]:
        """The weights of the mixing layers, zero where they do not count, and the task's head."""
        active = self.active(task, keep)
        head = self.heads[-1 if task is None else task]
        tensors = {f"{self.classifier}.{name}": tensor for name, tensor in head.items()}
        tensors |= {f"{path}.weight": self.layer(path).weight for path in self.mixing()}
        for path in [*self.mixing(), self.classifier]:
            weight = tensors[f"{path}.weight"]
            mask = self.may_read(path, active, task)
            tensors[f"{path}.weight"] = weight * spread_over(mask, weight)
        return tensors

    def forward(self, x: Tensor, *, task: int | None = None, keep: Keep | None = None) -> Tensor:
        """The outputs of an ended task, or of the open one (with only `keep` of its neurons)."""
        training = self.model.training
        if task is not None or keep is not None:
            self.model.eval()
        y = functional_call(self.model, self.masked(task, keep), (x,))
        self.model.train(training)
        return y

    def l1_penalty(self, alpha: float) -> Tensor:
        """alpha times the sum of |w| over the weights that the open task may change."""
        return alpha * sum(
            (self.tensor(path, "weight").abs() * self.may_change(path, "weight")).sum()
            for path in self.weights()
        )

    def step(
        self, make_optimizer: Callable[[list[Tensor]], torch.optim.Optimizer], losses: Iterable
    ) -> None:
        """One optimizer, a step for each loss; what may not change is put back after each."""
        names = self.trained()
        tensors = [self.tensor(path, name) for path, name in names]
        masks = [self.may_change(path, name) for path, name in names]
        before = [tensor.detach().clone() for tensor in tensors]
        optimizer = make_optimizer(tensors)
        for loss in losses:
            optimizer.zero_grad()
            loss().backward()
            optimizer.step()
            with torch.no_grad():
                for tensor, mask, old in zip(tensors, masks, before, strict=True):
                    tensor.copy_(torch.where(mask, tensor, old))

    def activity(self, batches: Sequence[Tensor], *, owned: bool) -> dict[str, Tensor]:
        """E|N| of the open task's neurons, or of those that earlier tasks own.

        It is taken where a neuron is read. A layer that has no free row cannot read a free neuron,
        and a single head does not read the neurons of earlier tasks.
        """
        found = {group: torch.zeros(size).double() for group, size in self.sizes.items()}
        for path in [*self.mixing(), self.classifier]:
            rows, columns = self.axes[path]
            if path == self.classifier:
                reads = not (owned and self.single)
            else:
                reads = owned or any(self.open[group] for group, _, _ in rows)
            if not reads:
                continue
            inputs: list[Tensor] = []
            layer = self.layer(path)
            hook = layer.register_forward_pre_hook(lambda _, args, to=inputs: to.append(args[0]))
            training = self.model.training
            self.model.eval()
            with torch.no_grad():
                for batch in batches:
                    self.forward(batch)
            self.model.train(training)
            hook.remove()
            dim = -1 if isinstance(layer, nn.Linear) else 1
            flat = torch.cat([x.abs().movedim(dim, 0).flatten(1) for x in inputs], 1)
            start = 0
            for group, size, span in columns:
                part = flat[start : start + size * span]
                if group is not None:
                    mean = part.reshape(size, -1).mean(1)
                    found[group] = torch.maximum(found[group], mean)
                start += size * span
        neurons = self.claimed if owned else self.open
        return {group: found[group][neurons[group]] for group in self.sizes}

    def survivors(self, activity: Mapping[str, Tensor], theta: float) -> dict[str, list[int]]:
        """The open task's neurons whose activity is above theta."""
        return {
            group: [
                neuron
                for neuron, value in zip(self.open[group], values.tolist(), strict=True)
                if value > theta
            ]
            for group, values in activity.items()
        }

    def highest_theta(
        self, activity: Mapping[str, Tensor], score: Callable[[Callable], float], margin: float
    ) -> float:
        """The highest theta that keeps the score within the margin of the unpruned one's."""

        def scored(theta: float) -> float:
            keep = self.survivors(activity, theta)
            with torch.no_grad():
                return score(lambda x: self.forward(x, keep=keep))

        values = {value for values in activity.values() for value in values.tolist()}
        best = scored(-1.0)
        return max(theta for theta in {*values, 0.0, -1.0} if scored(theta) >= best - margin)

    def prune(self, keep: Keep) -> None:
        """Drop all but these of the open task's neurons."""
        self.open = {group: list(neurons) for group, neurons in keep.items()}
        self._mark_frozen()

    def recalibrate(self, batches: Sequence[Tensor]) -> None:
        """Set the statistics of the open task's channels to their means over all samples."""
        self.model.eval()
        settings = [(norm, norm.momentum, norm.num_batches) for norm in self.norms()]
        num_seen = 0
        for batch in batches:
            num_seen += len(batch)
            for norm in self.norms():
                norm.training, norm.momentum = True, len(batch) / num_seen
            with torch.no_grad():
                functional_call(self.model, self.masked(), (batch,))
        for norm, momentum, num_batches in settings:
            norm.training, norm.momentum, norm.num_batches = False, momentum, num_batches

    def end_task(self) -> None:
        """Give the open task its neurons, and make the interference weights zero for ever."""
        number = len(self.heads) - 1
        for group, neurons in self.open.items():
            self.owner[group][neurons] = number
            self.claimed[group] += neurons
            self.open[group] = []
        self.heads[-1] = {name: tensor.detach() for name, tensor in self.heads[-1].items()}
        self.num_learned = max(self.num_learned, self.num_outputs)
        everybody = {group: torch.ones(size) for group, size in self.sizes.items()}
        with torch.no_grad():
            for path in self.mixing():
                mask = self.may_read(path, everybody, None)
                weight = self.layer(path).weight
                weight *= spread_over(mask, weight)
        self._mark_frozen()


def spread_over(mask: Tensor, tensor: Tensor) -> Tensor:
    """The mask with more dimensions at its end, as many as the tensor has."""
    return mask.reshape(*mask.shape, *[1] * (tensor.ndim - mask.ndim))
