from __future__ import annotations

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
from minitx.inference.predictor import Predictor
from minitx.inference.text_generation import DEFAULT_NEW_TOKENS
from minitx.interpret.attention_maps import KINDS
from minitx.models.transformers import ARCHITECTURES
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
    forward,
    ids,
    prompts,
    trained,
)

Maker = Callable[..., Predictor]


@pytest.fixture(scope="module")
def make(tmp_path_factory: pytest.TempPathFactory) -> Maker:
    """make(architecture, text=..., seed=..., ends=..., **model): a predictor loaded from a file; do not change it."""
    known: dict[str, Predictor] = {}

    def load(architecture: str = "decoder_only", **options: Any) -> Predictor:
        key = repr((architecture, sorted(options.items(), key=str)))
        if key not in known:
            path = tmp_path_factory.mktemp("model") / "model.ckpt"
            checkpoint.write(trained(architecture, **options), path)
            known[key] = minitx.load(path, device="cpu")
        return known[key]

    return load


# ---- loading ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("architecture", EVERY)
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
    "a weight is missing": lambda c: c["state_dict"].pop("model.embedding.table.weight"),
    "a weight too many": lambda c: c["state_dict"].update({"model.extra": torch.ones(1)}),
    "a weight of another shape": lambda c: c["state_dict"].update({"model.embedding.table.weight": torch.ones(3, 16)}),
    "weights that are none": lambda c: c.update(state_dict={"model.embedding.table.weight": "x"}),
    "no dictionary of weights": lambda c: c.update(state_dict=[1, 2]),
    "another width": lambda c: c["minitx"]["config"]["model"].update(d_model=32),
    "another architecture": lambda c: c["minitx"]["config"]["model"].update(architecture="encoder_decoder"),
    "an unknown architecture": lambda c: c["minitx"]["config"]["model"].update(architecture="gpt"),
    "an unknown key": lambda c: c["minitx"]["config"]["model"].update(d_modle=32),
    "an unknown task": lambda c: c["minitx"]["config"]["data"].update(name="revers"),
    "an option that the task does not have": lambda c: c["minitx"]["config"]["data"].update(symbol=3),
    "an unknown position scheme": lambda c: c["minitx"]["config"]["model"].update(position={"name": "zzz"}),
    "no task": lambda c: c["minitx"]["config"].update(data={}),
    "no config": lambda c: c["minitx"].update(config=None),
    "a config that is no mapping": lambda c: c["minitx"].update(config=[1]),
    "a tokenizer that is none": lambda c: c["minitx"].update(tokenizer={"model": {}}),
    "a larger tokenizer": lambda c: c["minitx"].update(tokenizer=CHARACTERS.to_dict()),
}


@pytest.mark.parametrize("what", BROKEN)
def test_parts_that_do_not_fit_are_one_sentence(tmp_path: Path, what: str) -> None:
    contents, path = trained("decoder_only"), tmp_path / "broken.ckpt"
    BROKEN[what](contents)
    torch.save(contents, path)
    with pytest.raises(ValueError, match=r"is damaged, or its parts do not fit together: .") as caught:
        minitx.load(path, device="cpu")
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "device",
    [
        "gpu",
        pytest.param("cuda", marks=pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")),
    ],
)
def test_a_device_that_is_not_there_is_not_the_files_fault(tmp_path: Path, device: str) -> None:
    checkpoint.write(trained("decoder_only"), tmp_path / "model.ckpt")
    with pytest.raises(ValueError, match=device) as caught:
        minitx.load(tmp_path / "model.ckpt", device=device)
    assert "damaged" not in str(caught.value)


# ---- generating ------------------------------------------------------------------------------------------------------

EACH_WRITER = pytest.mark.parametrize(
    ("architecture", "text"), [("decoder_only", False), ("encoder_decoder", False), ("decoder_only", True)]
)


