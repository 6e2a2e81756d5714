"""A predictor: loading, generating, attending and scoring, each against forwards without a cache."""

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import minitx
from minitx.checkpoints import format as checkpoint
from minitx.config.errors import ConfigError
from minitx.inference.predictor import Predictor
from minitx.inference.text_generation import DEFAULT_NEW_TOKENS
from minitx.interpret.recording import KINDS
from predictors import (
    BLOCK,
    CHARACTERS,
    EVERY,
    LAYERS,
    LONGEST,
    SEQUENCES,
    SYMBOLS,
    WRITING,
    H,
    built,
    each_writer,
    forward,
    prompts,
    trained,
)
from small_models import ARCHITECTURES

each_architecture = pytest.mark.parametrize("architecture", EVERY)
each_decoder = pytest.mark.parametrize("architecture", WRITING)

# ---- loading ---------------------------------------------------------------------------------------------------------


@each_architecture
def test_a_checkpoint_is_all_that_is_needed(architecture: str, tmp_path: Path) -> None:
    checkpoint.write(trained(architecture), tmp_path / "model.ckpt")
    predictor = minitx.load(tmp_path / "model.ckpt", device="cpu")
    assert isinstance(predictor, Predictor)
    assert predictor.architecture == architecture
    assert isinstance(predictor.model, ARCHITECTURES[architecture])
    assert predictor.config.data == SEQUENCES
    assert predictor.tokenizer.alphabet == SYMBOLS.alphabet
    assert predictor.device.type == "cpu"
    assert not any(part.training for part in predictor.model.modules())
    saved = torch.load(tmp_path / "model.ckpt", weights_only=True)  # tensors and plain types, nothing of ours
    assert json.loads(json.dumps(saved["minitx"])) == saved["minitx"]
    for name, tensor in predictor.model.state_dict().items():
        assert torch.equal(tensor, saved["state_dict"][f"model.{name}"])


BROKEN: dict[str, Callable[[dict], object]] = {
    "another architecture": lambda c: c["minitx"]["config"]["model"].update(architecture="encoder_decoder"),
    "an unknown key": lambda c: c["minitx"]["config"]["model"].update(d_modle=32),
    "an unknown task": lambda c: c["minitx"]["config"]["data"].update(name="revers"),
    "an unknown position scheme": lambda c: c["minitx"]["config"]["model"].update(position={"name": "zzz"}),
    "no task": lambda c: c["minitx"]["config"].update(data={}),
    "a config that is no mapping": lambda c: c["minitx"].update(config=[1]),
    "a tokenizer that is none": lambda c: c["minitx"].update(tokenizer={"model": {}}),
    "a larger tokenizer": lambda c: c["minitx"].update(tokenizer=CHARACTERS.to_dict()),
}


@pytest.mark.parametrize("what", BROKEN)
def test_parts_that_do_not_fit_are_one_sentence(tmp_path: Path, what: str) -> None:
    contents, path = trained("decoder_only"), tmp_path / "broken.ckpt"
    BROKEN[what](contents)
    torch.save(contents, path)
    sentence = r"is damaged, or its parts do not fit together: .|, which is not minitx's own; if"
    with pytest.raises(ValueError, match=sentence) as caught:
        minitx.load(path, device="cpu")
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("device", ["gpu", *(() if torch.cuda.is_available() else ("cuda",))])
def test_a_device_that_is_not_there_is_not_the_files_fault(tmp_path: Path, device: str) -> None:
    checkpoint.write(trained("decoder_only"), tmp_path / "model.ckpt")
    with pytest.raises(ValueError, match=device) as caught:
        minitx.load(tmp_path / "model.ckpt", device=device)
    assert "damaged" not in str(caught.value)


# ---- generating ------------------------------------------------------------------------------------------------------


@each_writer
@pytest.mark.parametrize("seed", [1, 2])
def test_greedy_writing_is_the_most_likely_token_again_and_again(architecture: str, text: bool, seed: int) -> None:
    predictor = built(architecture, text=text, seed=seed)
    special = predictor.tokenizer.special
    for question in prompts(predictor):
        written: list[int] = []
        # Of a text as many tokens as fit into its block: beyond that, the context no longer holds everything.
        limit = BLOCK - len(question) + 1 if text else 7
        while len(written) < limit and special.eos not in written:
            written.append(int(forward(predictor, question, written)[-1].argmax()))
        expected = predictor.tokenizer.decode(written)
        assert predictor.generate(question, max_new_tokens=limit) == expected


