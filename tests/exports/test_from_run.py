import json
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import clnp
from clnp.cli import app
from clnp.data import named
from clnp.errors import ArgumentError, CheckpointError, ClnpError, ForgettingError, RunError
from clnp.exports.from_run import export
from clnp.plain import to_json
from clnp.records import RunConfig, SeriesConfig
from clnp.runs.directory import CHECKPOINT, CONFIG, RESULT, Run, read_record, read_result
from clnp.runs.experiment import RunLoop

SPLIT = """\
[stream]
kind = "split"
dataset = "digits"
classes_per_task = 2
num_tasks = 2
order = [7, 3, 0, 1, 2, 4, 5, 6, 8, 9]

[network]
widths = [20, 20]

[learner.training]
epochs = 3
lr = 0.01
"""
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
    for name, text in (("split", SPLIT), ("permuted", PERMUTED)):
        (folder / f"{name}.toml").write_text(text)
        arguments = ["run", str(folder / f"{name}.toml"), "--out", str(folder / name), "--quiet"]
        assert app.main(arguments) == 0
    return folder


@pytest.fixture(autouse=True)
def folder(made, tmp_path, monkeypatch):
    """The working directory, with both runs and their recipes."""
    shutil.copytree(made, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)


def answer_for(run, *tasks, **options):
    """The answer for one task."""
    answer, text = export(run, tasks=list(tasks), **options)
    assert text == str(answer)
    return answer


def refused(error, message, run, *tasks, **options):
    """Check that the export fails with this message, and writes nothing."""
    before = sorted(Path().glob("**/*"))
    with pytest.raises(error, match=message):
        export(run, tasks=list(tasks), **options)
    assert sorted(Path().glob("**/*")) == before


def digits(*classes):
    """The test samples of these classes as they are stored, and their labels."""
    x, y = named.digits().test
    chosen = torch.isin(y, torch.tensor(classes))
    return x[chosen], y[chosen]


def test_the_file_takes_stored_samples_and_scores_as_the_run_did():
    answer = answer_for("permuted", "digits permuted 2")
    assert answer.file == "permuted/digits-permuted-2.pt2"
    x, y = named.digits().test
    outputs = torch.export.load(answer.file).module()(x)
    right = int((outputs.argmax(1) == y).sum())
    assert 100 * right / len(y) == pytest.approx(read_result(Path("permuted")).scores[-1][1])
    check = answer.check
    assert (check.samples, check.num_samples, check.num_right) == ("test", len(x), right)
    assert check.identical


def test_the_answer_describes_the_file():
    answer = answer_for("split", "digits 0-1")
    net = clnp.load(f"split/{CHECKPOINT}", clnp.models.MLP(64, (20, 20), 2))
    few = sum(each.numel() for each in net.subnetwork("digits 0-1").parameters())
    certificate = read_result(Path("split")).certificates["digits 0-1"]
    plain = json.loads(to_json(answer))
    num_right = plain.pop("check")["num_right"]
    assert plain.pop("load")
    assert plain == {
        "task": "digits 0-1",
        "certificate": certificate,
        "takes": "samples",
        "inputs": {"dtype": "uint8", "shape": ["batch", 1, 8, 8]},
        "outputs": {"dtype": "float32", "shape": ["batch", 2]},
        "clnp": clnp.__version__,
        "classes": [0, 1],
        "preparation": {"divide_by": 16.0},
        "file": "split/digits-0-1.pt2",
        "run": "split",
        "format": "pt2",
        "device": "cpu",
        "bytes": Path(answer.file).stat().st_size,
        "num_parameters": few,
        "num_parameters_of_network": 65 * 20 + 21 * 20 + 21 * 2,
    }
    num, text = len(digits(0, 1)[0]), str(answer)
    for words in (
        "split/digits-0-1.pt2: task 'digits 0-1' of split, a PyTorch program that runs without",
        "inputs       samples as clnp reads the data set: a tensor, uint8 [batch, 1, 8, 8]\n",
        "outputs      float32 [batch, 2]: scores of classes 0, 1, before a softmax\n",
        f"{few:,} parameters, {100 * few / 1762:.1f} % of the network's 1,762; ",
        f"read back and run on {num} test samples: all outputs are identical to the network's; "
        f"{100 * num_right / num:.2f} % are classified correctly\n",
        f"certificate  {certificate} (SHA-256, verified)\n",
    ):
        assert words in text


