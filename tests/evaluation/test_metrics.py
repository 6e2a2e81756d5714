from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from minitx.config.schema import ModelConfig
from minitx.data.batch import IGNORE, Batch
from minitx.data.examples import Pairs, Stream
from minitx.data.tasks import Reverse, generator
from minitx.data.tokenizers import SpecialIds
from minitx.evaluation import metrics as evaluation
from minitx.evaluation.metrics import Scores, evaluate, exact_matches, score, teacher_forced
from minitx.models.builder import build_model
from minitx.models.transformers import ARCHITECTURES, Transformer

SPECIAL = SpecialIds(pad=0, bos=1, eos=2, sep=3, unk=4, mask=5)
EOS, PAD, SEP = SPECIAL.eos, SPECIAL.pad, SPECIAL.sep
VOCABULARY = 14
TASK = Reverse(symbols=8, length=(1, 5), validation_size=60)
ANSWERING = ["decoder_only", "encoder_decoder"]


def padded(rows: list[list[int]]) -> tuple[Tensor, Tensor]:
    longest = max(map(len, rows))
    ids = torch.tensor([row + [PAD] * (longest - len(row)) for row in rows])
    return ids, torch.arange(longest) < torch.tensor([[len(row)] for row in rows])


def random_model(architecture: str, **options: Any) -> Transformer:
    torch.manual_seed(1)
    config = ModelConfig(
        architecture=architecture,  # type: ignore[arg-type]
        d_model=16,
        n_heads=2,
        n_layers=2,
        vocab_size=VOCABULARY,
        tie_embeddings=False,
        **options,
    )
    return build_model(config)


class Script:
    """Stands in for a model: row n of the batch writes script[n], whatever it reads."""

    def __init__(self, script: list[list[int]]) -> None:
        self.script = script
        self.written = 0

    def start(self, *source: Tensor) -> Any:
        return type("Cache", (), {"length": 0})()

    def step(self, ids: Tensor, cache: Any, keep: Tensor | None = None) -> Tensor:
        logits = torch.zeros(*ids.shape, VOCABULARY)
        for row, words in enumerate(self.script):
            logits[row, -1, words[min(self.written, len(words) - 1)]] = 1.0
        self.written += 1
        return logits


# ---- free-running exact match ----------------------------------------------------------------------------------------

A, B, C = 10, 11, 12


@pytest.mark.parametrize("architecture", ANSWERING)
@pytest.mark.parametrize(
    ("written", "right"),
    [
        ([A, B, EOS], True),
        ([A, B, EOS, C], True),  # what comes after the end was never written
        ([A, B, C, EOS], False),  # goes on
        ([A, B, B], False),  # goes on without end
        ([A, B], False),  # repeats the last word for ever
        ([A, EOS], False),  # stops early
        ([EOS], False),
        ([A, C, EOS], False),  # one word is wrong
        ([B, A, EOS], False),
        ([A, B, PAD], False),  # padding is not the end
        ([A, B, SEP, EOS], False),
    ],
)
def test_only_the_whole_answer_and_its_end_are_a_match(architecture: str, written: list[int], right: bool) -> None:
    pairs = Pairs(*padded([[7, 8]]), *padded([[A, B]]))
    assert exact_matches(Script([written]), pairs, architecture, SPECIAL).tolist() == [right]  # type: ignore[arg-type]


@pytest.mark.parametrize("architecture", ANSWERING)
def test_answers_of_different_lengths_are_judged_row_by_row(architecture: str) -> None:
    pairs = Pairs(*padded([[7], [7], [7], [7], [7]]), *padded([[A, B, C], [A], [A], [A, B, C], []]))
    said = [[A, B, C, EOS], [A, EOS], [A, A, EOS], [A, B, C, C], [EOS]]
    expected = [True, True, False, False, True]
    assert exact_matches(Script(said), pairs, architecture, SPECIAL).tolist() == expected  # type: ignore[arg-type]


class Echo(nn.Module):
    """An encoder that says the answers it was made with."""

    def __init__(self, said: Tensor) -> None:
        super().__init__()
        self.said = nn.Parameter(nn.functional.one_hot(said, VOCABULARY).float())

    def forward(self, ids: Tensor, keep: Tensor | None = None) -> Tensor:
        return self.said


def test_an_encoder_matches_place_by_place_and_padding_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evaluation, "EncoderOnly", Echo)
    pairs = Pairs(*padded([[7, 8, 9], [7], [7, 8]]), *padded([[A, B, C], [A], [A, B]]))
    model = Echo(torch.tensor([[A, B, C], [A, C, C], [A, A, PAD]]))
    assert exact_matches(model, pairs, "encoder_only", SPECIAL).tolist() == [True, True, False]  # type: ignore[arg-type]


@pytest.mark.parametrize("architecture", ANSWERING)
def test_a_match_is_what_forwards_without_a_cache_would_write(architecture: str) -> None:
    model = random_model(architecture).eval()
    with torch.no_grad():
        model.head.weight[EOS] *= 2  # so that some answers end
    questions = TASK.examples("validation", 40)
    answers, ended = [], []
    for source, keep in zip(questions.source, questions.source_keep, strict=True):
        question, written = source[keep].tolist(), []
        while len(written) < 4 and EOS not in written:
            with torch.no_grad():
                if architecture == "decoder_only":
                    logits = model(torch.tensor([[*question, SEP, *written]]))
                else:
                    logits = model(torch.tensor([question]), torch.tensor([[SPECIAL.bos, *written]]))
            written.append(int(logits[0, -1].argmax()))
        ended.append(written[-1] == EOS)
        answers.append(written[:-1])
    assert set(ended) == {True, False}
    # Held against its own words, the model is right where it ended them, and wrong where it went on.
    own = Pairs(questions.source, questions.source_keep, *padded(answers))
    assert exact_matches(model, own, architecture, SPECIAL).tolist() == ended


