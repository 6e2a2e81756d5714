"""Ablation of each head: the metrics equal those of a model with zeros in its output projection."""

import copy
import json
from pathlib import Path

import pytest
import torch
from matplotlib.figure import Figure

from minitx.config.errors import ConfigError
from minitx.data.examples import Stream
from minitx.evaluation.metrics import evaluate
from minitx.inference.predictor import Predictor
from minitx.interpret import ablation as ablating
from minitx.interpret.ablation import Ablated, Ablation, ablate, table
from minitx.interpret.intervene import at, intervene
from minitx.interpret.parts import Part, all_parts, named_parts
from minitx.plotting.heatmaps import draw_ablation
from minitx.tensorboard.map_format import Named
from predictors import EVERY, KINDS_OF, LAYERS, H, built

PATHS = {kind: f"{kind}.layers.{{}}.self_attn" for kind in ("encoder", "decoder")}
PATHS["cross"] = "decoder.layers.{}.cross_attn"


def without(predictor: Predictor, heads: tuple[Part, ...]) -> Predictor:
    """The model with zeros in its output projections for these heads."""
    model = copy.deepcopy(predictor.model)
    for kind, layer, head, ffn in heads:
        path = PATHS[kind].format(layer - 1)
        part = model.get_submodule(path.replace("self_attn", "ffn") if ffn else path)
        with torch.no_grad():
            if ffn:
                part.down_proj.weight[:, slice(None) if head == 0 else head - 1] = 0.0
                part.down_proj.bias *= head > 0
                continue
            part.o_proj.weight[:, (head - 1) * part.d_head : head * part.d_head] = 0.0
    return Predictor(model, predictor.tokenizer, predictor.config)


def metrics(predictor: Predictor, examples: int) -> dict[str, float]:
    held_out = predictor.task.examples("test", examples)
    return evaluate(predictor.model, held_out, predictor.architecture, predictor.tokenizer.special).means()


@pytest.mark.parametrize("architecture", EVERY)
def test_each_part_in_turn_is_zero_for_the_map_that_reads_it(architecture: str) -> None:
    predictor, kinds = built(architecture), KINDS_OF[architecture]
    first, layers = kinds[0], range(1, LAYERS + 1)
    heads = [Part(kind, layer, head) for kind in kinds for layer in layers for head in range(1, H + 1)]
    networks = [Part(kind, layer, 0, True) for kind in kinds if kind != "cross" for layer in layers]
    some = [*networks, Part(first, 2, 64, True), Part(first, 1, 2)]
    for parts, expected, together in [
        ("heads", heads, [Part(kinds[-1], 1, 1), Part(first, 2, 2)]),
        (f"ffn,{some[-2]},{some[-1]}", some, [networks[0], Part(first, 2, 5, True), Part(first, 2, 1)]),
    ]:
        found = ablate(predictor, examples=20, parts=parts, together=together)
        assert found.baseline == pytest.approx(metrics(predictor, 20))
        assert [row.parts for row in found.parts] == [(part,) for part in expected]
        assert found.groups[-1].parts == tuple(together)
        for row in [*found.parts, found.groups[-1]]:
            assert row.metrics == pytest.approx(metrics(without(predictor, row.parts), 20), abs=1e-5), row.parts
        assert len({row.metrics["loss"] for row in found.parts}) == len(expected), "all parts differ"


def test_running_text_has_no_exact_match(monkeypatch: pytest.MonkeyPatch) -> None:
    predictor, stream = built("decoder_only", text=True), Stream(torch.randint(6, 14, (5, 9)))
    monkeypatch.setattr(predictor.task, "examples", lambda split, limit=None: stream)
    found = ablate(predictor, "validation", 5)
    assert found.baseline.keys() == {"loss", "token_accuracy"}
    assert [words in table(found) for words in ("token accuracy", "exact match")] == [True, False]


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
    assert (group.parts, group.named) == ((Part("cross", 1, 1), Part("cross", 2, 2)), Named("diagonal", 0.75))
    assert group.metrics == pytest.approx(metrics(without(predictor, group.parts), 10), abs=1e-5)
    assert [row.named for row in found.parts] == [name for part in names.values() for layer in part for name in layer]
    (mixed,) = ablate(predictor, examples=10, together=[Part("cross", 1, 1), Part("cross", 2, 1)]).groups[1:]
    assert mixed.named is None, "different patterns"


