"""What the page shows is what the model computes: the text of generate, its logits, its beams, forced tokens."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch

import minitx
from huggingface.hf_models import CASES, TEXT, save
from minitx.cli.main import main
from minitx.config.errors import ConfigError
from minitx.config.schema import config_from_dict
from minitx.generation.options import GenerationOptions
from minitx.inference.predictor import Predictor
from minitx.interpret.intervene import head_mask
from minitx.interpret.recording import KINDS
from minitx.playground.beam_tree import beam_tree
from minitx.playground.inspection import Explain, Look
from minitx.playground.play_requests import Session, Write
from minitx.playground.written_steps import CANDIDATES, distribution, filled, written
from predictors import built, masked, untrained

PROMPTS = {"decoder_only": "1 2 3 4", "prefix_lm": "1 2 3 4", "encoder_decoder": "1 2 3 4", "text": "abc de"}
every_writer = pytest.mark.parametrize("name", PROMPTS)
SAMPLED = {"do_sample": True, "temperature": 1.3, "top_k": 6, "top_p": 0.95, "min_p": 0.01}


def writer(name: str) -> tuple[Predictor, list[int]]:
    own = {"text": {"text": True}, "prefix_lm": {"prefix_lm": True}}
    predictor = built("decoder_only", **own[name]) if name in own else built(name)
    return predictor, predictor.encode(PROMPTS[name])


def logits_of(step: dict[str, Any]) -> torch.Tensor:
    """In the order of the vocabulary."""
    return torch.tensor(step["logits"])[torch.tensor(step["ids"]).argsort()]


@every_writer
@pytest.mark.parametrize("options", [{}, *({**SAMPLED, "seed": seed} for seed in range(3))], ids=str)
def test_the_text_is_that_of_generate_seed_for_seed(name: str, options: dict[str, Any]) -> None:
    (predictor, prompt), chosen = writer(name), GenerationOptions(**options, max_new_tokens=20)
    _, *steps, end = written(predictor, prompt, chosen, {})
    generated = predictor.generations([prompt], chosen)[0][0]
    assert [step["id"] for step in steps] == generated.ids
    assert (end["text"], end["stopped"]) == (generated.text, generated.stopped)
    assert end["log_probability"] == pytest.approx(generated.log_probability, abs=1e-4)


@every_writer
def test_forced_tokens_are_read_like_generated_ones(name: str) -> None:
    predictor, prompt = writer(name)
    options = GenerationOptions(repetition_penalty=1.2)
    with pytest.raises(ConfigError, match="= 19, got 25"):
        [*written(predictor, prompt, GenerationOptions(max_new_tokens=20), {3: 6, 25: 6})]
    plain = [step["id"] for step in [*written(predictor, prompt, options, {})][1:-1]]
    token = next(id for id in range(6, 12) if id != plain[1])
    _, *steps, end = written(predictor, prompt, options, {1: token})
    ids = [step["id"] for step in steps]
    assert ids[:2] == [plain[0], token]
    if name == "text":  # as with the tokens in the prompt
        assert ids[2:20] == predictor.generations([[*prompt, *ids[:2]]], options)[0][0].ids[:18]
    _, *forced_steps, again = written(predictor, prompt, options, dict(enumerate(ids)))
    assert again["log_probability"] == pytest.approx(end["log_probability"], abs=1e-4), "under the model"
    assert [logits_of(step).tolist() for step in forced_steps] == [logits_of(step).tolist() for step in steps]
    seeded = GenerationOptions(**SAMPLED, seed=3)
    own = [step["id"] for step in [*written(predictor, prompt, seeded, {})][1:-1]]
    assert [step["id"] for step in [*written(predictor, prompt, seeded, {0: own[0]})][1:-1]] == own


@pytest.mark.parametrize("name", ["decoder_only", "encoder_decoder"])
@pytest.mark.parametrize("count", [2, 4, 16])
def test_the_leaves_of_the_tree_are_the_beams_of_generate(name: str, count: int) -> None:
    predictor, prompt = writer(name)
    options = GenerationOptions(num_beams=count, num_return_sequences=count, repetition_penalty=1.2)
    with pytest.raises(ConfigError, match="num_beams"):
        [*written(predictor, prompt, options, {})]
    [tree], expected = beam_tree(predictor, prompt, options), predictor.generations([prompt], options)[0]
    paths: list[list[int]] = []  # of each node, from the first token
    for node in tree["nodes"]:
        before = paths[node["parent"]] if node["parent"] >= 0 else []
        assert predictor.tokenizer.special.eos not in before
        paths.append([*before, node["id"]])
    for beam, one in zip(tree["beams"], expected, strict=True):
        assert (list(beam["ids"]), beam["text"]) == (paths[beam["node"]], one.text) == (one.ids, one.text)
        for shown in (beam, tree["nodes"][beam["node"]]):
            assert shown["log_probability"] == pytest.approx(one.log_probability, abs=1e-4)
    assert max(Counter(map(len, paths)).values()) <= 2 * count  # running and finished ones
    half = expected[0].ids[: len(expected[0].ids) // 2]
    *_, end = written(predictor, prompt, GenerationOptions(max_new_tokens=len(half)), dict(enumerate(half)))
    assert tree["nodes"][paths.index(half)]["log_probability"] == pytest.approx(end["log_probability"], abs=1e-4)


def test_an_encoder_fills_its_places_and_reads_forced_ones() -> None:
    prompt = (predictor := masked()).encode("ab<mask>d <mask>g")
    first, *steps, end = filled(predictor, prompt, {})
    assert (end["text"], first["places"]) == (predictor.generate("ab<mask>d <mask>g"), [2, 5])
    _, forced, other, _ = filled(predictor, prompt, {0: 8})
    torch.testing.assert_close(logits_of(forced), logits_of(steps[0]), atol=1e-4, rtol=1e-4)  # its own prediction
    alone = [*filled(predictor, [*prompt[:2], 8, *prompt[3:]], {})][1]
    torch.testing.assert_close(logits_of(other), logits_of(alone), atol=1e-4, rtol=1e-4)
    assert logits_of(other).tolist() != logits_of(steps[1]).tolist()
    _, one, two, _ = filled(predictor, prompt, {1: 9, 0: 8})  # each reads the other
    torch.testing.assert_close(logits_of(one), logits_of([*filled(predictor, prompt, {1: 9})][1]), atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(logits_of(two), logits_of(other), atol=1e-4, rtol=1e-4)


def test_the_distribution_of_a_large_vocabulary_keeps_its_sum() -> None:
    logits = 4 * torch.randn(3000)
    order = logits.argsort(descending=True).tolist()
    found = distribution(logits, order[2000])
    assert found["ids"] == [*order[: CANDIDATES - 1], order[2000]]
    rest = sum(count * torch.tensor(mean).exp() for mean, count in found["rest"])
    total = torch.tensor(found["logits"]).exp().sum() + rest
    assert float(total.log()) == pytest.approx(float(logits.logsumexp(0)), abs=1e-3)
    assert sum(count for _, count in found["rest"]) == 3000 - CANDIDATES
    logits[order[2000]] = -torch.inf  # forced, though impossible
    found = distribution(logits, order[2000])
    assert found["logits"] == pytest.approx(logits[found["ids"]].tolist(), abs=1e-4)


def explained(predictor: Predictor, first: dict[str, Any], read: list[int], **fields: Any) -> dict[str, Any]:
    request = Explain(prompt="", source=first["source"], target=read, prompt_tokens=len(first["target"]), **fields)
    [found] = request.compute(Session(predictor), [])
    return found


@pytest.mark.parametrize("name", [*PROMPTS, "decoder_only, empty", "encoder_decoder, empty"])
def test_the_inside_of_a_step_ends_in_its_logit(name: str) -> None:
    """The last row of each lens, of one forward, is the step's distribution; the parts add up to its logit.

    Of running text too, which is longer than the context: its cache is rebuilt from the last half.
    """
    predictor, prompt = writer(name.removesuffix(", empty"))
    prompt = [] if name.endswith("empty") else prompt
    first, *steps, _ = written(predictor, prompt, GenerationOptions(max_new_tokens=12), {})
    assert (len({step["start"] for step in steps}) > 1) == (name == "text")
    ids = [*first["target"], *(step["id"] for step in steps)]
    for number, step in enumerate(steps):
        read = ids[step["start"] : len(first["target"]) + number]
        found = explained(predictor, first, read, index=-1, token=step["id"])
        shares = logits_of(step).softmax(dim=0)
        for rows in filter(None, (found["lens"], found["encoder"])):
            assert len(rows) == 1 + len(predictor.model.decoder.layers)
            assert (rows[-1]["rank"], rows[-1]["share"]) == (1, pytest.approx(float(shares[step["id"]]), abs=1e-4))
            assert [share for _, share in rows[-1]["tokens"]] == pytest.approx(shares.topk(5).values.tolist(), abs=1e-4)
        assert sum(value for _, value in found["parts"]) == pytest.approx(max(step["logits"]), abs=1e-3)


@pytest.mark.parametrize("most", [3, 128])
@every_writer
def test_maps_begin_with_the_tokens_that_they_name_first(name: str, most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of the last step: from the first token in the cache, or the last ones of many."""
    monkeypatch.setattr("minitx.playground.inspection.MAX_MAP_TOKENS", most)
    predictor, prompt = writer(name)
    first, *steps, _ = written(predictor, prompt, GenerationOptions(max_new_tokens=20), {})
    target = [*first["target"], *(step["id"] for step in steps[:-1])][steps[-1]["start"] :]
    read = {"source": first["source"], "target": target}
    [found] = Look(prompt="", **read, prompt_tokens=len(first["target"])).compute(Session(predictor), [])
    for tag, maps in found["runs"]["model"].items():
        for side, axis in zip(KINDS[tag.removesuffix("/text")], ("queries", "keys"), strict=True):
            assert maps["0"][0][axis] == predictor.tokenizer.tokens(read[side][found["first"][side] :])


