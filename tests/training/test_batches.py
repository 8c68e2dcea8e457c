from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.data import Dataset, Subset, TensorDataset

from clnp.errors import ArgumentError
from clnp.training import batches as module
from clnp.training.batches import Batches, batches_of, split_off

CPU = torch.device("cpu")


class Numbers(Dataset):
    """Sample i is a tensor of two i and the Python number i; with noise, it is random."""

    def __init__(self, count: int, *, noise: float = 0.0, flip: float = 0.0) -> None:
        self.count, self.noise, self.flip = count, noise, flip

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        inputs = torch.tensor([float(index), index + 0.5])
        if self.flip and torch.rand(()).item() < self.flip:
            inputs = inputs.flip(0)
        if self.noise:
            inputs = inputs + self.noise * torch.rand(())
        return inputs, index


def pair(count: int) -> tuple[Tensor, Tensor]:
    inputs = torch.stack([torch.arange(count).float(), torch.arange(count) + 0.5], 1)
    return inputs, torch.arange(count)


def order(batches: Batches, size: int, **options: Any) -> list[int]:
    """The samples of one pass, each with its own target."""
    found = list(batches.batches(size, **options))
    for inputs, targets in found:
        assert inputs.dtype == torch.float32
        assert targets.dtype == torch.int64
        assert torch.equal(inputs[:, 0].long(), targets)
    return torch.cat([targets for _, targets in found]).tolist()


def sizes(batches: Batches, size: int, **options: Any) -> list[int]:
    return [len(inputs) for inputs, _ in batches.batches(size, **options)]


KINDS = {
    "tensors": lambda count: batches_of(pair(count), CPU),
    "list of tensors": lambda count: batches_of(list(pair(count)), CPU),
    "dataset": lambda count: batches_of(Numbers(count), CPU, resident=True),
    "streamed tensors": lambda count: batches_of(pair(count), CPU, resident=False),
    "streamed dataset": lambda count: batches_of(Numbers(count), CPU, resident=False),
}
every_kind = pytest.mark.parametrize("kind", KINDS)


@every_kind
def test_a_pass_without_a_seed_is_in_order(kind):
    batches = KINDS[kind](10)
    assert len(batches) == 10
    assert order(batches, 4) == list(range(10))
    assert sizes(batches, 4) == [4, 4, 2]


@every_kind
def test_a_pass_with_a_seed_is_shuffled_by_it_alone(kind):
    batches, others = KINDS[kind](30), KINDS[kind](30)
    first = order(batches, 7, seed=3)
    torch.manual_seed(0)
    expected = torch.rand(3)
    torch.manual_seed(0)
    assert order(batches, 7, seed=3) == order(others, 7, seed=3) == first
    assert torch.equal(torch.rand(3), expected)  # The generator of the training is left alone.
    assert first != list(range(30)) == sorted(first)
    assert order(batches, 7, seed=4) != first


def test_the_order_of_resident_data_does_not_change_between_versions():
    permutation = torch.randperm(6, generator=torch.Generator().manual_seed(2)).tolist()
    assert order(KINDS["tensors"](6), 3, seed=2) == permutation


@every_kind
def test_a_shuffled_pass_leaves_out_a_last_batch_of_one_sample(kind):
    batches = KINDS[kind](9)
    assert sizes(batches, 4) == [4, 4, 1]
    assert sizes(batches, 4, seed=0) == [4, 4]
    assert sizes(KINDS[kind](10), 4, seed=0) == [4, 4, 2]
    # Unless there is no other batch.
    assert sizes(KINDS[kind](1), 4, seed=0) == [1]
    assert sizes(KINDS[kind](3), 1, seed=0) == [1, 1, 1]


def test_workers_read_the_same_samples_and_draw_noise_by_the_seed():
    alone = batches_of(Numbers(11), CPU, resident=False)
    shared = batches_of(Numbers(11, noise=0.25), CPU, num_workers=2)
    assert (alone.num_workers, shared.num_workers) == (0, 2)
    first, again = (list(shared.batches(3, seed=5)) for _ in range(2))
    assert torch.cat([y for _, y in first]).tolist() == order(alone, 3, seed=5)
    for one, other in zip(first, again, strict=True):
        assert all(map(torch.equal, one, other))
    resident = batches_of(Numbers(9), CPU, num_workers=2)
    assert resident.inputs is not None
    assert order(resident, 4) == list(range(9))


def test_constant_data_is_resident():
    batches = batches_of(Numbers(2050), CPU)
    assert batches.dataset is None
    assert torch.equal(batches.inputs, pair(2050)[0])
    assert torch.equal(batches.targets, pair(2050)[1])


@pytest.mark.parametrize("count", [1, 2, 100])
@pytest.mark.parametrize("noise", [{"noise": 0.1}, {"flip": 0.5}, {"flip": 0.1}])
def test_random_data_is_streamed(noise, count):
    for _ in range(20):
        assert batches_of(Numbers(count, **noise), CPU).inputs is None
    noisy = batches_of(Numbers(8, noise=0.5), CPU)
    (one, _), (other, _) = next(noisy.batches(8)), next(noisy.batches(8))
    assert not torch.equal(one, other)


