"""The induction circuit: metrics without parts of it equal hand-written forwards."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from minitx import head_mask
from minitx.checkpoints import format as checkpoint
from minitx.cli.main import main
from minitx.data.batch import IGNORE
from minitx.interpret.circuit import induction_circuit
from predictors import built, trained


@torch.no_grad()
def test_metrics_without_parts_of_the_circuit() -> None:
    predictor = built("decoder_only", d_ff=0, n_kv_heads=1, norm="layernorm")
    found = induction_circuit(predictor, examples=30)
    model: Any = predictor.model
    first, second = model.decoder.layers
    batch = predictor.task.examples("test", 30).frame("decoder_only", predictor.tokenizer.special)
    sender = found.previous_token.number - 1
    assert (found.previous_token.layer, found.induction.layer) == (1, 2)

    def loss() -> float:
        logits = model(**batch.model_inputs())
        return float(F.cross_entropy(logits.flatten(0, 1), batch.labels.flatten(), ignore_index=IGNORE))

    def without(part: Any, path: str) -> float:
        with head_mask(model, {path: [float(head != part.number - 1) for head in range(2)]}):
            return loss()

    inputs: list[Any] = []

    def keys(_: Any, args: Any, out: Any) -> Any:
        """From the residual stream without the sender's output."""
        z = inputs[-1].unflatten(-1, (2, -1))[:, :, sender]
        added = z @ first.self_attn.o_proj.weight.unflatten(1, (2, -1))[:, sender].T
        return F.linear(second.add_norm_self.norm(stream[-1] - added), second.self_attn.k_proj.weight, out_bias)

    stream: list[Any] = []
    out_bias = second.self_attn.k_proj.bias
    handles = [
        first.self_attn.o_proj.register_forward_pre_hook(lambda _, args: inputs.append(args[0])),
        first.register_forward_hook(lambda _, args, out: stream.append(out)),
    ]
    assert found.metrics["whole"]["loss"] == pytest.approx(loss(), abs=1e-5)
    handles.append(second.self_attn.k_proj.register_forward_hook(keys))
    by_hand = loss()
    for handle in handles:
        handle.remove()
    # Both heads of the second layer share their keys.
    assert found.metrics["no_keys"]["loss"] == pytest.approx(by_hand, abs=1e-5)
    assert abs(by_hand - loss()) > 1e-4
    path = "decoder.layers.{}.self_attn"
    assert found.metrics["no_induction"]["loss"] == pytest.approx(without(found.induction, path.format(1)), abs=1e-5)
    no_previous = without(found.previous_token, path.format(0))
    assert found.metrics["no_previous_token"]["loss"] == pytest.approx(no_previous, abs=1e-5)
    kept: list[Any] = []
    handle = second.self_attn.k_proj.register_forward_hook(lambda _, args, out: kept.append(out))
    loss()
    handle.remove()
    handle = second.self_attn.k_proj.register_forward_hook(lambda _, args, out: kept[0])
    only_keys = without(found.previous_token, path.format(0))
    handle.remove()
    assert found.metrics["only_keys"]["loss"] == pytest.approx(only_keys, abs=1e-5)
    assert abs(only_keys - loss()) > 1e-4
    assert str(found).count("decoder.") == 2 + 2 * 5


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