@EACH_WRITER
@pytest.mark.parametrize("seed", [1, 2])
def test_greedy_writing_is_the_most_likely_token_again_and_again(
    make: Maker, architecture: str, text: bool, seed: int
) -> None:
    predictor = make(architecture, text=text, seed=seed)
    special = predictor.tokenizer.special
    for question in prompts(predictor):
        written: list[int] = []
        # Of a text as many tokens as fit into its block: beyond that, the model no longer looks back on everything.
        limit = BLOCK - len(question) + 1 if text else 7
        while len(written) < limit and special.eos not in written:
            written.append(int(forward(predictor, question, written)[-1].argmax()))
        expected = predictor.tokenizer.decode(written)
        assert predictor.generate(question, max_new_tokens=limit) == expected


@pytest.mark.parametrize("seed", [1])
def test_an_encoder_answers_place_by_place(make: Maker, seed: int) -> None:
    predictor = make("encoder_only", seed=seed)
    for question in prompts(predictor):
        expected = forward(predictor, question, []).argmax(dim=-1).tolist()
        assert predictor.generate(question) == predictor.tokenizer.decode(expected)


@pytest.mark.parametrize("architecture", EVERY)
def test_a_text_for_a_text_and_a_list_for_a_list(make: Maker, architecture: str) -> None:
    predictor = make(architecture)
    assert isinstance(predictor.generate("3 1 4"), str)
    for several in (["3 1 4"], ["3 1 4", "5"], ("3 1 4", "5"), (text for text in ["3 1 4"])):
        answers = predictor.generate(several)  # type: ignore[call-overload]
        assert isinstance(answers, list)
        assert answers[0] == predictor.generate("3 1 4")
    assert predictor.generate([]) == []


@pytest.mark.parametrize("architecture", EVERY)
@pytest.mark.parametrize("seed", [1])
def test_company_changes_no_answer(make: Maker, architecture: str, seed: int) -> None:
    predictor = make(architecture, seed=seed)
    questions = prompts(predictor)
    alone = [predictor.generate(question) for question in questions]
    assert predictor.generate(questions) == alone
    assert predictor.generate(questions[::-1]) == alone[::-1]
    assert len(set(alone)) == len(alone), "different questions are answered differently"


@pytest.mark.parametrize("architecture", WRITING)
def test_by_default_the_longest_answer_of_the_task_has_room_and_its_end(make: Maker, architecture: str) -> None:
    predictor = make(architecture, ends=False)
    assert len(predictor.generate("3").split()) == LONGEST + 1, "where the end should be, it writes something else"
    longer = " ".join(["3"] * 20)
    assert len(predictor.generate(longer).split()) == 21, "nor is a longer question cut short"


def test_by_default_a_text_goes_on_for_a_while(make: Maker) -> None:
    predictor = make(text=True, ends=False)
    assert len(predictor.generate("abc")) == DEFAULT_NEW_TOKENS > BLOCK


def test_only_the_last_block_of_a_long_text_is_read(make: Maker) -> None:
    predictor = make(text=True, ends=False)
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


@EACH_WRITER
@pytest.mark.parametrize("seed", [1])
@pytest.mark.parametrize("options", [{}, {"do_sample": True, "seed": 5, "temperature": 2.0}])
def test_pieces_join_to_the_whole(make: Maker, architecture: str, text: bool, seed: int, options: dict) -> None:
    predictor = make(architecture, text=text, seed=seed)
    for question in prompts(predictor):
        pieces = list(predictor.generate(question, stream=True, max_new_tokens=20, **options))
        assert "".join(pieces) == predictor.generate(question, max_new_tokens=20, **options)
        assert all(pieces), "no piece is empty"


def test_pieces_come_as_they_are_written(make: Maker) -> None:
    predictor = make(text=True, ends=False)
    pieces = predictor.generate("abc", stream=True, max_new_tokens=10**9)
    assert len([next(pieces) for _ in range(5)]) == 5


