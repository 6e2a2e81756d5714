"""A predictor: loading, generating, attending and scoring, each against forwards without a cache; filled masks."""

import dataclasses
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch

import minitx
from minitx.config.errors import ConfigError
from minitx.generation.options import GenerationOptions
from minitx.inference.text_generation import DEFAULT_NEW_TOKENS
from minitx.interpret.attribution import attribute
from minitx.interpret.patching import patched_logits
from minitx.nn import MultiHeadAttention
from minitx.nn.positions import POSITIONS
from minitx.playground.written_steps import filled
from predictors import BLOCK, CHARACTERS, EVERY, LONGEST, built, every_kind, forward, masked
from small_models import every_architecture, every_decoder

BEFORE_THE_ANSWER = {"encoder_decoder": ["<bos>"], "decoder_only": ["3", "1", "4", "<sep>"]}


@pytest.mark.parametrize("device", ["gpu", "meta", *(() if torch.cuda.is_available() else ("cuda",))])
def test_a_device_that_is_not_there_is_not_the_files_fault(tmp_path: Path, device: str) -> None:
    built().save(tmp_path / "model.ckpt")
    assert minitx.load(tmp_path / "model.ckpt", "cpu").score("3 1 4", "4 1 3") == built().score("3 1 4", "4 1 3")
    with pytest.raises(ConfigError, match=f"device {device} .*; choose auto or cpu$") as caught:
        minitx.load(tmp_path / "model.ckpt", device=device)
    assert "damaged" not in str(caught.value)


@every_architecture
def test_a_text_for_a_text_and_a_list_for_a_list(architecture: str) -> None:
    predictor = built(architecture)
    ids, text = torch.tensor(predictor.encode("3 1 4")), "3 1 4"
    for several in ([text], [text, "5"], (text, "5"), iter([text]), [[*ids.numpy()]], [ids.numpy()], [ids]):
        answers = predictor.generate(several)  # type: ignore[call-overload]
        assert (type(answers), type(answers[0]), answers[0]) == (list, str, predictor.generate(text))
    assert predictor.generate([]) == predictor.score([], []) == []


@every_decoder
def test_by_default_the_longest_answer_fits_with_its_end_and_a_text_has_a_fixed_length(architecture: str) -> None:
    predictor = built(architecture, ends=False)
    assert len(predictor.generate("3").split()) == LONGEST + 1
    assert len(predictor.generate(" ".join(["3"] * 20)).split()) == 21
    assert len(built(text=True, ends=False).generate("abc")) == DEFAULT_NEW_TOKENS > BLOCK


def test_without_a_seed_samples_differ_and_the_global_generator_is_left_alone() -> None:
    options = {"do_sample": True, "max_new_tokens": 12, "temperature": 2.0}
    assert len({built(ends=False).generate("3 1", **options) for _ in range(3)}) > 1
    for seed in (1, None):
        torch.manual_seed(3)
        expected = torch.rand(2)
        torch.manual_seed(3)
        built().generate("3 1", do_sample=True, seed=seed)
        assert torch.equal(torch.rand(2), expected)


@every_kind
@pytest.mark.parametrize(("scheme", "key"), [
    ({"position": {"name": "learned", "max_len": 4}}, r"model\.position\.max_len"),
    ({"position_ids": {"name": "randomized", "range": 4, "longest": 4}}, r"model\.position_ids\.name randomized"),
])  # fmt: skip
def test_a_sequence_past_the_positions_is_refused_by_key(architecture: str, text: bool, scheme: Any, key: str) -> None:
    """Running text is generated nevertheless, with its last tokens as context."""
    predictor = built(architecture, text=text, **scheme)
    for use in (
        predictor.attend, predictor.lens, lambda text: predictor.score(text, text),
        lambda text: predictor.patch(text, text[::-1]), *([] if text else [predictor.generate]),
    ):  # fmt: skip
        with pytest.raises(ConfigError, match=rf"there are \d+ tokens.*{key}.* 4"):
            use("abcde" if text else "3 1 4 1 5")
    if text:
        predictor.attend("abcd")
        predictor.generate("abcde", max_new_tokens=9)


def test_each_stack_has_its_own_positions() -> None:
    """Those of an encoder are the whole range, those of a decoder `longest`."""
    predictor = built("encoder_decoder", position_ids={"name": "randomized", "range": 9, "longest": 4})
    predictor.attend("3 1 4 1 5 2", "3 1 4")
    predictor.generate("3 1 4 1 5 2")
    with pytest.raises(ConfigError, match="there are 5 tokens"):
        predictor.attend("3", "3 1 4 1")


@pytest.mark.parametrize(("architecture", "capacity"), [("decoder_only", 3), ("encoder_decoder", 5)])
def test_an_output_is_at_most_as_long_as_the_table_allows(architecture: str, capacity: int) -> None:
    # Of five places, a decoder alone reads "3 1 <sep>" and two of the three words after it: the last is not read again.
    # One with an encoder reads <bos> and four of five.
    predictor = built(architecture, ends=False, position={"name": "learned", "max_len": 5})
    assert len(predictor.generate("3 1", max_new_tokens=capacity).split()) == capacity
    with pytest.raises(ValueError, match=rf"max_new_tokens must be at most {capacity}.*model\.position\.max_len.* 5"):
        predictor.generate("3 1", max_new_tokens=capacity + 1)
    whole = predictor.generate("3 1")
    assert len(whole.split()) == capacity, "by default, all of the capacity"
    assert predictor.generate(["3 1", "4 5"])[0] == whole


