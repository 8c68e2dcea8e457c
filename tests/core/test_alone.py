"""The network that cannot forget, without everything that is built on it."""

import shutil
import subprocess
import sys

from support.paths import SRC

LOOP = """
import sys
import torch
from torch import nn
from torch.nn import functional as F
import clnp

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(20, 32), nn.ReLU(), nn.Linear(32, 5))
net = clnp.ContinualNet(model, torch.zeros(2, 20), head="multi")
answers = {}
for name in ("a", "b"):
    x, y = torch.randn(64, 20), torch.randint(5, (64,))
    net.begin_task(name, num_outputs=5)
    optimizer = torch.optim.AdamW(net.parameters())
    for _ in range(5):
        loss = F.cross_entropy(net(x), y) + net.l1_penalty(1e-3)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    def accuracy(predict):
        return 100 * (predict(x).argmax(1) == y).float().mean().item()

    activity = net.measure_activity([x])
    plan = net.plan_pruning(activity, accuracy, margin=5.0, allow_guessing=True)
    net.end_task(plan)
    with torch.no_grad():
        answers[name] = x, net(x, task=name)
net.verify()
assert all(torch.equal(net(x, task=name), y) for name, (x, y) in answers.items())
assert torch.allclose(net.subnetwork("a")(answers["a"][0]), answers["a"][1], atol=1e-6)
print(net.capacity(), net.forecast(), sep="\\n")
above = [name for name in sys.modules if name.startswith("clnp.")]
below = ("clnp.core", "clnp.errors", "clnp.checks", "clnp.plain", "clnp.version")
assert all(name.startswith(below) for name in above), above
assert not {"rich", "safetensors", "filelock"} & set(sys.modules)
"""


def test_the_core_works_when_everything_above_it_is_deleted(tmp_path):
    for name in ("__init__.py", "version.py", "errors.py", "checks.py", "plain.py"):
        (tmp_path / "clnp").mkdir(exist_ok=True)
        shutil.copy(SRC / "clnp" / name, tmp_path / "clnp")
    shutil.copytree(SRC / "clnp/core", tmp_path / "clnp/core")
    program = tmp_path / "loop.py"
    program.write_text(LOOP)
    done = subprocess.run([sys.executable, program], capture_output=True, text=True)
    assert not done.stderr
    assert "reused" in done.stdout
