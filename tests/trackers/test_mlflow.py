from dataclasses import replace

import pytest

from clnp.errors import RunError
from clnp.records import TaskEnded
from clnp.runs.trackers import track_finished_run
from clnp.trackers import MLflow
from support.runs import untimed
from support.tracked import LABELS, break_off_tracked, experiment, points_of, task

pytest.importorskip("mlflow", reason="needs the extra mlflow")

# MLflow and its dependencies warn about their own changes.
pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(scope="module")
def database(tmp_path_factory):
    """A database with its tables, which take a while to create."""
    import mlflow

    path = tmp_path_factory.mktemp("mlflow") / "mlflow.db"
    mlflow.MlflowClient(tracking_uri=f"sqlite:///{path}")
    return path


@pytest.fixture
def client(tmp_path, monkeypatch, database):
    """The client of a new store, which trackers use."""
    import mlflow

    (tmp_path / "mlflow.db").write_bytes(database.read_bytes())
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    return mlflow.MlflowClient(tracking_uri=uri)


def runs(client):
    """All runs of all experiments."""
    experiments = [each.experiment_id for each in client.search_experiments()]
    return list(client.search_runs(experiments))


def curves(client, run):
    """The steps and values of all curves of a run in MLflow, by key."""
    found = {key: client.get_metric_history(run.info.run_id, key) for key in run.data.metrics}
    return {key: sorted((m.step, m.value) for m in history) for key, history in found.items()}


def expected(path):
    found = {}
    for point in points_of(path):
        names = [name for name in (point.section, point.part, point.measure) if name is not None]
        found.setdefault("/".join(names), []).append((point.step, point.value))
    return found


def test_a_run_is_a_run_of_mlflow(tmp_path, client):
    result = experiment().run(tmp_path / "run", trackers=[MLflow()])
    (run,) = runs(client)
    assert (run.info.run_name, run.info.status) == ("run", "FINISHED")
    assert client.get_experiment(run.info.experiment_id).name == "clnp"
    assert run.data.params["learner.margin"] == "3.0"
    assert run.data.params["num_tasks"] == "2"
    assert run.data.tags["clnp.method"] == "clnp"
    assert '"margin": 3.0' in run.data.tags["mlflow.note.content"]
    assert curves(client, run) == expected(tmp_path / "run")
    last = run.data.metrics["all tasks/average test score"]
    assert last == sum(result.scores[-1]) / 2
    files = [file.path for file in client.list_artifacts(run.info.run_id, "tasks")]
    assert files == [f"tasks/{label}.md" for label in LABELS]


@pytest.mark.parametrize(("count", "seconds"), [(1, 0), (8, 1e9), (21, 0), (41, 0)])
def test_a_resumed_run_is_the_same_run_and_has_no_point_twice(tmp_path, client, count, seconds):
    path = tmp_path / "run"
    whole = experiment().run(tmp_path / "whole")
    break_off_tracked(path, count, MLflow(), checkpoint_seconds=seconds)
    (run,) = runs(client)
    assert run.info.status == "FAILED"
    assert "Crash" in run.data.tags["clnp.ended"]
    result = experiment().run(path, trackers=[MLflow()])
    assert untimed(result) == untimed(whole)
    (run,) = runs(client)
    assert run.info.status == "FINISHED"
    assert "clnp.ended" not in run.data.tags
    found = curves(client, run)
    steps = {key: [step for step, _ in points] for key, points in found.items()}
    assert steps == {k: [step for step, _ in points] for k, points in expected(path).items()}


@pytest.mark.parametrize("seconds", [0, 1e9])
def test_a_run_whose_open_task_was_exchanged_is_another_run(tmp_path, client, seconds):
    path, other = tmp_path / "run", replace(experiment(), tasks=[task("a"), task("b", seed=3)])
    break_off_tracked(path, 41, MLflow(), checkpoint_seconds=seconds)
    other.run(path, trackers=[MLflow()])
    found = {run.info.status: run for run in runs(client)}
    assert set(found) == {"FAILED", "FINISHED"}
    assert curves(client, found["FINISHED"]) == expected(path)


def test_a_finished_run_can_be_sent_later_and_again(tmp_path, client):
    path = tmp_path / "run"
    experiment().run(path)
    for _ in range(2):
        track_finished_run(path, [MLflow()])
        (run,) = runs(client)
        assert curves(client, run) == expected(path)


def test_a_run_that_was_deleted_in_mlflow_is_created_again(tmp_path, client):
    path = tmp_path / "run"
    experiment("a").run(path, trackers=[MLflow()])
    (run,) = runs(client)
    client.delete_run(run.info.run_id)
    track_finished_run(path, [MLflow()])
    (other,) = runs(client)
    assert other.info.run_id != run.info.run_id
    identifiers = path / "trackers.json"
    identifiers.write_text(identifiers.read_text().replace(other.info.run_id, "0" * 32))
    track_finished_run(path, [MLflow()])
    assert len(runs(client)) == 2


def test_a_local_store_is_found_from_another_directory(tmp_path, client, monkeypatch):
    path = tmp_path / "run"
    monkeypatch.delenv("MLFLOW_TRACKING_URI")
    experiment("a").run(path, trackers=[MLflow()])
    assert len(runs(client)) == 1
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    track_finished_run(path, [MLflow()])
    assert len(runs(client)) == 1
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_the_experiment_can_be_named(tmp_path, client, monkeypatch):
    made = experiment("a")
    made.run(tmp_path / "one", trackers=[MLflow("mine")])
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "of the environment")
    made.run(tmp_path / "two", trackers=[MLflow()])
    monkeypatch.setenv("MLFLOW_EXPERIMENT_ID", client.get_experiment_by_name("mine").experiment_id)
    made.run(tmp_path / "three", trackers=[MLflow()])
    found = {
        run.info.run_name: client.get_experiment(run.info.experiment_id).name
        for run in runs(client)
    }
    assert found == {"one": "mine", "two": "of the environment", "three": "mine"}


def test_a_run_does_not_start_without_its_server(tmp_path, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    with pytest.raises(RunError, match=r"MLflow cannot track the run: MlflowException: .*:9"):
        experiment().run(tmp_path / "run", trackers=[MLflow()])


@pytest.mark.filterwarnings("default")
def test_a_run_continues_without_its_store(tmp_path, client):
    def damage(event):
        if isinstance(event, TaskEnded):
            (tmp_path / "mlflow.db").write_bytes(b"no database" * 1000)

    with pytest.warns(RuntimeWarning, match="MLflow failed: ") as caught:
        result = experiment().run(tmp_path / "run", on_event=damage, trackers=[MLflow()])
    assert len([each for each in caught if "MLflow failed: " in str(each.message)]) == 1
    assert result.finished