@pytest.mark.parametrize("kind", ["pt2", "onnx"])
def test_the_lines_that_run_the_file_and_its_note(kind):
    onnx = pytest.importorskip("onnx") if kind == "onnx" else None
    answer = answer_for("split", "digits 7,3", out=f'my "ö".{kind}')
    x, y = digits(7, 3)
    names = {"samples": x.numpy() if kind == "onnx" else x}
    exec("\n".join(answer.load), names)
    found = torch.tensor(answer.classes)[torch.as_tensor(names["outputs"]).argmax(1)]
    assert answer.classes == (7, 3)
    assert int((found == y).sum()) == answer.check.num_right > 0.8 * len(y)
    if onnx is None:
        known = {"clnp.json": ""}
        torch.export.load(answer.file, extra_files=known)
    else:
        model = onnx.load(answer.file)
        known = {each.key: each.value for each in model.metadata_props}
        dims = model.graph.input[0].type.tensor_type.shape.dim
        assert (dims[0].dim_param, dims[1].dim_value) == ("batch", 1)
        assert answer.check.largest_difference < 1e-3
    note = json.loads(known["clnp.json"])
    plain = json.loads(to_json(answer))
    assert note == {key: plain[key] for key in note}
    assert {"task", "certificate", "inputs", "outputs", "takes", "classes"} <= set(note)


def test_a_bare_export_takes_inputs_and_says_how_to_prepare_them():
    answer = answer_for("permuted", "digits permuted 2", bare=True)
    assert (answer.file, answer.takes) == ("permuted/digits-permuted-2-bare.pt2", "inputs")
    assert str(answer.inputs) == "float32 [batch, 1, 8, 8]"
    assert answer.check.identical
    whole = answer_for("permuted", "digits permuted 2")
    assert whole.check.num_right == answer.check.num_right
    x, steps = named.digits().test[0], answer.preparation
    inputs = (x / steps.divide_by).flatten(1)[:, steps.flatten_and_take].reshape(x.shape)
    bare = torch.export.load(answer.file).module()
    assert torch.equal(bare(inputs), torch.export.load(whole.file).module()(x))
    assert (
        "inputs       prepared inputs: a tensor, float32 [batch, 1, 8, 8]; samples divided by 16, "
        "in the order stored in the clnp.json of the file\n"
    ) in str(answer)
    refused(
        ArgumentError, "not an earlier", "permuted", "digits permuted 2", bare=True, out=whole.file
    )


def test_several_tasks_are_exported_at_once():
    Path("there").mkdir()
    both, text = export("split", tasks=None, out="there")
    assert [each.file for each in both] == ["there/digits-7-3.pt2", "there/digits-0-1.pt2"]
    assert text == f"{both[0]}\n\n{both[1]}"
    names = [each.task for each in both]
    assert export("split", tasks=names, out="there")[0] == both
    assert answer_for("split", names[0], names[0], out="there") == both[0]
    refused(ArgumentError, "--out x.pt2 is not a directory", "split", *names, out="x.pt2")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"run": "gone"}, "gone does not exist"),
        ({"run": "split.toml"}, r"split\.toml is not a directory\. Give the directory of a run"),
        ({"tasks": []}, "no task is given.* Ended: 'digits 7,3', 'digits 0-1'"),
        ({"tasks": [""]}, "unknown task ''. Known: digits 7,3, digits 0-1"),
        ({"tasks": ["digit 0-1"]}, "unknown task .* Did you mean 'digits 0-1'"),
        ({"out": "no/such/x.pt2"}, "the directory no/such does not exist. Create it"),
        ({"out": "", "kind": "onnx"}, "--out is empty"),
        ({"out": "split.toml"}, r"split\.toml has no known format"),
        ({"out": "x.onnx", "kind": "pt2"}, r"--format pt2 contradicts --out x\.onnx"),
        ({"device": "meta"}, "device 'meta' cannot be used"),
    ],
)
def test_arguments_that_make_no_sense_are_refused(arguments, message):
    run, tasks = arguments.pop("run", "split"), arguments.pop("tasks", ["digits 0-1"])
    refused(ClnpError, message, run, *tasks, **arguments)


def test_the_command_prints_the_answer(capsys):
    task = ["split", "--task", "digits 0-1"]
    assert app.main(["export", *task, "--json"]) == 0
    answer = answer_for("split", "digits 0-1")
    assert json.loads(capsys.readouterr().out) == json.loads(to_json(answer))
    assert app.main(["export", *task]) == 0
    assert capsys.readouterr().out == f"{answer}\n"
    assert app.main(["export", "split"]) == 2
    assert "no task is given" in capsys.readouterr().err


