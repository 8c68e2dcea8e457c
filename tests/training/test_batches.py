from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.data import Dataset, Subset, TensorDataset

from clnp.errors import ArgumentError
from clnp.training import batches as module
from clnp.training.batches import Batches, Kept, batches_of, split_off

CPU = torch.device("cpu")


class Numbers(Dataset):
    """Sample i is a tensor of two i and the Python number i; with noise, another one each time."""

    def __init__(self, count: int, *, noise: float = 0.0, flip: float = 0.0) -> None:
        self.count, self.noise, self.flip = count, noise, flip

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, place: int) -> tuple[Tensor, int]:
        inputs = torch.tensor([float(place), place + 0.5])
        if self.flip and torch.rand(()).item() < self.flip:
            inputs = inputs.flip(0)
        if self.noise:
            inputs = inputs + self.noise * torch.rand(())
        return inputs, place


def pair(count: int) -> tuple[Tensor, Tensor]:
    inputs = torch.stack([torch.arange(count).float(), torch.arange(count) + 0.5], 1)
    return inputs, torch.arange(count)


def read(batches: Batches, size: int, **options: Any) -> list[tuple[Tensor, Tensor]]:
    return list(batches.batches(size, **options))


def order(batches: Batches, size: int, **options: Any) -> list[int]:
    """The samples of one pass, each checked to have its own target."""
    found = read(batches, size, **options)
    for inputs, targets in found:
        assert inputs.dtype == torch.float32
        assert targets.dtype == torch.int64
        assert torch.equal(inputs[:, 0].long(), targets)
    return torch.cat([targets for _, targets in found]).tolist()


def sizes(batches: Batches, size: int, **options: Any) -> list[int]:
    return [len(inputs) for inputs, _ in batches.batches(size, **options)]


