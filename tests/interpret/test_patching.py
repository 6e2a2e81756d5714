"""Patching equals a loop over interventions; all clean values restore everything; the direct path alone is a path."""

import json
import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from torch import Tensor

from minitx.config.errors import ConfigError
from minitx.data.tokenizers import symbols
from minitx.inference.predictor import Predictor
from minitx.interpret import patching
from minitx.interpret.intervene import at, intervene
from minitx.interpret.patch_map import ALL
from minitx.interpret.patching import Patch, head_patches, patched_inputs, patched_logits
from minitx.interpret.trace import trace
from predictors import EVERY, KINDS_OF, built, masked
from small_models import build_tiny, close, draw, every_architecture
from web_pages import page_data

pytestmark = pytest.mark.usefixtures("no_grad")

ANSWERS = ("0 1 0 0 0", "0 2 0 0 0")
DECODER, ALONE, ENCODER, MASKED = built(), built(d_ff=0), built("encoder_only"), masked()
"""ALONE is a decoder of attention alone."""
TWO = ("3 1", "3 2")


def pair(architecture: str) -> list[dict[str, Tensor]]:
    if architecture == "encoder_decoder":
        return [{"src_ids": draw(1, 5), "tgt_ids": draw(1, 4)} for _ in range(2)]
    return [{"ids": draw(1, 5)} for _ in range(2)]


