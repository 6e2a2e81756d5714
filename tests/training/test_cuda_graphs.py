"""Training steps as CUDA graphs: on a GPU, and on a CPU, where a graph is the function on copies of its inputs."""

from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from minitx.config.errors import RunFailed
from minitx.training import losses
from minitx.training.api import train_config as train
from minitx.training.choices import auto_compile, cuda_graphs
from tests.training.interrupting import assert_equal, weights
from tests.training.resilience.test_divergence import break_at

STEPS = {"max_steps": 16, "val_every_n_steps": 8}
DROPOUT = {"dropout": 0.2}
RANDOM_IDS = {"architecture": "decoder_only", "position_ids": {"name": "randomized", "range": 64, "longest": 32}}
UNFIT: list[dict[str, Any]] = [{"accumulate_grad_batches": 2}, {"recompute_activations": True}, {"strategy": "ddp"}]
DATA = {"stages": [{"steps": 6, "length": [1, 3]}]}  # batches of two shapes


class Simulated:
    """In place of torch's graphs."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.replays, self.capturing, self.frozen, self.modules = 0, False, "", list[nn.Module]()
        patch.setattr(auto_compile, "DEVICES", ("cpu",))
        patch.setattr(cuda_graphs, "warm_up", lambda compute, device: compute())
        patch.setattr(cuda_graphs, "captured", self.capture)
        patch.setattr(torch.cuda, "graph_pool_handle", lambda: None)
        patch.setattr(torch.cuda, "is_current_stream_capturing", lambda: self.capturing)
        patch.setattr(cuda_graphs, "restored_if_failed", nullcontext)
        patch.setattr(cuda_graphs, "memory_left", lambda device: 1.0)

    def capture(self, compute: Callable[[], None], stream: None, pool: None) -> Callable[[], None]:
        graphs, self.capturing, self.modules = compute.__self__, True, []
        if isinstance(graphs.compute, partial):
            loss = graphs.compute.func.__self__
            self.modules = [*loss.module.modules()]
            assert not loss.seen or 2 in loss.seen.values(), "a shape that is seen once is not captured"
        try:
            compute()  # draws random numbers
        finally:
            self.capturing = False
        first = [part.clone() for part in graphs.inputs]

        def replay() -> None:
            self.replays += 1
            assert not any(each._forward_hooks for each in self.modules), "a graph calls no hooks"
            if self.frozen == "batch":
                graphs.inputs = first
            if self.frozen == "seed":
                torch.manual_seed(0)
            with torch.enable_grad():
                compute()

        return replay


@pytest.fixture(autouse=True, params=["simulated", "gpu"])
def graphs(request: Any, monkeypatch: pytest.MonkeyPatch) -> Simulated | None:
    for name, value in {"AFTER_BATCHES": 3, "MIN_LAUNCH_SHARE": 0.0, "MIN_GAIN": 0.0}.items():
        monkeypatch.setattr(cuda_graphs, name, value)
    if request.param == "simulated":
        return Simulated(monkeypatch)
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    return None


def trainer_of(graphs: Simulated | None, **settings: Any) -> dict[str, Any]:
    return {**STEPS, **({"accelerator": "gpu"} if graphs is None else {}), **settings}


@pytest.mark.parametrize(("model", "precision"), [(DROPOUT, "bf16-mixed"), (RANDOM_IDS, "32-true")])
def test_a_run_with_graphs_is_the_run_without(
    small: Any, trained: Any, folder: Any, graphs: Any, capsys: Any, model: dict[str, Any], precision: str
) -> None:
    """Batches of several shapes, dropout and random position ids, and a resumed run included."""
    trainer = trainer_of(graphs, precision=precision)
    expected = trained(data=DATA, model=model, trainer={**trainer, "compile": False})
    train(small(data=DATA, model=model, trainer={**trainer, "max_steps": 8}))
    train(small(data=DATA, model=model, trainer=trainer), resume=True)
    assert capsys.readouterr().out.count("CUDA graphs: ") == 2
    assert graphs is None or graphs.replays > 8
    assert_equal(weights(folder), weights(expected))


@pytest.mark.parametrize("fault", ["waits", "waits later", "seed", "batch"])
def test_what_no_graph_can_hold_is_computed_without(
    small: Any, trained: Any, folder: Any, graphs: Any, monkeypatch: Any, capsys: Any, fault: str
) -> None:
    trainer = trainer_of(graphs)
    expected = trained(data=DATA, model=DROPOUT, trainer={**trainer, "compile": False})
    plain = losses.cross_entropy
    captures: list[int] = []

    def waits(logits: Tensor, *more: Any) -> Tensor:
        if torch.cuda.is_current_stream_capturing():
            captures.append(1)
            if fault == "waits" or len(captures) > 1:
                raise RuntimeError(f"no number at capture: {float(logits.detach().sum())}")
        return plain(logits, *more)

    if fault.startswith("waits"):
        monkeypatch.setattr(losses, "cross_entropy", waits)
    elif graphs is None:
        pytest.skip("torch's graphs read the batch and draw new numbers")
    else:
        graphs.frozen = fault
    train(small(data=DATA, model=DROPOUT, trainer=trainer))
    assert capsys.readouterr().out.count("no CUDA graph") == 1
    assert_equal(weights(folder), weights(expected))


def test_a_run_that_diverges_names_the_layer(small: Any, graphs: Any, monkeypatch: Any) -> None:
    if graphs is None:
        pytest.skip("what is in a graph cannot be broken")
    break_at(monkeypatch, {5})
    with pytest.raises(RunFailed, match=r"output of encoder\.layers\.0\.ffn"):
        train(small(trainer=trainer_of(graphs, max_steps=6)))
    assert graphs.replays


@pytest.mark.parametrize(("limit", "settings"), [("LAUNCH_SHARE", {}), ("GAIN", {}), *(("", each) for each in UNFIT)])
def test_a_run_that_gains_nothing_or_cannot_be_captured_gets_no_graph(
    small: Any, graphs: Any, monkeypatch: Any, capsys: Any, limit: str, settings: dict[str, Any]
) -> None:
    if limit:
        monkeypatch.setattr(cuda_graphs, f"MIN_{limit}", 1000.0)
    try:
        train(small(trainer=trainer_of(graphs, max_steps=4, **settings)))
    finally:
        if torch.distributed.is_initialized():
            torch.distributed.destroy_process_group()
    assert "CUDA graph" not in capsys.readouterr().out
    if graphs is not None:
        assert graphs.replays == (2 * (1 + auto_compile.REPEATS) if limit == "GAIN" else 0), "in the trial alone"


def test_gradients_have_the_layout_of_their_weights(graphs: Any) -> None:
    """Fused optimizers need it. The gradient of a transposed weight comes transposed."""
    device = "cuda" if graphs is None else "cpu"
    weight, unused = nn.Parameter(torch.ones(3, 4, device=device)), nn.Parameter(torch.ones(2, device=device))
    numbers = torch.rand(4, 3, device=device)
    loss = cuda_graphs.LossGraphs(lambda part: (weight.t().contiguous() * part).sum(), [weight, unused], [numbers])
    (3 * loss(2 * numbers)).backward()
    assert weight.grad.stride() == weight.stride()
    assert torch.equal(weight.grad, 6 * numbers.t())
    assert unused.grad is None
