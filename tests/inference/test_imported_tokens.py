"""Special tokens as imported models have them: no <eos>, several ends, padding that is an end."""

from pathlib import Path
from typing import Any

import pytest
import tokenizers as library
import torch
from tokenizers import models, normalizers, pre_tokenizers

from minitx.config.errors import ConfigError
from minitx.config.registry import build
from minitx.config.schema import Config, ModelConfig
from minitx.data.tasks import TASKS
from minitx.data.tokenizers import SpecialIds, SpecialTokens, Tokenizer
from minitx.generation.options import GenerationOptions
from minitx.inference.predictor import Predictor
from minitx.inference.text_generation import Generation
from minitx.interpret.patching import patched_inputs
from small_models import build_tiny

WORDS = ["a", "b", "c", "d", "e", "<end>", "<other>"]
END, OTHER = 5, 6


def tokenizer(pad: int = 0, eos: int = -1, **special: Any) -> Tokenizer:
    backend = library.Tokenizer(models.WordLevel({word: index for index, word in enumerate(WORDS)}, unk_token="a"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return Tokenizer(backend, SpecialTokens(SpecialIds(pad, -1, eos, -1, -1, -1), **special))


def imported(writes: int | None = None, **special: Any) -> Predictor:
    """A language model with random weights, or one that always writes one token."""
    model: Any = build_tiny("decoder_only", "sinusoidal", vocab_size=len(WORDS), tie_embeddings=False)
    if writes is not None:
        model.decoder.norm.bias.data.fill_(1.0)
        model.head.weight.data.zero_()[writes] = 1.0
    config = Config(data={"name": "imported_text"}, model=ModelConfig(architecture="decoder_only"))
    return Predictor(model, tokenizer(**special), config)


def first(predictor: Predictor, **options: Any) -> Generation:
    return predictor.generations(["a b"], GenerationOptions(**options))[0][0]


def test_any_end_of_the_model_is_an_end_and_without_one_min_new_tokens_bans_nothing() -> None:
    assert first(imported(writes=OTHER), max_new_tokens=3, min_new_tokens=3).ids == [OTHER] * 3
    for token in (END, OTHER):
        found = first(imported(token, pad=END, eos=END, other_ends=(OTHER,)))
        assert (found.ids, found.stopped) == ([token], "end")


def test_the_first_token_is_forced_where_it_is_the_last_too() -> None:
    assert first(imported(forced_first=3), max_new_tokens=1).ids == [3]


def test_an_end_that_is_the_padding_too_is_scored() -> None:
    predictor = imported(pad=END, eos=END)
    logs = predictor.model(torch.tensor([[0, 1, 2]])).detach().log_softmax(dim=-1)[0]
    both = predictor.score(["a b", "a b"], ["<end>", "c <end>"])
    assert both == pytest.approx([float(logs[1, END]), float(logs[1, 2] + logs[2, END])], abs=1e-5)


def test_a_prefix_is_not_repeated_before_the_answers_that_a_patch_compares() -> None:
    inputs = patched_inputs(imported(prefix=(3,)), "a b", "a c", ("e d", "e b"))
    assert (inputs.clean["ids"].tolist(), inputs.answers) == ([[3, 0, 1, 4]], (3, 1))


@pytest.mark.parametrize("rule", [
    ("normalizer", normalizers.Sequence([normalizers.Prepend("_"), normalizers.Replace(" ", "_")])),
    ("pre_tokenizer", pre_tokenizers.Sequence([pre_tokenizers.Metaspace("_", prepend_scheme="always")])),
    ("pre_tokenizer", pre_tokenizers.Metaspace("_", prepend_scheme="first")),
])  # fmt: skip
def test_a_continuation_has_no_space_of_its_own_and_a_stop_with_and_without(rule: tuple[str, Any]) -> None:
    predictor = imported()
    backend = library.Tokenizer(models.BPE({"_": 0, "a": 1, "b": 2, "_a": 3}, [("_", "a")]))
    setattr(backend, *rule)
    own = predictor.tokenizer = Tokenizer(backend, predictor.tokenizer.special_tokens)
    assert (own.encode("a"), own.encode_answer("ab a", "stream")) == ([3], [1, 2, 3])
    assert predictor.score("a", "ab") != predictor.score("a", " ab")
    assert predictor.text_generator().ends(GenerationOptions(stop=["a", "b"])) == [3, 1, 2]


def test_documents_need_an_end(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("a b\nc d\n" * 50)
    options = {"name": "imported_text", "path": str(tmp_path / "text.txt"), "block": 4, "documents": "line"}
    task = build(TASKS, options, "data")
    task.vocabulary = tokenizer()
    with pytest.raises(ConfigError, match=r"data\.documents must be whole"):
        task.examples("validation")
    task = build(TASKS, {**options, "documents": "whole"}, "data")
    task.vocabulary = tokenizer()
    assert task.examples("validation").ids[0].tolist() == [0, 1, 2, 3, 0]