# ---- teacher forced --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("architecture", sorted(ARCHITECTURES))
def test_loss_and_token_accuracy_are_what_a_loop_adds_up(architecture: str) -> None:
    model = random_model(architecture).eval()
    batch = TASK.batch(generator(1), 12).frame(architecture, SPECIAL)
    with torch.no_grad():
        measured = teacher_forced(model, batch)
        logits = model(**batch.model_inputs()).tolist()
    tokens = correct = 0
    loss = 0.0
    for row, labels in zip(logits, batch.labels.tolist(), strict=True):
        for place, label in zip(row, labels, strict=True):
            if label == IGNORE:
                continue
            tokens += 1
            correct += label == place.index(max(place))
            loss += math.log(sum(map(math.exp, place))) - place[label]
    assert (measured.tokens, measured.correct) == (tokens, correct)
    assert measured.loss == pytest.approx(loss, rel=1e-4)
    assert 0 < correct < tokens, "a random model is sometimes right"


class Uniform(nn.Module):
    """Every token is as likely as every other."""

    def forward(self, ids: Tensor, *rest: Tensor | None) -> Tensor:
        return torch.zeros(*ids.shape, VOCABULARY, dtype=torch.bfloat16)


def test_nothing_to_predict_is_nothing() -> None:
    batch = Batch(None, None, torch.tensor([[6, 7]]), None, torch.full((1, 2), IGNORE))
    measured = teacher_forced(Uniform(), batch)  # type: ignore[arg-type]
    assert measured == Scores(tokens=0, correct=0, loss=0.0)
    assert measured.means()["loss"] == 0.0


# ---- many examples ---------------------------------------------------------------------------------------------------


def close(one: Scores, other: Scores) -> bool:
    same = (one.examples, one.exact, one.tokens, one.correct) == (
        other.examples,
        other.exact,
        other.tokens,
        other.correct,
    )
    return same and math.isclose(one.loss, other.loss, rel_tol=1e-5)


@pytest.fixture
def pairs() -> Pairs:
    return TASK.examples("validation", 50)


@pytest.mark.parametrize("architecture", sorted(ARCHITECTURES))
@pytest.mark.parametrize("size", [7, 1000])
def test_batches_add_up_to_the_whole(
    architecture: str, size: int, pairs: Pairs, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = random_model(architecture).eval()
    monkeypatch.setattr(evaluation, "EXAMPLES_AT_ONCE", size)
    measured = evaluate(model, pairs, architecture, SPECIAL)
    assert measured.examples == len(pairs) == 50
    assert close(measured, score(model, pairs, architecture, SPECIAL))


def test_running_text_has_no_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evaluation, "EXAMPLES_AT_ONCE", 3)
    stream = Stream(torch.randint(6, VOCABULARY, (10, 9), generator=generator(1)))
    measured = evaluate(random_model("decoder_only"), stream, "decoder_only", SPECIAL)
    assert (measured.examples, measured.exact, measured.tokens) == (10, None, 80)
    means = measured.means()
    assert set(means) == {"loss", "token_accuracy", "bits_per_token"}
    assert means["bits_per_token"] == pytest.approx(means["loss"] / math.log(2))


@pytest.mark.parametrize("architecture", sorted(ARCHITECTURES))
def test_dropout_is_off_during_evaluation_and_on_again_after_it(architecture: str, pairs: Pairs) -> None:
    model = random_model(architecture, dropout=0.5, attention_dropout=0.5).train()
    first, second = (evaluate(model, pairs, architecture, SPECIAL) for _ in range(2))
    assert first == second
    assert all(part.training for part in model.modules())
    assert score(model, pairs, architecture, SPECIAL) != first, "in training mode dropout would have shown"
    model.eval()
    assert evaluate(model, pairs, architecture, SPECIAL) == first
    assert not any(part.training for part in model.modules())


def test_evaluation_leaves_weights_and_gradients_alone(pairs: Pairs) -> None:
    model = random_model("decoder_only")
    before = [parameter.clone() for parameter in model.parameters()]
    evaluate(model, pairs, "decoder_only", SPECIAL)
    for parameter, value in zip(model.parameters(), before, strict=True):
        assert torch.equal(parameter, value)
        assert parameter.grad is None


# ---- sums and means --------------------------------------------------------------------------------------------------


def every_scores() -> Iterator[Scores]:
    yield Scores()
    yield Scores(examples=3, exact=2, tokens=10, correct=7, loss=1.5)
    yield Scores(examples=1, exact=0, tokens=4, correct=4, loss=0.25)


def test_scores_of_running_text_stay_without_matches() -> None:
    text = Scores(examples=2, tokens=8, correct=1, loss=4.0)
    assert (text + text).exact is None
    assert (Scores() + text).exact is None


def test_means_are_by_example_or_by_token() -> None:
    means = Scores(examples=4, exact=1, tokens=10, correct=5, loss=20.0).means()
    assert means == {"exact_match": 0.25, "token_accuracy": 0.5, "loss": 2.0}
