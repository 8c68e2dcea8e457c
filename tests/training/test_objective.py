import pytest
import torch
from torch.nn import functional as F

from clnp.errors import ArgumentError
from clnp.training.objective import (
    CLASSIFICATION,
    MULTI_LABEL,
    REGRESSION,
    Objective,
    accuracy,
    explained_variance,
    falls_with_the_loss,
    guessing,
    has_fallen,
    is_built_in,
    label_accuracy,
    objective_named,
)

OUTPUTS = torch.tensor([[2.0, -1.0, 0.5], [0.0, 3.0, -2.0], [1.0, 4.0, 0.0], [-3.0, -2.0, -1.0]])


def test_accuracy_is_the_percentage_of_right_samples():
    assert accuracy(OUTPUTS, torch.tensor([0, 1, 1, 2])) == 100.0
    assert accuracy(OUTPUTS, torch.tensor([0, 1, 0, 0], dtype=torch.int32)) == 50.0
    assert accuracy(OUTPUTS, torch.tensor([0, 0, 0, 0])) == 25.0


def test_label_accuracy_is_the_percentage_of_right_labels():
    targets = (OUTPUTS > 0).float()
    assert label_accuracy(OUTPUTS, targets) == 100.0
    targets[0] = 1 - targets[0]
    for dtype in (torch.float32, torch.int64, torch.bool):
        assert label_accuracy(OUTPUTS, targets.to(dtype)) == 75.0


def test_explained_variance_is_r_squared():
    targets = torch.tensor([[1.0], [2.0], [3.0], [6.0]])
    assert explained_variance(targets, targets) == 100.0
    assert explained_variance(torch.full((4, 1), 3.0), targets) == 0.0
    # Squared errors 4 of a total of 14.
    assert explained_variance(targets + 1, targets) == pytest.approx(100 * (1 - 4 / 14))
    assert explained_variance(targets + 10, targets) < -1000
    # Each column has its own mean.
    targets = torch.tensor([[0.0, 100.0], [2.0, 102.0]])
    assert explained_variance(torch.tensor([[1.0, 101.0], [1.0, 101.0]]), targets) == 0.0


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("count", [1, 10, 1000])
def test_constant_targets_are_explained_by_equal_outputs_only(count, dtype):
    # In float64, the mean of ten times 0.1 is not 0.1.
    targets = torch.full((count, 1), 0.1, dtype=dtype)
    assert explained_variance(targets, targets) == 100.0
    assert explained_variance(targets + 1, targets) == 0.0


def test_flat_targets_fit_a_single_output():
    flat = torch.tensor([0.0, 1.0, 1.0, 0.0])
    outputs = torch.tensor([[-1.0], [2.0], [-3.0], [-0.5]])
    assert label_accuracy(outputs, flat) == 75.0
    assert explained_variance(flat[:, None], flat) == 100.0
    for objective in (MULTI_LABEL, REGRESSION):
        loss = objective.loss(outputs, flat)
        assert torch.equal(loss, objective.loss(outputs, flat[:, None]))


BINARY = (torch.arange(12).reshape(4, 3) % 2).float()


@pytest.mark.parametrize(
    ("objective", "loss", "targets", "dtypes"),
    [
        (
            CLASSIFICATION,
            F.cross_entropy,
            torch.tensor([0, 1, 0, 2]),
            [torch.int64, torch.int32, torch.uint8],
        ),
        (
            MULTI_LABEL,
            F.binary_cross_entropy_with_logits,
            BINARY,
            [torch.float32, torch.float64, torch.int64, torch.bool],
        ),
        (REGRESSION, F.mse_loss, BINARY * 5, [torch.float32, torch.float64, torch.int64]),
    ],
)
def test_losses_do_not_depend_on_the_dtype_of_targets(objective, loss, targets, dtypes):
    for dtype in dtypes:
        found = objective.loss(OUTPUTS, targets.to(dtype))
        assert found.dtype == torch.float32
        assert torch.equal(found, loss(OUTPUTS, targets))


