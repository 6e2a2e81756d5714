import pytest
import torch
from torch import nn

from minitx.data.batch import IGNORE
from minitx.training.losses import chunked_cross_entropy, count, cross_entropy


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_sum_over_labelled_places_of_a_mixture_with_the_uniform_distribution(smoothing: float) -> None:
    torch.manual_seed(0)
    logits, labels = torch.randn(2, 3, 5), torch.tensor([[1, IGNORE, 4], [IGNORE, IGNORE, 0]])
    logs = logits.log_softmax(-1)
    expected = sum(
        -(1 - smoothing) * logs[row, place, label] - smoothing * logs[row, place].mean()
        for row, place, label in ((0, 0, 1), (0, 2, 4), (1, 2, 0))
    )
    torch.testing.assert_close(cross_entropy(logits, labels, smoothing), expected)
    assert int(count(labels)) == 3
    assert int(count(torch.tensor([[IGNORE]]))) == 1, "to divide by"


@pytest.mark.parametrize(("given", "summed"), [(torch.bfloat16, torch.float32), (torch.float64, torch.float64)])
def test_half_precision_logits_are_summed_in_single(given: torch.dtype, summed: torch.dtype) -> None:
    assert cross_entropy(torch.randn(1, 4, 300, dtype=given), torch.tensor([[1, 2, 3, 4]])).dtype == summed


@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("most", [1, 40, 10_000])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_piece_by_piece_is_the_same_and_holds_no_more(most: int, smoothing: float, autocast: bool) -> None:
    torch.manual_seed(0)
    head, hidden = nn.Linear(8, 20, bias=False), torch.randn(3, 7, 8, requires_grad=True)
    labels = torch.randint(20, (3, 7))
    labels[0, :4] = IGNORE
    sizes = []
    head.register_forward_hook(lambda module, inputs, logits: sizes.append(logits.numel()))
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        whole = cross_entropy(head(hidden), labels, smoothing)
        expected = torch.autograd.grad(whole, [hidden, head.weight])
        sizes.clear()
        loss = chunked_cross_entropy(hidden, head, labels, smoothing, most)
    gradients = torch.autograd.grad(loss, [hidden, head.weight])
    torch.testing.assert_close(loss, whole)
    tolerance = {"rtol": 2e-2, "atol": 2e-2} if autocast else {}
    for gradient, other in zip(gradients, expected, strict=True):
        torch.testing.assert_close(gradient, other, **tolerance)
    assert max(sizes) <= max(most, 20)
    passes = 1 if most >= labels.numel() * 20 else 2
    assert sum(sizes) == passes * labels.numel() * 20, "chunks are computed once forward and once more backward"