def test_an_encoder_answers_position_by_position() -> None:
    predictor = built("encoder_only")
    questions = prompts(predictor)
    likeliest = [forward(predictor, question, []).argmax(dim=-1).tolist() for question in questions]
    expected = [predictor.tokenizer.decode(row) for row in likeliest]
    assert predictor.generate(questions) == [predictor.generate(question) for question in questions] == expected


@each_architecture
def test_a_text_for_a_text_and_a_list_for_a_list(architecture: str) -> None:
    predictor = built(architecture)
    assert isinstance(predictor.generate("3 1 4"), str)
    for several in (["3 1 4"], ["3 1 4", "5"], ("3 1 4", "5"), (text for text in ["3 1 4"])):
        answers = predictor.generate(several)  # type: ignore[call-overload]
        assert isinstance(answers, list)
        assert answers[0] == predictor.generate("3 1 4")
    assert predictor.generate([]) == []


@each_decoder
def test_by_default_the_longest_answer_of_the_task_fits_with_its_end(architecture: str) -> None:
    predictor = built(architecture, ends=False)
    assert len(predictor.generate("3").split()) == LONGEST + 1
    longer = " ".join(["3"] * 20)
    assert len(predictor.generate(longer).split()) == 21


def test_by_default_a_text_has_a_fixed_length() -> None:
    predictor = built(text=True, ends=False)
    assert len(predictor.generate("abc")) == DEFAULT_NEW_TOKENS > BLOCK


def test_only_the_last_block_of_a_long_text_is_read() -> None:
    predictor = built(text=True, ends=False)
    read: list[str] = []

    def note(module: object, given: tuple[Tensor]) -> None:
        read.append(predictor.tokenizer.decode(given[0][0].tolist()))

    handle = predictor.model.embedding.register_forward_pre_hook(note)
    try:
        predictor.generate("abcdefg " * 5 + "cab", max_new_tokens=20)
    finally:
        handle.remove()
    assert read[0] == "defg cab"
    assert max(map(len, read)) == BLOCK == len(read[0])


# ---- streaming -------------------------------------------------------------------------------------------------------


@each_writer
@pytest.mark.parametrize("options", [{}, {"do_sample": True, "seed": 5, "temperature": 2.0}])
def test_pieces_join_to_the_whole(architecture: str, text: bool, options: dict) -> None:
    predictor = built(architecture, text=text)
    for question in prompts(predictor):
        pieces = list(predictor.generate(question, stream=True, max_new_tokens=20, **options))
        assert "".join(pieces) == predictor.generate(question, max_new_tokens=20, **options)
        assert all(pieces)


def test_pieces_come_as_they_are_written() -> None:
    predictor = built(text=True, ends=False)
    pieces = predictor.generate("abc", stream=True, max_new_tokens=10**9)
    assert len([next(pieces) for _ in range(5)]) == 5


# ---- sampling --------------------------------------------------------------------------------------------------------


def test_without_a_seed_samples_differ() -> None:
    options = {"do_sample": True, "max_new_tokens": 12, "temperature": 2.0}
    assert len({built(ends=False).generate("3 1", **options) for _ in range(3)}) > 1


def test_sampling_leaves_the_global_generator_alone() -> None:
    predictor = built()
    for seed in (1, None):
        torch.manual_seed(3)
        expected = torch.rand(2)
        torch.manual_seed(3)
        predictor.generate("3 1", do_sample=True, seed=seed)
        assert torch.equal(torch.rand(2), expected)


# ---- prompts that will not do ----------------------------------------------------------------------------------------


@each_architecture
def test_an_unknown_symbol_is_refused_with_the_alphabet(architecture: str) -> None:
    predictor = built(architecture)
    for use in (predictor.generate, predictor.attend, lambda text: predictor.score(text, "1")):
        for prompt in ("3 9", "<eos>"):
            with pytest.raises(ValueError, match="alphabet, which is: 0 1 2 3 4 5 6"):
                use(prompt)


@each_architecture
def test_an_empty_prompt_is_refused(architecture: str) -> None:
    for use in (built(architecture).generate, built(architecture).attend):
        for prompt in ("", " \n", ["3", ""]):
            with pytest.raises(ValueError, match="the prompt is empty"):
                use(prompt)  # type: ignore[operator]