@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_does_not_round_targets(dtype, autocast):
    outputs = torch.full((2, 1), 1000.0, dtype=dtype, requires_grad=True)
    with torch.autocast("cpu", dtype, enabled=autocast):
        loss = REGRESSION.loss(outputs, torch.tensor([1001.9, 1001.9]))
    loss.backward()
    assert loss.dtype == torch.float32
    assert loss.item() == pytest.approx(1.9**2, rel=1e-4)
    assert outputs.grad.dtype == dtype
    assert explained_variance(outputs.detach(), torch.tensor([1000.0, 1001.9])) < 0


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_multi_label_trains_in_half_precision(dtype):
    outputs = OUTPUTS.to(dtype).requires_grad_()
    loss = MULTI_LABEL.loss(outputs, BINARY)
    loss.backward()
    assert torch.equal(loss, F.binary_cross_entropy_with_logits(outputs.float(), BINARY))


@pytest.mark.parametrize("objective", [MULTI_LABEL, REGRESSION])
def test_losses_of_float64_outputs_are_float64(objective):
    targets = torch.tensor([0, 1], dtype=torch.float64)
    assert objective.loss(torch.zeros(2, 1, dtype=torch.float64), targets).dtype == torch.float64


def test_objectives_are_given_by_name_or_as_they_are():
    for objective in (CLASSIFICATION, MULTI_LABEL, REGRESSION):
        assert objective_named(objective.name) is objective
    own = Objective("classification", F.cross_entropy, accuracy)
    assert objective_named(own) is own


@pytest.mark.parametrize(
    ("name", "hint"),
    [("multilabel", "'multilabel'. Did you mean 'multi-label'?"), (None, "None.")],
)
def test_an_unknown_objective_is_refused_with_the_known_ones(name, hint):
    with pytest.raises(ArgumentError) as caught:
        objective_named(name)
    known = "Known: classification, multi-label, regression"
    assert str(caught.value) == f"unknown objective {hint} {known}"


def test_the_loss_in_training_has_a_gradient():
    weight = torch.ones(2, requires_grad=True)
    CLASSIFICATION.check_loss(weight.sum(), gradient=True)
    CLASSIFICATION.check_loss(weight.sum().detach())
    with pytest.raises(ArgumentError) as caught:
        CLASSIFICATION.check_loss(weight.sum().detach(), gradient=True)
    assert str(caught.value) == (
        "the loss of the objective 'classification' has no gradient. Compute it from the outputs "
        "with PyTorch, without detach, item or argmax"
    )


def test_guessing_agrees_with_accuracy_to_the_last_bit():
    for num in (50, 500, 1000):
        for count in range(num // 2 + 1, num):
            targets = torch.arange(num) < count
            right = CLASSIFICATION.number(torch.tensor([[0.0, 1.0]]).expand(num, 2), targets.long())
            assert guessing(CLASSIFICATION, targets) == right


def test_guessing_is_not_defined_for_a_single_class():
    assert guessing(CLASSIFICATION, torch.tensor([3, 3, 3])) is None
    assert guessing(CLASSIFICATION, torch.tensor([3, 3, 3, 0])) == 75.0


def test_a_score_that_falls_with_the_loss_in_nearly_all_pairs_of_epochs():
    losses = [1.0, 0.8, 0.6, 0.5, 0.4]
    assert falls_with_the_loss(losses, [2.3, 1.9, 1.2, 1.0, 0.9])
    assert falls_with_the_loss(losses, [2.3, 1.9, 1.2, 0.9, 1.0])
    assert not falls_with_the_loss(losses, [2.3, 1.2, 1.9, 0.9, 1.0])
    assert not falls_with_the_loss(losses, [10.0, 40.0, 30.0, 20.0, 10.0])  # It overfits.
    assert not falls_with_the_loss(losses, [5.0] * 5)
    assert not falls_with_the_loss(losses[::-1], [2.3, 1.9, 1.2, 1.0, 0.9])


def test_a_quarter_is_a_fall():
    assert has_fallen([1.0, 2.0, 0.75])
    assert has_fallen([-1.0, -1.25])
    assert not has_fallen([1.0, 0.76])
    assert not has_fallen([-1.0, -1.2])
    assert not has_fallen([0.0, 0.0])


def test_objectives_of_this_package_are_built_in():
    assert all(map(is_built_in, (CLASSIFICATION, MULTI_LABEL, REGRESSION)))
    assert not is_built_in(Objective("classification", F.cross_entropy, accuracy))
