"""The attention maps of generation are those of one forward pass over its result."""

import itertools
from typing import Any

import pytest
import torch

from minitx.compilation import compiled_step
from minitx.interpret.attention_maps import AttentionMaps
from minitx.interpret.recording import KINDS
from predictors import BLOCK, built, prompts

CASES: list[tuple[str, bool, dict[str, Any]]] = [
    ("decoder_only", False, {"window": 1}), ("decoder_only", False, {"prefix_lm": True}),
    ("decoder_only", False, {"n_kv_heads": 1}), ("encoder_decoder", False, {}),
    ("encoder_decoder", False, {"window": 3}), ("decoder_only", True, {}), ("decoder_only", True, {"window": 3}),
]  # fmt: skip
WAYS: list[dict[str, Any]] = [{}, {"do_sample": True, "seed": 2, "temperature": 2.0, "repetition_penalty": 2.0}]


def close(found: AttentionMaps, expected: AttentionMaps) -> None:
    assert (found.tokens, found.separator) == (expected.tokens, expected.separator)
    for kind, sides in KINDS.items():
        for one, other in zip(getattr(found, kind), getattr(expected, kind), strict=True):
            queries, keys = (len(found.tokens[side][0]) for side in sides)
            assert one.shape[2:] == (queries, keys)
            # An answer of no token at all takes up a place in a forward, as padding.
            torch.testing.assert_close(one, other[:, :, :queries, :keys], atol=1e-5, rtol=0)


@pytest.mark.parametrize(("architecture", "text", "model"), CASES, ids=str)
@pytest.mark.parametrize("options", WAYS, ids=str)
def test_maps_are_those_of_one_pass(architecture: str, text: bool, model: dict[str, Any], options: Any) -> None:
    reasons, predictors = set(), [built(architecture, text=text, seed=seed, **model) for seed in (1, 2)]
    for predictor, question in itertools.product(predictors, prompts(predictors[0])):
        for limit in (1, BLOCK - len(question) + 1 if text else 40):
            answer, maps = predictor.generate(question, return_attention=True, max_new_tokens=limit, **options)
            assert answer == predictor.generate(question, max_new_tokens=limit, **options)
            tokens = predictor.tokenizer.encode(answer) if answer else []
            stopped = len(tokens) < limit
            reasons.add(stopped)
            read = predictor.tokenizer.decode(tokens if stopped else tokens[:-1])  # the last token is never an input
            close(maps, predictor.attend(question + read) if text else predictor.attend(question, read))
    assert reasons == {True, False}


def test_compiled_steps_and_alignment_which_is_the_mean_of_the_last_cross_attention(monkeypatch: Any) -> None:
    """A compiled step, here without a compiler, has keys of empty capacity after those of its tokens."""
    monkeypatch.setattr(compiled_step, "compiled_step", lambda kind, device: kind.compute_step)
    predictor, options = built("encoder_decoder", ends=False), {"return_attention": True}
    (text, maps), (own, compiled) = (predictor.generate("3 1 4 1", compile=how, **options) for how in (False, True))
    assert own == text
    close(compiled, maps)
    torch.testing.assert_close(maps.alignment(), maps.cross[-1].mean(dim=1))
    with pytest.raises(ValueError, match=r"model\.architecture is not encoder_decoder"):
        built().attend("3 1").alignment()


@pytest.mark.parametrize("question", ["abc", "abcdefga"])
def test_running_text_past_its_block_is_refused_with_what_is_possible(question: str) -> None:
    predictor, most = built(text=True, ends=False), BLOCK + 1 - len(question)
    for options in ({"min_new_tokens": most + 1}, {"max_new_tokens": most + 1}):
        with pytest.raises(ValueError, match=rf"max_new_tokens must be at most {most} for data\.block {BLOCK}"):
            predictor.generate(question, return_attention=True, **options)
    answer, maps = predictor.generate(question, return_attention=True)  # as much as possible
    assert (len(answer), maps.decoder[0].size(2)) == (most, BLOCK)
    with pytest.raises(ValueError, match=r"the prompt has 10 tokens, so no token.*data\.block"):
        predictor.generate("abcdefgabc", return_attention=True, max_new_tokens=1)
