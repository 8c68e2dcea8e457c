"""The loop in the README is code that runs."""

import re

import torch

from support.paths import ROOT


def test_the_loop_in_the_readme_runs(capsys):
    torch.manual_seed(0)
    loop, learner = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    x = torch.randn(300, 20)
    y = x[:, :3].argmax(1)
    batches = list(zip(x[:200].split(20), y[:200].split(20), strict=True))
    names = {"loader": batches * 10, "x_val": x[200:], "y_val": y[200:]}
    exec(compile(loop, "README.md", "exec"), names)

    net = names["net"]
    assert net.tasks == ("flowers",)
    assert names["plan"].score >= names["plan"].best - 1.0
    assert names["accuracy"](lambda x: net(x, task="flowers")) == names["plan"].score > 60
    assert 0 < sum(names["plan"].kept.values()) < 128
    assert "flowers" in capsys.readouterr().out

    names.update(x_train=x[:200], y_train=y[:200], x_test=x[200:], y_test=y[200:])
    exec(compile(learner, "README.md", "exec"), names)
    assert net.tasks == ("flowers", "trees")
    assert names["report"].test_score > 60
    net.verify()


def test_every_file_that_the_readme_names_is_there():
    named = re.findall(
        r"\[(\w+\.md)\]|`((?:examples|benchmarks)/\w+\.py)`", (ROOT / "README.md").read_text()
    )
    assert len(named) >= 4
    for names in named:
        assert (ROOT / "".join(names)).is_file(), names