KINDS = {
    "tensors": lambda count: batches_of(pair(count), CPU),
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
def test_a_seed_shuffles_alike_on_every_call(kind):
    batches = KINDS[kind](30)
    first = order(batches, 7, seed=3)
    torch.rand(5)
    assert order(batches, 7, seed=3) == first != list(range(30))
    assert sorted(first) == list(range(30))
    assert order(batches, 7, seed=4) != first
    assert order(KINDS[kind](30), 7, seed=3) == first


@every_kind
def test_a_shuffled_pass_leaves_the_random_numbers_of_training_alone(kind):
    batches = KINDS[kind](9)
    torch.manual_seed(0)
    expected = torch.rand(3)
    torch.manual_seed(0)
    order(batches, 4, seed=1)
    order(batches, 4)
    assert torch.equal(torch.rand(3), expected)


def test_the_order_of_resident_data_stays_what_it_is():
    permutation = torch.randperm(6, generator=torch.Generator().manual_seed(2)).tolist()
    assert order(KINDS["tensors"](6), 3, seed=2) == permutation


@every_kind
def test_only_a_shuffled_pass_leaves_out_a_last_batch_of_one(kind):
    batches = KINDS[kind](9)
    assert sizes(batches, 4) == [4, 4, 1]
    assert sizes(batches, 4, seed=0) == [4, 4]
    assert sizes(KINDS[kind](10), 4, seed=0) == [4, 4, 2]


@every_kind
def test_a_single_sample_is_not_left_out(kind):
    assert sizes(KINDS[kind](1), 4, seed=0) == [1]


@every_kind
def test_batches_of_one_are_not_left_out(kind):
    batches = KINDS[kind](3)
    assert sizes(batches, 1, seed=0) == [1, 1, 1]
    assert sorted(order(batches, 1, seed=0)) == [0, 1, 2]


def test_workers_stream_the_same_samples():
    alone = batches_of(Numbers(11), CPU, resident=False)
    shared = batches_of(Numbers(11), CPU, resident=False, num_workers=2)
    assert (alone.num_workers, shared.num_workers) == (0, 2)
    for left, right in zip(read(alone, 3, seed=5), read(shared, 3, seed=5), strict=True):
        assert torch.equal(left[0], right[0])
        assert torch.equal(left[1], right[1])
    assert order(shared, 3) == list(range(11))


def test_workers_draw_the_noise_of_the_seed():
    shared = batches_of(Numbers(6, noise=0.5), CPU, num_workers=2)
    first, again = (torch.cat([x for x, _ in read(shared, 3, seed=5)]) for _ in range(2))
    assert torch.equal(first, again)


def test_workers_read_resident_data_in_order():
    batches = batches_of(Numbers(9), CPU, num_workers=2)
    assert batches.inputs is not None
    assert order(batches, 4) == list(range(9))


def test_constant_data_is_resident():
    batches = batches_of(Numbers(5), CPU)
    assert batches.dataset is None
    assert torch.equal(batches.inputs, pair(5)[0])
    assert torch.equal(batches.targets, pair(5)[1])


def test_resident_data_may_take_many_reads():
    assert order(batches_of(Numbers(2050), CPU), 512) == list(range(2050))


@pytest.mark.parametrize("count", [1, 2, 100])
@pytest.mark.parametrize("noise", [{"noise": 0.1}, {"flip": 0.5}, {"flip": 0.1}])
def test_data_with_random_transforms_is_streamed(noise, count):
    torch.manual_seed(0)
    for _ in range(20):
        batches = batches_of(Numbers(count, **noise), CPU)
        assert batches.inputs is None
        assert batches.dataset is not None


def test_data_with_random_transforms_is_another_on_every_pass():
    torch.manual_seed(0)
    batches = batches_of(Numbers(8, noise=0.5), CPU)
    assert not torch.equal(read(batches, 8)[0][0], read(batches, 8)[0][0])


def test_large_data_is_streamed(monkeypatch):
    # Two float32 and one int64 for each sample: 16 bytes.
    monkeypatch.setattr(module, "RESIDENT_BYTES", 80)
    assert batches_of(Numbers(5), CPU).inputs is not None
    assert batches_of(Numbers(6), CPU).inputs is None
    assert batches_of(pair(6), CPU).inputs is not None


def test_resident_is_done_as_asked(monkeypatch):
    assert batches_of(Numbers(5, noise=0.1), CPU, resident=True).inputs is not None
    assert batches_of(Numbers(5), CPU, resident=False).inputs is None
    assert batches_of(pair(5), CPU, resident=True).inputs is not None
    streamed = batches_of(pair(5), CPU, resident=False, num_workers=2)
    assert streamed.inputs is None
    assert streamed.num_workers == 2
    assert len(streamed) == 5
    monkeypatch.setattr(module, "RESIDENT_BYTES", 0)
    assert batches_of(Numbers(5), CPU, resident=True).inputs is not None


def test_tensors_may_come_in_a_list():
    assert order(batches_of(list(pair(4)), CPU), 2) == [0, 1, 2, 3]


def test_splitting_loses_no_sample():
    (inputs, targets), (apart_inputs, apart_targets) = split_off(pair(20), 0.25, seed=0)
    assert (len(targets), len(apart_targets)) == (15, 5)
    assert sorted(targets.tolist() + apart_targets.tolist()) == list(range(20))
    assert torch.equal(inputs[:, 0].long(), targets)
    assert torch.equal(apart_inputs[:, 0].long(), apart_targets)
    assert targets.tolist() == sorted(targets.tolist())
    assert apart_targets.tolist() == sorted(apart_targets.tolist())
    assert apart_targets.tolist() != list(range(5))
    assert apart_targets.tolist() != list(range(15, 20))


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


def test_a_list_of_tensors_is_split_like_a_pair():
    left, right = split_off(list(pair(20)), 0.25, seed=0), split_off(pair(20), 0.25, seed=0)
    assert torch.equal(left[1][1], right[1][1])


@pytest.mark.parametrize("make", [pair, Numbers])
@pytest.mark.parametrize(("count", "fraction"), [(4, 0.1), (1, 0.5), (4, 0.95), (3, 0), (3, 1)])
def test_a_split_with_an_empty_part_is_refused(make, count, fraction):
    with pytest.raises(ArgumentError) as caught:
        split_off(make(count), fraction, seed=0)
    assert str(caught.value) == (
        f"{fraction} of {count} training samples leaves an empty part; "
        "give validation data, or another fraction"
    )


def test_inputs_are_prepared_once_where_that_changes_nothing():
    calls = []

    def halve(x):
        calls.append(len(x))
        return x / 2

    data = batches_of((torch.arange(6.0), torch.arange(6)), CPU, prepare=halve)
    ready = data.prepared()
    calls.clear()
    for (one, a), (two, b) in zip(data.batches(4), ready.batches(4), strict=True):
        assert torch.equal(one, two)
        assert torch.equal(a, b)
    assert calls == [4, 2]
    noisy = batches_of(
        (torch.arange(6.0), torch.arange(6)), CPU, prepare=lambda x: x + torch.rand(1)
    )
    assert noisy.prepared() is noisy
    plain = batches_of((torch.arange(6.0), torch.arange(6)), CPU)
    assert plain.prepared() is plain


def test_inputs_that_would_become_too_large_are_not_prepared_before(monkeypatch):
    monkeypatch.setattr(module, "RESIDENT_BYTES", 100)
    data = batches_of(
        (torch.zeros(6, dtype=torch.uint8), torch.arange(6)), CPU, prepare=Tensor.double
    )
    assert data.prepared().prepare is None
    monkeypatch.setattr(module, "RESIDENT_BYTES", 40)
    assert data.prepared() is data


@pytest.mark.parametrize("resident", [True, False])
@pytest.mark.parametrize("seed", [None, 3])
def test_whoever_gets_a_batch_may_write_into_it(resident, seed):
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


def test_inputs_are_prepared_once_by_what_works_in_place():
    given = torch.rand(200, 4)
    kept = given.clone()
    made = batches_of((given, torch.ones(200)), CPU, prepare=lambda x: x.sub_(5)).prepared()
    assert made.prepare is None
    assert torch.equal(made.inputs, kept - 5)
    assert torch.equal(given, kept)


def test_some_samples_are_drawn_at_random_in_batches_that_are_alike():
    numbers = torch.arange(100)
    batches = batches_of((numbers[:, None].float(), numbers), CPU)
    drawn = [targets for _, targets in batches.some(50, most=30, seed=0)]
    assert [len(targets) for targets in drawn] == [25, 25]
    assert len(set(torch.cat(drawn).tolist())) == 50
    assert torch.cat(drawn).max() > 60
    again = [targets for _, targets in batches.some(50, most=30, seed=0)]
    assert all(map(torch.equal, drawn, again))
    assert [len(y) for _, y in batches.some(1000, most=300, seed=0)] == [100]


def test_what_is_kept_is_drawn_once_when_it_is_asked_for():
    draws = []
    kept = Kept(lambda: draws.append(1) or iter(draws))
    assert not draws
    assert list(kept) == list(kept) == [1]