def test_a_stream_is_of_one_prompt(make: Maker) -> None:
    with pytest.raises(ValueError, match="stream=True takes one prompt"):
        make().generate(["3", "4"], stream=True)  # type: ignore[call-overload]


# ---- sampling --------------------------------------------------------------------------------------------------------


@EACH_WRITER
def test_a_seed_makes_sampling_repeatable(make: Maker, architecture: str, text: bool) -> None:
    predictor = make(architecture, text=text, ends=False)
    question = prompts(predictor)[0]

    def draw(seed: int | None, **options: Any) -> str:
        return predictor.generate(question, do_sample=True, seed=seed, max_new_tokens=12, temperature=2.0, **options)

    assert draw(1) == draw(1)
    assert draw(1, top_k=4, top_p=0.9, min_p=0.05) == draw(1, top_k=4, top_p=0.9, min_p=0.05)
    assert len({draw(seed) for seed in range(3)}) > 1
    assert len({draw(None) for _ in range(3)}) > 1, "without a seed a draw is not the one before"


def test_sampling_leaves_the_global_generator_alone(make: Maker) -> None:
    predictor = make()
    for seed in (1, None):
        torch.manual_seed(3)
        expected = torch.rand(2)
        torch.manual_seed(3)
        predictor.generate("3 1", do_sample=True, seed=seed)
        assert torch.equal(torch.rand(2), expected)


@EACH_WRITER
def test_one_candidate_left_is_greedy(make: Maker, architecture: str, text: bool) -> None:
    predictor = make(architecture, text=text)
    for question in prompts(predictor):
        for options in ({"top_k": 1}, {"top_p": 1e-6}, {"min_p": 1.0}, {"temperature": 1e-4}):
            assert predictor.generate(question, do_sample=True, **options) == predictor.generate(question)


# ---- prompts that will not do ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("architecture", EVERY)
def test_an_unknown_symbol_is_refused_with_the_alphabet(make: Maker, architecture: str) -> None:
    predictor = make(architecture)
    for use in (predictor.generate, predictor.attend, lambda text: predictor.score(text, "1")):
        for prompt in ("3 9", "<eos>"):
            with pytest.raises(ValueError, match="alphabet, which is: 0 1 2 3 4 5 6"):
                use(prompt)


@pytest.mark.parametrize("prompt", ["", " \n", ["3", ""]])
@pytest.mark.parametrize("architecture", EVERY)
def test_an_empty_prompt_is_refused(make: Maker, architecture: str, prompt: str | list[str]) -> None:
    predictor = make(architecture)
    for use in (predictor.generate, predictor.attend):
        with pytest.raises(ValueError, match="the prompt is empty"):
            use(prompt)  # type: ignore[operator]


def test_an_unknown_argument_is_refused_by_name(make: Maker) -> None:
    with pytest.raises(TypeError, match="'max_length'"):
        make().generate("3", max_length=4)


# ---- a table of learned positions that ends --------------------------------------------------------------------------


@pytest.mark.parametrize("architecture", EVERY)
def test_a_prompt_past_the_table_is_refused_with_the_key(make: Maker, architecture: str) -> None:
    predictor = make(architecture, position={"name": "learned", "max_len": 4})
    for use in (predictor.generate, predictor.attend, lambda text: predictor.score(text, text)):
        with pytest.raises(ValueError, match=r"model\.position\.max_len.* 4"):
            use("3 1 4 1 5")


@pytest.mark.parametrize(("architecture", "room"), [("decoder_only", 3), ("encoder_decoder", 5)])
def test_as_much_is_written_as_the_table_has_room_for_and_no_more(make: Maker, architecture: str, room: int) -> None:
    # Of five places, a decoder alone reads "3 1 <sep>" and two of the three words after it: the last is not read again.
    # One with an encoder reads <bos> and four of five.
    predictor = make(architecture, ends=False, position={"name": "learned", "max_len": 5})
    assert len(predictor.generate("3 1", max_new_tokens=room).split()) == room
    with pytest.raises(ValueError, match=rf"max_new_tokens must be at most {room}.*model\.position\.max_len.* 5"):
        predictor.generate("3 1", max_new_tokens=room + 1)
    assert len(predictor.generate("3 1").split()) == room, "the default is what there is room for"
    whole = predictor.generate("3 1")
    assert predictor.generate(["3 1", "4 5"])[0] == whole


