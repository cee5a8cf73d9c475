import pytest
import torch

from torch_estimator.errors import InvalidTypeError, InvalidValueError
from torch_estimator.heads import BinaryClassHead, LossReduction, MultiClassHead, RegressionHead

LOSSES = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
WEIGHTS = torch.tensor([[2.0], [0.0]])


@pytest.mark.parametrize(
    ("reduction", "unweighted", "weighted"),
    [
        (LossReduction.SUM, 10.0, 6.0),
        (LossReduction.SUM_OVER_BATCH_SIZE, 2.5, 1.5),
        (LossReduction.MEAN, 2.5, 1.5),
        (LossReduction.SUM_OVER_NONZERO_WEIGHTS, 2.5, 3.0),
    ],
)
def test_reductions_follow_tensorflows_definitions(reduction, unweighted, weighted):
    assert reduction.reduce(LOSSES).item() == unweighted
    assert reduction.reduce(LOSSES, WEIGHTS).item() == weighted
    assert reduction.reduce(LOSSES, WEIGHTS[:, 0]).item() == weighted


@pytest.mark.parametrize("reduction", LossReduction)
@pytest.mark.parametrize("width", [1, 2])
def test_concatenated_batches_are_reduced_one_by_one(reduction, width):
    losses = torch.rand(12, 2, generator=torch.Generator().manual_seed(1))
    weights = torch.tensor([[2.0, 0.5], [0.0, 1.0], *[[0.0, 0.0]] * 2, *[[3.0, 0.0]] * 8])[:, :width]
    for given in (None, weights, weights[:, 0]):
        parts = [given] * 6 if given is None else given.split(2)
        expected = [reduction.reduce(*part).item() for part in zip(losses.split(2), parts, strict=True)]
        together = reduction.reduce_batches(losses, given, batches=6)
        assert together.dtype == torch.float64
        assert together.tolist() == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("reduction", LossReduction)
def test_a_divisor_of_zero_gives_zero_with_a_finite_gradient(reduction):
    assert reduction.reduce(torch.zeros(0, 1)).item() == 0.0
    losses = torch.ones(2, 1, requires_grad=True)
    loss = reduction.reduce(losses, torch.zeros(2, 1))
    loss.backward()
    assert loss.item() == 0.0
    assert losses.grad.tolist() == [[0.0], [0.0]]


@pytest.mark.parametrize(
    ("name", "reduction"),
    [
        ("sum", LossReduction.SUM),
        ("SUM_OVER_BATCH_SIZE", LossReduction.SUM_OVER_BATCH_SIZE),
        ("auto", LossReduction.SUM_OVER_BATCH_SIZE),
        ("weighted_sum", LossReduction.SUM),
        ("weighted_sum_over_batch_size", LossReduction.SUM_OVER_BATCH_SIZE),
        ("weighted_mean", LossReduction.MEAN),
        ("weighted_sum_by_nonzero_weights", LossReduction.SUM_BY_NONZERO_WEIGHTS),
        (LossReduction.MEAN, LossReduction.MEAN),
    ],
)
def test_names_of_both_tensorflow_enumerations_are_understood(name, reduction):
    assert LossReduction.of(name) is reduction


def test_other_names_are_refused():
    with pytest.raises(InvalidValueError, match="Invalid loss_reduction 'none'; it must be one of 'sum', "):
        LossReduction.of("none")
    with pytest.raises(InvalidTypeError, match="loss_reduction must be a LossReduction or its name, but got None"):
        LossReduction.of(None)


# The first compilation of torch imports torch.jit, which is deprecated and warns.
@pytest.mark.filterwarnings("ignore:.torch.jit.script_method:DeprecationWarning")
@pytest.mark.parametrize("reduction", LossReduction)
@pytest.mark.parametrize("dynamic", [False, True])
def test_training_losses_compile_whole(reduction, dynamic):
    torch.compiler.reset()
    heads = [BinaryClassHead, lambda **kw: MultiClassHead(3, **kw), lambda **kw: RegressionHead(2, **kw)]
    binary, multi, regression = (make(loss_reduction=reduction) for make in heads)
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(5, 3, generator=generator)
    weights = torch.rand(5, 1, generator=generator)
    labels = torch.tensor([[0], [1], [1], [0], [1]])

    def losses(logits, labels, weights):
        return (
            binary.loss(logits[:, :1], labels.float(), weights),
            multi.loss(logits, labels, weights),
            regression.loss(logits[:, 1:], logits[:, :2], None),
        )

    compiled = torch.compile(losses, fullgraph=True, dynamic=dynamic, backend="aot_eager")
    torch.testing.assert_close(compiled(logits, labels, weights), losses(logits, labels, weights))
