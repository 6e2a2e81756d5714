"""The loss, whole and in chunks; every label has the same weight, whatever its batch, padding and process."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from minitx.config import yaml_files
from minitx.data.batch import IGNORE, Batch
from minitx.data.examples import Pairs
from minitx.data.tasks import Reverse
from minitx.training.api import train_config as train
from minitx.training.choices.numerics import first_batch
from minitx.training.losses import chunked_cross_entropy, count, cross_entropy
from minitx.training.module import TransformerModule
from minitx.training.resolve import resolve
from tests.training.conftest import module_on


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_sum_over_labelled_places_of_a_mixture_with_the_uniform_distribution(smoothing: float) -> None:
    logits, labels = torch.randn(2, 3, 5), torch.tensor([[1, IGNORE, 4], [IGNORE, IGNORE, 0]])
    logs = logits.log_softmax(-1)
    expected = sum(
        -(1 - smoothing) * logs[row, place, label] - smoothing * logs[row, place].mean()
        for row, place, label in ((0, 0, 1), (0, 2, 4), (1, 2, 0))
    )
    torch.testing.assert_close(cross_entropy(logits, labels, smoothing), expected)
    assert int(count(labels)) == 3
    assert int(count(torch.tensor([[IGNORE]]))) == 1, "to divide by"
    for given, summed in ((torch.bfloat16, torch.float32), (torch.float64, torch.float64)):
        assert cross_entropy(logits.to(given), labels, smoothing).dtype == summed


@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("most", [1, 40, 10_000])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_piece_by_piece_is_the_same_and_holds_no_more(most: int, smoothing: float, autocast: bool) -> None:
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
    torch.testing.assert_close(loss, whole)
    tolerance = {"rtol": 2e-2, "atol": 2e-2} if autocast else {}
    for gradient, other in zip(torch.autograd.grad(loss, [hidden, head.weight]), expected, strict=True):
        torch.testing.assert_close(gradient, other, **tolerance)
    assert max(sizes) <= max(most, 20)
    passes = 1 if most >= labels.numel() * 20 else 2
    assert sum(sizes) == passes * labels.numel() * 20, "chunks are computed once forward and once more backward"


def test_the_head_reads_labelled_positions_alone_where_they_are_few() -> None:
    config, task, model, *_ = resolve(yaml_files.overridden(yaml_files.read("associative_recall"), {"data.filler": 30}))
    batch, rows = first_batch(config, task), []
    model.head.register_forward_hook(lambda head, inputs, logits: rows.append(logits.shape[:-1].numel()))
    loss = TransformerModule(model, task, config).summed_loss(batch)
    whole = cross_entropy(model(**batch.model_inputs()), batch.labels)
    found, expected = (torch.autograd.grad(each, [*model.parameters()]) for each in (loss, whole))
    torch.testing.assert_close((loss, found), (whole, expected))
    assert rows == [int((batch.labels != IGNORE).sum()), batch.labels.numel()]


def share_examples(patch: pytest.MonkeyPatch, processes: int = 1) -> None:
    """Let batches hold the same examples in turn, for any batch size and number of processes."""
    pool = Reverse(symbols=6, length=(1, 5)).batch(torch.Generator().manual_seed(3), 64)
    order = pool.source_keep.sum(dim=1).argsort()
    order = torch.cat((order[:8], order[-8:], order[8:-8]))  # the first batch short, the second long
    pool = Pairs(*(part[order] for part in pool))

    def batch(self: Reverse, number: Any, size: int) -> Pairs:
        number = number if isinstance(number, int) else 0
        return pool.slice(number * size, (number + 1) * size)

    patch.setattr("minitx.data.loader.generator", lambda seed, number, rank: number * processes + rank)
    patch.setattr(Reverse, "batch", batch)


@pytest.mark.parametrize(("architecture", "smoothing"), [("encoder_decoder", 0.0), ("decoder_only", 0.1)])
def test_accumulated_batches_have_the_gradient_of_one_large_batch(
    small: Any, monkeypatch: Any, architecture: str, smoothing: float
) -> None:
    """Before clipping; and its loss."""
    found: list[dict[str, Tensor]] = []

    def keep(self: TransformerModule, *rest: Any, **more: Any) -> None:
        gradients = {name: p.grad.clone() for name, p in self.model.named_parameters() if p.grad is not None}
        found.append({**gradients, "loss": self.loss})

    monkeypatch.setattr(TransformerModule, "configure_gradient_clipping", keep)
    share_examples(monkeypatch)
    for accumulate in (1, 4):
        trainer = {"max_steps": 1, "label_smoothing": smoothing, "accumulate_grad_batches": accumulate}
        train(small(data={"batch_size": 16 // accumulate}, model={"architecture": architecture}, trainer=trainer))
    torch.testing.assert_close(*found, rtol=1e-4, atol=1e-6)


def test_a_process_weighs_its_labels_by_those_of_all(small: Any) -> None:
    all_processes = SimpleNamespace(reduce=lambda mine, reduce_op: mine.add_(70))  # in place, as torch
    module, batch = module_on(small(), batches=3, world_size=2, strategy=all_processes)
    before = int(batch.step_labels)
    loss = cross_entropy(module.model(**batch.model_inputs()), batch.labels)
    torch.testing.assert_close(module.training_step(batch, 0), loss * 3 * 2 / (before + 70))
    assert int(batch.step_labels) == before
    torch.testing.assert_close(module.loss, (loss.detach() + 70) / (before + 70))
    assert module.predicted == before + 70


def test_a_step_without_labels_has_no_loss(small: Any) -> None:
    module, batch = module_on(small())
    empty: Batch = replace(batch, labels=torch.full_like(batch.labels, IGNORE), step_labels=torch.tensor(0))
    assert module.training_step(empty, 0).item() == 0.0
