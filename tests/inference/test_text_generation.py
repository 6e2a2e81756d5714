"""Generated texts with their ids, log-probabilities and reasons for the end, each recomputed without the generator."""

import copy
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import tokenizers as library
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import decoders, models, normalizers, pre_tokenizers

import minitx.inference.text_generation
from minitx.config.errors import ConfigError
from minitx.config.registry import build
from minitx.config.schema import Config, ModelConfig
from minitx.data.tasks import TASKS
from minitx.data.tokenizers import SpecialIds, SpecialTokens, Tokenizer
from minitx.generation.decode import DecodeStep
from minitx.generation.options import GenerationOptions
from minitx.inference.predictor import Predictor
from minitx.inference.text_generation import DEFAULT_NEW_TOKENS, IMPOSSIBLE, Generation
from minitx.interpret.patching import patched_inputs
from predictors import BLOCK, built, bytewise, each_writer, forward, prompts
from small_models import build_tiny, every_decoder

WAYS: list[dict[str, Any]] = [
    {},
    {"do_sample": True, "seed": 4, "top_k": 5, "top_p": 0.9, "num_return_sequences": 3},
    {"repetition_penalty": 1.5, "no_repeat_ngram_size": 2, "min_new_tokens": 2},
    {"num_beams": 4, "num_return_sequences": 3, "length_penalty": 0.5, "early_stopping": True},
    {"num_beams": 3, "num_return_sequences": 3, "min_new_tokens": 2, "length_penalty": -1.0},
    {"num_beams": 3, "repetition_penalty": 1.5},
]
each_way = pytest.mark.parametrize("options", WAYS, ids=str)


def written(predictor: Predictor, texts: list[str], **options: Any) -> list[list[Generation]]:
    return predictor.generations(texts, GenerationOptions(**options))


def check(predictor: Predictor, question: str, generation: Generation, ends: list[int], limit: int) -> None:
    """Text, reason and log-probability from the ids, by a forward without a cache."""
    ids = generation.ids
    assert not {*ids[:-1]} & {*ends}
    reason = {True: "end", False: "stop"}[ids[-1] == ends[0]] if ids[-1] in ends else "length"
    assert generation.stopped == reason
    assert len(ids) == limit if reason == "length" else len(ids) <= limit
    assert generation.text == predictor.tokenizer.decode(ids if reason == "length" else ids[:-1])
    logs = forward(predictor, question, ids[:-1]).log_softmax(dim=-1)
    assert generation.log_probability == pytest.approx(float(logs[torch.arange(len(ids)), ids].sum()), abs=1e-3)


@each_writer
@each_way
def test_each_figure_of_a_text(architecture: str, text: bool, options: dict[str, Any]) -> None:
    """Running text stays within the context, on all of which a forward depends."""
    reasons = set()
    for seed in (1, 2):
        predictor = built(architecture, text=text, seed=seed)
        questions = [question[:3] if text else question for question in prompts(predictor)]
        greedy = [several[0].ids[1:] for several in written(predictor, questions, max_new_tokens=5)]
        stop = next(token for ids in greedy for token in ids if token not in predictor.tokenizer.special)
        eos = predictor.tokenizer.special.eos
        for stops, ends in ((None, [eos]), ([predictor.tokenizer.decode([stop])], [eos, stop])):
            for limit in (2, 5) if text else (2, 9):
                several = written(predictor, questions, stop=stops, max_new_tokens=limit, **options)
                for question, texts in zip(questions, several, strict=True):
                    assert len(texts) == options.get("num_return_sequences", 1)
                    for generation in texts:
                        reasons.add(generation.stopped)
                        check(predictor, question, generation, ends, limit)
                        assert len(generation.ids) > options.get("min_new_tokens", 0) or generation.stopped == "length"
    assert reasons == {"end", "stop", "length"}