def test_the_inside_of_a_mask_ends_in_its_probability_and_that_of_no_tokens_is_one_sentence() -> None:
    predictor = masked()
    first, *steps, _ = filled(predictor, predictor.encode("ab<mask>d <mask>g"), {})
    for place, step in zip(first["places"], steps, strict=True):
        found = explained(predictor, first, [1], index=place, token=step["id"])  # an encoder reads no target
        # With special tokens, which never fill a mask.
        assert found["lens"][-1]["share"] <= float(logits_of(step).softmax(dim=0).max()) + 1e-4
    capped = explained(built(logit_softcap=2.0), {"source": [], "target": []}, [1], index=-1, token=1)
    assert (found["softcap"], capped["softcap"]) == (None, 2.0)
    for name, read in (("encoder_decoder", ([], [1])), ("encoder_decoder", ([1], [])), ("encoder_only", ([], [1]))):
        with pytest.raises(ConfigError, match="and at least one"):
            explained(built(name), {"source": read[0], "target": []}, read[1], index=-1, token=1)


@pytest.mark.parametrize("name", ["decoder_only", "encoder_decoder"])
def test_switched_heads_are_those_of_head_mask_and_stay_on_afterwards(name: str) -> None:
    predictor, prompt = writer(name)
    session = Session(predictor)

    def ids(**fields: Any) -> list[dict[str, Any]]:
        return [*Write(prompt=PROMPTS[name], **fields).answer(session)][1:-2]

    before, without = ids(), ids(off=["decoder.1.2"])
    with head_mask(predictor.model, {"decoder.layers.0.self_attn": [1, 0]}):
        expected = [*written(predictor, prompt, GenerationOptions(), {})][1:-1]
    assert without == expected != before
    assert before != ids(mean=["decoder.1.2", "decoder.2.ffn"]) != without
    with pytest.raises(ConfigError, match=r"did you mean decoder\.2\.ffn"):
        ids(off=["decoder.2.fn"])
    assert ids() == before


