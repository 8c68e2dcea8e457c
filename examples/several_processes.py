"""Train two tasks in several processes, each on its share of every batch.

    torchrun --nproc-per-node 2 examples/several_processes.py

It uses GPUs if there is one for each process, and the CPU otherwise. All processes must freeze the
same neurons with the same BatchNorm statistics. Each process makes its own, from its own shares, so
the first one broadcasts its plan and its statistics.
"""

import os
import sys
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

import clnp

TASKS = {"0 to 4": range(5), "5 to 9": range(5, 10)}


def digits(classes: range, device: torch.device) -> tuple[Tensor, Tensor]:
    images, labels = load_digits(return_X_y=True)
    chosen = [index for index, label in enumerate(labels) if label in classes]
    x = torch.tensor(images[chosen] / 16, dtype=torch.float32, device=device).view(-1, 1, 8, 8)
    return x, torch.tensor(labels[chosen] - classes.start, device=device)


def model() -> nn.Module:
    return nn.Sequential(
        *(nn.Conv2d(1, 32, 3), nn.BatchNorm2d(32), nn.ReLU()),
        *(nn.Conv2d(32, 64, 3), nn.BatchNorm2d(64), nn.ReLU()),
        *(nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(256, 5)),
    )


def learn(net: clnp.ContinualNet, name: str, x: Tensor, y: Tensor) -> None:
    held_out = len(x) // 5
    net.begin_task(name)
    # After begin_task, which makes new Parameters: the same in all processes, by the same seed.
    # Once a layer is full, nothing reads the free neurons in front of it: they have no gradient.
    is_full = any(free == 0 for free in net.capacity().free.values())
    shared = DistributedDataParallel(net, find_unused_parameters=is_full)
    optimizer = torch.optim.Adam(shared.parameters(), lr=3e-3)
    rank, num = dist.get_rank(), dist.get_world_size()
    net.train()
    for epoch in range(12):
        order = torch.randperm(len(x) - held_out, generator=torch.Generator().manual_seed(epoch))
        for batch in (order + held_out).split(64):
            own = batch[rank::num]
            if len(own) < 2:
                continue
            loss = F.cross_entropy(shared(x[own]), y[own]) + net.l1_penalty(1e-3)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    def accuracy(predict: Callable[[Tensor], Tensor]) -> float:
        return 100 * (predict(x[:held_out]).argmax(1) == y[:held_out]).double().mean().item()

    batches = x[held_out:].split(256)
    contribution = net.measure_contribution(batches)
    plans = [net.plan_pruning(contribution, accuracy, margin=1.0, recalibrate=batches)]
    dist.broadcast_object_list(plans, 0)
    net.prune(plans[0])
    net.recalibrate(batches)
    for buffer in net.buffers():
        dist.broadcast(buffer, 0)
    net.end_task()
    if rank == 0:
        print(f"learned digits {name}: {plans[0]}")


def main() -> None:
    if "LOCAL_RANK" not in os.environ:
        sys.exit(
            "Start it with torchrun: torchrun --nproc-per-node 2 examples/several_processes.py"
        )
    local_rank = int(os.environ["LOCAL_RANK"])
    on_gpu = torch.cuda.device_count() >= int(os.environ["LOCAL_WORLD_SIZE"])
    device = torch.device("cuda", local_rank) if on_gpu else torch.device("cpu")
    dist.init_process_group("nccl" if on_gpu else "gloo")
    torch.manual_seed(0)
    net = clnp.ContinualNet(model().to(device), torch.zeros(2, 1, 8, 8, device=device))
    outputs: dict[str, Tensor] = {}
    for name, classes in TASKS.items():
        x, y = digits(classes, device)
        learn(net, name, x, y)
        outputs[name] = net(x, task=name)
    net.verify()
    for name, classes in TASKS.items():
        same = torch.equal(net(digits(classes, device)[0], task=name), outputs[name])
        found: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(found, (same, net.certificates[name].digest))
        assert all(same for same, _ in found)
        assert len({digest for _, digest in found}) == 1
    if dist.get_rank() == 0:
        print("all processes have the same network, and nothing was forgotten")
    dist.barrier()  # No process may exit while another still communicates.
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
