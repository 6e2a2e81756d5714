"""Every sentence of refusal: written down in docs/errors.md, and each says what was expected, what came and where."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from sentences import DOCUMENT, Sentence, document, sentences

SAID = sentences()

NOTHING_CAME = {
    "there is nothing to train on": "no config and no task were given",
    "the prompt is empty": "nothing was given",
    "there is no text to attend to": "nothing was given",
    "model.vocab_size is missing": "nothing was given",
    "there is nothing to score": "no <mask> was given",
    "--stream shows one text": "the flags themselves are what came",
    "data.isolate: data.documents whole": "the value is in the sentence",
    "trainer.strategy fsdp2": "the values are in the sentence",
    "model.prefix_lm needs questions": "a truth: it can only have been true",
    "packed documents cannot be read": "a tensor came, which is no use to print",
    "there is no alignment without": "an architecture without any came",
    "beside: 'maps'": "the value is in the sentence",
    "there are no attention maps to show": "none came",
    "an encoder_only model answers in one go": "the architecture is in the sentence",
    "a language model has no separate target": "the argument is in the sentence",
    "--stride needs running text": "blocks of tokens came, which are no use to print",
    "nothing can be written": "the two options are in the sentence",
    "this is no attention map of minitx": "bytes came, which are no use to print",
    "layer_types: a window in some": "the value is in the sentence",
    "--init_from begins a new run": "the flags themselves are what came",
    "the header of these attention maps is damaged": "bytes came, which are no use to print",
}
"""Beginnings of sentences into which nothing is filled, and why."""

NO_PLACE = {
    "tensorboard/": "an event file, or the address that a page asked for, and no key: nobody typed it",
    "interpret/html.py": "a model without attention",
    "interpret/attention_maps.py": "a method's argument, named by what it must be",
    "data/tokenizers.py": "of a checkpoint, whose reader says which; or a prompt, which is quoted",
    "inference/predictor.py": "the prompt, or what kind of model was asked",
    "training/run.py": "the launcher's own number, beside the keys that {asked} names",
    "inference/text_generation.py": "{why} names the key",
    "generation/options.py": "{given[0]} is the argument",
    "data/text/corpora.py": "another sentence of ours, handed on",
    "huggingface/": "keys of config.json, or names of tensors: the sentence begins with them",
    "checkpoints/safe_load.py": "a part of a sentence that begins with the file",
}
"""Files some of whose sentences name no key, flag, argument or file by themselves, and why."""


def told(one: Sentence) -> str:
    return f"minitx/{one.file}:{one.line}: {one.text}"


def test_all_are_written_down() -> None:
    assert DOCUMENT.read_text() == document(SAID), "sentences have changed: python tests/sentences.py writes them down"


@pytest.mark.parametrize("one", SAID, ids=lambda one: f"{one.file}:{one.text[:40]}")
def test_each_says_what_came_and_where_to_change_it(one: Sentence) -> None:
    if one.filled == (one.text[1:-1],):
        return  # another sentence, handed on as a whole
    assert one.filled or one.text.startswith(tuple(NOTHING_CAME)), f"{told(one)}\n  does not say what came"
    assert one.names_a_place() or one.file.startswith(tuple(NO_PLACE)), f"{told(one)}\n  names nothing to change"
    assert "\n" not in one.text
    assert not one.text.endswith("."), f"{told(one)}\n  one sentence, without a full stop"
    assert not re.match(r"[A-Z][a-z]+ (?!could)", one.text) or one.text.startswith(("Adam", "Muon")), told(one)


def test_the_exceptions_are_needed() -> None:
    for start in NOTHING_CAME:
        assert any(one.text.startswith(start) and not one.filled for one in SAID), start
    for place in NO_PLACE:
        assert (
            any(one.file.startswith(place) and not one.names_a_place() for one in SAID)
            or place == "checkpoints/safe_load.py"
        ), place


def test_most_are_expected_by_some_test() -> None:
    """By a piece of their own words, anywhere in the tests; `pytest -s` lists the others."""
    written = " ".join(file.read_text() for file in Path(__file__).parent.rglob("test_*.py") if file != Path(__file__))
    written = re.sub(r'"\s+f?r?"|\\', "", written)
    own = [one for one in SAID if re.sub(r"\{.*?\}", "", one.text).strip()]  # not others' words, handed on
    missing = [one for one in own if not any(piece in written for piece in pieces(one.text))]
    print(f"{len(own) - len(missing)} of {len(own)} sentences are expected by some test; not these:")
    print(*map(told, missing), sep="\n")
    assert len(missing) < len(own) / 4


def pieces(text: str) -> list[str]:
    """Three words in a row, of those that are not filled in; shorter ones whole."""
    found: list[str] = []
    for part in re.split(r"\{.*?\}", text):
        words = part.split()
        found += [" ".join(words[place : place + 3]) for place in range(len(words) - 2)]
    return [piece for piece in found if len(piece) > 9] or [text]