# ---- a table of learned positions that ends --------------------------------------------------------------------------


@each_architecture
@pytest.mark.parametrize(
    ("scheme", "key"),
    [
        ({"position": {"name": "learned", "max_len": 4}}, r"model\.position\.max_len"),
        ({"position_ids": {"name": "randomized", "range": 4, "longest": 4}}, r"model\.position_ids\.name randomized"),
    ],
)
def test_a_prompt_past_the_positions_is_refused_with_the_key(architecture: str, scheme: Any, key: str) -> None:
    predictor = built(architecture, **scheme)
    for use in (
        predictor.generate, predictor.attend, predictor.lens, lambda text: predictor.score(text, text),
        lambda text: predictor.patch(text, text[::-1].replace("5", "6")),
    ):  # fmt: skip
        with pytest.raises(ConfigError, match=rf"there are \d+ tokens.*{key}.* 4"):
            use("3 1 4 1 5")


def test_a_text_past_the_positions_is_refused_where_all_of_it_is_read() -> None:
    predictor = built(text=True, position={"name": "learned", "max_len": BLOCK})
    predictor.attend("a" * BLOCK)
    for use in (
        predictor.attend, predictor.lens, lambda text: predictor.score(text, "a"),
        lambda text: predictor.patch(text, "b" * len(text)),
    ):  # fmt: skip
        with pytest.raises(ConfigError, match=rf"there are \d+ tokens.*model\.position\.max_len {BLOCK}"):
            use("a" * (BLOCK + 1))


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
    assert len(predictor.generate("3 1").split()) == capacity, "by default, all of the capacity"
    whole = predictor.generate("3 1")
    assert predictor.generate(["3 1", "4 5"])[0] == whole


# ---- attention -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("architecture", "text", "asked", "tokens"),
    [
        ("encoder_decoder", False, ("3 1 4 1", "2 2"), {"source": "3 1 4 1", "target": "<bos> 2 2"}),
        ("decoder_only", False, ("3 1 4", "2 6"), {"target": "3 1 4 <sep> 2 6"}),
        ("encoder_only", False, ("3 1 4",), {"source": "3 1 4"}),
        ("decoder_only", True, ("ab\n",), {"target": "a b \n"}),
    ],
)
def test_attention_maps_of_each_architecture(
    architecture: str, text: bool, asked: tuple[str, ...], tokens: dict[str, str]
) -> None:
    maps = built(architecture, text=text).attend(*asked)
    assert maps.tokens == {side: [labels.split(" ")] for side, labels in tokens.items()}
    source, target = (len(tokens.get(side, "").split(" ")) for side in ("source", "target"))
    shapes = {"encoder": (source, source), "decoder": (target, target), "cross": (target, source)}
    for kind, (queries, keys) in shapes.items():
        if all(side in tokens for side in KINDS[kind]):
            assert [tuple(weights.shape) for weights in getattr(maps, kind)] == [(1, H, queries, keys)] * LAYERS
        else:
            assert getattr(maps, kind) == []
    assert not any(weights.triu(1).any() for weights in maps.decoder)


@each_decoder
def test_without_a_target_the_models_own_answer_is_shown(architecture: str) -> None:
    for seed in (1, 2, 3):
        predictor = built(architecture, seed=seed)
        answer = predictor.generate("3 1 4")
        shown, given = predictor.attend("3 1 4"), predictor.attend("3 1 4", answer)
        assert shown.tokens == given.tokens
        before = {"encoder_decoder": ["<bos>"], "decoder_only": ["3", "1", "4", "<sep>"]}[architecture]
        assert shown.tokens["target"] == [[*before, *answer.split()]]
        for one, other in zip(shown.decoder + shown.cross, given.decoder + given.cross, strict=True):
            assert torch.equal(one, other)


def silent(predictor: Predictor) -> Predictor:
    """The same model, whose every output is the end token."""
    predictor = copy.deepcopy(predictor)
    head = predictor.model.head
    with torch.no_grad():
        head.weight.zero_()
    end = predictor.tokenizer.special.eos
    head.register_forward_hook(lambda module, args, out: out + torch.eye(out.size(-1))[end])
    return predictor