@each_writer
@each_way
def test_other_prompts_and_order_change_nothing(architecture: str, text: bool, options: dict[str, Any]) -> None:
    """A seed means the same alone, in a stream or among others, where rows leave the batch; text passes its block."""
    predictor = built(architecture, text=text, seed=2, ends=not text)
    tokens = predictor.tokenizer.alphabet
    first = prompts(predictor) if not text else ["ab", "g", "fe"]
    further = [(tokens[place] + tokens[-place]) if text else f"{place % 7} {place // 7}" for place in range(6)]
    questions = [*first, *further]
    limit = {"max_new_tokens": 6 if "num_beams" in options else 20} if text else {}
    alone = [predictor.generate(question, **limit, **options) for question in questions]
    assert predictor.generate(questions, **limit, **options) == alone
    with torch.device("meta"):  # the default for new tensors, which is not the model's
        assert predictor.generate(questions[::-1], **limit, **options) == alone[::-1]
    assert predictor.generate(questions[2:5], **limit, **options) == alone[2:5]
    if "num_beams" not in options:
        single = {**limit, **options, "num_return_sequences": 1}
        pieces = ["".join(predictor.generate(question, stream=True, **single)) for question in questions]
        assert pieces == [texts if isinstance(texts, str) else texts[0] for texts in alone]


@each_writer
def test_several_samples_differ_and_the_first_is_the_single_one(architecture: str, text: bool) -> None:
    predictor = built(architecture, text=text, ends=False)
    options = {"do_sample": True, "seed": 5, "temperature": 2.0, "max_new_tokens": 12}
    question, other = prompts(predictor)[0], "c" if text else "3"
    samples = predictor.generate(question, num_return_sequences=4, **options)
    assert (len({*samples}), samples[0]) == (4, predictor.generate(question, **options))
    assert samples[:2] == predictor.generate(question, num_return_sequences=2, **options)
    assert predictor.generate([question] * 4, **options) == samples, "a repeated prompt continues with other numbers"
    twice = predictor.generate([question, other, question], num_return_sequences=2, **options)
    assert [*twice[0], *twice[2]] == samples
    assert predictor.generate(question, num_return_sequences=4, **{**options, "seed": 6}) != samples


@each_writer
def test_no_more_texts_than_there_are(architecture: str, text: bool) -> None:
    """There are as many texts of one token as tokens, however many are requested."""
    predictor = built(architecture, text=text)
    several = written(predictor, prompts(predictor)[:1], num_beams=40, num_return_sequences=40, max_new_tokens=1)[0]
    assert len({tuple(own.ids) for own in several}) == len(several) == predictor.tokenizer.vocab_size
    assert float(torch.tensor([own.log_probability for own in several]).exp().sum()) == pytest.approx(1.0, abs=1e-4)


def test_a_stop_must_be_one_token_of_the_vocabulary() -> None:
    for stop, reason in (
        (["1", "3 1"], r"stop must name single tokens, got '3 1', which is 2 tokens"),
        ([""], r"stop must name single tokens, got '', which is 0 tokens"),
        (["x"], "'x' is not in the tokenizer's alphabet"),
        ("3 1", "stop must name single tokens, got '3 1'"),
    ):
        for stream in (False, True):
            with pytest.raises(ValueError, match=reason):
                built().generate("3", stop=stop, stream=stream)


def pieces_of(tokenizer: Tokenizer, ids: list[int]) -> list[str]:
    """The pieces of a predictor that writes these tokens."""
    own, columns = built(text=True), [DecodeStep(torch.tensor([token]), torch.zeros(1)) for token in ids]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(minitx.inference.text_generation, "decode", SimpleNamespace(steps=lambda *_, **__: iter(columns)))
        return [*Predictor(own.model, tokenizer, own.config).text_generator().stream([2], GenerationOptions())]


@given(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\ufffd"), max_size=12))
@settings(max_examples=40)
def test_a_piece_is_never_half_a_character(text: str) -> None:
    """Emoji and Chinese take three and four tokens here: they come whole, and as soon as they are whole."""
    tokenizer = bytewise()
    assert pieces_of(tokenizer, [tokenizer.special.bos, *tokenizer.encode(text)]) == list(text), "<bos> is no piece"


@given(st.lists(st.integers(6, 261), max_size=12) | st.just(bytewise().encode("z\ufffd\ufffd")))
@settings(max_examples=40)
def test_bytes_that_are_no_text_are_shown_as_the_whole_would_be(ids: list[int]) -> None:
    pieces = pieces_of(bytewise(), ids)
    assert "".join(pieces) == bytewise().decode(ids)
    assert all(pieces)


def test_a_byte_that_is_no_text_does_not_end_the_pieces() -> None:
    """Llama's decoder reads bytes in a row together: one of them makes é before it unreadable, which is written."""
    backend = library.Tokenizer(models.BPE({"<0xC3>": 0, "<0xA9>": 1, "a": 2}, [], byte_fallback=True))
    backend.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()])
    llama = Tokenizer(backend, SpecialTokens(SpecialIds(*[-1] * 6)))
    assert llama.decode([0, 1]) == "é"
    assert llama.decode([0, 1, 0, 2, 2]) == "\ufffd\ufffd\ufffdaa"
    assert "".join(pieces_of(llama, [0, 1, 0, 2, 2])) == "é\ufffd\ufffdaa"


