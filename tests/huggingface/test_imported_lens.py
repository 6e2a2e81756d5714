"""The lens, attribution and patching of imported models."""

from pathlib import Path

import pytest
import torch

import minitx
from huggingface.hf_models import CASES, TEXT, save
from minitx.cli.main import main
from minitx.interpret.patching import Patch, patched_logits
from minitx.interpret.trace import trace

EVERYDAY_CASES = ("gpt2", "llama", "t5", "bart")


@pytest.mark.parametrize("name", [n if n in EVERYDAY_CASES else pytest.param(n, marks=pytest.mark.slow) for n in CASES])
def test_the_last_layer_is_the_model_and_attributions_add_up(name: str, tmp_path: Path) -> None:
    save(name, tmp_path / "hf")
    main(["import", str(tmp_path / "hf"), "--out", str(tmp_path / "ours.ckpt")])
    ours = minitx.load(tmp_path / "ours.ckpt", device="cpu")
    target = TEXT[1] if ours.architecture == "encoder_decoder" else None
    inputs = ours.batch(TEXT[0], target).model_inputs()
    found = ours.lens(TEXT[0], target)
    with torch.no_grad():
        expected = ours.model(**inputs)[0]
        for logits in found.logits.values():
            torch.testing.assert_close(logits[-1], expected, atol=1e-5, rtol=1e-5)
        right = expected.gather(-1, found.answers[:, None])[:, 0]
        if ours.model.head.transform is None:
            total = torch.stack([*found.attribution.values()]).sum(dim=0)
            torch.testing.assert_close(total, right, atol=1e-4, rtol=1e-4)
        else:
            assert not found.attribution
        assert found.page()
        with trace(ours.model, only=["*.resid_post", "*attn.z", "*.ffn.out"]) as own:
            ours.model(**inputs)
        patched = patched_logits(ours.model, inputs, own, [[Patch(each, 1) for each in own]])
        assert torch.equal(patched, patched_logits(ours.model, inputs, {}, [[]]))
