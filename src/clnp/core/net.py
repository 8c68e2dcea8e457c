"""`ContinualNet`: one network of fixed size that learns task after task and forgets nothing."""

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial, wraps
from typing import Any, Concatenate, Literal, Never, ParamSpec, Self, TypeVar

import torch
from torch import Tensor, nn

from clnp.checks import COUNT, check_kind, check_memory
from clnp.core.layers.body import Body, eagerly
from clnp.core.layers.initialisation import Initial, initialisation
from clnp.core.layers.ledger import Capacity, Ledger, OpenTask
from clnp.core.layers.stage import FROZEN_CHANGES
from clnp.core.pruning.activity import Activity, measured
from clnp.core.pruning.plan import CurvePoint, PruningPlan, num_kept
from clnp.core.pruning.recalibrate import recalibrate as recalibrate_norms
from clnp.core.pruning.reuse import num_reused
from clnp.core.pruning.subsets import Subsets
from clnp.core.pruning.taylor import Loss, taylor
from clnp.core.pruning.thresholds import (
    Neurons,
    checked_score,
    extra_by_group,
    importance_of,
    kept_by,
    plan,
    threshold_by_group,
)
from clnp.core.structure.axis import has_input
from clnp.core.structure.discover import discover
from clnp.core.structure.graph import Graph
from clnp.errors import (
    ArgumentError,
    CapacityError,
    DivergedError,
    GraphError,
    Problem,
    TaskError,
)

from .certificate import Certificate, certify
from .forecast import Forecast, forecast
from .movement import Movement
from .penalty import add_l1_gradient, l1_penalty
from .record import Description, OpenState, Record, identity

HARDLY = 0.01
"""The fraction of free neurons below which a task is said to find hardly any."""

Net = TypeVar("Net", bound="ContinualNet")
Given = ParamSpec("Given")
Result = TypeVar("Result")


def in_turn(
    method: Callable[Concatenate[Net, Given], Result],
) -> Callable[Concatenate[Net, Given], Result]:
    """Decorate a method that no other thread may run beside, and whose tensors can be trained."""

    @wraps(method)
    def run(net: Net, /, *args: Given.args, **kwargs: Given.kwargs) -> Result:
        with net._body.lock, torch.inference_mode(False):
            return method(net, *args, **kwargs)

    return run


