import torch

from minitx.data.framing import IGNORE
from minitx.training.losses import count, cross_entropy


def test_sum_over_labelled_places_only() -> None:
    torch.manual_seed(0)
    logits, labels = torch.randn(2, 3, 5), torch.tensor([[1, IGNORE, 4], [IGNORE, IGNORE, 0]])
    logs = logits.log_softmax(-1)
    expected = -(logs[0, 0, 1] + logs[0, 2, 4] + logs[1, 2, 0])
    torch.testing.assert_close(cross_entropy(logits, labels), expected)
    assert int(count(labels)) == 3
    assert int(count(torch.tensor([[IGNORE]]))) == 1, "to divide by"


def test_label_smoothing_is_a_mixture_with_the_uniform_distribution() -> None:
    torch.manual_seed(0)
    logits, labels = torch.randn(1, 2, 5), torch.tensor([[1, 3]])
    logs = logits.log_softmax(-1)
    target = torch.full((1, 2, 5), 0.1 / 5)
    target[0, 0, 1] += 0.9
    target[0, 1, 3] += 0.9
    torch.testing.assert_close(cross_entropy(logits, labels, 0.1), -(target * logs).sum())


def test_half_precision_logits_are_summed_in_single() -> None:
    logits = torch.randn(1, 4, 300).bfloat16()
    assert cross_entropy(logits, torch.tensor([[1, 2, 3, 4]])).dtype == torch.float32