def test_large_data_is_streamed(monkeypatch):
    # Two float32 and one int64 for each sample: 16 bytes.
    monkeypatch.setattr(module, "RESIDENT_BYTES", 80)
    assert batches_of(Numbers(5), CPU).inputs is not None
    assert batches_of(Numbers(6), CPU).inputs is None
    assert batches_of(Numbers(6), CPU, resident=True).inputs is not None
    assert batches_of(pair(6), CPU).inputs is not None


def test_resident_sets_where_data_is():
    assert batches_of(Numbers(5, noise=0.1), CPU, resident=True).inputs is not None
    assert batches_of(Numbers(5), CPU, resident=False).inputs is None
    streamed = batches_of(pair(5), CPU, resident=False, num_workers=2)
    assert (streamed.inputs, streamed.num_workers, len(streamed)) == (None, 2, 5)


@pytest.mark.parametrize("make", [pair, lambda count: list(pair(count))])
def test_a_split_loses_no_sample_and_keeps_the_order(make):
    (inputs, targets), (apart_inputs, apart_targets) = split_off(make(20), 0.25, seed=0)
    assert (len(targets), len(apart_targets)) == (15, 5)
    assert sorted(targets.tolist() + apart_targets.tolist()) == list(range(20))
    assert torch.equal(inputs[:, 0].long(), targets)
    assert torch.equal(apart_inputs[:, 0].long(), apart_targets)
    assert targets.tolist() == sorted(targets.tolist())
    assert apart_targets.tolist() == sorted(apart_targets.tolist())
    assert apart_targets.tolist() not in (list(range(5)), list(range(15, 20)))


def test_a_split_depends_on_its_seed_only():
    parts = [split_off(pair(50), 0.2, seed=seed)[1][1].tolist() for seed in (0, 0, 1)]
    assert parts[0] == parts[1] != parts[2]


@pytest.mark.parametrize("data", [Numbers(20), TensorDataset(*pair(20))])
def test_datasets_are_split_into_subsets_like_tensors(data):
    rest, apart = split_off(data, 0.25, seed=0)
    assert isinstance(rest, Subset)
    assert isinstance(apart, Subset)
    expected_rest, expected_apart = split_off(pair(20), 0.25, seed=0)
    assert rest.indices == expected_rest[1].tolist()
    assert apart.indices == expected_apart[1].tolist()
    assert order(batches_of(rest, CPU), 4) == rest.indices


@pytest.mark.parametrize("make", [pair, Numbers])
@pytest.mark.parametrize(("count", "fraction"), [(4, 0.1), (1, 0.5), (4, 0.95), (3, 0), (3, 1)])
def test_a_split_with_an_empty_part_is_refused(make, count, fraction):
    with pytest.raises(ArgumentError) as caught:
        split_off(make(count), fraction, seed=0)
    assert str(caught.value) == (
        f"holding out {fraction} of {count} training samples leaves an empty part. Give "
        "validation data, or another fraction"
    )


def test_inputs_are_prepared_once_unless_that_is_random():
    calls = []

    def halve(x):
        calls.append(len(x))
        return x.div_(2)

    given = torch.rand(200, 4)
    kept = given.clone()
    data = batches_of((given, torch.arange(200)), CPU, prepare=halve)
    ready = data.prepared()
    assert ready.prepare is None
    assert torch.equal(ready.inputs, kept / 2)
    assert torch.equal(given, kept)
    calls.clear()
    assert torch.equal(next(data.batches(150))[0], next(ready.batches(150))[0])
    assert calls == [150]
    noisy = batches_of((given, torch.arange(200)), CPU, prepare=lambda x: x + torch.rand(1))
    assert noisy.prepared() is noisy
    plain = batches_of((given, torch.arange(200)), CPU)
    assert plain.prepared() is plain


def test_inputs_that_would_become_too_large_are_not_prepared_once(monkeypatch):
    inputs = torch.zeros(6, dtype=torch.uint8)
    data = batches_of((inputs, torch.arange(6)), CPU, prepare=Tensor.double)
    monkeypatch.setattr(module, "RESIDENT_BYTES", 100)
    assert data.prepared().prepare is None
    monkeypatch.setattr(module, "RESIDENT_BYTES", 40)
    assert data.prepared() is data


@pytest.mark.parametrize("resident", [True, False])
@pytest.mark.parametrize("seed", [None, 3])
def test_batches_may_be_written_to(resident, seed):
    given = torch.rand(20, 4), torch.ones(20)
    kept = [tensor.clone() for tensor in given]
    made = batches_of(given, CPU, resident=resident, prepare=lambda x: x.sub_(5).div_(3))
    for _ in range(2):
        for inputs, targets in made.batches(8, seed=seed):
            assert inputs.max() < -1.3
            inputs.zero_()
            assert targets.min() == 1.0
            targets.zero_()
    assert all(torch.equal(*pair) for pair in zip(given, kept, strict=True))


def test_some_samples_are_random_in_batches_of_one_size():
    batches = KINDS["tensors"](100)
    drawn = [targets for _, targets in batches.some(50, most=30, seed=0)]
    assert [len(targets) for targets in drawn] == [25, 25]
    assert len(set(torch.cat(drawn).tolist())) == 50
    assert torch.cat(drawn).max() > 60
    again = [targets for _, targets in batches.some(50, most=30, seed=0)]
    assert all(map(torch.equal, drawn, again))
    assert [len(y) for _, y in batches.some(1000, most=300, seed=0)] == [100]
