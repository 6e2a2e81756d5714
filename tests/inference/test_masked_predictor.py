"""A masked language model in use."""

import copy
import dataclasses

import pytest
import torch

from minitx.generation.options import GenerationOptions
from minitx.playground.written_steps import filled
from predictors import CHARACTERS, masked

MASK = CHARACTERS.special.mask
PREDICTOR = masked()


def logits(text: str) -> torch.Tensor:
    with torch.no_grad():
        return PREDICTOR.model(torch.tensor([CHARACTERS.encode_masked(text)]))[0]


def test_masks_are_filled_and_the_rest_is_left() -> None:
    text = "ab<mask>d <mask><mask>g"
    written, whole, _ = PREDICTOR.generate([text, "abc", "g<mask>fed cab"])
    assert (len(written), whole) == (len("ab.d ..g"), "abc"), "the other has no mask"
    assert PREDICTOR.generate(text) == written
    for place, (symbol, token) in enumerate(zip(written, CHARACTERS.encode_masked(text), strict=True)):
        if token == MASK:
            likeliest = logits(text)[place].argsort(descending=True).tolist()
            assert CHARACTERS.encode(symbol) == [next(word for word in likeliest if word not in CHARACTERS.special)]
        else:
            assert CHARACTERS.encode(symbol) == [token]


def test_a_special_token_that_a_tokenizer_lacks_forbids_no_other() -> None:
    lacking = copy.deepcopy(PREDICTOR)
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


def test_a_score_is_that_of_the_masks_only() -> None:
    text, target = "ab<mask>d<mask>", "abcdg"
    logs = logits(text).log_softmax(-1)
    c, g = CHARACTERS.encode("cg")
    assert PREDICTOR.score(text, target) == pytest.approx(float(logs[2, c] + logs[4, g]), abs=1e-5)
    several = PREDICTOR.score([text, "<mask>", "g<mask>fed cab"], [target, "c", "gafed cab"])
    assert several[:2] == pytest.approx([PREDICTOR.score(text, target), float(logits("<mask>").log_softmax(-1)[0, c])])
    assert PREDICTOR.score(text, "ggcdg") == pytest.approx(PREDICTOR.score(text, target), abs=1e-6)


def test_what_it_does_not_do_is_refused() -> None:
    for text, target in (("abc", "abc"), (["a<mask>", "abc"], ["ab", "abc"])):
        with pytest.raises(ValueError, match="<mask>"):
            PREDICTOR.score(text, target)  # type: ignore[call-overload]
    for option in ({"do_sample": True}, {"stream": True}, {"return_attention": True}, {"max_new_tokens": 3}):
        with pytest.raises(ValueError, match="encoder_only"):
            PREDICTOR.generate("a<mask>", **option)
