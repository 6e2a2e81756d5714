"""Options of the training step: recomputed activations, compilation, a chunked loss, a profile."""

import itertools
import json
from functools import partial
from itertools import cycle
from pathlib import Path
from typing import Any
from unittest.mock import ANY, Mock

import pytest
import torch
from torch import Tensor

import minitx
from minitx.nn import Stack
from minitx.training import losses
from minitx.training.api import train_config as train
from minitx.training.callbacks import profiling
from minitx.training.choices import auto_compile as compiling
from small_models import every_architecture
from tests.training.conftest import module_on
from tests.training.interrupting import assert_equal, break_off, weights


def gradients(config: Any, recompute: bool = False) -> tuple[Tensor, dict[str, Tensor], int]:
    """The loss of one batch, its gradients, and the bytes that the forward keeps for the backward."""
    module, batch = module_on(config)
    for part in module.modules():
        if isinstance(part, Stack):
            part.recompute = recompute
    kept: list[int] = []
    torch.manual_seed(5)  # of dropout
    with torch.autograd.graph.saved_tensors_hooks(lambda each: kept.append(each.nbytes) or each, lambda each: each):
        loss = module.training_step(batch, 0)
    loss.backward()
    return loss.detach(), {name: p.grad for name, p in module.named_parameters() if p.grad is not None}, sum(kept)


@every_architecture
def test_recomputing_and_chunks_change_nothing_but_memory(small: Any, monkeypatch: Any, architecture: str) -> None:
    data = {"length": [5, 5]} if architecture == "encoder_only" else {}
    model = {"architecture": architecture, "n_layers": 3, "dropout": 0.2}
    config = small(data=data, model=model, trainer={"label_smoothing": 0.1})
    loss, expected, kept = gradients(config)
    again, found, fewer = gradients(config, recompute=True)
    assert torch.equal(loss, again)
    torch.testing.assert_close(found, expected)
    assert fewer < kept / 2
    chunked = Mock(side_effect=partial(losses.chunked_cross_entropy, max_logits=100))
    monkeypatch.setattr(losses, "MAX_LOGITS", 100)
    monkeypatch.setattr(losses, "chunked_cross_entropy", chunked)
    torch.testing.assert_close(gradients(config)[:2], (loss, expected))
    assert chunked.called