@every_decoder
def test_without_a_target_the_models_own_answer_is_shown(architecture: str) -> None:
    for seed in (1, 2, 3):
        predictor = built(architecture, seed=seed)
        answer = predictor.generate("3 1 4")
        shown, given = predictor.attend("3 1 4"), predictor.attend("3 1 4", answer)
        assert shown.tokens == given.tokens
        assert shown.tokens["target"] == [[*BEFORE_THE_ANSWER[architecture], *answer.split()]]
        for one, other in zip(shown.decoder + shown.cross, given.decoder + given.cross, strict=True):
            assert torch.equal(one, other)


@every_decoder
def test_an_own_answer_that_is_no_text_is_shown_up_to_the_last_position(architecture: str) -> None:
    predictor = deepcopy(built(architecture, ends=False, position={"name": "learned", "max_len": 6}))
    predictor.model.head.weight.data[predictor.tokenizer.special.sep] = 9.0
    assert predictor.generate("3 1 4") == ""
    assert predictor.attend("3 1 4").tokens["target"] == [[*BEFORE_THE_ANSWER[architecture], *["<sep>"] * 9][:6]]


def test_scores_of_beams_do_not_take_the_default_dtype() -> None:
    predictor, default = built("decoder_only"), torch.get_default_dtype()
    answer = predictor.generate("3 1 4", num_beams=3)
    try:
        for dtype in (torch.float16, torch.float64):
            torch.set_default_dtype(dtype)
            assert predictor.generate("3 1 4", num_beams=3) == answer
    finally:
        torch.set_default_dtype(default)


def test_arguments_that_do_not_go_together_are_refused() -> None:
    for use in [use for each in map(built, EVERY) for use in (each.attend, each.score)]:
        with pytest.raises(ValueError, match="as many targets as texts"):
            use(["3", "4"], ["5"])  # type: ignore[arg-type]
    for target in ("1", "1 2 3 4", ""):
        with pytest.raises(ValueError, match=r"as long as|equally long|place by place"):
            built("encoder_only").score("3 1 4", target)
    for wrong, reason in (
        ([[3], []], "the prompt is empty"), ([5, 3], "a text must be a str, got 5; prompts of ids are"),
        ([b"3"], "a text must be a str, got b'3'"), (None, "a str, got None"),
        *(([[3, bad]], r"ids of a prompt must be integers in \[0, \d+\), got ") for bad in (-1, 999, "3", 0.5, True)),
    ):  # fmt: skip
        for predictor in [built(architecture) for architecture in EVERY]:
            with pytest.raises(ConfigError, match=reason):
                predictor.generate(wrong)  # type: ignore[call-overload]
    with pytest.raises(ConfigError, match="a text must be a str, got 5"):
        built().score("3", 5)  # type: ignore[call-overload]
    with pytest.raises(ValueError, match="no separate target"):
        built(text=True).attend("abc", "d")
    for how in ("stream", "return_attention"):
        with pytest.raises(ValueError, match=f"{how}=True takes one prompt"):
            built().generate(["3", "4"], **{how: True})  # type: ignore[call-overload]
    with pytest.raises(TypeError, match="'max_length'"):
        built().generate("3", max_length=4)


def test_what_would_be_taken_for_something_else_is_refused() -> None:
    model, ids = built("decoder_only").model, torch.ones(2, 3, dtype=torch.long)
    for use, reason in (
        (
            lambda: MultiHeadAttention(8, 2)(torch.ones(1, 3, 8), mask=torch.ones(3, 3).tril()),
            "bool, .* got torch.float32",
        ),
        (lambda: POSITIONS["rope"](8, 2, 4, True, scaling="yarn"), "must be one of none, linear, ntk"),
        (lambda: minitx.train({}, resume="runs/reverse"), "true or false"),
        (lambda: attribute(model, {"ids": ids}, -ids), "got negative ones"),
        (lambda: patched_logits(model, {"ids": ids}, {}, [[], []]), "one row, got 2 rows"),
        (lambda: model(ids[0]), r"\[B, T\], got \[3\]"),
        (lambda: built().parameters(), r"Predictor has no .* predictor\.model"),
    ):
        with pytest.raises((ValueError, AttributeError), match=reason):
            use()


@every_kind
def test_a_score_is_the_log_probability_of_the_target(architecture: str, text: bool) -> None:
    """Of an answer and its end, of an encoder's answer place by place, of a continuation; alone and in a list."""
    predictor, questions = built(architecture, text=text), ["3 1 4", "5", "0 2 6"]
    targets = ["4 1 3", "0", "1 0 2"] if architecture == "encoder_only" else ["4 1 3", "0 2 6 6 1", ""]
    if text:
        questions, targets = ["ab", "a", "abc def", "abc"], ["cde", "b", "g\n ", ""]
    ends = architecture != "encoder_only" and not text
    expected, likeliest = [], []
    for question, target in zip(questions, targets, strict=True):
        answer = predictor.tokenizer.encode(target)
        logits = forward(predictor, question, answer)
        ids = [*answer, predictor.tokenizer.special.eos] if ends else answer
        likeliest.append(predictor.tokenizer.decode(logits.argmax(dim=-1).tolist()))
        expected.append(sum(float(logits[place].log_softmax(dim=0)[token]) for place, token in enumerate(ids)))
    assert predictor.score(questions, targets) == pytest.approx(expected, rel=1e-4)
    alone = predictor.score(questions[0], targets[0])
    assert alone == pytest.approx(expected[0], rel=1e-4)
    assert isinstance(alone, float)
    assert architecture != "encoder_only" or predictor.generate(questions) == likeliest, "position by position"


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
    lacking = deepcopy(PREDICTOR)
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
