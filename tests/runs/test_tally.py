from clnp.runs.experiment import Tally


def test_a_tally_goes_on_from_its_state_with_more_tasks():
    one = Tally(1, [{"task": "a"}], [[90.0]], [1.5], began=2.0, peak_bytes=7)
    other = Tally(2)
    other.restore(one.state())
    assert (one.finished, other.finished) == (True, False)
    assert other == Tally(2, [{"task": "a"}], [[90.0]], [1.5], began=2.0, peak_bytes=7)
    assert Tally(2, full="no neuron is free").finished


def test_a_result_says_what_the_experiment_is_and_what_it_took():
    tally = Tally(2, [{"task": "a"}], [[90.0]], [1.5], peak_bytes=7)
    experiment = {"method": "ewc", "head": "multi", "seed": 3, "tasks": ["a", "b"]}
    result = tally.result(experiment, {"capacity": {}}, seconds=4.0)
    assert result == {
        "format": 1,
        "finished": False,
        "full": None,
        "num_tasks": 2,
        "method": "ewc",
        "head": "multi",
        "seed": 3,
        "tasks": [{"task": "a"}],
        "scores": [[90.0]],
        "capacity": {},
        "timings": {"seconds": 4.0, "tasks": [1.5], "peak_bytes": 7},
    }