def test_settings_reach_the_stacks_and_the_compiler(small: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    seen, run = [], Stack.forward
    monkeypatch.setattr(torch.nn.Module, "compile", lambda model, mode: seen.append(mode))
    monkeypatch.setattr(Stack, "forward", lambda *given, **more: seen.append(given[0].recompute) or run(*given, **more))
    options = {"recompute_activations": True, "compile": True, "compile_mode": "reduce-overhead"}
    train(small(trainer={"max_steps": 1, **options}))
    assert seen[:2] == ["reduce-overhead", True]


def test_a_training_batch_is_pinned_for_a_cuda_device_alone(small: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    module, batch = module_on(small(model={"architecture": "decoder_only"}))
    monkeypatch.setattr(Tensor, "pin_memory", lambda part: part + 0 if part.is_contiguous() else pytest.fail("a view"))
    monkeypatch.setattr(Tensor, "to", lambda part, device, non_blocking: (part, non_blocking))
    for device in ("cpu", "mps", "cuda"):
        on_device = module.transfer_batch_to_device(batch, torch.device(device), 0)  # as Lightning calls it
        for (part, not_waited_for), before in zip(on_device, batch, strict=True):
            assert (part is not before) == not_waited_for == (device == "cuda")
            assert torch.equal(part, before)


def test_the_time_of_a_step_is_printed(small: Any, monkeypatch: Any, capsys: Any) -> None:
    monkeypatch.setattr(profiling, "WARMUP_STEPS", 1)
    monkeypatch.setattr(profiling, "finished_at", clock := Mock(side_effect=itertools.count(1000)))
    monkeypatch.setattr("minitx.training.callbacks.log_attention.LogAttention._log_maps", clock)
    monkeypatch.setattr(profiling, "profile", profilers := Mock(wraps=profiling.profile))
    train(small(trainer={"max_steps": 5, "profile": 2}, log={"attention": {"every_n_steps": 1}}))
    out = capsys.readouterr().out
    assert "a batch takes 5000.00 ms (mean of 2)" in out, "a second for each of four phases, and for maps between them"
    table = out[out.index("a batch takes") :].splitlines()[1:5]
    phases = ("sampling the batch, and all else between steps", "forward", "backward", "clipping, optimizer, schedule")
    assert table == [f"   {20 if number else 40}.0%  {phase}" for number, phase in enumerate(phases)]
    assert ("aten::" in out, "needs 5 batches" in out, profilers.call_count) == (True, False, 1), "there were as many"
    train(small(trainer={"max_steps": 1, "profile": 2}))
    assert "trainer.profile 2 needs 5 batches, there were 1" in capsys.readouterr().out
    monkeypatch.setattr(profiling.ProfileSteps, "on_after_backward", Mock(side_effect=[None] * 3 + [ZeroDivisionError]))
    with pytest.raises(ZeroDivisionError):
        train(small(trainer={"max_steps": 5, "profile": 2}))
    assert not torch._C._autograd._profiler_enabled()


DEVICES = compiling.DEVICES


def trial_of(patch: pytest.MonkeyPatch, eager: float, compiled: float) -> Mock:
    """A compiler whose programs are the eager ones, and a clock for the steps of trials; returns what counts calls."""
    program, times, seconds = Mock(), cycle((eager, compiled)), compiling.step_seconds

    def compile_model(model: torch.nn.Module) -> None:
        program.side_effect, model._compiled_call_impl = model._call_impl, program

    patch.setattr(compiling, "DEVICES", ("cpu",))
    patch.setattr(compiling, "TRIAL_AFTER_BATCHES", 3)
    patch.setattr(compiling, "step_seconds", lambda *given: (seconds(*given)[0] * 0 + next(times), 0.0))
    patch.setattr(torch.nn.Module, "compile", compile_model)
    return program


@pytest.mark.parametrize("faster", [True, False])
def test_a_long_run_on_a_gpu_is_compiled_where_that_is_faster(
    small: Any, trained: Any, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any, faster: bool
) -> None:
    """The next run takes the choice without a trial, at the same batch."""
    trainer = {"max_steps": 6, "val_every_n_steps": 6, "accumulate_grad_batches": 2}  # the trial is within a step
    sections = {"model": {"dropout": 0.2}, "trainer": trainer}
    expected, tried, ran = trained(**sections), 1 + compiling.REPEATS, []
    monkeypatch.setattr("minitx.hardware.races.AGREEING_MEASUREMENTS", 1)
    capsys.readouterr()
    for version in ("v0", "v1"):
        program = trial_of(monkeypatch, eager=100.0, compiled=95.0 if faster else 96.0)
        train(small(**sections))
        ran.append(program.call_count)
        assert_equal(weights(folder.with_name(version)), weights(expected))  # a trial leaves no trace
    assert ran[0] > tried + 4 if faster else ran[0] == tried  # 9 batches and a validation are left
    assert ran[1] == ran[0] - tried + faster  # a step in which torch compiles
    out = capsys.readouterr().out
    assert out.count("compiling the training step (100000.00 ms), 15 minutes left") == 1
    assert out.count(f"compiled: {95 if faster else 96}000.00 ms instead of 100000.00") == 2
    assert out.count("; training continues without") == (0 if faster else 2)


@pytest.mark.parametrize(("steps", "moved"), [(2, False), (4, False), (4, True)])
def test_a_resumed_run_is_compiled(small: Any, monkeypatch: Any, capsys: Any, steps: int, moved: bool) -> None:
    """As if unbroken: from its first batch on, or later by a trial, three batches after the start; not on a CPU."""
    program, config = trial_of(monkeypatch, eager=100.0, compiled=1.0), small(trainer={"max_steps": 8})
    break_off(config, steps)
    assert ("compiled: " in capsys.readouterr().out) is (steps == 4)
    program.reset_mock()
    monkeypatch.setattr(compiling, "DEVICES", DEVICES if moved else ("cpu",))
    train(config, resume=True)
    assert ("compiled: " in capsys.readouterr().out) is (steps == 2)
    assert (program.called, program.call_count > 4) == (not moved, not moved)


def test_a_short_run_is_not_compiled(small: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    program = trial_of(monkeypatch, compiling.MIN_SECONDS_LEFT - 0.01, compiled=0.0)
    train(small(trainer={"max_steps": 4}))
    assert not program.called


@pytest.mark.parametrize("resumed", [False, True])
def test_a_machine_without_a_compiler_trains(small: Any, monkeypatch: Any, capsys: Any, resumed: bool) -> None:
    config = small(trainer={"accumulate_grad_batches": 2})  # the trial is within a step
    expected, program = train(config), Mock(side_effect=RuntimeError("Failed to find\nC compiler."))
    trial_of(monkeypatch, eager=100.0, compiled=1.0)
    if resumed:  # from a run on another machine, which was compiled
        break_off(config, 4)
    monkeypatch.setattr(torch.nn.Module, "compile", lambda model: setattr(model, "_compiled_call_impl", program))
    assert train(config, resume=resumed) == {**expected, "seconds": ANY}
    assert "compiling failed (Failed to find C compiler.); training continues without" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
@every_architecture
def test_a_compiled_run_is_the_same_run(trained: Any, architecture: str, mode: str) -> None:
    """Its checkpoint is one of a run that was not compiled."""
    model, data = {"architecture": architecture}, {"length": [4, 4]} if architecture == "encoder_only" else {}
    options: list[dict[str, Any]] = [{}, {"compile": True, "compile_mode": mode}]
    folders = [trained(data=data, model=model, trainer={"max_steps": 20, **more}) for more in options]
    losses = [json.loads((folder / "results.json").read_text())["loss"] for folder in folders]
    assert losses[1] == pytest.approx(losses[0], rel=1e-3)
    eager, compiled = (minitx.load(folder, device="cpu") for folder in folders)
    assert eager.model.state_dict().keys() == compiled.model.state_dict().keys()
    assert compiled.generate("3 1 4 1")
