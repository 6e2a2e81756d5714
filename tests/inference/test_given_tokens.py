"""Tokens of an answer that are given: a question as text is generated and scored as the task's examples are."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from minitx.cli.trained import _beyond_training
from minitx.config.errors import ConfigError
from minitx.config.schema import Config, ModelConfig
from minitx.data.batch import IGNORE
from minitx.data.example_texts import example_texts
from minitx.data.tasks import generator
from minitx.data.tasks.recall import AssociativeRecall
from minitx.evaluation.metrics import exact_matches, teacher_forced
from minitx.generation.decode import generate
from minitx.inference.predictor import Predictor
from predictors import untrained

OPTIONS = {"symbols": 12, "pairs": (1, 4), "queries": 3, "filler": 2, "add_bos": True, "add_eos": True}
TASK = AssociativeRecall(interleaved=True, **OPTIONS)
SPECIAL = TASK.vocabulary.special


def predictor(architecture: str, prefix_lm: bool = False) -> Predictor:
    model = ModelConfig(architecture=architecture, prefix_lm=prefix_lm, d_model=32, n_heads=2, n_layers=2, d_ff=0)
    return untrained(Config(data={"name": "associative_recall", "interleaved": True, **OPTIONS}, model=model))


def test_both_layouts_have_the_same_texts_and_splits() -> None:
    other = AssociativeRecall(**OPTIONS)
    for split in ("validation", "test"):
        texts = example_texts(other.examples(split, 50), other.vocabulary, 99)
        assert example_texts(TASK.examples(split, 50), TASK.vocabulary, 99) == texts


@pytest.mark.parametrize(
    ("architecture", "prefix_lm"), [("decoder_only", False), ("decoder_only", True), ("encoder_decoder", False)]
)
@torch.inference_mode()
def test_free_running_generation_is_teacher_forcing_of_its_own_answers(architecture: str, prefix_lm: bool) -> None:
    model, pairs = predictor(architecture, prefix_lm).model, TASK.examples("test", 40)
    prompt = pairs.prompt(architecture, SPECIAL)
    limits = {"max_new_tokens": pairs.target.size(1), "eos": (), "pad": SPECIAL.pad, "given": prompt.given}
    decoded = generate(model, prompt.ids, *prompt.source, keep=prompt.keep, scores=True, **limits)
    assert torch.equal(decoded.ids[pairs.given], pairs.target[pairs.given])
    assert not torch.equal(decoded.ids[pairs.target_keep], pairs.target[pairs.target_keep])
    batch = replace(pairs, target=decoded.ids.where(pairs.target_keep, SPECIAL.pad)).frame(architecture, SPECIAL)
    batch.labels = batch.labels.masked_fill(batch.labels == SPECIAL.eos, IGNORE)
    scores = teacher_forced(model, batch)
    assert scores.tokens == scores.correct == int((pairs.target_keep & ~pairs.given).sum())
    full = pairs.target_keep.all(dim=1)  # the others continue after their answer's end
    loss = teacher_forced(model, batch.map(lambda part: part[full])).loss
    assert float(decoded.log_probabilities[full].sum()) == pytest.approx(-loss, rel=1e-4)


def test_typed_questions_are_answered_as_in_the_evaluation() -> None:
    architecture = "decoder_only"
    one = predictor(architecture)
    optimizer = torch.optim.AdamW(one.model.parameters(), lr=1e-2)
    for step in range(60):
        batch = TASK.batch(generator(step), 32).frame(architecture, SPECIAL)
        F.cross_entropy(one.model(**batch.model_inputs()).flatten(0, 1), batch.labels.flatten()).backward()
        optimizer.step()
        optimizer.zero_grad()
    pairs = TASK.examples("test", 100)
    questions, answers = example_texts(pairs, TASK.vocabulary, 99)
    right = [answer == expected for answer, expected in zip(one.generate(questions), answers, strict=True)]
    assert exact_matches(one.model, pairs, architecture, SPECIAL).tolist() == right
    assert 0 < sum(right) < 100
    for stop in (None, *map(str, range(OPTIONS["symbols"]))):  # also one that the question gives
        texts = one.generate(questions[0], stop=stop), "".join(one.generate(questions[0], stop=stop, stream=True))
        assert texts == (f" {one.generate(questions[0])} ".partition(f" {stop} ")[0].strip(),) * 2
    with torch.inference_mode():
        loss = teacher_forced(one.model, pairs.frame(architecture, SPECIAL)).loss
    assert sum(one.score(questions, answers)) == pytest.approx(-loss, rel=1e-4)


def test_only_a_question_with_more_pairs_is_beyond_training(capsys: pytest.CaptureFixture[str]) -> None:
    model = predictor("decoder_only")
    questions, _ = example_texts(TASK.examples("test", 20), TASK.vocabulary, 20)
    assert not any(_beyond_training(model, text) for text in questions)
    assert _beyond_training(model, "0 6 1 7 2 8 3 9 4 10 0 9 11")
    assert "this prompt has 10 tokens" in capsys.readouterr().err


def test_beams_and_texts_with_queries_at_other_places_are_refused() -> None:
    with pytest.raises(ConfigError, match="num_beams must be 1"):
        predictor("decoder_only").generate("0 9 3 6 0", num_beams=2)
    for corrupted in ("0 6 1 7 0 1 8", "0 6 1 7 6 0 8"):  # also after as many pairs
        with pytest.raises(ConfigError, match="must have their queries at the same places"):
            predictor("decoder_only").patch("0 6 1 7 0 6 8", corrupted)
