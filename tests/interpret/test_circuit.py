"""The induction circuit: metrics without parts of it equal hand-written forwards."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from minitx import at, head_mask, intervene, trace
from minitx.checkpoints import format as checkpoint
from minitx.cli.main import main
from minitx.data.batch import IGNORE
from minitx.interpret.circuit import induction_circuit
from minitx.interpret.parts import Part
from predictors import built, trained


@torch.no_grad()
def test_metrics_without_parts_of_the_circuit(monkeypatch: pytest.MonkeyPatch) -> None:
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
    assert losses == pytest.approx(
        {
            "whole": whole,
            "no_previous_token": loss(previous),
            "no_induction": loss(found.induction),
            "no_keys": loss(keys=less),
            "only_keys": loss(previous, own),
        },
        abs=1e-5,
    )
    assert min(abs(losses[name] - whole) for name in ("no_keys", "only_keys")) > 1e-4
    assert str(found).count("decoder.") == 2 + 2 * 5
    found = replace(found, values={"previous_token": 0.7, "induction": 0.4})
    assert str(found).startswith("no clear circuit: no head reaches 0.5 in induction\n")
    assert "clear" not in str(replace(found, values={"previous_token": 0.7, "induction": 0.5}))


def test_command(refused: Callable[..., str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = str(tmp_path / "model.ckpt")
    for architecture, sentence in [
        ("encoder_only", "needs a decoder of at least 2 layers, and this model has 0"),
        ("decoder_only", "must be at least 1, got 0"),
    ]:
        checkpoint.write(trained(architecture), file)
        assert sentence in refused("circuit", file, "--examples", "0")
    main(["circuit", file, "--examples", "30", "--json", str(tmp_path / "circuit.json")])
    report = json.loads((tmp_path / "circuit.json").read_text())
    printed = capsys.readouterr().out
    assert f"\n  {report['previous_token']}  previous_token {report['values']['previous_token']:.2f}" in printed
    assert len(report["compositions"]) == 2 * 2 * 3
    assert report["metrics"].keys() == {"whole", "no_induction", "no_previous_token", "no_keys", "only_keys"}
