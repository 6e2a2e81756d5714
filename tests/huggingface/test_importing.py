"""Models of every family, saved by transformers, imported: the same logits, maps, ids and text."""

from __future__ import annotations

import pytest
import torch

import minitx
from huggingface.theirs import CASES, TEXT, Theirs, saved
from minitx.cli import main
from minitx.generation.options import GenerationOptions
from minitx.predictor import Predictor

every_case = pytest.mark.parametrize("both", CASES, indirect=True)
PROMPTS = ["The quick brown", "To be, or not", "Ein Hund rennt über"]
WRITTEN = 12


@pytest.fixture(scope="module")
def both(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Theirs, Predictor]:
    """Their model, and ours made of its folder by the command line."""
    folder = tmp_path_factory.mktemp(request.param)
    theirs = saved(request.param, folder / "theirs")
    main(["import", str(folder / "theirs"), "--out", str(folder / "ours.ckpt")])
    return theirs, minitx.load(folder / "ours.ckpt")


@every_case
def test_logits_are_equal(both: tuple[Theirs, Predictor]) -> None:
    theirs, ours = both
    for text in TEXT[:4]:
        read = theirs.tokenizer(text, return_tensors="pt")
        inputs = {"input_ids": read["input_ids"], "attention_mask": read["attention_mask"]}
        source = (inputs["input_ids"],)
        if ours.architecture == "encoder_decoder":
            inputs["decoder_input_ids"] = torch.arange(9)[None] * 5
            source = (inputs["input_ids"], inputs["decoder_input_ids"])
        with torch.no_grad():
            expected, found = theirs.model(**inputs), ours.model(*source)
        expected = expected.prediction_logits if "prediction_logits" in expected else expected.logits
        assert expected.std() > 0.1
        torch.testing.assert_close(found, expected, atol=1e-4, rtol=0)


@every_case
def test_maps_are_equal(both: tuple[Theirs, Predictor]) -> None:
    theirs, ours = both
    text = TEXT[2]
    read = theirs.tokenizer(text, return_tensors="pt")
    inputs = {"input_ids": read["input_ids"]}
    target = None
    if ours.architecture == "encoder_decoder":
        target = TEXT[0]
        ids = [ours.tokenizer.special.bos, *ours.tokenizer.encode_answer(target)]
        inputs["decoder_input_ids"] = torch.tensor([ids])
    with torch.no_grad():
        out = theirs.model(**inputs, output_attentions=True)
    maps = ours.attend(text, target)
    if ours.architecture == "encoder_decoder":
        pairs = [(maps.encoder, out.encoder_attentions), (maps.decoder, out.decoder_attentions)]
        pairs.append((maps.cross, out.cross_attentions))
        assert maps.tokens["source"] == [theirs.tokenizer.convert_ids_to_tokens(read["input_ids"][0])]
    else:
        kind, side = ("encoder", "source") if ours.architecture == "encoder_only" else ("decoder", "target")
        pairs = [(getattr(maps, kind), out.attentions)]
        assert maps.tokens[side] == [theirs.tokenizer.convert_ids_to_tokens(read["input_ids"][0])]
    for found, expected in pairs:
        assert len(found) == len(expected) > 0
        for one, other in zip(found, expected, strict=True):
            torch.testing.assert_close(one, other, atol=1e-5, rtol=0)


@every_case
def test_greedy_text_is_equal(both: tuple[Theirs, Predictor]) -> None:
    theirs, ours = both
    if ours.architecture == "encoder_only":
        pytest.skip("an encoder does not write")
    for prompt in PROMPTS:
        read = theirs.tokenizer(prompt, return_tensors="pt")
        written = theirs.model.generate(
            input_ids=read["input_ids"], attention_mask=read["attention_mask"],
            do_sample=False, num_beams=1, max_new_tokens=WRITTEN,
        )[0]  # fmt: skip
        new = written[1:] if ours.architecture == "encoder_decoder" else written[read["input_ids"].size(1) :]
        (found,) = ours.generations([prompt], GenerationOptions(max_new_tokens=WRITTEN))[0]
        assert found.ids == new.tolist()
        assert found.text == theirs.tokenizer.decode(new, skip_special_tokens=True)