class ContinualNet(nn.Module):
    """A copy of a model that learns one task after the other with exactly zero forgetting.

    Args:
        model: Any module whose layers can be sliced by neuron. It is copied and stays as it is.
        example_input: One batch that `model` accepts: a tensor, a tuple of positional inputs, or a
            dictionary of keyword inputs. It is run to find out which layers share neurons.
        head: `"multi"`, where every task has separate outputs, or `"single"`, where all tasks
            share them.
        classifier: The path of the layer that makes the outputs, if it is not the last one to run.

    Raises:
        GraphError: If the model has layers or operations that cannot be sliced.

    Example:
        >>> net = clnp.ContinualNet(model, torch.zeros(1, 3, 32, 32))
        >>> net.begin_task("flowers", num_outputs=10)
        >>> optimizer = torch.optim.AdamW(net.parameters())
        >>> ...  # Train: loss = F.cross_entropy(net(x), y) + net.l1_penalty(1e-5)
        >>> activity = net.measure_activity(loader)
        >>> net.end_task(net.plan_pruning(activity, score, margin=0.5))
        >>> net(x, task="flowers")  # The same forever.
    """

    def __init__(
        self,
        model: nn.Module,
        example_input: Any,
        *,
        head: Literal["multi", "single"] = "multi",
        classifier: str | None = None,
    ) -> None:
        if head not in ("multi", "single"):
            raise ArgumentError(f"head is {head!r}. It must be 'multi' or 'single'")
        graph = discover(model, example_input, classifier=classifier)
        self._assemble(model, graph, head)

    def _assemble(self, model: nn.Module, graph: Graph, head: str) -> None:
        if head == "single" and has_input(graph.sites[graph.classifier].columns):
            found = "the classifier reads the network's input, which every task would have to share"
            raise GraphError([Problem(graph.classifier, found, 'Use head="multi"')])
        super().__init__()
        self.graph = graph
        self.head = head
        self.ledger = Ledger(dict(graph.groups))
        self._body = Body(model, graph, shared_head=head == "single")
        self.model = self._body.model
        self._description = Description.of(model)
        self._open: OpenTask | None = None
        self._movement = Movement()
        self._certificates: tuple[Certificate, ...] = ()
        self.train(model.training)

    @property
    def tasks(self) -> tuple[str, ...]:
        """The ended tasks, in order."""
        return self.ledger.tasks

    @property
    def open_task(self) -> str | None:
        """The task that is being learned."""
        return self._open.name if self._open else None

    @property
    def device(self) -> torch.device:
        """The device of the network."""
        return self._body.device

    @property
    def certificates(self) -> dict[str, Certificate]:
        """The hashes of all that each ended task read when it ended, by task."""
        return {certificate.task: certificate for certificate in self._certificates}

    def forward(self, *args: Any, task: str | None = None, **kwargs: Any) -> Any:
        """Run an ended task, or the open one.

        Args:
            *args: The inputs of the model.
            task: The name of a task; the open one if not given.
            **kwargs: Keyword inputs of the model.

        Returns:
            What the model returns: `[batch, num_outputs]` for most. An ended task always runs in
            evaluation mode, the open one in the mode of the network.

        Example:
            >>> net(x, task="flowers").argmax(1)
        """
        if task is None or task == self.open_task:
            if self._open is None:
                raise TaskError(
                    "no task is open. Name one of the ended tasks, net(x, task=...), "
                    f"or begin one. Ended: {', '.join(self.tasks) or 'none'}"
                )
            return self._body.run_open(args, kwargs)
        # Never compiled: a graph that is compiled again, for other widths, may round differently.
        return eagerly(lambda: self._body.run_task(self.ledger, task, args, kwargs))

    def predict_all(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """Run all ended tasks at once; each neuron is computed once for all of them.

        Args:
            *args: The inputs of the model.
            **kwargs: Keyword inputs of the model.

        Returns:
            The outputs of every ended task, by name: `net(x, task=name)` up to rounding, since
            products of other shapes round differently. They are bit-identical forever, too.

        Example:
            >>> {name: y.argmax(1) for name, y in net.predict_all(x).items()}
        """

        def run() -> dict[str, Any]:
            with self._body.lock:  # Another thread may be ending a task.
                return self._body.run_all(self.ledger, args, kwargs)

        return eagerly(run)

    @in_turn
    def begin_task(
        self, name: str, num_outputs: int | None = None, *, initial: Initial | str = None
    ) -> None:
        """Open a task in all free neurons, and initialise their weights.

        There is a warning if the layers that the classifier reads have hardly a free neuron.

        Args:
            name: A name that no ended task has.
            num_outputs: The number of outputs; that of the classifier if not given.
            initial: `"pytorch"`, `"glorot"`, or a function that changes a new layer in place after
                its class has initialised it. For the first task also a model like the one that the
                network was made from, to start from its weights and with all of its outputs.

        Example:
            >>> net.begin_task("flowers", num_outputs=10)
            >>> optimizer = torch.optim.AdamW(net.parameters())
        """
        self._need_closed("begin_task")
        check_name(name)
        if name in self.tasks:
            raise TaskError(f"task {name!r} has ended already. Give the new task another name")
        own = self._body.head.most_outputs
        num_outputs = checked_outputs(num_outputs, own=own, single=self.head == "single")
        if isinstance(initial, str):
            initial = initialisation(initial)
        free = self.ledger.free()
        if self.head == "single":
            check_room(name, {group: free[group] for group in self._body.head_groups})
        check_initial(
            initial,
            self._description,
            is_first=not self.tasks,
            widened=dict(self.ledger.sizes) != dict(self.graph.groups),
            num_outputs=(num_outputs, own),
        )
        self._warn_if_full(name, free)
        with self._body.undone_on_error():
            self._body.open(free, num_outputs, initial=initial)
        self._open = OpenTask(name, num_outputs)
        if not isinstance(initial, nn.Module):  # A trained model may end as it is.
            self._movement.begin(self.parameters())

    def _warn_if_full(self, name: str, free: Mapping[str, int]) -> None:
        """Warn if the classifier gets hardly a new neuron, whatever is free in earlier layers."""
        read = self._body.head_groups
        num_free, num = (sum(each[group] for group in read) for each in (free, self.ledger.sizes))
        if self.ledger.rows and num_free < HARDLY * num:
            warnings.warn(
                f"{num_free} of the {num} neurons of {' and '.join(read)} are free: task {name!r} "
                "can train little more than its outputs. Widen the network, "
                f"net.widen({{{read[0]!r}: ...}}), or learn the earlier tasks with a larger margin",
                stacklevel=4,  # The line that calls `begin_task`.
            )

    @in_turn
    def abandon_task(self) -> None:
        """Drop the open task. The network is as it was before `begin_task`."""
        self._need_open("abandon_task")
        self._movement.end(self.parameters())
        self._body.close(claim=False, index=len(self.tasks))
        self._open = None

    def l1_penalty(self, alpha: float | Mapping[str, float]) -> Tensor:
        """Compute the L1 penalty on the weights that the open task trains (Alg. 1, line 3).

        Args:
            alpha: Its strength, or that of each layer by its path or the path of a module that
                contains it. Layers that are not named have none.

        Returns:
            alpha times the sum of |w|, a scalar. Biases and BatchNorm are not penalised.

        Example:
            >>> loss = F.cross_entropy(net(x), y) + net.l1_penalty({"fc1": 1e-7, "fc2": 1e-5})
        """
        self._need_open("l1_penalty")
        return l1_penalty(self._body, alpha)

    def add_l1_gradient(self, alpha: float | Mapping[str, float]) -> None:
        """Add the gradient of `l1_penalty(alpha)`, alpha sign(w), to the gradients.

        The same step as with the penalty in the loss, in fewer operations.

        Args:
            alpha: As for `l1_penalty`.

        Example:
            >>> F.cross_entropy(net(x), y).backward()
            >>> net.add_l1_gradient(1e-5)
            >>> optimizer.step()
        """
        self._need_open("add_l1_gradient")
        add_l1_gradient(self._body, alpha)

    def measure_activity(self, batches: Iterable[Any]) -> Activity:
        """Measure the mean |activation| of every neuron, in evaluation mode.

        Args:
            batches: Tensors, or tuples or lists whose first element is the input.

        Returns:
            The activity of the free neurons of each group, `[num_free]`, by group.

        Example:
            >>> activity = net.measure_activity(loader)
            >>> activity["fc1"].max()
        """
        self._need_trained("measure_activity", measures=True)
        return measured(self._body, batches)

    def measure_contribution(self, batches: Iterable[Any]) -> Activity:
        """Measure how much every neuron contributes to those that read it, in evaluation mode.

        It finds neurons whose output has small weights, which activity cannot behind BatchNorm.

        Args:
            batches: As for `measure_activity`.

        Returns:
            The contribution of the free neurons of each group, `[num_free]`, from 0 to 1, to prune
            by as by activity. A threshold of 0.05 cuts the neurons of each group that together
            contribute 5 % of what the next layer receives.

        Example:
            >>> plan = net.plan_pruning(net.measure_contribution(loader), thresholds=0.05)
        """
        self._need_trained("measure_contribution", measures=True)
        return measured(self._body, batches, contribution=True)

    def measure_taylor(self, batches: Iterable[Any], loss: Loss) -> Activity:
        """Measure how much the loss would change without each neuron, in evaluation mode.

        This is the score of Molchanov et al. (2019): (sum of weight times gradient)^2 over the
        weights that read the neuron, averaged over the samples. Nothing in the network changes,
        and its Parameters get no gradients.

        Args:
            batches: Tuples or lists of the inputs and the targets.
            loss: A function of the outputs and the targets of a batch that returns its mean loss.

        Returns:
            The Taylor score of the free neurons of each group, `[num_free]`, from 0 to 1, to prune
            by as by activity. A threshold of 0.05 cuts the neurons of each group that together
            have 5 % of the sum of all scores in the layer.

        Example:
            >>> importance = net.measure_taylor(loader, F.cross_entropy)
            >>> plan = net.plan_pruning(importance, score, margin=0.5)
        """
        self._need_trained("measure_taylor", measures=True)
        if not callable(loss):
            raise ArgumentError(f"loss is {loss!r}. It must be a function of outputs and targets")
        return taylor(self._body, batches, loss)

    def plan_pruning(
        self,
        activity: Mapping[str, Any],
        score: Callable[..., float] | None = None,
        *,
        margin: float | None = None,
        best: float | None = None,
        thresholds: float | Mapping[str, float] | None = None,
        per_layer: bool = False,
        resolution: int | None = 10,
        recalibrate: Iterable[Any] | None = None,
        allow_guessing: bool = False,
        on_evaluation: Callable[[CurvePoint], None] = lambda point: None,
    ) -> PruningPlan:
        """Find the fewest neurons, by a threshold on activity, within the margin of the best score.

        The weights must stay as they are until it returns. An exception in `score`, such as a
        KeyboardInterrupt, leaves the task as it was.

        Args:
            activity: That of the open task as it is now, its contribution or Taylor score, or
                numbers of your own: for each group, one for each free neuron, 0 or more. The lowest
                are pruned first.
            score: A function from `predict` to a number, higher is better, where `predict(x)` gives
                the outputs of the pruned network. If it also takes `at_least`, it may return any
                lower number as soon as that is out of reach.
            margin: How much of `best` the score may lose.
            best: The score to stay close to; that of the unpruned network if not given.
            thresholds: Thresholds to use as they are instead, one or one for each group. 0 keeps
                exactly the neurons that fire; a group that is not named keeps all.
            per_layer: Whether to raise the threshold of each group in turn, after the common one.
            resolution: How many thresholds to try from the top; the gap above the first that holds
                is halved. None tries all.
            recalibrate: A few hundred samples, in batches, to recalibrate BatchNorm on before each
                set of neurons is scored. Fewer neurons are enough then, and the score is that of
                `end_task(recalibrate=...)`.
            allow_guessing: Whether the margin may include outputs that do not depend on the input.
                If it does, the scale of score or margin is wrong, such as an accuracy from 0 to 1
                with a margin of 1, or a loss; or the task has learned nothing. Where a plan looks
                like it, one more evaluation, which is not in the curve, tells.
            on_evaluation: Called after each evaluation with its point of the curve, to show the
                progress.

        Returns:
            The neurons to keep, and how they were found; print it for a summary.

        Raises:
            PruningError: If even the unpruned network is not within the margin of `best`, or if
                outputs that do not depend on the input are.

        Example:
            >>> def score(predict):
            ...     return 100 * (predict(x_val).argmax(1) == y_val).float().mean().item()
            >>> plan = net.plan_pruning(activity, score, margin=0.5)
        """
        task = self._need_trained("plan_pruning")
        activity = importance_of(self.graph, activity, self._body.stage.free)
        if score is not None and not callable(score):
            raise ArgumentError(f"score is {score!r}. It must be a function of predict")
        subsets = None if score is None else Subsets(self._body, score, recalibrate=recalibrate)
        return plan(
            activity,
            None if subsets is None else subsets.score,
            task=task.name,
            thresholds=None if thresholds is None else threshold_by_group(self.graph, thresholds),
            margin=margin,
            best=best,
            per_layer=per_layer,
            resolution=resolution,
            allow_guessing=allow_guessing,
            on_evaluation=on_evaluation,
            ignores_input=lambda keep: subsets is not None and subsets.ignores_input(keep),
            reused=partial(num_reused, self._body, activity.inputs),
        )

    def unpruned_score(
        self, score: Callable[..., float], *, recalibrate: Iterable[Any] | None = None
    ) -> float:
        """Score the open task with all of its neurons, in the way of `plan_pruning`.

        This may differ from the score of `net(x)` in the last bits and, with batches to
        `recalibrate` on, in the statistics of BatchNorm.

        Args:
            score: As for `plan_pruning`.
            recalibrate: As for `plan_pruning`.

        Returns:
            The score.

        Example:
            >>> best = net.unpruned_score(score)
        """
        self._need_open("unpruned_score")
        everything = {g: range(n) for g, n in self._body.stage.free.items()}
        subsets = Subsets(self._body, score, recalibrate=recalibrate)
        return checked_score(subsets.score(everything, None))

    @in_turn
    def prune(self, plan: PruningPlan | Neurons) -> None:
        """Drop all but the planned neurons of the open task, which stays open.

        Its Parameters are new and smaller: make a new optimizer to fine-tune them.

        Args:
            plan: A plan, or the neurons to keep, as for `end_task`.

        Example:
            >>> net.prune(plan)
            >>> optimizer = torch.optim.AdamW(net.parameters(), lr=1e-4)
        """
        task = self._need_open("prune")
        keep, reused = kept_by(plan, self.graph, task=task.name, free=self._body.stage.free)
        with self._body.undone_on_error():
            self._body.restrict(keep)
        self._open = replace(task, reused=reused or task.reused)

    def recalibrate(self, batches: Iterable[Any]) -> None:
        """Set the statistics of the task's BatchNorm channels to their means over `batches`.

        Args:
            batches: As for `measure_activity`. A batch counts as many times as it has samples.

        Example:
            >>> net.recalibrate(loader)
        """
        self._need_open("recalibrate")
        recalibrate_norms(self._body, batches)

    @in_turn
    def end_task(
        self, plan: PruningPlan | Neurons | None = None, *, recalibrate: Iterable[Any] | None = None
    ) -> Certificate:
        """Claim the planned neurons of the open task, freeze them forever, and free the rest.

        If anything fails, the task is open as before.

        Args:
            plan: A plan, or the neurons to keep: `{"fc1": [0, 5, 7]}` are indices among the free
                ones, and a group that is not named keeps all. Without it the task keeps all.
            recalibrate: Batches to recalibrate BatchNorm on after pruning.

        Returns:
            The hashes of all that the task reads, which `verify` compares.

        Raises:
            DivergedError: If weights are NaN or infinite.
            TaskError: If no weight has moved since `begin_task` although there are gradients: the
                optimizer is that of an earlier task. Without gradients, there is a warning.

        Example:
            >>> net.end_task(plan, recalibrate=loader)
        """
        task = self._need_trained("end_task", stacklevel=4)  # It is decorated.
        body, parameters = self._body, list(self.parameters())
        given = {} if plan is None else plan
        keep, reused = kept_by(given, self.graph, task=task.name, free=body.stage.free)
        with body.undone_on_error():
            body.restrict(keep)
            if recalibrate is not None:
                self.recalibrate(recalibrate)
            for name, tensor in body.free_part().items():
                if not bool(tensor.isfinite().all()):
                    raise DivergedError(
                        f"{name} is NaN or infinite: task {task.name!r} has diverged and "
                        "cannot be frozen. Abandon it, and train again with a lower rate"
                    )
            ledger = self.ledger.claim(task.name, num_kept(keep), reused or task.reused)
            body.close(claim=True, index=len(self.ledger.rows))
            certificate = self._certify(task.name, ledger)
        self.ledger, self._open = ledger, None
        self._movement.end(parameters)
        self._certificates += (certificate,)
        return certificate

    def capacity(self) -> Capacity:
        """Count new, reused and free neurons of each group and task; print it for a table.

        Returns:
            The counts.

        Example:
            >>> net.capacity().of("flowers", "fc1").new
        """
        return self.ledger.capacity()

    def forecast(self) -> Forecast:
        """Forecast how many more tasks like the last fit, and which group fills up first.

        Returns:
            The forecast; print it for a summary.

        Example:
            >>> net.widen(net.forecast().widening(3))  # Room for three more tasks.
        """
        groups = self._body.head_groups if self.head == "single" else []
        return forecast(self.capacity(), head=self.head, head_groups=groups)

    @in_turn
    def widen(self, extra: Mapping[str, int]) -> None:
        """Append free neurons to groups, between tasks. Ended tasks stay as they are.

        Args:
            extra: How many, by the name of the group or the path of a layer in it.

        Example:
            >>> net.widen({"fc1": 100})
        """
        self._need_closed("widen")
        ledger = self.ledger.widen(extra_by_group(self.graph, extra))
        num_bytes = self._body.num_bytes(ledger.sizes)
        check_memory("the network", num_bytes, self.device, "Widen it by fewer neurons")
        self.ledger = ledger

    @in_turn
    def subnetwork(self, task: str) -> nn.Module:
        """Copy an ended task into a plain narrow module.

        Args:
            task: The name of an ended task.

        Returns:
            A module of the model's class in evaluation mode, with the same outputs bit for bit, no
            trace of clnp, and Parameters that ask for no gradients.

        Example:
            >>> torch.save(net.subnetwork("flowers").state_dict(), "flowers.pt")
        """
        return self._body.subnetwork(self.ledger, task)

    @in_turn
    def verify(self) -> None:
        """Recompute the certificate of every ended task.

        Raises:
            ForgettingError: If one differs. It names the task and the tensor that changed.

        Example:
            >>> net.verify()
        """
        for certificate in self._certificates:
            certificate.check(self._certify(certificate.task, self.ledger))

    def _certify(self, task: str, ledger: Ledger) -> Certificate:
        return certify(ledger.row(task), self._body.reads(ledger, task))

    def record(self) -> Record:
        """Return all about the network but its tensors and the code of its model."""
        return Record(
            graph=self.graph,
            head=self.head,
            description=self._description,
            ledger=self.ledger,
            certificates=self._certificates,
            num_outputs=self._body.head.outputs(len(self.ledger.rows)),
            open_task=self._open,
            open_free=dict(self._body.stage.free),
        )

    @in_turn
    def open_state(self) -> OpenState:
        """Copy the open task as it is now.

        Returns:
            The copy, for `set_open_state`.

        Example:
            >>> state = net.open_state()
            >>> ...  # Train on, prune, and find that it was better before.
            >>> net.set_open_state(state)
        """
        task, stage = self._need_open("open_state"), self._body.stage
        return OpenState(task, stage.free, stage.frozen, self._body.take())

    @in_turn
    def set_open_state(self, state: OpenState) -> None:
        """Put the open task back to where a copy was taken. Its Parameters are new.

        Args:
            state: A copy of the same task by `open_state`.
        """
        task = self._need_open("set_open_state")
        check_kind("state", state, OpenState, "a copy by open_state")
        if (state.task.name, state.task.num_outputs) != (task.name, task.num_outputs):
            raise TaskError(f"the copy is of task {state.task.name!r}, and {task.name!r} is open")
        if dict(state.frozen) != self._body.stage.frozen:
            raise TaskError("the copy was taken before another task ended. Begin the task again")
        self._body.put(state.free, state.tensors)
        self._open = state.task

    @in_turn
    def snapshot(self) -> tuple[Record, dict[str, Tensor]]:
        """Return what `from_snapshot` rebuilds the network from; its tensors are not copies."""
        return self.record(), self.state_dict()

    @classmethod
    @torch.inference_mode(False)
    def from_snapshot(
        cls, record: Record, tensors: Mapping[str, Tensor], model: nn.Module
    ) -> "ContinualNet":
        """Rebuild a network from its snapshot and a model like the one that it was made from.

        Args:
            record: The first part of `snapshot()`.
            tensors: The second part; they are copied.
            model: It is copied and stays as it is.

        Returns:
            The network, on the device of `model`.
        """
        net = cls.__new__(cls)
        net._assemble(model, record.graph, record.head)
        net.ledger, net._certificates = record.ledger, record.certificates
        net._open = task = record.open_task
        net._body.allocate(record.ledger, record.num_outputs)
        if task is not None:
            device = net.device
            with torch.random.fork_rng([device] if device.type == "cuda" else []):
                net._body.open(record.open_free, task.num_outputs)
        own = net.state_dict()
        given = [tensors[name] for name in own if name in tensors]
        dtypes = {tensor.dtype for tensor in given if tensor.is_floating_point()}
        if len(dtypes) == 1:
            net.to(dtypes.pop())  # Buffers that are not among the tensors, too.
        here = {
            name: tensor.to(own[name].device, copy=True) if name in own else tensor
            for name, tensor in tensors.items()
        }
        net.load_state_dict(here, assign=True)
        net._body.stage.sealed = bool(record.ledger.rows)
        return net

    # What PyTorch may do to a module, and what it may not do to one with ended tasks.

    def get_extra_state(self) -> Tensor:
        """Return what a state dict must agree on to be loaded: ledger, open task, certificates."""
        return identity(self.record())

    def set_extra_state(self, state: Tensor) -> None:
        """Refuse the state dict of a network that has learned something else."""
        if not torch.equal(state.cpu(), self.get_extra_state()):
            raise TaskError(
                "this state dict is of a network with another ledger: other tasks, widths or "
                "frozen weights. Use clnp.save(net, path) and clnp.load(path, model)"
            )

    @in_turn
    def state_dict(self, *args: Any, **options: Any) -> Any:
        """Return a state dict, which can be loaded into the same network in the same state only."""
        return super().state_dict(*args, **options)

    @in_turn
    def load_state_dict(
        self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False
    ) -> Any:
        """Load a state dict of this network. One of another network is refused."""
        if self.ledger.rows and "_extra_state" not in state_dict:
            raise TaskError("this state dict does not say which tasks it is of. Nothing was loaded")
        if "_extra_state" in state_dict:
            self.set_extra_state(state_dict["_extra_state"])
        for name in self._body.changed_by(state_dict, "model."):
            raise TaskError(f"{FROZEN_CHANGES.format(name)}. Nothing was loaded")
        if assign:
            for name, tensor in self.state_dict().items():
                given = state_dict.get(name, tensor)
                self._body.stage.check_dtype(tensor.dtype, given.dtype)
        return super().load_state_dict(state_dict, strict, assign)

    def named_parameters(self, *args: Any, **options: Any) -> Iterator[tuple[str, nn.Parameter]]:
        """Iterate over the Parameters that the open task trains; there are none between tasks."""
        found = super().named_parameters(*args, **options)
        return (each for each in found if each[1] is not self._body.head.like)

    @in_turn
    def train(self, mode: bool = True) -> Self:
        """Set the mode, but not in the middle of another thread's pass."""
        return super().train(mode)

    def _load_from_state_dict(
        self, state_dict: dict[str, Any], prefix: str, metadata: Any, *args: Any
    ) -> None:
        *_, errors = args
        for name in self._body.changed_constants(state_dict, f"{prefix}model."):
            errors.append(FROZEN_CHANGES.format(name))
            state_dict[name] = self.model.get_buffer(name.removeprefix(f"{prefix}model."))
        super()._load_from_state_dict(state_dict, prefix, metadata, *args)

    def to_empty(self, *, device: Any, recurse: bool = True) -> Self:
        """Refuse to drop ended tasks."""
        if self.ledger.rows:
            raise TaskError("to_empty would wipe the ended tasks. Use net.to(device)")
        return super().to_empty(device=device, recurse=recurse)

    def extra_repr(self) -> str:
        """Return head, tasks and free neurons in one line."""
        free = ", ".join(f"{g} {n}/{self.ledger.sizes[g]}" for g, n in self.ledger.free().items())
        return (
            f"head={self.head!r}, tasks={list(self.tasks)}, open={self.open_task!r}, free: {free}"
        )

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        self._body.stage.check_conversion(self._body.head.like, fn)
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        return self

    def save(self, *args: Any, **kwargs: Any) -> Never:
        """Renamed to `clnp.save(net, path)`."""
        raise AttributeError("net.save was renamed. Use clnp.save(net, path)")

    @classmethod
    def load(cls, *args: Any, **kwargs: Any) -> Never:
        """Renamed to `clnp.load(path, model)`."""
        raise AttributeError("ContinualNet.load was renamed. Use clnp.load(path, model)")

    def _need_open(self, call: str) -> OpenTask:
        if self._open is None:
            raise TaskError(f"{call} needs an open task. Begin one with net.begin_task(name)")
        return self._open

    def _need_trained(self, call: str, *, measures: bool = False, stacklevel: int = 3) -> OpenTask:
        task, parameters = self._need_open(call), self.parameters()
        self._movement.check(task.name, parameters, measures=measures, stacklevel=stacklevel + 1)
        return task

    def _need_closed(self, call: str) -> None:
        if self._open is not None:
            raise TaskError(
                f"{call} is not possible while task {self._open.name!r} is open. End or abandon it"
            )


def check_net(net: object) -> None:
    """Raise an `ArgumentError` unless this is a network, or one that `torch.compile` returned."""
    own = getattr(net, "_orig_mod", net)
    check_kind("net", own, ContinualNet, "a ContinualNet(model, example_input)")


def check_name(name: object) -> None:
    """Raise an `ArgumentError` unless a task can have this name."""
    if not isinstance(name, str) or not name or not name.isprintable():
        raise ArgumentError(f"the name of a task is {name!r}. It must be a line of text")


def checked_outputs(num_outputs: object, *, own: int, single: bool) -> int:
    """Return the number of outputs of a task; `own`, the classifier's, unless it is given."""
    if num_outputs is None:
        return own
    number: int = COUNT("num_outputs", num_outputs)
    if single and number > own:
        raise ArgumentError(
            f"num_outputs is {number}, and the single head has {own} for all tasks. "
            'Give the model a larger classifier, or use head="multi"'
        )
    return number


def check_room(task: str, free: Mapping[str, int]) -> None:
    """Raise a `CapacityError` unless one of the groups, all that a single head reads, has room."""
    if not any(free.values()):
        raise CapacityError(
            f"no neuron of {' and '.join(free)} is free, and a single head reads only the neurons "
            f"that a task adds there: task {task!r} does not fit. Widen it, "
            f"net.widen({{{next(iter(free))!r}: ...}}), or learn the earlier tasks with a larger "
            "margin, which leaves more of it free"
        )


def check_initial(
    initial: object,
    expected: Description,
    *,
    is_first: bool,
    widened: bool,
    num_outputs: tuple[int, int],
) -> None:
    """Raise an error unless `initial` is a function, or can give a first task all its weights.

    `num_outputs` are those of the task and of the classifier.
    """
    if not isinstance(initial, nn.Module):
        if initial is not None and not callable(initial):
            what = "a model, a function of a layer, or the name of an initialisation"
            raise ArgumentError(f"initial is {initial!r}. It must be {what}")
        return
    if not is_first:
        raise TaskError("initial weights are for the first task. Later ones start in free neurons")
    difference = expected.difference(initial)
    if difference is None and widened:
        difference = "the network has been widened"
    if difference is not None:
        raise ArgumentError(f"initial is not like the model: {difference}")
    asked, own = num_outputs
    if asked != own:
        raise ArgumentError(
            f"num_outputs is {asked}, and the classifier of initial has {own}. Leave num_outputs "
            f"out, or replace the classifier by one of {asked} before you make the network"
        )
