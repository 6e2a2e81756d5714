"""A prefix LM reads its question in both directions and writes its answer causally."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from minitx.config.schema import ModelConfig
from minitx.data.examples import Pairs, question_prompt
from minitx.data.tokenizers import SpecialIds
from minitx.models.builder import build_model
from minitx.models.transformers import DecoderOnly
from minitx.nn import POSITION_IDS, POSITIONS

VOCAB = 11
SPECIAL = SpecialIds(*range(6))
every_scheme = pytest.mark.parametrize("name", [*POSITIONS, "all_hooks"])
every_policy = pytest.mark.parametrize("numbering", POSITION_IDS)


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


def close(one: Tensor, other: Tensor) -> None:
    torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)


def draw(*shape: int) -> Tensor:
    return torch.randint(0, VOCAB, shape)


def felt(model: DecoderOnly, ids: Tensor, prefix: Tensor) -> Tensor:
    """Whether the logits at t feel the token at s: bool [B, T, S]."""
    seen: list[Tensor] = []
    handle = model.embedding.register_forward_hook(lambda _module, _ids, out: seen.append(out))
    logits = model(ids, prefix=prefix)
    handle.remove()
    towards = torch.randn(logits.shape)
    rows = [
        torch.autograd.grad((logits[:, t] * towards[:, t]).sum(), seen, retain_graph=True)[0].abs().sum(-1) > 0
        for t in range(ids.size(1))
    ]
    return torch.stack(rows, dim=1)


@every_scheme
def test_the_question_is_read_both_ways_and_the_answer_is_causal(name: str, tiny) -> None:
    model, prefix = tiny("decoder_only", name, prefix_lm=True), torch.tensor([4, 1, 0, 7])
    reached = felt(model, draw(4, 7), prefix)
    for row, length in enumerate(prefix.tolist()):
        for t in range(7):
            assert reached[row, t].tolist() == [s <= t or s < length for s in range(7)]


def test_a_model_that_is_none_takes_no_notice(tiny) -> None:
    model, ids = tiny("decoder_only", "rope"), draw(2, 6)
    assert torch.equal(model(ids, prefix=torch.tensor([3, 6])), model(ids))
    reached = felt(model, ids, torch.tensor([3, 6]))
    assert torch.equal(reached, torch.ones(2, 6, 6).tril().bool())


def test_without_a_question_it_is_a_causal_model(tiny) -> None:
    prefix, usual, ids = tiny("decoder_only", "rope", prefix_lm=True), tiny("decoder_only", "rope"), draw(3, 6)
    close(prefix(ids), usual(ids))
    close(prefix(ids, prefix=torch.tensor([0, 0, 1])), usual(ids))  # a question of one token has nothing behind it
    assert not torch.allclose(prefix(ids, prefix=torch.tensor([4, 4, 4])), usual(ids), atol=1e-3)


@every_policy
@every_scheme
def test_steps_after_the_whole_prompt_equal_the_forward(name: str, numbering: str, tiny) -> None:
    model, ids = tiny("decoder_only", name, numbering, prefix_lm=True), draw(3, 9)
    cache = model.start()
    with torch.no_grad():
        pieces = [model.step(piece, cache) for piece in ids.split([5, 1, 1, 2], dim=1)]
        close(torch.cat(pieces, dim=1), model(ids, prefix=torch.full((3,), 5)))


@every_scheme
def test_left_padded_prompts_equal_one_by_one(name: str, tiny) -> None:
    model, lengths, further = tiny("decoder_only", name, prefix_lm=True), (3, 6, 1), draw(3, 3)
    ids, keep = draw(3, 6), torch.arange(6)[None] >= 6 - torch.tensor(lengths)[:, None]
    cache = model.start()
    with torch.no_grad():
        logits = [model.step(ids, cache, keep)] + [model.step(further[:, i : i + 1], cache) for i in range(3)]
        together = torch.cat(logits, dim=1)
        assert together.isfinite().all()
        for row, length in enumerate(lengths):
            whole = torch.cat((ids[row, 6 - length :], further[row]))[None]
            close(together[row, 6 - length :], model(whole, prefix=torch.tensor([length]))[0])


def pairs() -> Pairs:
    """Three questions and answers of ragged length."""
    rows, columns = torch.tensor([[4], [1], [3]]), torch.arange(4)
    answers = torch.tensor([[2], [3], [1]])
    return Pairs(
        torch.randint(6, VOCAB, (3, 4)).masked_fill(columns >= rows, SPECIAL.pad), columns < rows,
        torch.randint(6, VOCAB, (3, 4)).masked_fill(columns >= answers, SPECIAL.pad), columns < answers,
    )  # fmt: skip


def test_training_reads_what_generation_reads(tiny) -> None:
    """The framed batch and the prompt tell the model the same question: logits of the answer agree."""
    model, examples = tiny("decoder_only", "learned", prefix_lm=True), pairs()
    batch = examples.frame("decoder_only", SPECIAL)
    assert batch.prefix.tolist() == [5, 2, 4]  # <sep> included
    assert [int(row[length - 1]) for row, length in zip(batch.tgt, batch.prefix, strict=True)] == [SPECIAL.sep] * 3
    with torch.no_grad():
        trained = model(**batch.model_inputs())
        start = question_prompt(examples.source, examples.source_keep, "decoder_only", SPECIAL)
        cache = model.start()
        written = [model.step(start.ids, cache, start.keep)[:, -1:]]
        written += [model.step(examples.target[:, i : i + 1], cache) for i in range(2)]
        for row, length in enumerate(batch.prefix.tolist()):
            answer = int(examples.target_keep[row].sum()) + 1
            close(torch.cat(written, dim=1)[row, :answer], trained[row, length - 1 : length - 1 + answer][:3])


@pytest.mark.parametrize(
    "changes",
    [{"architecture": "encoder_only"}, {"architecture": "encoder_decoder"}, {"window": 4}],
    ids=str,
)
def test_it_is_refused_where_it_says_nothing(changes: dict) -> None:
    options = {"architecture": "decoder_only", "d_model": 8, "n_heads": 2, "vocab_size": 9, "prefix_lm": True}
    build_model(ModelConfig(**options))
    with pytest.raises(ValueError, match=r"model\.prefix_lm"):
        build_model(ModelConfig(**{**options, **changes}))