def test_the_right_answers_of_examples_are_known() -> None:
    session = Session(predictor := built("encoder_decoder"))
    for prompt in ("1 2 3", *(str(example["prompt"]) for example in session.examples)):
        ids = predictor.encode(prompt)
        assert session.right_answer(prompt, ids) == ids[::-1]
    assert Session(built("decoder_only", text=True)).examples == []  # its file is not there
    chain = untrained(config_from_dict({"data": {"name": "markov"}, "model": {"architecture": "decoder_only"}}))
    assert [len(chain.encode(str(each["prompt"]))) for each in Session(chain).examples] == [32] * 3, "half a block"


@pytest.mark.parametrize(
    ("data", "prompt", "answer"),
    [({"name": "dyck"}, "( ( ( ( (", ") ) ) ) )"), ({"name": "dyck"}, ") ] )", None),  # no question of the task
     ({"name": "dyck", "length": [1, 3], "depth": 8}, "( ( ( ( [", "] ) ) ) )"),
     ({"name": "counting", "symbols": 50}, "0 40", " ".join(map(str, range(41)))),
     ({"name": "counting"}, "3 4 7", "3 4 5 6 7"),
     ({"name": "induction", "length": [3, 6]}, "3 1 2 4 5 6 7 8 9 3", "1 2 4 5 6 7 8 9")],
)  # fmt: skip
def test_right_answers_beyond_the_trained_lengths(data: dict[str, Any], prompt: str, answer: str | None) -> None:
    predictor = untrained(config_from_dict({"data": data, "model": {"d_model": 16, "n_heads": 2}}))
    *_, found = Write(prompt=prompt).answer(Session(predictor))
    assert found == {"answer": None if answer is None else predictor.encode(answer), "answer_text": answer}


FORCED = ("bart-forced", "marian")
"""Cases whose generation config forces or forbids tokens, so that a written one need not be the model's likeliest."""


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_imported_models_write_as_by_generate_and_each_step_can_be_looked_into(name: str, tmp_path: Path) -> None:
    save(name, tmp_path / "hf")
    main(["import", str(tmp_path / "hf"), "--out", str(tmp_path / "ours.ckpt")])
    predictor = minitx.load(tmp_path / "ours.ckpt", device="cpu")
    session = Session(predictor)
    assert (bool(session.description()["parts"]), session.examples, session.has_data) == (True, [], False)
    prompt = TEXT[0].replace(TEXT[0].split()[0], "<mask>") if predictor.task.kind == "masked" else TEXT[0]
    first, *steps, end, answer = Write(prompt=prompt).answer(session)
    assert (answer, end["text"]) == ({"answer": None, "answer_text": None}, predictor.generate(prompt))
    number = len(steps) - 1
    places, start = first.get("places"), steps[number]["start"]
    read = [] if places else [*first["target"], *(step["id"] for step in steps[:number])][start:]
    common = {"prompt": prompt, "source": first["source"], "target": read, "prompt_tokens": len(first["target"])}
    [maps] = Look(**common).answer(session)
    assert maps["runs"]["model"]
    index = places[number] if places else -1
    [found] = Explain(**common, index=index, token=steps[number]["id"]).answer(session)
    if not places and name not in FORCED:
        assert found["lens"][-1]["rank"] == 1