def test_heads_are_named_as_they_are_parsed_and_bad_input_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    predictor = built("encoder_decoder")
    with pytest.raises(ValueError, match=r"no cross\.3\.1 in this model, which has .*cross\.1\.1 to cross\.2\.2"):
        ablate(predictor, examples=3, together=["cross.3.1"])
    with pytest.raises(ValueError, match=r"no encoder\.1\.ffn\.65 in this model, which has encoder\.1\.ffn\.1 to"):
        ablate(predictor, examples=3, parts="encoder.1.ffn.65")
    twice = ablate(predictor, examples=3, parts="cross.1.1,cross.1.2,cross.1.1").parts
    assert [row.parts for row in twice] == [(Part("cross", 1, 1),), (Part("cross", 1, 2),)]
    with pytest.raises(ValueError, match="--examples must be at least 1, got 0"):
        ablate(predictor, examples=0)
    monkeypatch.setattr("minitx.evaluation.metrics.EXAMPLES_AT_ONCE", 1)
    with pytest.raises(ConfigError, match="--by resample needs two examples in a batch"):
        ablate(predictor, examples=3, by="resample")
    existing = all_parts(predictor.model)
    every = [*existing["heads"], *existing["ffn"], Part("encoder", 2, 37, True)]
    assert named_parts(predictor.model, ", ".join(map(str, every)), "--parts") == every
    assert named_parts(predictor.model, "heads,ffn,encoder.2.ffn.37", "--parts") == every
    for wrong in ("cross.1", "cross.1.x", "", "cross.1.1,", "cross.1.-1", "cross.1.1.1", "decoder.1.ffn.0"):
        with pytest.raises(ValueError, match=r"KIND\.LAYER\.HEAD"):
            named_parts(predictor.model, wrong, "--together")


def test_attention_alone_has_no_networks_to_ablate() -> None:
    """Heads and networks together, as the page of `minitx play` asks for them, are the heads."""
    predictor = built("decoder_only", d_ff=0)
    assert ablate(predictor, examples=3, parts="heads,ffn").parts == ablate(predictor, examples=3).parts
    for parts in ("ffn", "decoder.1.ffn"):
        with pytest.raises(ConfigError, match=r"this model(, which)? has no feed-forward networks"):
            ablate(predictor, examples=3, parts=parts)


def test_a_part_that_never_changes_is_its_own_mean_and_sample() -> None:
    """And one that varies is not: zero, mean and resampling then differ."""
    predictor, kind = built("encoder_decoder", attention_dropout=0.5), "encoder"
    model = copy.deepcopy(predictor.model).train()  # but measured without dropout
    constant = Predictor(model, predictor.tokenizer, predictor.config)
    layer = model.get_submodule(PATHS[kind].format(0).removesuffix(".self_attn"))
    with torch.no_grad():
        layer.self_attn.v_proj.weight.zero_()
        layer.self_attn.v_proj.bias.fill_(0.7)
        layer.ffn.down_proj.weight.zero_()
        layer.ffn.down_proj.bias.copy_(torch.linspace(-1, 1, 16))  # which a norm does not remove
    for by, same in (("mean", True), ("resample", True), ("zero", False)):
        found = ablate(constant, examples=20, parts=f"{kind}.1.2,{kind}.1.ffn", by=by)
        for row in found.parts:
            assert (row.metrics["loss"] == pytest.approx(found.baseline["loss"], abs=1e-5)) == same
    ways = ("zero", "mean", "resample", "resample")
    varied = [ablate(predictor, examples=20, parts=f"{kind}.1.2", by=by) for by in ways]
    zero, mean, *samples = [found.parts[0].metrics["loss"] for found in varied]
    assert (len({*samples}), len({zero, mean, *samples, varied[0].baseline["loss"]})) == (1, 4)


