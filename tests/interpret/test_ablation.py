"""Ablation of each head: the metrics equal those of a model with zeros in its output projection."""

import copy
import json

import pytest
import torch
from PIL import Image

from minitx.data.examples import Stream
from minitx.evaluation.metrics import evaluate
from minitx.inference.predictor import Predictor
from minitx.interpret import ablation as ablating
from minitx.interpret.ablation import AblatedHeads, Ablation, HeadName, ablate, head_paths, parse_heads, table
from minitx.plotting.ablation_heatmap import draw_ablation
from minitx.tensorboard.map_format import Named
from predictors import EVERY, LAYERS, H, built

PATHS = {
    "encoder": "encoder.layers.{}.self_attn",
    "decoder": "decoder.layers.{}.self_attn",
    "cross": "decoder.layers.{}.cross_attn",
}
KINDS = {"encoder_decoder": ["encoder", "decoder", "cross"], "decoder_only": ["decoder"], "encoder_only": ["encoder"]}


def without(predictor: Predictor, heads: tuple[HeadName, ...]) -> Predictor:
    """The model with zeros in its output projections for these heads."""
    model = copy.deepcopy(predictor.model)
    for kind, layer, head in heads:
        part = model.get_submodule(PATHS[kind].format(layer - 1))
        with torch.no_grad():
            part.o_proj.weight[:, (head - 1) * part.d_head : head * part.d_head] = 0.0
    return Predictor(model, predictor.tokenizer, predictor.config)


def metrics(predictor: Predictor, examples: int) -> dict[str, float]:
    held_out = predictor.task.examples("test", examples)
    return evaluate(predictor.model, held_out, predictor.architecture, predictor.tokenizer.special).means()


@pytest.mark.parametrize("architecture", EVERY)
def test_each_head_in_turn_is_zero_for_the_output_projection(architecture: str) -> None:
    predictor = built(architecture)
    together = [HeadName(KINDS[architecture][-1], 1, 1), HeadName(KINDS[architecture][0], 2, 2)]
    found = ablate(predictor, examples=20, together=together)
    assert (found.split, found.examples) == ("test", 20)
    assert found.baseline == pytest.approx(metrics(predictor, 20))
    expected = [
        HeadName(kind, layer + 1, head + 1)
        for kind in KINDS[architecture]
        for layer in range(LAYERS)
        for head in range(H)
    ]
    assert sorted(row.heads[0] for row in found.heads) == sorted(expected)
    assert found.groups[-1].heads == tuple(together)
    for row in [*found.heads, found.groups[-1]]:
        assert row.metrics == pytest.approx(metrics(without(predictor, row.heads), 20), abs=1e-5), row.heads
    assert len({row.metrics["loss"] for row in found.heads}) == len(expected), "all heads differ"


def test_running_text_has_no_exact_match(monkeypatch: pytest.MonkeyPatch) -> None:
    predictor, stream = built("decoder_only", text=True), Stream(torch.randint(6, 14, (5, 9)))
    monkeypatch.setattr(predictor.task, "examples", lambda split, limit=None: stream)
    found = ablate(predictor, "validation", 5)
    assert found.baseline.keys() == {"loss", "token_accuracy"}
    assert "token accuracy" in table(found)
    assert "exact match" not in table(found)


def test_heads_with_the_same_pattern_are_ablated_together(monkeypatch: pytest.MonkeyPatch) -> None:
    predictor = built("encoder_decoder")
    names = {
        "encoder": [[None, Named("diagonal", 0.7)], [None, None]],
        "decoder": [[Named("diagonal", 0.9), None], [None, None]],
        "cross": [[Named("diagonal", 0.8), None], [Named("antidiagonal", 0.6), Named("diagonal", 0.75)]],
    }
    monkeypatch.setattr(ablating, "task_statistics", lambda *_: {kind: kind for kind in names})
    monkeypatch.setattr(ablating, "strongest", names.get)
    found = ablate(predictor, examples=10)
    (group,) = found.groups  # neither one head nor heads of two kinds make a group
    assert group.heads == (HeadName("cross", 1, 1), HeadName("cross", 2, 2))
    assert group.named == Named("diagonal", 0.75)
    assert group.metrics == pytest.approx(metrics(without(predictor, group.heads), 10), abs=1e-5)
    by_head = {row.heads[0]: row.named for row in found.heads}
    assert by_head[HeadName("cross", 2, 1)] == Named("antidiagonal", 0.6)
    assert by_head[HeadName("encoder", 1, 2)] == Named("diagonal", 0.7)
    assert by_head[HeadName("encoder", 1, 1)] is None
    (mixed,) = ablate(predictor, examples=10, together=[HeadName("cross", 1, 1), HeadName("cross", 2, 1)]).groups[1:]
    assert mixed.named is None, "different patterns"


