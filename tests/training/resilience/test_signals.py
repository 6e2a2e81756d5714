"""Ctrl-C, SIGTERM and a closed terminal or pipe at any moment: the current step is completed and saved."""

import os
import random
import signal
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from minitx.training.api import train_config as train
from minitx.training.resilience.signals import StopOnSignal
from tests.training.interrupting import PATIENCE, Run, acting, launched_ranks, start_process, state, stopped


def test_a_signal_in_another_process_ends_this_one_after_whole_steps() -> None:
    """As one of two, simulated; real ones: test_processes_launched_by_others_exit_together."""
    saves: list[str] = []
    strategy = SimpleNamespace(root_device="cpu", reduce=lambda local, reduce_op: local.clamp(min=signal.SIGTERM))
    own = SimpleNamespace(on_train_end=lambda *given: saves.append("saved"))
    options = {"accumulate_grad_batches": 3, "world_size": 2, "max_steps": 9, "is_global_zero": False}
    trainer: Any = SimpleNamespace(global_step=2, strategy=strategy, checkpoint_callbacks=[own], **options)
    files: Any = SimpleNamespace(last="last.ckpt")
    callback = StopOnSignal(files, lambda *given: saves.append("checked"))
    callback._trainer = trainer
    for batch in range(2):
        callback.on_train_batch_end(trainer, None, None, None, batch)
    with pytest.raises(SystemExit, match=r"^143$"):
        callback.on_train_batch_end(trainer, None, None, None, 2)
    assert saves == ["checked", "saved"]
    trainer._signal_connector = SimpleNamespace()
    callback._training, callback.received, trainer.validating = True, 0, False
    with callback.around(trainer):
        signal.raise_signal(signal.SIGTERM)  # to this thread, whose mask it is
        assert callback.received == 0, "until all processes have started"
        callback.setup(trainer, None, "fit")
        assert callback.received == signal.SIGTERM


def test_nohup_ignores_a_closed_terminal(small: Any) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with acting({2: lambda: signal.raise_signal(signal.SIGHUP)}):
            assert train(small(trainer={"max_steps": 3}))["steps"] == 3
        assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_pipe_that_nobody_reads_saves_and_exits(small: Any, tmp_path: Path) -> None:
    """As in `minitx train | head -2`."""
    reader, writer = os.pipe()

    def write_to_pipe() -> None:
        os.close(reader)
        os.dup2(writer, 1)
        os.close(writer)

    process = start_process(small(trainer={"max_steps": 100_000}), tmp_path / "errors", prepare=write_to_pipe)
    os.close(writer)
    with open(reader) as output:
        assert "parameters" in output.readline()
        assert "step 3/" in output.readline()
    process.join(PATIENCE)
    assert process.exitcode == 128 + signal.SIGPIPE
    step = state(tmp_path / "runs/small/v0")["global_step"]
    printed = (tmp_path / "errors").read_text()
    assert printed == f"standard output was closed: stopped at step {step:,}; resume with --resume\n"


@pytest.mark.parametrize("first", [signal.SIGHUP, signal.SIGTERM])
def test_a_second_signal_ends_at_once_and_keeps_the_last_save(small: Any, folder: Path, tmp_path: Path, first) -> None:
    """That the first one, of any kind, saves and exits, and resuming after it: test_resume.py."""
    acts = acting({2: lambda: (signal.raise_signal(first), signal.raise_signal(signal.SIGTERM))})
    process = start_process(small(trainer={"save_every_n_steps": 1}), tmp_path / "log", prepare=acts.__enter__)
    process.join(PATIENCE)
    assert process.exitcode == -signal.SIGTERM
    printed = (tmp_path / "log").read_text()
    assert f"{first.name}: finishing the current step; a second signal ends at once" in printed
    assert "stopped" not in printed
    assert state(folder)["global_step"] == 2


def test_a_session_goes_on_after_two_interrupts(small: Any, folder: Path, monkeypatch: Any, capsys: Any) -> None:
    monkeypatch.setattr(sys, "ps1", ">>> ", raising=False)
    twice = {2: lambda: (signal.raise_signal(signal.SIGINT), signal.raise_signal(signal.SIGINT))}
    with acting(twice), pytest.raises(KeyboardInterrupt):
        train(small(trainer={"save_every_n_steps": 1}))
    assert state(folder)["global_step"] == 2
    assert "stopped at step 2; resume with resume=True" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.parametrize(("to", "processes"), [("first", 1), ("first", 2), ("second", 2), ("all", 2)])
