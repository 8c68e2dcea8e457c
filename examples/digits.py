"""Learn three tasks of scikit-learn's handwritten digits in one network and forget none of them.

    python examples/digits.py

The loop is in `learn`. Everything that clnp does goes through `ContinualNet`.
"""

import torch
from sklearn.datasets import load_digits
from torch import Tensor
from torch.nn import functional as F

import clnp

EPOCHS = 100
TASKS = {"0 to 3": (0, 1, 2, 3), "4 to 6": (4, 5, 6), "7 to 9": (7, 8, 9)}


def split(classes: tuple[int, ...]) -> tuple[tuple[Tensor, Tensor], ...]:
    """Return training, validation and test images of some classes, with labels from 0."""
    images, digits = load_digits(return_X_y=True)
    chosen = [index for index, digit in enumerate(digits) if digit in classes]
    x = torch.tensor(images[chosen] / 16, dtype=torch.float32)
    y = torch.tensor([classes.index(digit) for digit in digits[chosen]])
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
    parts = order.tensor_split([len(x) * 6 // 10, len(x) * 8 // 10])
    return tuple((x[part], y[part]) for part in parts)


def accuracy(outputs: Tensor, labels: Tensor) -> float:
    return 100 * (outputs.argmax(1) == labels).double().mean().item()


def learn(net: clnp.ContinualNet, name: str, classes: tuple[int, ...]) -> None:
    (x, y), (x_val, y_val), _ = split(classes)
    net.begin_task(name, num_outputs=len(classes))
    optimizer = torch.optim.Adam(net.parameters(), lr=3e-3)
    net.train()
    for _ in range(EPOCHS):
        for batch in torch.randperm(len(x)).split(64):
            loss = F.cross_entropy(net(x[batch]), y[batch]) + net.l1_penalty(1e-3)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    activity = net.measure_activity(x.split(256))
    plan = net.plan_pruning(
        activity, score=lambda predict: accuracy(predict(x_val), y_val), margin=1.0
    )
    net.end_task(plan)
    print(f"learned digits {name}: {plan}")


def main() -> None:
    torch.manual_seed(0)
    net = clnp.ContinualNet(clnp.models.MLP(64, (100, 100), 10), torch.zeros(2, 64), head="multi")
    outputs: dict[str, Tensor] = {}
    for name, classes in TASKS.items():
        learn(net, name, classes)
        x_test, _ = split(classes)[2]
        outputs[name] = net(x_test, task=name)

    print("\ndigits    when learned    now   outputs")
    for name, classes in TASKS.items():
        x_test, y_test = split(classes)[2]
        now = net(x_test, task=name)
        before, after = accuracy(outputs[name], y_test), accuracy(now, y_test)
        same = "identical to the last bit" if torch.equal(now, outputs[name]) else "CHANGED"
        print(f"{name:10}{before:9.1f} %{after:8.1f} %   {same}")
    print(f"\n{net.capacity()}")
    net.verify()
    print(f"\nverified: the {len(net.tasks)} tasks read the same weights as when they ended")
    small = net.subnetwork("0 to 3")
    num_parameters = sum(parameter.numel() for parameter in small.parameters())
    print(f'net.subnetwork("0 to 3") is a plain module with {num_parameters} parameters:\n{small}')


if __name__ == "__main__":
    main()