def test_a_text_goes_on_past_a_table_as_long_as_its_block(make: Maker) -> None:
    predictor = make(text=True, ends=False, position={"name": "learned", "max_len": BLOCK})
    assert len(predictor.generate("abc", max_new_tokens=30)) == 30
    assert len(predictor.generate("abcdefg " * 4, max_new_tokens=30)) == 30


# ---- attention -------------------------------------------------------------------------------------------------------


def check_maps(maps: list[Tensor], shape: tuple[int, ...]) -> None:
    assert [tuple(weights.shape) for weights in maps] == [shape] * LAYERS
    for weights in maps:
        assert torch.allclose(weights.sum(dim=-1), torch.ones(shape[:-1]), atol=1e-5), "each row is a distribution"
        assert (weights >= 0).all()


def check_causal(maps: list[Tensor]) -> None:
    for weights in maps:
        assert (weights.triu(1) == 0).all()


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
    make: Maker, architecture: str, text: bool, asked: tuple[str, ...], tokens: dict[str, str]
) -> None:
    maps = make(architecture, text=text).attend(*asked)
    assert maps.tokens == {side: [labels.split(" ")] for side, labels in tokens.items()}
    source, target = (len(tokens.get(side, "").split(" ")) for side in ("source", "target"))
    shapes = {"encoder": (source, source), "decoder": (target, target), "cross": (target, source)}
    for kind, (queries, keys) in shapes.items():
        if all(side in tokens for side in KINDS[kind]):
            check_maps(getattr(maps, kind), (1, H, queries, keys))
        else:
            assert getattr(maps, kind) == []
    check_causal(maps.decoder)


@pytest.mark.parametrize("architecture", WRITING)
def test_without_a_target_the_models_own_answer_is_shown(make: Maker, architecture: str) -> None:
    for seed in (1, 2, 3):
        predictor = make(architecture, seed=seed)
        answer = predictor.generate("3 1 4")
        shown, given = predictor.attend("3 1 4"), predictor.attend("3 1 4", answer)
        assert shown.tokens == given.tokens
        before = {"encoder_decoder": ["<bos>"], "decoder_only": ["3", "1", "4", "<sep>"]}[architecture]
        assert shown.tokens["target"] == [[*before, *answer.split()]]
        for one, other in zip(shown.decoder + shown.cross, given.decoder + given.cross, strict=True):
            assert torch.equal(one, other)


def silent(predictor: Predictor) -> Predictor:
    """The same model, but all that it ever writes is the end."""
    predictor = copy.deepcopy(predictor)
    head = predictor.model.head
    with torch.no_grad():
        head.weight.zero_()
    end = predictor.tokenizer.special.eos
    head.register_forward_hook(lambda module, args, out: out + torch.eye(out.size(-1))[end])
    return predictor


@pytest.mark.parametrize("architecture", WRITING)
def test_a_model_that_says_nothing_can_be_looked_into(make: Maker, architecture: str, tmp_path: Path) -> None:
    predictor = silent(make(architecture))
    assert predictor.generate("3 1 4") == ""
    assert list(predictor.generate("3 1 4", stream=True)) == []
    maps = predictor.attend("3 1 4")
    expected = {"encoder_decoder": ["<bos>"], "decoder_only": ["3", "1", "4", "<sep>"]}[architecture]
    assert maps.tokens["target"] == [expected]
    maps.save_png(tmp_path / "maps.png")
    assert (tmp_path / "maps.png").stat().st_size