@pytest.mark.parametrize("how", ["stream", "return_attention"])
@pytest.mark.parametrize(("options", "reason"), [
    ({"num_beams": 2}, ".*both exclude num_beams"), ({"max_new_tokens": 0}, "max_new_tokens must be"),
    ({"do_sample": True, "num_return_sequences": 2}, ".*both exclude num_beams"),
    ({"stop": ["x"]}, "'x' is not in"), ({"temperature": 1.0}, "temperature needs do_sample"),
], ids=str)  # fmt: skip
def test_what_is_refused_is_refused_before_the_first_piece(how: str, options: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValueError, match=f"^{reason.format(how)}"):
        built().generate("3 1", **{how: True}, **options)


@pytest.mark.parametrize("text", [False, True])
def test_min_new_tokens_holds_beyond_the_default_maximum(text: bool) -> None:
    predictor, count = built(text=text), DEFAULT_NEW_TOKENS + 1
    ((generation,),) = written(predictor, prompts(predictor)[:1], min_new_tokens=count)
    assert len(generation.ids) == count


def test_beams_of_running_text_look_back_on_everything() -> None:
    """The whole prompt: by default as many tokens are written as fit into the context beside it."""
    for seed in (1, 2):
        predictor = built(text=True, seed=seed)
        ends = [predictor.tokenizer.special.eos]
        for question, limit in (("abc defg", 1), ("abc", BLOCK - 2), ("a", 3)):
            options = {"num_beams": 3, "num_return_sequences": 2, "max_new_tokens": limit}
            for read, generations in zip((question, "a"), written(predictor, [question, "a"], **options), strict=True):
                for generation in generations:
                    check(predictor, read, generation, ends, limit)
    predictor = built(text=True, ends=False)
    assert len(predictor.generate("abc", num_beams=2)) == BLOCK - 2
    for text, limit, reason in (("abc", BLOCK - 1, f"at most {BLOCK - 2}.*"), ("a" * (BLOCK + 1), None, "no token.*")):
        with pytest.raises(ConfigError, match=rf"{reason}context of {BLOCK} tokens, and {len(text)} are given"):
            predictor.generate(text, num_beams=2, max_new_tokens=limit)


@pytest.mark.parametrize("size", [BLOCK // 2, BLOCK])
def test_a_table_no_longer_than_the_block_is_the_context(size: int) -> None:
    predictor = built(text=True, ends=False, position={"name": "learned", "max_len": size})
    assert [len(predictor.generate(prompt, max_new_tokens=30)) for prompt in ("abc", "abcdefg " * 4)] == [30, 30]
    assert len(predictor.generate("abc", num_beams=2)) == size - 2


def refusals(predictor: Predictor, **options: Any) -> set[str]:
    """The messages of one text, of several, and of a stream."""
    question, found = prompts(predictor)[0], set()
    for texts, stream in ((question, False), ([question, question[::-1]], False), (question, True)):
        if not (stream and "num_beams" in options):
            with pytest.raises(ConfigError) as caught:
                [*predictor.generate(texts, stream=stream, **options)]
            found.add(str(caught.value))
    return found


@pytest.mark.parametrize("how", [{}, {"do_sample": True, "seed": 1}, {"num_beams": 2}], ids=str)
@every_decoder
def test_a_text_in_which_no_token_is_possible_is_refused(architecture: str, how: dict[str, Any]) -> None:
    """After as many steps as there are tokens, none is left that would not repeat."""
    predictor = copy.deepcopy(built(architecture))
    count = predictor.tokenizer.vocab_size + 1
    once = {"no_repeat_ngram_size": 1, "min_new_tokens": count, "max_new_tokens": count}
    assert refusals(predictor, **once, **how) == {IMPOSSIBLE}
    with torch.no_grad():
        next(predictor.model.parameters()).fill_(torch.nan)
    assert refusals(predictor, max_new_tokens=2, **how) == {IMPOSSIBLE}


# Special tokens as imported models have them: no <eos>, several ends, padding that is an end.
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
    own = predictor.tokenizer = predictor.task.vocabulary = Tokenizer(backend, predictor.tokenizer.special_tokens)
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