@pytest.mark.parametrize("architecture", EVERY)
def test_a_sample_is_that_of_another_example(architecture: str) -> None:
    """Of two examples, each gets the output of the other one, whatever is sampled."""
    predictor, part = built(architecture), Part(KINDS_OF[architecture][0], 1, 2)
    found = ablate(predictor, examples=2, parts=str(part), by="resample").parts[0].metrics
    with intervene(predictor.model, {part.site: at(lambda value: value.flip(0), heads=1)}):
        assert found["loss"] == pytest.approx(metrics(predictor, 2)["loss"])


def made(losses: list[float], matches: list[float] | None = None) -> Ablation:
    """An ablation of one layer, the baseline first; from 20 heads on, of cross-attention."""
    first, *others = [{"loss": loss} for loss in losses]
    for metrics, match in zip([first, *others], matches or [], strict=False):
        metrics["exact_match"] = match
    rows = [Ablated((Part(("decoder", "cross")[n // 20], 1, n),), None, part) for n, part in enumerate(others, start=1)]
    group = Ablated(tuple(row.parts[0] for row in rows[:2]), Named("induction", 0.91), others[0])
    return Ablation("test", "zero", 1234, first, rows, [group])


def test_the_table_has_the_worst_loss_first_damage_is_above_zero_and_all_is_plain_json() -> None:
    lines = table(made([0.5, 0.75, 2.0, 0.25], [0.9, 0.8, 0.1, 0.95])).splitlines()
    assert "1,234 examples held out for test" in lines[0]
    assert [line.split()[0].split(".")[-1] for line in lines[2:]] == ["nothing", "2", "1", "3", "1"]
    assert lines[3].split() == ["decoder.1.2", "2.0000", "10.00", "%"]
    assert lines[-1].split()[1:4] == ["decoder.1.2", "induction", "0.91"]
    assert len({len(line) for line in lines[2:]}) == 1, "aligned columns"
    found = made([0.5, 0.75, 0.25], [0.9, 0.8, 1.0])
    for head, sign in zip(found.parts, (1, -1), strict=True):
        assert found.damage(head, "loss") == pytest.approx(sign * 0.25)
        assert found.damage(head, "exact_match") == pytest.approx(sign * 0.1)
    plain, metrics = json.loads(json.dumps(found.to_dict())), {"loss": 0.25, "exact_match": 1.0}
    assert plain["whole"] == {"loss": 0.5, "exact_match": 0.9}
    assert plain["parts"][1] == {"parts": ["decoder.1.2"], "pattern": None, "value": None, **metrics}
    assert plain["groups"][0]["pattern"] == "induction"


def test_the_heat_map_is_darker_for_more_damage(saved_figures: list[Figure], tmp_path: Path) -> None:
    draw_ablation(made([0.5, 0.5, 3.0, 0.5]), "a run", tmp_path / "map.png")
    (image,) = (image for axes in saved_figures[0].axes for image in axes.images)
    assert image.get_array().tolist() == [[0.0, 2.5, 0.0]]
    written = {note.xy: note.get_text().split()[0] for note in image.axes.texts}
    assert written == {(0, 0): "0.00", (1, 0): "2.50", (2, 0): "0.00"}
    low, high = (sum(image.to_rgba(damage)[:3]) for damage in (0.0, 2.5))
    assert high < 1 < 2 < low
    draw_ablation(made([0.5, 3.0]), "a run", tmp_path / "one.png")
    assert saved_figures[1].axes[0].get_position().x0 < 0.4, "one head, not beside an empty half"
    draw_ablation(made([0.5] * 24, [0.9] * 24), "a run", tmp_path / "wide.png")
    assert [axes.get_title(loc="left") for axes in saved_figures[2].axes[:4]] == ["decoder"] * 2 + ["cross"] * 2
