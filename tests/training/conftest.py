"""A small config that learns in seconds, for whatever needs a trained run."""

from pathlib import Path
from typing import Any

import pytest

from minitx.config.schema import Config, config_from_dict


@pytest.fixture
def small(tmp_path: Path) -> Any:
    """A function that makes a Config: reversal of up to 4 of 4 symbols, with whatever sections are given on top."""

    def make(**sections: dict[str, Any]) -> Config:
        plain: dict[str, Any] = {
            "run": {"name": "small", "folder": str(tmp_path / "runs")},
            "data": {
                "name": "reverse", "symbols": 6, "length": [1, 5],
                "batch_size": 32, "validation_size": 64, "test_size": 64,
            },
            "model": {"architecture": "encoder_decoder", "d_model": 32, "n_heads": 2, "n_layers": 1, "d_ff": 64},
            "optimizer": {"lr": 5e-3, "schedule": {"warmup_steps": 10}},
            "trainer": {"max_steps": 6, "val_every_n_steps": 3, "save_every_n_steps": 2, "accelerator": "cpu"},
            "log": {"every_n_steps": 2},
        }  # fmt: skip
        for section, values in sections.items():
            plain[section] = {**plain[section], **values}
        return config_from_dict(plain)

    return make