def test_a_signal_at_random_moments(tmp_path: Path, to: str, processes: int) -> None:
    times, devices = random.Random(f"{to}{processes}"), f"--trainer.devices={processes}"
    for attempt in range(int(os.environ.get("MINITX_TEST_MOMENTS", "3"))):
        folder = tmp_path / str(attempt)
        run = Run(folder, devices)
        run.wait_for("parameters")
        if processes > 1:
            run.wait_for("step 20/") if attempt % 2 else None
            while not run.children():
                time.sleep(0.05)
        time.sleep(times.uniform(0, 6))
        run.send(signal.SIGTERM, to)
        # During the start, a signal waits until the slowest process has imported everything.
        patience = PATIENCE if processes == 1 or "step 20/" in run.output() else 4 * PATIENCE
        assert run.ended(patience) == 143, run.output()
        if "before anything was saved" not in run.output():
            version = folder / "runs/small/v0"
            step = state(version)["global_step"]
            assert f"stopped at step {step:,}; resume with --resume" in run.output()
            resumed = Run(folder, "--resume", devices, f"--trainer.max_steps={step + 2}")
            assert resumed.ended(patience=300) == 0, resumed.output()
            assert state(version)["global_step"] == step + 2


@pytest.mark.slow
@pytest.mark.parametrize("to", [0, 1])
def test_processes_launched_by_others_exit_together(tmp_path: Path, to: int) -> None:
    words = f"--run.folder={tmp_path}/runs", "--trainer.devices=2"
    runs = [Run(tmp_path / rank["RANK"], *words, rank=rank) for rank in launched_ranks(nodes=1, each=2)]
    runs[0].wait_for("step 40/")
    runs[to].send(signal.SIGTERM, "first")
    assert [run.ended() for run in runs] == [143, 143]
    assert all(run.output() for run in runs)


def test_before_the_first_step_and_after_the_last_it_exits_at_once(small: Any, monkeypatch: Any, capsys: Any) -> None:
    with stopped(0, signal.SIGTERM, "configure_model"):
        train(small())
    assert "stopped before anything was saved; start again" in capsys.readouterr().out
    before = signal.getsignal(signal.SIGTERM)
    with monkeypatch.context() as patch:
        patch.setattr("minitx.training.api.evaluation_report", lambda _: signal.raise_signal(signal.SIGTERM))
        with pytest.raises(SystemExit, match=r"^143$"):
            train(small())
    assert (signal.getsignal(signal.SIGTERM), signal.pthread_sigmask(signal.SIG_BLOCK, ())) == (before, set())
    assert "stopped after training; --resume evaluates" in capsys.readouterr().out
    assert train(small(), resume=True)["steps"] == 6, "the trained model is evaluated"


def test_a_validation_is_completed_unless_its_step_is_saved(small: Any, folder: Path) -> None:
    def stop(hook: str, step: int, resume: bool) -> None:
        with stopped(step, signal.SIGINT, hook):
            train(small(trainer={"keep_every_n_steps": 3}), resume=resume)

    stop("training_step", 2, resume=False)  # in the third step, before its validation
    assert state(folder)["global_step"] == state(folder, "step_00000003")["global_step"] == 3
    stop("validation_step", 3, resume=True)  # it comes first now, and the process exits at once
    assert state(folder)["global_step"] == 3
    assert not (folder / "best.ckpt").exists()
    (folder / "last.ckpt").unlink()  # in a new run, the validation of an unsaved step is completed, and the step after
    stop("validation_step", 3, resume=False)
    assert state(folder.with_name("v1"))["global_step"] == 4
    assert (folder.with_name("v1") / "best.ckpt").exists()


def test_a_run_in_a_thread_handles_no_signals(small: Any) -> None:
    results: list[dict[str, Any]] = []
    thread = threading.Thread(target=lambda: results.append(train(small(trainer={"max_steps": 1}))))
    thread.start()
    thread.join()
    assert results[0]["steps"] == 1