def test_heads_are_named_as_they_are_parsed_and_unknown_ones_are_refused() -> None:
    predictor = built("encoder_decoder")
    with pytest.raises(ValueError, match=r"no head cross\.3\.1 in this model, which has .*cross\.1\.1 to cross\.2\.2"):
        ablate(predictor, examples=3, together=[HeadName("cross", 3, 1)])
    with pytest.raises(ValueError, match="--examples must be at least 1, got 0"):
        ablate(predictor, examples=0)
    for head in head_paths(predictor.model):
        assert parse_heads(f"{head}, {head}") == [head, head]
    for wrong in ("cross.1", "cross.1.x", "", "cross.1.1,", "cross.1.-1", "cross.1.1.1"):
        with pytest.raises(ValueError, match=r"KIND\.LAYER\.HEAD"):
            parse_heads(wrong)


def made(losses: list[float], matches: list[float] | None = None) -> Ablation:
    """An ablation of one layer, the baseline first."""
    first, *others = [{"loss": loss} for loss in losses]
    for metrics, match in zip([first, *others], matches or [], strict=False):
        metrics["exact_match"] = match
    rows = [AblatedHeads((HeadName("decoder", 1, n),), None, part) for n, part in enumerate(others, start=1)]
    group = AblatedHeads((rows[0].heads[0], rows[1].heads[0]), Named("induction", 0.91), others[0])
    return Ablation("test", 1234, first, rows, [group])


def test_the_table_has_the_worst_loss_first() -> None:
    lines = table(made([0.5, 0.75, 2.0, 0.25], [0.9, 0.8, 0.1, 0.95])).splitlines()
    assert "1,234 examples held out for test" in lines[0]
    assert [line.split()[0].split(".")[-1] for line in lines[2:]] == ["nothing", "2", "1", "3", "1"]
    assert lines[3].split() == ["decoder.1.2", "2.0000", "10.00", "%"]
    assert lines[-1].split()[1:4] == ["decoder.1.2", "induction", "0.91"]
    assert len({len(line) for line in lines[2:]}) == 1, "aligned columns"


def test_damage_is_above_zero_for_both_metrics_and_all_is_plain_json() -> None:
    found = made([0.5, 0.75, 0.25], [0.9, 0.8, 1.0])
    for head, sign in zip(found.heads, (1, -1), strict=True):
        assert found.damage(head, "loss") == pytest.approx(sign * 0.25)
        assert found.damage(head, "exact_match") == pytest.approx(sign * 0.1)
    plain = json.loads(json.dumps(found.to_dict()))
    metrics = {"loss": 0.25, "exact_match": 1.0}
    assert plain["whole"] == {"loss": 0.5, "exact_match": 0.9}
    assert plain["heads"][1] == {"heads": ["decoder.1.2"], "pattern": None, "value": None, **metrics}
    assert plain["groups"][0]["pattern"] == "induction"


def test_the_heat_map_is_darker_for_more_damage(tmp_path) -> None:
    heads, worst = 12, 7
    found = made([0.5, *(3.0 if head == worst else 0.5 for head in range(1, heads + 1))])
    draw_ablation(found, "a run", tmp_path / "map.png")
    with Image.open(tmp_path / "map.png") as opened:
        assert opened.format == "PNG"
        picture = opened.convert("RGB")
    row = [picture.getpixel((column, int(0.62 * picture.height))) for column in range(int(0.8 * picture.width))]
    dark = [column for column, (red, green, _) in enumerate(row) if red > green + 60 and green < 60]
    assert dark, "one head is dark"
    assert dark[-1] - dark[0] < 0.75 * picture.width / heads + 20, "and only one"
