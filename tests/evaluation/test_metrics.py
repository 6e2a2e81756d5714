import dataclasses
from functools import partial

import pytest
import torch

from minitx.data import prompts
from minitx.data.batch import IGNORE, Batch
from minitx.data.examples import Pairs
from minitx.data.tasks import Reverse, generator
from minitx.evaluation.metrics import Scores, evaluate, exact_matches, score, teacher_forced
from scripted import PAD, VOCABULARY, Scripted
from small_models import build_tiny, every_architecture, every_decoder

TASK = Reverse(symbols=8, length=(1, 5), validation_size=60)
SPECIAL = TASK.vocabulary.special
EOS, SEP, A, B, C = SPECIAL.eos, SPECIAL.sep, 10, 11, 12
padded = partial(prompts.padded, pad=PAD, device=torch.device("cpu"))
random_model = partial(build_tiny, vocab_size=VOCABULARY, tie_embeddings=False)
PAIRS = TASK.examples("validation", 50)
GENERATED = [  # what a row generates, the reference without its end, and whether they match
    ([A, B, EOS], [A, B], True),
    ([A, B, EOS, C], [A, B], True),  # nothing counts after the end
    ([A, B, C, EOS], [A, B], False),
    ([A, B], [A, B], False),  # repeats the last word for ever
    ([A, EOS], [A, B], False),  # stops early
    ([A, C, EOS], [A, B], False),
    ([A, B, PAD], [A, B], False),  # padding is not the end
    ([A, B, SEP, EOS], [A, B], False), ([A, B, C, EOS], [A, B, C], True), ([EOS], [], True), ([EOS], [A], False),
]  # fmt: skip


@every_decoder
@pytest.mark.parametrize("rows", [GENERATED[:6], GENERATED[6:], GENERATED[4:5], GENERATED[-2:]], ids=str)
def test_only_the_whole_answer_and_its_end_are_a_match(architecture: str, rows: list) -> None:
    script, references, right = map(list, zip(*rows, strict=True))
    pairs = Pairs(*padded([[row] for row in range(len(rows))]), *padded(references))
    assert exact_matches(Scripted(*script), pairs, architecture, SPECIAL).tolist() == right  # type: ignore[arg-type]


@torch.no_grad()
def test_an_encoder_matches_place_by_place_and_padding_does_not_count() -> None:
    model = random_model("encoder_only")
    target = model(PAIRS.source, PAIRS.source_keep).argmax(dim=-1)
    assert (target[~PAIRS.source_keep] != PAD).any()
    right = dataclasses.replace(PAIRS, target=target.masked_fill(~PAIRS.source_keep, PAD))
    assert exact_matches(model, right, "encoder_only", SPECIAL).all()
    right.target[::2, 0] += 1
    assert exact_matches(model, right, "encoder_only", SPECIAL).equal(torch.arange(len(PAIRS)) % 2 == 1)


@every_architecture
@torch.no_grad()
def test_loss_and_token_accuracy_are_those_of_all_logits(architecture: str) -> None:
    """Of which those of scored tokens alone are computed, for at most 8,192 at a time."""
    model, computed = random_model(architecture), list[int]()
    model.head.register_forward_hook(lambda module, inputs, logits: computed.append(logits.numel() // VOCABULARY))
    batch = TASK.batch(generator(1), 40).frame(architecture, SPECIAL)
    measured = teacher_forced(model, batch)
    assert sum(computed) == measured.tokens
    if architecture != "encoder_only":
        teacher_forced(model, Pairs(*padded([[A] * 1000] * 16), *padded([[B]] * 16)).frame(architecture, SPECIAL))
        assert computed[-2:] == [16, 16]
    rows, labels = model(**batch.model_inputs()).flatten(0, 1), batch.labels.flatten()
    losses = [-float(row.log_softmax(dim=0)[label]) for row, label in zip(rows, labels, strict=True) if label >= 0]
    assert (measured.tokens, measured.correct) == (len(losses), int((rows.argmax(dim=1) == labels).sum()))
    assert measured.loss == pytest.approx(sum(losses), rel=1e-4)
    assert 0 < measured.correct < measured.tokens, "a random model is sometimes right"


def test_means_are_by_example_or_by_token_and_of_nothing_they_are_nothing() -> None:
    means = Scores(examples=4, exact=1, tokens=10, correct=5, loss=20.0).means()
    assert means == {"exact_match": 0.25, "token_accuracy": 0.5, "loss": 2.0}
    batch = Batch(None, None, torch.tensor([[6, 7]]), None, torch.full((1, 2), IGNORE))
    measured = torch.no_grad()(teacher_forced)(random_model("decoder_only"), batch)
    assert (measured, measured.means()["loss"]) == (Scores(tokens=0, correct=0, loss=0.0), 0.0)


@every_architecture
def test_figures_do_not_depend_on_batches_or_padding(architecture: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Dropout is off during evaluation, and as before after it."""
    model = random_model(architecture, dropout=0.5, attention_dropout=0.5).train()
    model.head.eval()  # as a frozen part
    whole = evaluate(model, PAIRS, architecture, SPECIAL)
    assert 0 < whole.correct < whole.tokens
    expected = dataclasses.replace(whole, loss=pytest.approx(whole.loss, rel=1e-5))
    pads = (False if part.dtype == torch.bool else SPECIAL.pad for part in PAIRS)
    wider = [torch.nn.functional.pad(part, (0, 4), value=pad) for part, pad in zip(PAIRS, pads, strict=True)]
    assert evaluate(model, Pairs(*wider), architecture, SPECIAL) == expected
    for size in (1, 7, 1000):
        monkeypatch.setattr("minitx.evaluation.metrics.EXAMPLES_AT_ONCE", size)
        assert evaluate(model, PAIRS, architecture, SPECIAL) == expected
        assert [part for part in model.modules() if not part.training] == [model.head]
    assert score(model, PAIRS, architecture, SPECIAL) != whole, "in training mode dropout would have shown"
    assert (evaluate(model.eval(), PAIRS, architecture, SPECIAL), model.training) == (expected, False)