@each_decoder
def test_an_empty_output_has_attention_maps(architecture: str, tmp_path: Path) -> None:
    predictor = silent(built(architecture))
    assert predictor.generate("3 1 4") == ""
    assert list(predictor.generate("3 1 4", stream=True)) == []
    maps = predictor.attend("3 1 4")
    expected = {"encoder_decoder": ["<bos>"], "decoder_only": ["3", "1", "4", "<sep>"]}[architecture]
    assert maps.tokens["target"] == [expected]
    maps.save_png(tmp_path / "maps.png")
    assert (tmp_path / "maps.png").stat().st_size


@each_architecture
def test_a_batch_has_the_maps_of_its_rows(architecture: str) -> None:
    predictor = built(architecture)
    questions, answers = ["3 1 4 1", "5"], ["2 0 1 2", "0"]
    together = predictor.attend(questions, answers)
    for row, (question, answer) in enumerate(zip(questions, answers, strict=True)):
        alone = predictor.attend(question, answer)
        for kind in ("encoder", "decoder", "cross"):
            for one, other in zip(getattr(alone, kind), getattr(together, kind), strict=True):
                queries, keys = one.shape[2:]
                assert torch.allclose(other[row, :, :queries, :keys], one[0], atol=1e-5)
                assert (other[row, :, :queries, keys:] == 0).all()


def test_arguments_that_do_not_go_together_are_refused() -> None:
    for architecture in EVERY:
        for use in (built(architecture).attend, built(architecture).score):
            with pytest.raises(ValueError, match="as many targets as texts"):
                use(["3", "4"], ["5"])  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="no separate target"):
        built(text=True).attend("abc", "d")
    with pytest.raises(ValueError, match="stream=True takes one prompt"):
        built().generate(["3", "4"], stream=True)  # type: ignore[call-overload]
    with pytest.raises(TypeError, match="'max_length'"):
        built().generate("3", max_length=4)


# ---- scores ----------------------------------------------------------------------------------------------------------


def looped(predictor: Predictor, question: str, target: str, ends: bool) -> float:
    """The sum of log-probabilities, token by token."""
    answer = predictor.tokenizer.encode(target)
    logits = forward(predictor, question, answer)
    ids = [*answer, predictor.tokenizer.special.eos] if ends else answer
    return sum(float(logits[place].log_softmax(dim=0)[token]) for place, token in enumerate(ids))


@each_decoder
def test_a_score_is_the_log_probability_of_the_answer_and_its_end(architecture: str) -> None:
    predictor = built(architecture)
    for question, target in (("3 1 4", "4 1 3"), ("5", "0 2 6 6 1"), ("0 2 6", "")):
        assert predictor.score(question, target) == pytest.approx(looped(predictor, question, target, True), rel=1e-4)


def test_a_score_of_an_encoder_is_place_by_place() -> None:
    predictor = built("encoder_only")
    for question, target in (("3 1 4", "4 1 3"), ("5", "0")):
        assert predictor.score(question, target) == pytest.approx(looped(predictor, question, target, False), rel=1e-4)


def test_a_score_of_a_text_is_that_of_its_continuation() -> None:
    predictor = built(text=True)
    for beginning, rest in (("ab", "cde"), ("a", "b"), ("abc def", "g\n ")):
        assert predictor.score(beginning, rest) == pytest.approx(looped(predictor, beginning, rest, False), rel=1e-4)
    assert predictor.score("abc", "") == 0.0


@each_writer
def test_a_list_is_scored_as_its_parts(architecture: str, text: bool) -> None:
    predictor = built(architecture, text=text)
    questions = prompts(predictor)
    targets = ["c", "ab de", "fg"] if text else ["4", "1 2 3 4", "6 0"]
    alone = [predictor.score(question, target) for question, target in zip(questions, targets, strict=True)]
    assert predictor.score(questions, targets) == pytest.approx(alone, rel=1e-4)
    assert isinstance(alone[0], float)
    assert isinstance(predictor.score(questions[:1], targets[:1]), list)


@pytest.mark.parametrize("target", ["1", "1 2 3 4", ""])
def test_an_encoder_scores_answers_of_its_questions_length_only(target: str) -> None:
    with pytest.raises(ValueError, match=r"as long as|equally long|place by place"):
        built("encoder_only").score("3 1 4", target)


def test_no_texts_have_no_scores() -> None:
    assert [built(architecture).score([], []) for architecture in EVERY] == [[], [], []]
