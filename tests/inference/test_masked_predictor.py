"""A masked language model in use."""

import copy
import dataclasses
from typing import Any

import pytest
import torch

from minitx.generation.options import GenerationOptions
from minitx.inference.predictor import Predictor
from minitx.playground.written_steps import filled
from predictors import CHARACTERS, masked

MASK = CHARACTERS.special.mask


@pytest.fixture
def predictor() -> Predictor:
    return masked()


def logits(predictor: Predictor, text: str) -> torch.Tensor:
    with torch.no_grad():
        return predictor.model(torch.tensor([CHARACTERS.encode_masked(text)]))[0]


def test_masks_are_filled_and_the_rest_is_left(predictor: Predictor) -> None:
    text = "ab<mask>d <mask><mask>g"
    written = predictor.generate(text)
    assert len(written) == len("ab.d ..g")
    for place, (symbol, token) in enumerate(zip(written, CHARACTERS.encode_masked(text), strict=True)):
        if token == MASK:
            likeliest = logits(predictor, text)[place].argsort(descending=True).tolist()
            assert CHARACTERS.encode(symbol) == [next(word for word in likeliest if word not in CHARACTERS.special)]
        else:
            assert CHARACTERS.encode(symbol) == [token]
    assert predictor.generate("abc") == "abc"  # there is no mask


def test_a_special_token_that_a_tokenizer_lacks_forbids_no_other(predictor: Predictor) -> None:
    lacking = copy.deepcopy(predictor)
    own = lacking.tokenizer.special_tokens
    lacking.tokenizer.special_tokens = dataclasses.replace(own, special=own.special._replace(sep=-1))
    last = CHARACTERS.vocab_size - 1
    assert last not in CHARACTERS.special
    with torch.no_grad():
        lacking.model.encoder.norm.bias.fill_(1.0)
        lacking.model.head.weight[[*lacking.tokenizer.special]] = 20.0
        lacking.model.head.weight[last] = 10.0  # with this bias the likeliest token but for special ones
    assert lacking.generations(["<mask>"], GenerationOptions())[0][0].ids == [last]
    assert [step["id"] for step in filled(lacking, [MASK], {}) if "id" in step] == [last]


def test_several_texts_as_one_by_one(predictor: Predictor) -> None:
    texts = ["ab<mask>d", "<mask>", "g<mask>fed cab"]
    assert predictor.generate(texts) == [predictor.generate(text) for text in texts]
    targets = ["abcd", "e", "gafed cab"]
    alone = [predictor.score(text, target) for text, target in zip(texts, targets, strict=True)]
    assert predictor.score(texts, targets) == pytest.approx(alone, abs=1e-5)


def test_a_score_is_that_of_the_masks_only(predictor: Predictor) -> None:
    text, target = "ab<mask>d<mask>", "abcdg"
    logs = logits(predictor, text).log_softmax(-1)
    c, g = CHARACTERS.encode("cg")
    assert predictor.score(text, target) == pytest.approx(float(logs[2, c] + logs[4, g]), abs=1e-5)
    assert predictor.score(text, "ggcdg") == pytest.approx(predictor.score(text, target), abs=1e-6)


@pytest.mark.parametrize(("text", "target"), [("abc", "abc"), (["a<mask>", "abc"], ["ab", "abc"])])
def test_a_score_without_a_mask_is_refused(predictor: Predictor, text: Any, target: Any) -> None:
    with pytest.raises(ValueError, match="<mask>"):
        predictor.score(text, target)


def test_what_it_does_not_do_is_refused(predictor: Predictor) -> None:
    for option in ({"do_sample": True}, {"stream": True}, {"return_attention": True}, {"max_new_tokens": 3}):
        with pytest.raises(ValueError, match="encoder_only"):
            predictor.generate("a<mask>", **option)
    with pytest.raises(ValueError, match="empty"):
        predictor.generate("")
    with pytest.raises(ValueError, match="'z'"):
        predictor.generate("z<mask>")
