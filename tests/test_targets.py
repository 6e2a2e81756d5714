"""The figures that the configs promise, reached from scratch. Minutes, so not in the everyday suite."""

from pathlib import Path

import pytest
import torch

import minitx
from minitx.data.examples import Pairs
from minitx.data.framing import frame
from minitx.options import config_parser, to_config
from minitx.training.run import train

CONFIGS = Path(__file__).parent.parent / "configs"

pytestmark = pytest.mark.slow


def trained(name: str, folder: Path) -> tuple[dict, minitx.Predictor]:
    parser = config_parser()
    config = to_config(
        parser, parser.parse_args(["--config", str(CONFIGS / f"{name}.yaml"), "--run.folder", str(folder)])
    )
    return train(config), minitx.load(folder / name, device="cpu")


def share_of_rows(predictor: minitx.Predictor, mirrored: bool) -> float:
    """The best cross-attention head's share of rows whose largest weight is on the diagonal, or the anti-diagonal."""
    pairs = predictor.task.examples("test", 1000)
    assert isinstance(pairs, Pairs)
    with torch.no_grad(), minitx.record_attention(predictor.model) as maps:
        predictor.model(*frame(pairs, predictor.architecture, predictor.tokenizer.special).inputs())
    size = pairs.source.size(1)
    length, row = pairs.source_keep.sum(dim=1, keepdim=True), torch.arange(size)
    expected = (length - 1 - row if mirrored else row.expand(len(length), -1))[:, None]  # [N, 1, T]
    counted = (row < length)[:, None]
    best = 0.0
    for name, weights in maps.items():
        if name.endswith("cross_attn"):
            hits = (weights[:, :, :size].argmax(dim=-1) == expected) & counted  # [N, H, T]
            best = max(best, float((hits.sum(dim=(0, 2)) / counted.sum()).max()))
    return best


def test_reversal_is_solved_and_shows_it(tmp_path: Path) -> None:
    results, predictor = trained("reverse", tmp_path)
    assert results["examples"] == 10_000
    assert results["exact_match"] == 1.0
    assert share_of_rows(predictor, mirrored=True) >= 0.99


def test_copying_is_solved_and_shows_it(tmp_path: Path) -> None:
    results, predictor = trained("copy", tmp_path)
    assert results["examples"] == 10_000
    assert results["exact_match"] >= 0.999
    assert share_of_rows(predictor, mirrored=False) >= 0.99