@pytest.mark.parametrize("architecture", EVERY)
def test_a_batch_is_looked_into_as_its_rows_are(make: Maker, architecture: str) -> None:
    predictor = make(architecture)
    questions, answers = ["3 1 4 1", "5"], ["2 0 1 2", "0"]
    together = predictor.attend(questions, answers)
    for row, (question, answer) in enumerate(zip(questions, answers, strict=True)):
        alone = predictor.attend(question, answer)
        for kind in ("encoder", "decoder", "cross"):
            for one, other in zip(getattr(alone, kind), getattr(together, kind), strict=True):
                queries, keys = one.shape[2:]
                assert torch.allclose(other[row, :, :queries, :keys], one[0], atol=1e-5)
                assert (other[row, :, :queries, keys:] == 0).all(), "padding gets no weight"


def test_a_text_has_no_target(make: Maker) -> None:
    with pytest.raises(ValueError, match="no separate target"):
        make(text=True).attend("abc", "d")


@pytest.mark.parametrize("architecture", EVERY)
def test_as_many_targets_as_texts_are_needed(make: Maker, architecture: str) -> None:
    predictor = make(architecture)
    for use in (predictor.attend, predictor.score):
        with pytest.raises(ValueError, match="as many targets as texts"):
            use(["3", "4"], ["5"])  # type: ignore[arg-type]


# ---- scores ----------------------------------------------------------------------------------------------------------


def looped(predictor: Predictor, question: str, target: str, ends: bool) -> float:
    """The sum of log-probabilities, token by token."""
    answer = ids(predictor.tokenizer, target)
    logits = forward(predictor, question, answer)
    said = [*answer, predictor.tokenizer.special.eos] if ends else answer
    return sum(float(logits[place].log_softmax(dim=0)[token]) for place, token in enumerate(said))


@pytest.mark.parametrize("architecture", WRITING)
def test_a_score_is_the_log_probability_of_the_answer_and_its_end(make: Maker, architecture: str) -> None:
    predictor = make(architecture)
    for question, target in (("3 1 4", "4 1 3"), ("5", "0 2 6 6 1"), ("0 2 6", "")):
        assert predictor.score(question, target) == pytest.approx(looped(predictor, question, target, True), rel=1e-4)


def test_a_score_of_an_encoder_is_place_by_place(make: Maker) -> None:
    predictor = make("encoder_only")
    for question, target in (("3 1 4", "4 1 3"), ("5", "0")):
        assert predictor.score(question, target) == pytest.approx(looped(predictor, question, target, False), rel=1e-4)


def test_a_score_of_a_text_is_of_how_it_goes_on(make: Maker) -> None:
    predictor = make(text=True)
    for beginning, rest in (("ab", "cde"), ("a", "b"), ("abc def", "g\n ")):
        assert predictor.score(beginning, rest) == pytest.approx(looped(predictor, beginning, rest, False), rel=1e-4)
    assert predictor.score("abc", "") == 0.0, "what says nothing is certain"


@EACH_WRITER
def test_a_list_is_scored_as_its_parts(make: Maker, architecture: str, text: bool) -> None:
    predictor = make(architecture, text=text)
    questions = prompts(predictor)
    targets = ["c", "ab de", "fg"] if text else ["4", "1 2 3 4", "6 0"]
    alone = [predictor.score(question, target) for question, target in zip(questions, targets, strict=True)]
    assert predictor.score(questions, targets) == pytest.approx(alone, rel=1e-4)
    assert isinstance(alone[0], float)
    assert isinstance(predictor.score(questions[:1], targets[:1]), list)


@pytest.mark.parametrize("target", ["1", "1 2 3 4", ""])
def test_an_encoder_scores_answers_of_its_questions_length_only(make: Maker, target: str) -> None:
    with pytest.raises(ValueError, match=r"as long as|equally long|place by place"):
        make("encoder_only").score("3 1 4", target)


@pytest.mark.parametrize("architecture", EVERY)
def test_no_texts_have_no_scores(make: Maker, architecture: str) -> None:
    assert make(architecture).score([], []) == []