@every_architecture
def test_parts_and_networks_as_by_a_loop_over_interventions(architecture: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A few patches at a time; none, and all that the stacks read, which restores everything."""
    monkeypatch.setattr(patching, "MAX_PATCHED_TOKENS", 30)
    model: Any = build_tiny(architecture, "rope")
    clean, corrupted = pair(architecture)
    with trace(model, only=["*attn.*", "*.ffn.*", "*.layers.0.resid_pre"]) as values:
        expected = model(**clean)[0, -1]
    parts = ((0, 1), (2, 2))  # heads or neurons, each with its position first
    patches = [[Patch(each, *place)] for each in values if not each.endswith(("out", "pre")) for place in parts]
    patches += [[Patch(each, 2)] for each in values if each.endswith("ffn.out")]
    patches += [[patches[0][0], patches[3][0]], [], [Patch(each) for each in values if each.endswith("resid_pre")]]
    found = patched_logits(model, corrupted, values, patches, position=2)
    close(patched_logits(model, corrupted, values, patches[-1:])[0], expected)  # by default the last position
    with pytest.raises(ConfigError, match="the trace has no"):  # the values of a pattern would be several
        patched_logits(model, corrupted, values, [[Patch("*.0.ffn.out")]])
    assert len({*map(tuple, found.round(decimals=4).tolist())}) > len(patches) / 2, "patches matter"
    for several, logits in zip(patches, found, strict=True):
        changes = {patch.name: at(values[patch.name], patch.position, patch.head) for patch in several}
        with intervene(model, {name: change._replace(dims="HGF") for name, change in changes.items()}):
            close(logits, model(**corrupted)[0, 2])


def test_a_path_leads_directly_from_one_head_to_the_keys_of_another() -> None:
    """What a head adds, added to the input of k_proj alone, two layers later."""
    model: Any = build_tiny("decoder_only", "rope", n_layers=3, n_kv_heads=2)
    clean, corrupted = pair("decoder_only")
    sender, reader = "decoder.layers.0.self_attn", "decoder.layers.2"
    result, stream, keys = f"{sender}.result", f"{reader}.resid_pre", f"{reader}.self_attn.k"
    found = patching.path_values(model, clean, corrupted, Patch(f"{sender}.z", None, 1))[keys]
    with trace(model, only=result) as other:
        model(**clean)
    with trace(model, only=[result, stream]) as own:
        model(**corrupted)
    layer = model.decoder.layers[2]
    expected = layer.self_attn.k_proj(layer.add_norm_self.norm(own[stream] + (other[result] - own[result])[:, :, 1]))
    handle = layer.self_attn.k_proj.register_forward_hook(lambda *_: expected)
    with trace(model, only=keys) as t:
        model(**corrupted)
    handle.remove()
    close(found, t[keys])
    for part in "kv":  # which heads share as test_trace.py repeats them
        received = [patching.part_patch(model, Patch(f"{sender}.z", None, head), part) for head in range(4)]
        assert received == [Patch(f"{sender}.{part}", None, number) for number in (0, 0, 1, 1)]


@pytest.mark.parametrize("sites", patching.SITES)
@pytest.mark.parametrize("architecture", EVERY)
def test_a_map_of_a_text(architecture: str, sites: str, tmp_path: Path) -> None:
    predictor = built(architecture)
    found = predictor.patch("0 2 6 6 1", "0 2 6 6 4", sites=sites, answers=ANSWERS)
    panels = [kind for kind in KINDS_OF[architecture] if kind != "cross" or sites in ("attn", "heads")]
    assert [*found.values] == panels
    inputs = patched_inputs(predictor, "0 2 6 6 1", "0 2 6 6 4", ANSWERS)
    logits = [predictor.model(**each)[0, inputs.position] for each in (inputs.clean, inputs.corrupted)]
    right, wrong = inputs.answers
    close(torch.tensor([found.clean, found.corrupted]), torch.stack([each[right] - each[wrong] for each in logits]))
    assert found.answers == tuple(predictor.tokenizer.tokens(inputs.answers))
    for kind, values in found.values.items():
        assert values.shape == (len(found.rows[kind]), len(found.columns[kind]))
        assert values.isfinite().all()
        assert (found.columns[kind][-1] is ALL) == (sites != "resid"), "the whole stream would restore everything"
    assert {"6", "1/4"} <= {*found.columns[panels[0]]}
    if sites == "resid":
        last = found.values[KINDS_OF[architecture][min(1, len(panels) - 1)]][-1]
        assert last[inputs.position] == pytest.approx(1.0, abs=1e-4), "the head reads nothing else"
        assert found.values[panels[0]][0].isclose(torch.tensor(0.0), atol=1e-4).any(), "equal tokens restore nothing"
    if sites == "heads":
        found.save_png(tmp_path / "patch.png")
        assert Image.open(tmp_path / "patch.png").width > 500
    data = page_data(found.page())
    assert [table["name"] for table in data["tables"]] == panels
    (share, kind, row, column), *_ = pickle.loads(pickle.dumps(found)).strongest()
    table, at, place = data["start"]
    cell = data["tables"][table]["cells"][at][place]
    restored = f" {found.corrupted + share * (found.clean - found.corrupted):#.3g}: "
    assert (cell["shown"][0][1], restored in cell["note"]) == (share, True)
    assert ((panels[table], at, place), found.values[kind][row, column]) == ((kind, row, column), share)
    single = {kind: [label is not ALL for label in labels] for kind, labels in found.columns.items()}
    assert share == max(values[:, single[kind]].max() for kind, values in found.values.items()), "of one position"
    assert json.loads(json.dumps(found.to_dict()))["values"][kind][row][column] == share


def test_the_note_has_visible_tokens_and_three_digits() -> None:
    found = replace(ALONE.patch("0 2", "0 1", sites="heads", answers=ANSWERS), answers=(" ", "a"))
    note = replace(found, clean=12.0, corrupted=-12.04).note
    assert note == "logit difference of ␣ against a: 12.0 for the clean text, -12.0 for the corrupted one"


def test_answers_choose_what_is_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    predictor = built("encoder_decoder")
    inputs = patched_inputs(predictor, "3 1", "3 2", ("5 5 1", "5 5 2"))
    assert predictor.tokenizer.tokens(inputs.clean["tgt_ids"][0].tolist()) == ["<bos>", "5", "5"]
    assert (inputs.position, predictor.tokenizer.tokens(inputs.answers)) == (2, ["1", "2"])
    empty = patched_inputs(predictor, "3 1", "3 2", ("1", ""))
    assert (empty.clean["tgt_ids"].size(1), predictor.tokenizer.tokens(empty.answers)) == (1, ["1", "<eos>"])
    long = Predictor(predictor.model, symbols(["a" * 150, "b" * 150, *"cdefg"]), predictor.config)
    found = long.patch(f"{'a' * 150} c", f"{'b' * 150} c", answers=("c", "d"))
    assert found.columns["encoder"][0] == f"{'a' * 98}…/{'b' * 98}…"
    text = built("decoder_only", text=True)
    for continuations, differing in ((("de", "e"), ["d", "e"]), (("ef", "eg"), ["f", "g"])):
        inputs = patched_inputs(text, "abc", "abd", continuations)
        assert text.tokenizer.tokens(inputs.clean["ids"][0].tolist()) == [*"abce"[: 3 + ("ef" in continuations)]]
        assert text.tokenizer.tokens(inputs.answers) == differing
        assert inputs.position in (-1, inputs.clean["ids"].size(1) - 1)
    inputs = patched_inputs(predictor, "3 1", "3 2", ("1", "2"))
    logits = predictor.model(**inputs.corrupted)[0, inputs.position]
    logs = logits.log_softmax(dim=-1)
    for metric, values in (("logit", logits), ("log_probability", logs), ("probability", logs.exp())):
        found = predictor.patch("3 1", "3 2", metric=metric, answers=("1", "2"))
        assert found.corrupted == pytest.approx(values[inputs.answers[0]].item(), rel=1e-4)
    own = patched_inputs(predictor, "5", "0").answers
    monkeypatch.setattr("minitx.data.tokenizers.Tokenizer.decode", lambda *_: "6")  # as bytes may be, and joined words
    assert patched_inputs(predictor, "5", "0").answers == own, "compared by their ids, not by their text"


def test_a_sender_is_patched_into_later_heads() -> None:
    second = ["head 2.1", "head 2.2"]
    for model, first in ({"parallel_residual": True}, []), ({}, ["head 1.1", "head 1.2"]):
        found = built("encoder_decoder", **model).patch("0 2 6", "0 3 6", sender="decoder.1.2", answers=ANSWERS)
        assert found.rows == {"cross": [*first, *second], "decoder": second}
    assert (found.columns["cross"], found.heading[:26]) == (["queries", "keys", "values"], "paths from decoder.1.2 of ")
    assert found.values["cross"][:, 1:].abs().max() < 1e-5, "keys and values come from the encoder"
    encoded = built("encoder_decoder").patch("0 2 6", "0 3 6", sender="encoder.1.2", answers=ANSWERS)
    assert [*encoded.rows] == ["encoder", "cross"], "no self-attention of the decoder reads it directly"
    assert [*head_patches(built("decoder_only").model)] == ["decoder.1.1", "decoder.1.2", "decoder.2.1", "decoder.2.2"]


@pytest.mark.parametrize(("predictor", "texts", "options", "expected"), [
    (DECODER, ("3 1", "3 1 4"), {}, "must have the same number of tokens"),
    (DECODER, ("3 1", "3 1"), {}, "must differ"),
    (DECODER, ("3 1", "3 9"), {}, "9"),
    (DECODER, TWO, {"sites": "head"}, "sites has no choice head: did you mean heads?"),
    (DECODER, TWO, {"metric": "logits"}, "did you mean logit?"),
    (DECODER, TWO, {"sender": "decoder.1.3"}, "this model has no head decoder.1.3: did you mean decoder.1.2?"),
    (DECODER, TWO, {"sender": "decoder.2.1"}, "no head follows decoder.2.1"),
    (DECODER, TWO, {"answers": ("4", "4")}, "the same answer"),
    (DECODER, TWO, {"answers": ("4",)}, "answers: expected two texts"),
    (DECODER, TWO, {"sender": 5}, "this model has no head 5"),
    (ALONE, TWO, {"sites": "ffn"}, "no feed-forward networks"),
    (ENCODER, ("3 1 4", "3 1 5"), {"answers": ("4 1 3 6", "4 1 3 5")}, "must be as long as the text"),
    (ENCODER, ("3 1 4", "3 1 5"), {"answers": ("4 1 3", "4 1 3")}, "two answers that differ"),
    (MASKED, ("<mask>bc", "a<mask>c"), {"answers": ("abc", "bbc")}, "<mask> at the same places"),
    (MASKED, ("abc", "abd"), {}, "<mask> at the same places"),
])  # fmt: skip
def test_bad_input(predictor: Predictor, texts: tuple[str, str], options: dict[str, Any], expected: str) -> None:
    with pytest.raises(ConfigError, match=expected.replace("?", r"\?")) as caught:
        predictor.patch(*texts, **options)
    assert "\n" not in str(caught.value)
