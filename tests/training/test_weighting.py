"""Every label has the same weight, whatever its batch, padding and process."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from minitx.data.batch import IGNORE, Batch
from minitx.data.examples import Pairs
from minitx.data.loader import FixedBatches
from minitx.data.tasks import Reverse
from minitx.evaluation import metrics as evaluation
from minitx.evaluation.metrics import Scores, evaluate
from minitx.training.api import train_config as train
from minitx.training.losses import cross_entropy
from minitx.training.module import TransformerModule
from minitx.training.resolve import resolve
from tests.training.conftest import module_on


def deal(patch: pytest.MonkeyPatch, processes: int = 1) -> None:
    """Let batches hold the same examples in turn, for any batch size and number of processes."""
    cards = Reverse(symbols=6, length=(1, 5)).batch(torch.Generator().manual_seed(3), 64)
    order = cards.source_keep.sum(dim=1).argsort()
    order = torch.cat((order[:8], order[-8:], order[8:-8]))  # the first batch short, the second long
    cards = Pairs(*(part[order] for part in cards))

    def batch(self: Reverse, number: Any, size: int) -> Pairs:
        number = number if isinstance(number, int) else 0
        return cards.slice(number * size, (number + 1) * size)

    patch.setattr("minitx.data.loader.generator", lambda seed, number, rank: number * processes + rank)
    patch.setattr(Reverse, "batch", batch)


@pytest.mark.parametrize(("architecture", "smoothing"), [("encoder_decoder", 0.0), ("decoder_only", 0.1)])
def test_accumulated_batches_have_the_gradient_of_one_large_batch(
    small: Any, monkeypatch: pytest.MonkeyPatch, architecture: str, smoothing: float
) -> None:
    """Before clipping."""
    found: list[dict[str, Tensor]] = []

    def keep(self: TransformerModule, *rest: Any, **more: Any) -> None:
        found.append({name: p.grad.clone() for name, p in self.model.named_parameters() if p.grad is not None})

    monkeypatch.setattr(TransformerModule, "configure_gradient_clipping", keep)
    deal(monkeypatch)
    for accumulate in (1, 2, 4):
        trainer = {"max_steps": 1, "label_smoothing": smoothing, "accumulate_grad_batches": accumulate}
        train(small(data={"batch_size": 16 // accumulate}, model={"architecture": architecture}, trainer=trainer))
    for each in found[1:]:
        torch.testing.assert_close(each, found[0], rtol=1e-4, atol=1e-6)


def test_a_process_weighs_its_labels_by_those_of_all(small: Any) -> None:
    all_processes = SimpleNamespace(reduce=lambda mine, reduce_op: mine.add_(70))  # in place, as torch
    module, batch = module_on(small(), batches=3, world_size=2, strategy=all_processes)
    before = int(batch.step_labels)
    loss = cross_entropy(module.model(**batch.model_inputs()), batch.labels)
    torch.testing.assert_close(module.training_step(batch, 0), loss * 3 * 2 / (before + 70))
    assert int(batch.step_labels) == before
    torch.testing.assert_close(module.loss, loss.detach() / (batch.labels != IGNORE).sum())


def test_a_step_without_labels_has_no_loss(small: Any) -> None:
    module, batch = module_on(small())
    empty: Batch = replace(batch, labels=torch.full_like(batch.labels, IGNORE), step_labels=torch.tensor(0))
    assert module.training_step(empty, 0).item() == 0.0


@pytest.mark.parametrize("architecture", ["encoder_decoder", "decoder_only", "encoder_only"])
def test_figures_do_not_depend_on_batches_padding_or_processes(small: Any, monkeypatch: Any, architecture: str) -> None:
    _, task, model, *_ = resolve(small(model={"architecture": architecture}, data={"length": [3, 5]}))
    pairs, special = task.examples("validation"), task.vocabulary.special
    whole = evaluate(model, pairs, architecture, special)
    assert 0 < whole.correct < whole.tokens
    expected = replace(whole, loss=pytest.approx(whole.loss, rel=1e-5))
    pads = (False if part.dtype == torch.bool else special.pad for part in pairs)
    wider = [torch.nn.functional.pad(part, (0, 4), value=pad) for part, pad in zip(pairs, pads, strict=True)]
    assert evaluate(model, Pairs(*wider), architecture, special) == expected
    for size in (1, 7, 64, 1000):
        monkeypatch.setattr(evaluation, "EXAMPLES_AT_ONCE", size)
        assert evaluate(model, pairs, architecture, special) == expected
    for world_size in (2, 3, 5):
        shares = [
            evaluation.score(model.eval(), part, architecture, special)
            for rank in range(world_size)
            for part in FixedBatches(pairs, 9, rank, world_size)
        ]
        assert sum(part.examples for part in shares) == len(pairs)
        assert sum(shares, Scores()) == expected
