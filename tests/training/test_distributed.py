"""Two processes on one machine."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from minitx.config.errors import ConfigError
from minitx.training.api import train_config as train
from minitx.training.sharding import ShardedStrategy
from small_models import build_tiny, draw
from tests.training.interrupting import Run, launched_ranks, run_script, state
from tests.training.test_losses import share_examples


@pytest.mark.parametrize("settings", [{"devices": 2}, {"num_nodes": 2}, {"strategy": "ddp"}], ids=str)
@pytest.mark.parametrize("session", [("ps1", ">>> "), ("argv", ["-c"])], ids=str)
def test_an_interactive_session_trains_on_one_device(small: Any, monkeypatch: Any, settings: Any, session: Any) -> None:
    """Lightning would fork it, or advise to."""
    monkeypatch.setattr(sys, *session, raising=False)
    with pytest.raises(ConfigError, match=r"interactive session trains on one device: .*trainer\.strategy auto"):
        train(small(trainer=settings))
    assert train(small(trainer={"max_steps": 1}))["steps"] == 1


@pytest.mark.slow
def test_two_nodes_make_one_run_and_one_resumes_it(tmp_path: Path) -> None:
    folder = tmp_path / "runs/small/v0"

    def train_on(nodes: int, *words: str) -> list[str]:
        words = f"--run.folder={tmp_path}/runs", f"--trainer.num_nodes={nodes}", "--trainer.strategy=ddp", *words
        runs = [Run(tmp_path / rank["RANK"], *words, rank=rank) for rank in launched_ranks(nodes, each=1)]
        assert [run.ended(300) for run in runs] == [0] * nodes, [run.output() for run in runs]
        return [run.output() for run in runs]

    assert ["step 20/20" in output for output in train_on(2, "--trainer.max_steps=20")] == [True, False]
    assert (len(list(folder.glob("events.*"))), state(folder)["global_step"]) == (1, 20)
    (outputs,) = train_on(1, "--trainer.max_steps=30", "--resume")
    assert "continues after step 20" in outputs
    assert "trainer.num_nodes 2 -> 1" in outputs
    train_on(2, "--trainer.max_steps=40", "--resume")
    assert json.loads((folder / "results.json").read_text())["steps"] == 40
    assert [version.name for version in folder.parent.iterdir()] == ["v0"]


def two(config: Any, folder: Path, *words: str) -> None:
    ran = run_script(folder, "from tests.training import test_losses as t; t.share_examples(patch, 2)", config, *words)
    assert ran.returncode == 0, ran.stderr
    assert "sync_dist" not in ran.stderr


RELATIVE = {"name": "transformer_xl", "base": 10.0}
TWO_SCHEMES = {"n_heads": 1, "n_layers": 3, "position": RELATIVE, "window": [3, None, 3], "window_position": "t5"}
"""A scheme of each layer, with fewer rows in a weight than processes, and one of all layers with a window."""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("strategy", "model", "settings"), [("ddp", {}, {"ema": 0.9}), ("fsdp2", {}, {}), ("fsdp2", TWO_SCHEMES, {})]
)
def test_processes_and_strategy_change_no_weight(
    small: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, strategy: str, model: Any, settings: dict[str, Any]
) -> None:
    def config(name: str, steps: int, **trainer: Any) -> Any:
        """One process accumulates two batches of 8; or each of two processes has one of them."""
        accumulate = 1 if trainer else 2
        return small(
            run={"name": name}, data={"batch_size": 8, "validation_size": 1100},  # the first validates one slice more
            # Without biases: a key's bias has a gradient of rounding alone, which AdamW enlarges.
            model={"n_layers": 2, "bias": False, **model},
            optimizer={"schedule": {"name": "constant", "warmup_steps": 0}},
            trainer={"max_steps": steps, "val_every_n_steps": 2, "accumulate_grad_batches": accumulate,
                     **settings, **trainer},
            log={"embeddings": {"examples": 2}, "attention": {"every_n_validations": 1, "every_n_steps": 2}},
        )  # fmt: skip

    share_examples(monkeypatch)
    train(config("one", 4))
    expected = state(tmp_path / "runs/one/v0")
    spread = {"devices": 2, "strategy": strategy}
    two(config("two", 4, **spread), tmp_path)
    # From one process to two, and back again.
    train(config("on", 2))
    two(config("on", 3, **spread), tmp_path, "--resume")
    train(config("on", 4), resume=True)
    assert len([*tmp_path.glob("runs/two/v*/events.*")]) == 1
    for file in ("projector_config.pbtxt", "heads.json"):
        assert (tmp_path / "runs/two/v0" / file).exists(), "computed by both"
    for name in ("two", "on"):
        found = state(tmp_path / f"runs/{name}/v0")
        for part in ("state_dict", *(["trained_weights"] if settings else [])):
            assert {type(weight) for weight in found[part].values()} == {torch.Tensor}, "whole, not a shard"
            assert found[part].keys() == expected[part].keys()
            for key, weight in expected[part].items():
                # AdamW enlarges the rounding of a gradient near zero; another batch would make a difference of 5e-3.
                torch.testing.assert_close(found[part][key], weight, rtol=0, atol=1e-4, msg=f"{name}: {key}")


def test_weights_gathered_for_a_validation_before_the_first_step_serve_training(request: pytest.FixtureRequest) -> None:
    """Of a resumed run; on a GPU, Lightning validates in inference mode."""
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    request.addfinalizer(torch.distributed.destroy_process_group)
    strategy, model = ShardedStrategy(), build_tiny("decoder_only")
    strategy._device_mesh = torch.distributed.init_device_mesh("cpu", (1,), mesh_dim_names=("data_parallel",))
    strategy.shard(model)
    with torch.inference_mode():
        strategy.on_validation_start()
        strategy.on_validation_end()
    model(draw(1, 3)).sum().backward()
