"""The induction circuit: metrics without parts of it equal hand-written forwards; composition scores, their formula."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from matplotlib.figure import Figure
from torch import Tensor

from minitx import at, head_mask, intervene, trace
from minitx.checkpoints import format as checkpoint
from minitx.cli.main import main
from minitx.data.batch import IGNORE
from minitx.interpret.circuit import _largest, induction_circuit
from minitx.interpret.composition import compositions
from minitx.interpret.head_statistics import Statistic
from minitx.interpret.parts import Part
from minitx.nn import MultiHeadAttention
from minitx.plotting.heatmaps import draw_compositions
from predictors import EVERY, built, trained
from small_models import build_tiny, every_architecture


@torch.no_grad()
def test_metrics_without_parts_of_the_circuit(tmp_path: Path, monkeypatch: Any, saved_figures: list[Figure]) -> None:
    monkeypatch.setattr("minitx.evaluation.metrics.TOKENS_AT_ONCE", 100)
    predictor = built("decoder_only", d_ff=0, n_kv_heads=1, norm="layernorm")
    found = induction_circuit(predictor, examples=30)
    model: Any = predictor.model
    batch = predictor.task.examples("test", 30).frame("decoder_only", predictor.tokenizer.special)
    previous, layer = found.previous_token, model.decoder.layers[1]
    assert (previous.layer, found.induction.layer) == (1, 2)

    def loss(without: Part | None = None, keys: Tensor | None = None) -> float:
        """Without a head, and with other keys for the induction head, which shares its own with the other."""
        masks = {without.site.removesuffix(".z"): [float(head != without.number) for head in (1, 2)]} if without else {}
        z, induction = "decoder.layers.1.self_attn.z", found.induction.number - 1
        handle = layer.self_attn.k_proj.register_forward_hook(lambda _, args, out: keys)
        with head_mask(model, masks), trace(model, z) as t:
            model(**batch.model_inputs())
        handle.remove()
        with head_mask(model, masks), intervene(model, {z: at(t[z], heads=induction)}):
            logits = model(**batch.model_inputs())
        return float(F.cross_entropy(logits.flatten(0, 1), batch.labels.flatten(), ignore_index=IGNORE))

    with trace(model, only=["decoder.layers.0.self_attn.result", "decoder.layers.1.resid_pre"]) as t:
        whole = loss()
    stream, added = t["decoder.layers.1.resid_pre"], t["decoder.layers.0.self_attn.result"][:, :, previous.number - 1]
    own, less = (layer.self_attn.k_proj(layer.add_norm_self.norm(each)) for each in (stream, stream - added))
    losses = {name: metrics["loss"] for name, metrics in found.metrics.items()}
    expected = {"whole": whole, "no_previous_token": loss(previous), "no_induction": loss(found.induction)}
    expected |= {"no_keys": loss(keys=less), "only_keys": loss(previous, own)}
    assert losses == pytest.approx(expected, abs=1e-5)
    assert min(abs(losses[name] - whole) for name in ("no_keys", "only_keys")) > 1e-4
    assert str(found).count("decoder.") == 2 + 2 * 5
    read = [pair.score for pair in found.compositions if (pair.reader, pair.through) == (found.induction, "k")]
    assert sum(read) / len(read) == pytest.approx(found.random, rel=0.3), "of a model that was not trained"
    assert f", {1 + sum(score > found.link.score for score in read)} of {len(read)} by size;" in str(found)
    found = replace(found, values={"previous_token": 0.7, "induction": 0.4})
    assert str(found).startswith("no clear circuit: no head reaches 0.5 in induction\n")
    assert "clear" not in str(replace(found, values={"previous_token": 0.7, "induction": 0.5}))
    assert _largest(Statistic("induction", "", True, [[None, 0.5]]), range(1, 2)) == (Part("decoder", 1, 2), 0.5)
    monkeypatch.setattr("minitx.plotting.heatmaps.MAX_COMPOSED_HEADS", 1)
    draw_compositions(found, tmp_path / "x.png")
    assert saved_figures[0].get_supxlabel().endswith("; the 1 heads with the largest scores of 2")


def test_command(refused: Callable[..., str], tmp_path: Path, capsys: Any, saved_figures: list[Figure]) -> None:
    file, layers = str(tmp_path / "model.ckpt"), "needs a decoder of at least 2 layers, and this model has 0"
    for kind, sentence in zip(EVERY[::-1], (layers, "right after one", "must be at least 1, got 0"), strict=True):
        checkpoint.write(trained(kind), file)
        assert sentence in refused("circuit", file, "--examples", "0" if kind == "decoder_only" else "3")
    plot, out = tmp_path / "circuit.svg", tmp_path / "circuit.json"
    main(["circuit", file, "--examples", "30", "--json", str(out), "--out", str(plot)])
    report, printed = json.loads(out.read_text()), capsys.readouterr().out
    assert f"\n  {report['previous_token']}  previous_token {report['values']['previous_token']:.2f}" in printed
    assert printed.endswith(f"\n{plot}\n")
    drawn = [
        f"decoder.{axes.get_yticklabels()[text.xy[1]].get_text()} -> "
        f"decoder.{axes.get_xticklabels()[text.xy[0]].get_text()}.{axes.get_title('left')[8]} {text.get_text()}"
        for axes in saved_figures[0].axes[:3]
        for text in axes.texts
    ]
    assert sorted(drawn) == sorted(f"{each['pair']} {each['score']:.2f}" for each in report["compositions"])
    assert report["metrics"].keys() == {"whole", "no_induction", "no_previous_token", "no_keys", "only_keys"}


def maps(model: Any, part: Part) -> tuple[Tensor, Tensor]:
    """W_OV and W_QK [D, D] of a head, its norm included."""
    path, head = part.site.removesuffix(".z"), part.number - 1
    attention: MultiHeadAttention = model.get_submodule(path)
    layer = model.get_submodule(path.rpartition(".")[0])
    add_norm = {"encoder": "add_norm_attn", "decoder": "add_norm_self", "cross": "add_norm_cross"}[part.kind]

    def scaled(norm: Any) -> Tensor:
        return torch.diag(norm.weight.double()) @ (torch.eye(16).double() - isinstance(norm, torch.nn.LayerNorm) / 16)

    def read(linear: Any, norm: Any, group: int) -> Tensor:
        return (linear.weight.double() @ scaled(norm))[group * attention.d_head : (group + 1) * attention.d_head]

    own = getattr(layer, add_norm).norm
    other, group = model.encoder.norm if part.kind == "cross" else own, head * attention.n_kv_heads // attention.n_heads
    q, k = read(attention.q_proj, own, head), read(attention.k_proj, other, group)
    v = read(attention.v_proj, other, group)
    o = attention.o_proj.weight.double()[:, head * attention.d_head : (head + 1) * attention.d_head]
    if (norm := getattr(layer, add_norm).output_norm) is not None:
        o = scaled(norm) @ o
    return o @ v, q.T @ k


@pytest.mark.parametrize(("norm", "sandwich"), [("layernorm", False), ("layernorm", True), ("rmsnorm", True)])
@every_architecture
@torch.no_grad()
def test_scores_are_norms_of_products(architecture: str, norm: str, sandwich: bool) -> None:
    model = build_tiny(architecture, n_kv_heads=2, norm=norm, sandwich_norm=sandwich)
    found = compositions(model)
    for writer, reader, through, score in found:
        (ov, _), (reads_v, reads_qk) = maps(model, writer), maps(model, reader)
        left = {"q": reads_qk.T, "k": reads_qk, "v": reads_v}[through]
        assert score == pytest.approx(float((left @ ov).norm() / left.norm() / ov.norm()), rel=1e-5)
    assert len({pair[:3] for pair in found}) == len(found)
    # Self to self in each stack; in the decoder also self to cross (q), cross to self and cross to cross (q); then the
    # memory, through k and v.
    layers = {"encoder_decoder": 3 + 3 + 3 + 3 + 1 + 8}.get(architecture, 3)
    assert len(found) == layers * 4 * 4
    parallel = compositions(build_tiny(architecture, parallel_residual=True))  # no self to cross within a layer
    assert len(parallel) == (layers - (2 if architecture == "encoder_decoder" else 0)) * 4 * 4