def test_a_series_or_comparison_needs_one_run_of_clnp():
    for run in ("two/seed0", "two/seed1", "both/clnp/seed0", "both/finetune/seed0"):
        shutil.copytree("split", run)
    config = json.loads(Path("both/finetune/seed0", CONFIG).read_text())
    Path("both/finetune/seed0", CONFIG).write_text(json.dumps({**config, "method": "finetune"}))

    def describe(file, seeds, methods=None):
        Path(file).write_text(to_json(SeriesConfig(1, "split", seeds, methods=methods)))

    describe("two/series.json", (0, 1))
    refused(RunError, "two is a series of 2 runs. .*`clnp export two/seed0 ", "two", "digits 0-1")
    assert answer_for("two/seed1", "digits 0-1").run == "two/seed1"
    describe("both/compare.json", (0,), ("clnp", "finetune"))
    assert answer_for("both", "digits 0-1").run == "both/clnp/seed0"
    refused(RunError, "was learned by finetune. Only", "both/finetune/seed0", "digits 0-1")
    describe("both/compare.json", (3, 4), ("clnp", "finetune"))
    refused(RunError, "both is a comparison of 2 runs. .*both/clnp/seed3", "both", "digits 0-1")
    describe("both/compare.json", (0,), ("finetune",))
    refused(RunError, "both compares finetune. Only", "both", "digits 0-1")


def test_a_run_from_python_is_exported_in_python():
    x, y = torch.randn(60, 5), torch.arange(60) % 2
    model = nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 2))
    config = clnp.LearnerConfig(training=clnp.Training(epochs=1))
    clnp.Experiment(model, x[:2], [clnp.Task("a", (x, y))], config).run("mine")
    message = r'has no recipe. Use clnp\.export\(clnp\.load\("mine/checkpoint\.safetensors", model'
    refused(RunError, message, "mine", "a")


def test_a_run_must_be_whole():
    checkpoint = Path("split", CHECKPOINT)
    good = checkpoint.read_bytes()
    size = int.from_bytes(good[:8], "little")
    header = json.loads(good[8 : 8 + size])
    data = bytearray(good)
    data[8 + size + header["model.fc1.weight_frozen"]["data_offsets"][0]] ^= 1
    checkpoint.write_bytes(data)
    refused(ForgettingError, "task 'digits 7,3' has changed", "split", "digits 0-1")
    checkpoint.unlink()
    refused(CheckpointError, f"split has lost its {CHECKPOINT}", "split", "digits 0-1")
    Path("split", RESULT).unlink()
    with pytest.raises(RunError, match="split has nothing to export: no task has ended"):
        export("split", tasks=None)


def test_an_ended_task_of_a_run_that_is_in_use_can_be_exported(monkeypatch):
    learn = RunLoop._learn

    def stop(loop, task, *, resumed):
        if task.name == "digits 0-1":
            raise KeyboardInterrupt
        learn(loop, task, resumed=resumed)

    with monkeypatch.context() as patch:
        patch.setattr(RunLoop, "_learn", stop)
        assert app.main(["run", "split.toml", "--out", "part", "--quiet"]) == 130
    with Run.open("part"):
        message = r"task 'digits 0-1' of part has not ended yet. Ended: 'digits 7,3'\."
        refused(RunError, message, "part", "digits 0-1")
        part = answer_for("part", "digits 7,3")
    whole = answer_for("split", "digits 7,3")
    assert (part.certificate, part.check) == (whole.certificate, whole.check)


def test_without_the_data_set_random_samples_are_compared(monkeypatch):
    known = answer_for("permuted", "digits permuted 2", out="known.pt2")
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "sklearn", None)  # Python takes it for a missing package.
        answer = answer_for("permuted", "digits permuted 2")
    assert "run on 1000 random samples: all outputs are " in str(answer)
    assert "; the data set is not on this machine\n" in str(answer)
    assert answer.check.identical
    assert answer.check.num_right is None
    assert (answer.certificate, answer.outputs) == (known.certificate, known.outputs)
    x = named.digits().test[0]
    one, two = (torch.export.load(each.file).module()(x) for each in (answer, known))
    assert torch.equal(one, two)


def test_arrays_of_the_user_are_found_where_they_are():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(80, 6))
    y = (x[:, 0] > 0).astype(int)
    Path("files").mkdir()
    np.savez("files/mine.npz", x_train=x, y_train=y, x_test=x[:1], y_test=y[:1])
    Path("own.toml").write_text(SPLIT.replace("order = [7, 3, 0, 1, 2, 4, 5, 6, 8, 9]\n", ""))
    own = ["--set", "stream.dataset=mine", "--set", "stream.num_tasks=1", "--data", "files"]
    assert app.main(["run", "own.toml", "--quiet", "--out", "own", *own]) == 0
    assert read_record(Path("own", CONFIG), RunConfig).data
    answer = answer_for("own", "mine")
    assert str(answer.inputs) == "float32 [batch, 6]"
    assert answer.check.num_samples == 1
    assert torch.export.load(answer.file).module()(torch.randn(5, 6)).shape == (5, 2)
    Path("files").rename("moved")
    refused(ClnpError, "unknown data set 'mine'", "own", "mine")
    assert answer_for("own", "mine", data="moved").task == "mine"
