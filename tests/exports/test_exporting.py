import json
import os
import re
import signal
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import clnp
from clnp.cli import app
from clnp.exports import export as module
from clnp.exports.formats import opened
from clnp.runs.directory import CHECKPOINT, RESULT, read_json
from clnp.runs.experiment import Course
from support.terminal import recipe, start, stopping_in_task, wait_for

RECIPE = recipe(epochs=3)
PERMUTED = """\
[stream]
kind = "permuted"
dataset = "digits"
num_tasks = 2

[network]
widths = [30, 30]
head = "single"

[learner.training]
epochs = 3
lr = 0.01
"""


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Finished runs, to be copied: two split tasks, and two permuted ones with a single head."""
    folder = tmp_path_factory.mktemp("made")
    for name, text in (("split", RECIPE), ("permuted", PERMUTED)):
        (folder / f"{name}.toml").write_text(text)
        arguments = ["run", str(folder / f"{name}.toml"), "--out", str(folder / name), "--quiet"]
        assert app.main(arguments) == 0
    return folder


@pytest.fixture
def folder(made, tmp_path, monkeypatch):
    """A directory of its own to be in, with both runs and their recipes in it."""
    for file in made.glob("**/*"):
        copy = tmp_path / file.relative_to(made)
        copy.parent.mkdir(parents=True, exist_ok=True)
        if file.is_file():
            copy.write_bytes(file.read_bytes())
    monkeypatch.chdir(tmp_path)
    return tmp_path


def export(capsys, *arguments):
    """What `clnp export --json` answers."""
    capsys.readouterr()
    assert app.main(["export", *map(str, arguments), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def fails(capsys, code, message, *arguments):
    """Check that the command ends with this code and exactly one sentence."""
    capsys.readouterr()
    before = {file: file.is_file() and file.read_bytes() for file in Path().glob("**/*")}
    assert app.main(["export", *map(str, arguments)]) == code
    out, error = capsys.readouterr()
    assert out == ""
    assert re.fullmatch(f"clnp: {message}", error.rstrip("\n"), re.DOTALL), error
    assert {file: file.is_file() and file.read_bytes() for file in Path().glob("**/*")} == before


def digits(*classes):
    """The test samples of these digits as they are stored, and their labels."""
    x, y = clnp.data.datasets.digits().test
    chosen = torch.isin(y, torch.tensor(classes))
    return x[chosen], y[chosen] - min(classes)


def test_a_task_is_exported_and_needs_no_preparation(folder, capsys):
    for number in (1, 2):
        answer = export(capsys, "permuted", "--task", f"digits permuted {number}")
        file = folder / "permuted" / f"digits-permuted-{number}.pt2"
        assert folder / answer["file"] == file
        x, y = clnp.data.datasets.digits().test
        outputs = torch.export.load(file).module()(x)
        right = int((outputs.argmax(1) == y).sum())
        scores = read_json(folder / "permuted", RESULT, {})["scores"][-1]
        assert 100 * right / len(y) == pytest.approx(scores[number - 1])
        assert answer["check"] == {
            "samples": "test",
            "num_samples": len(x),
            "identical": True,
            "largest_difference": 0.0,
            "num_other_classes": 0,
            "num_right": right,
        }


def test_the_answer_says_what_the_file_is(folder, capsys):
    answer = export(capsys, "split", "--task", "digits 2-3")
    net = clnp.load(f"split/{CHECKPOINT}", clnp.models.MLP(64, (20, 20), 2))
    few = sum(each.numel() for each in net.subnetwork("digits 2-3").parameters())
    assert (answer["file"], answer["run"]) == ("split/digits-2-3.pt2", "split")
    assert (answer["task"], answer["format"]) == ("digits 2-3", "pt2")
    assert (answer["takes"], answer["device"], answer["classes"]) == ("samples", "cpu", [2, 3])
    assert answer["inputs"] == {"dtype": "uint8", "shape": ["batch", 1, 8, 8]}
    assert answer["outputs"] == {"dtype": "float32", "shape": ["batch", 2]}
    assert answer["num_parameters"] == few
    assert answer["num_parameters_of_network"] == 65 * 20 + 21 * 20 + 21 * 2
    assert answer["bytes"] == Path(answer["file"]).stat().st_size
    certificate = read_json(folder / "split", RESULT, {})["certificates"]["digits 2-3"]
    assert answer["certificate"] == certificate
    capsys.readouterr()
    assert app.main(["export", "split", "--task", "digits 2-3"]) == 0
    out = capsys.readouterr().out
    for words in (
        "split/digits-2-3.pt2: task 'digits 2-3' of split, a PyTorch program that needs nothing",
        "takes        samples as clnp reads the data set: a tensor, uint8 [batch, 1, 8, 8]\n",
        "gives        float32 [batch, 2]: scores of classes 2, 3, before a softmax\n",
        f"{few:,} parameters, {100 * few / 1762:.1f} % of the network's 1,762; ",
        f"read back and run on {len(digits(2, 3)[0])} test samples: every output is the network's",
        f"certificate  {certificate} (SHA-256, verified)\n",
    ):
        assert words in out


@pytest.mark.parametrize("kind", ["pt2", "onnx"])
def test_the_two_lines_that_load_it_run(kind, folder, capsys):
    if kind == "onnx":
        pytest.importorskip("onnxruntime", reason="needs the extra onnx")
    answer = export(capsys, "split", "--task", "digits 0-1", "--out", f'my "ö".{kind}')
    x, y = digits(0, 1)
    names = {"samples": x.numpy() if kind == "onnx" else x}
    exec("\n".join(answer["load"]), names)
    num_right = int((torch.as_tensor(names["outputs"]).argmax(1) == y).sum())
    assert num_right == answer["check"]["num_right"] > 0.8 * len(y)


def test_onnx_is_compared_class_by_class(folder, capsys):
    onnx = pytest.importorskip("onnx", reason="needs the extra onnx")
    answer = export(capsys, "permuted", "--task", "digits permuted 2", "--format", "onnx")
    assert answer["file"] == "permuted/digits-permuted-2.onnx"
    assert answer["check"]["num_other_classes"] == 0
    assert answer["check"]["largest_difference"] < 1e-3
    assert answer["check"]["num_samples"] == 359
    (given,) = onnx.load(answer["file"]).graph.input
    dims = given.type.tensor_type.shape.dim
    assert (given.name, dims[0].dim_param, dims[1].dim_value) == ("samples", "batch", 1)


def test_what_the_file_is_can_be_read_from_it(folder, capsys):
    onnx = pytest.importorskip("onnx", reason="needs the extra onnx")
    for kind in ("pt2", "onnx"):
        answer = export(capsys, "split", "--task", "digits 0-1", "--format", kind)
        if kind == "pt2":
            known = {"clnp.json": ""}
            torch.export.load(answer["file"], extra_files=known)
        else:
            known = {each.key: each.value for each in onnx.load(answer["file"]).metadata_props}
        about = json.loads(known["clnp.json"])
        assert about == {key: answer[key] for key in about}
        assert {"task", "certificate", "inputs", "outputs", "takes", "classes"} <= set(about)


def test_bare_takes_inputs_and_says_how_they_are_made(folder, capsys):
    answer = export(capsys, "permuted", "--task", "digits permuted 2", "--bare")
    assert (answer["file"], answer["takes"]) == ("permuted/digits-permuted-2-bare.pt2", "inputs")
    assert answer["inputs"] == {"dtype": "float32", "shape": ["batch", 1, 8, 8]}
    assert answer["check"]["identical"] is True
    whole = export(capsys, "permuted", "--task", "digits permuted 2")
    assert whole["check"]["num_right"] == answer["check"]["num_right"]
    x = clnp.data.datasets.digits().test[0]
    steps = answer["preparation"]
    inputs = (x / steps["divide_by"]).flatten(1)[:, steps["flatten_and_take"]].reshape(x.shape)
    bare = torch.export.load(answer["file"]).module()
    assert torch.equal(bare(inputs), torch.export.load(whole["file"]).module()(x))
    assert app.main(["export", "permuted", "--task", "digits permuted 2", "--bare"]) == 0
    assert (
        "takes        prepared inputs: a tensor, float32 [batch, 1, 8, 8]; samples divided by 16, "
        "in the order that is in the file's clnp.json\n"
    ) in capsys.readouterr().out


def test_several_tasks_are_exported_at_once(folder, capsys):
    Path("there").mkdir()
    both = export(capsys, "split", "--all", "--out", "there")
    assert [each["file"] for each in both] == ["there/digits-0-1.pt2", "there/digits-2-3.pt2"]
    assert [each["classes"] for each in both] == [[0, 1], [2, 3]]
    names = [part for each in both for part in ("--task", each["task"])]
    assert export(capsys, "split", *names, "--out", "there") == both
    assert export(capsys, "split", *names[:2], *names[:2], "--out", "there") == both[0]
    for name in ("one.pt2", "missing"):
        message = f"--out {name} is no directory, which several tasks need; make one"
        fails(capsys, 2, message, "split", "--all", "--out", name)


def test_a_network_with_another_order_of_classes_says_so(folder, capsys):
    text = RECIPE.replace("num_tasks = 2", "num_tasks = 1\norder = [7, 3, 0, 1, 2, 4, 5, 6, 8, 9]")
    Path("order.toml").write_text(text)
    assert app.main(["run", "order.toml", "--out", "order", "--quiet"]) == 0
    answer = export(capsys, "order", "--all")
    assert answer["classes"] == [7, 3]
    x, y = clnp.data.datasets.digits().test
    x, y = x[(y == 7) | (y == 3)], y[(y == 7) | (y == 3)]
    found = torch.tensor(answer["classes"])[torch.export.load(answer["file"]).module()(x).argmax(1)]
    assert int((found == y).sum()) == answer["check"]["num_right"]


def test_an_earlier_export_of_the_network_is_replaced_and_nothing_else(folder, capsys):
    export(capsys, "split", "--task", "digits 0-1", "--out", "x.pt2")
    export(capsys, "split", "--task", "digits 0-1", "--out", "x.pt2")
    message = (
        "x.pt2 is there, and no earlier export of the same network for task '{}'; remove it, or "
        "name another file"
    )
    own = ("split", "--task", "digits 0-1", "--out", "x.pt2")
    fails(capsys, 2, message.format("digits 2-3"), "split", "--task", "digits 2-3", *own[3:])
    fails(capsys, 2, message.format("digits 0-1"), *own, "--bare")
    other = ["run", "split.toml", "--seed", "5", "--out", "other", "--quiet"]
    assert app.main(other) == 0
    fails(capsys, 2, message.format("digits 0-1"), "other", *own[1:])
    (folder / "x.pt2").write_text("mine")
    fails(capsys, 2, message.format("digits 0-1"), *own)
    (folder / "x.pt2").unlink()
    (folder / "x.pt2").symlink_to("nowhere")
    fails(capsys, 2, message.format("digits 0-1"), *own)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["gone", "--task", "x"], "there is no run at gone; name the directory of a run.*"),
        (["split.toml", "--task", "x"], r"split\.toml is not a run: it has no config\.json; .*"),
        (["."], r"\. is not a run: it has no config\.json; .*"),
        (["~nosuchuser", "--task", "x"], "there is no run at ~nosuchuser; .*"),
        (
            ["split"],
            "name the task to export, --task NAME, or --all; ended: 'digits 0-1', 'digits 2-3'",
        ),
        (["split", "--task", ""], "unknown task ''. Known: digits 0-1, digits 2-3"),
        (["split", "--task", "digit 0-1"], "unknown task .* did you mean 'digits 0-1'\\? .*"),
        (
            ["split", "--task", "digits 0-1", "--out", "no/such/x.pt2"],
            "there is no directory no/such to write x.pt2 to; make it",
        ),
        (
            ["split", "--task", "digits 0-1", "--out", "", "--format", "onnx"],
            "--out is empty; name a file, or a directory",
        ),
        (
            ["split", "--task", "digits 0-1", "--out", "split.toml"],
            r"'split\.toml': the name of the file must end in \.pt2 or \.onnx",
        ),
        (
            ["split", "--task", "digits 0-1", "--out", "x.onnx", "--format", "pt2"],
            "--format pt2 and --out x.onnx contradict each other; leave one out",
        ),
        (
            ["split", "--task", "digits 0-1", "--out", f"{'a' * 300}.pt2"],
            "cannot write a+.pt2: File name too long; name another file",
        ),
        (["split", "--task", "digits 0-1", "--device", "meta"], "device 'meta' cannot be used .*"),
    ],
)
def test_what_makes_no_sense_is_one_sentence(arguments, message, folder, capsys):
    fails(capsys, 2, message, *arguments)


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="no /proc")
def test_where_nothing_can_be_written_is_told(folder, capsys):
    message = "cannot write /proc/x.pt2: .*; name another file"
    fails(capsys, 2, message, "split", "--task", "digits 0-1", "--out", "/proc/x.pt2")


def test_a_series_and_a_comparison_are_one_run_or_none(folder, capsys):
    few = ["--quiet", "--set", "learner.training.epochs=1", "--set", "stream.num_tasks=1"]
    assert app.main(["run", "split.toml", "--seeds", "2", "--out", "two", *few]) == 0
    message = "two is a series of 2 runs; name one of them: clnp export two/seed0 --task NAME"
    fails(capsys, 2, message, "two", "--task", "digits 0-1")
    assert export(capsys, "two/seed1", "--task", "digits 0-1")["run"] == "two/seed1"
    both = ["compare", "split.toml", "--methods", "clnp,finetune", *few]
    assert app.main([*both, "--out", "both"]) == 0
    assert export(capsys, "both", "--task", "digits 0-1")["run"] == "both/clnp/seed0"
    message = "both/finetune/seed0 was learnt by finetune; only tasks of a run of clnp can .*"
    fails(capsys, 2, message, "both/finetune", "--task", "digits 0-1")
    known = read_json(folder / "both", "compare.json", {})
    (folder / "both" / "compare.json").write_text(json.dumps({**known, "seeds": [3, 4]}))
    message = "both is a comparison of 2 runs; .* clnp export both/clnp/seed3 --task NAME"
    fails(capsys, 2, message, "both", "--task", "digits 0-1")
    (folder / "both" / "compare.json").write_text(json.dumps({**known, "methods": ["finetune"]}))
    message = "both compares finetune; only tasks of a run of clnp can be exported"
    fails(capsys, 2, message, "both", "--task", "digits 0-1")


def test_a_run_from_python_is_told_what_to_do_there(folder, capsys):
    x, y = torch.randn(60, 5), torch.arange(60) % 2
    model = nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 2))
    config = clnp.LearnerConfig(training=clnp.Training(epochs=1))
    clnp.Experiment(model, x[:2], [clnp.Task("a", (x, y))], config).run("mine")
    message = (
        "mine was begun from Python, and its model is in no file; there, "
        r'clnp\.export\(clnp\.ContinualNet\.load\("mine/checkpoint\.safetensors", model\), .*'
    )
    fails(capsys, 2, message, "mine", "--task", "a")
    fails(capsys, 2, message, "mine")


def test_a_run_that_does_not_verify_is_not_exported(folder, capsys):
    good = (folder / "split" / CHECKPOINT).read_bytes()
    size = int.from_bytes(good[:8], "little")
    header = json.loads(good[8 : 8 + size])
    data = bytearray(good)
    data[8 + size + header["model.fc1.weight_frozen"]["data_offsets"][0]] ^= 1
    (folder / "split" / CHECKPOINT).write_bytes(data)
    message = "task 'digits 0-1' has changed: fc1.weight is no longer what was frozen .*"
    fails(capsys, 1, message, "split", "--task", "digits 2-3")
    (folder / "split" / CHECKPOINT).write_bytes(good)
    result = read_json(folder / "split", RESULT, {})
    result["certificates"]["digits 0-1"] = "0" * 64
    (folder / "split" / RESULT).write_text(json.dumps(result))
    message = "task 'digits 0-1' has changed: its certificate in .*"
    fails(capsys, 1, message, "split", "--task", "digits 0-1")


def test_files_that_are_damaged_or_gone_are_told(folder, capsys):
    run = folder / "split"
    for name in (RESULT, "config.json", "environment.json", CHECKPOINT, "recipe.toml"):
        good = (run / name).read_bytes()
        for bad in (b"", b"{", b"[]", b"{}", b"null", b"\xff", good[: len(good) // 2]):
            (run / name).write_bytes(bad)
            code = app.main(["export", "split", "--task", "digits 0-1"])
            assert code in ((0, 2) if name == "environment.json" else (1, 2)), (name, bad)
            error = capsys.readouterr().err
            assert "Traceback" not in error
        (run / name).write_bytes(good)
    (run / CHECKPOINT).unlink()
    message = f"split has lost its {CHECKPOINT}; its tasks were in it"
    fails(capsys, 2, message, "split", "--task", "digits 0-1")
    (run / RESULT).unlink()
    message = "split has no ended task yet; there is nothing to export"
    fails(capsys, 2, message, "split", "--task", "digits 0-1")


def test_a_task_that_has_ended_can_be_exported_from_a_run_that_has_not(folder, capsys, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(Course, "_tell", stopping_in_task(2))
        assert app.main(["run", "split.toml", "--out", "part", "--quiet"]) == 130
    message = "task 'digits 2-3' of part has not ended yet; ended: 'digits 0-1'"
    fails(capsys, 2, message, "part", "--task", "digits 2-3")
    part = export(capsys, "part", "--task", "digits 0-1")
    whole = export(capsys, "split", "--task", "digits 0-1")
    same = ("certificate", "num_parameters", "check", "inputs", "outputs")
    assert {key: part[key] for key in same} == {key: whole[key] for key in same}


def test_a_run_that_is_being_written_to_can_be_exported(folder, capsys):
    (folder / "long.toml").write_text(RECIPE + '\n[learner.tasks."digits 2-3"]\nepochs = 1000000\n')
    options = ("--out", "now", "--quiet", "--checkpoint-every", "0")
    process = start("run", "long.toml", *options, stdout=None, stderr=None)
    try:
        wait_for(lambda: read_json(folder / "now", RESULT, {}).get("tasks"))
        answer = export(capsys, "now", "--task", "digits 0-1")
        assert answer["check"]["identical"] is True
        assert process.poll() is None
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()


def test_without_the_data_set_random_samples_are_compared(folder, capsys, monkeypatch):
    known = export(capsys, "permuted", "--task", "digits permuted 2", "--out", "known.pt2")
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "sklearn", None)  # Python then takes it as not installed.
        answer = export(capsys, "permuted", "--task", "digits permuted 2")
        assert app.main(["export", "permuted", "--task", "digits permuted 2"]) == 0
    assert "run on 1000 random samples: every output is " in capsys.readouterr().out
    assert answer["check"]["samples"] == "random"
    assert answer["check"]["num_samples"] == 1000
    assert answer["check"]["identical"] is True
    assert answer["check"]["num_right"] is None
    same = ("certificate", "num_parameters", "inputs", "outputs")
    assert {key: answer[key] for key in same} == {key: known[key] for key in same}
    x = clnp.data.datasets.digits().test[0]
    one, two = (opened(Path(each["file"]), "pt2")(x) for each in (answer, known))
    assert torch.equal(one, two)


def test_arrays_of_ones_own_must_be_there(folder, capsys):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(80, 6))
    y = (x[:, 0] > 0).astype(int)
    Path("files").mkdir()
    np.savez("files/mine.npz", x_train=x, y_train=y, x_test=x[:1], y_test=y[:1])
    own = ["--set", "stream.dataset=mine", "--set", "stream.num_tasks=1", "--data", "files"]
    assert app.main(["run", "split.toml", "--quiet", "--out", "own", *own]) == 0
    answer = export(capsys, "own", "--task", "mine")
    assert answer["inputs"] == {"dtype": "float32", "shape": ["batch", 6]}
    assert answer["check"]["num_samples"] == 1
    outputs = torch.export.load(answer["file"]).module()(torch.randn(5, 6))
    assert outputs.shape == (5, 2)
    os.rename("files", "moved")
    message = "unknown data set 'mine'.*, and there is no file .*. Set the directory with --data .*"
    fails(capsys, 2, message, "own", "--task", "mine")
    assert export(capsys, "own", "--task", "mine", "--data", "moved")["task"] == "mine"


def test_a_task_that_kept_no_neuron_is_exported(folder, capsys):
    none = ["--set", "learner.margin=100", "--out", "none", "--quiet"]
    assert app.main(["run", "split.toml", *none]) == 0
    result = read_json(folder / "none", RESULT, {})
    assert result["tasks"][1]["new"] == {"fc1": 0, "fc2": 0}
    assert export(capsys, "none", "--task", "digits 2-3")["check"]["identical"] is True


def test_a_name_that_no_file_may_have_is_made_one(folder, capsys):
    few = ["--set", "stream.order=[3, 1, 2, 0, 4, 5, 6, 7, 8, 9]", "--set", "stream.num_tasks=1"]
    assert app.main(["run", "split.toml", "--out", "other", "--quiet", *few]) == 0
    assert export(capsys, "other", "--task", "digits 3,1")["file"] == "other/digits-3-1.pt2"


class Other(nn.Module):
    """Another network of the same shape."""

    def forward(self, samples):
        return torch.ones_like(samples.flatten(1)[:, :2], dtype=torch.float32) * 9


def test_a_file_that_answers_otherwise_is_not_kept(folder, capsys, monkeypatch):
    good = export(capsys, "split", "--task", "digits 0-1", "--out", "x.pt2")
    known = Path("x.pt2").read_bytes()
    encoded = export.encoded
    monkeypatch.setattr(module, "encoded", lambda module, *rest: encoded(Other(), *rest))
    message = (
        "(new|x).pt2 was not written, for task 'digits 0-1': its outputs differ from the network's "
        r"by \S+, which rounding does not explain, and \d+ of \d+ classes are others"
    )
    for name in ("new.pt2", "x.pt2"):
        fails(capsys, 1, message, "split", "--task", "digits 0-1", "--out", name)
    assert Path("x.pt2").read_bytes() == known
    assert good["check"]["identical"] is True


def test_ctrl_c_leaves_nothing_behind(folder, capsys, monkeypatch):
    def interrupted(*arguments, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr(module, "compare", interrupted)
    fails(capsys, 130, "stopped at once; .*", "split", "--task", "digits 0-1")
