"""The command line: output, exit codes, and one sentence for every bad input."""

import errno
import json
import math
import os
import re
import shlex
import subprocess
import sys
from dataclasses import fields
from importlib import metadata
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from matplotlib.figure import Figure
from PIL import Image

import minitx
from minitx.cli.arguments import output
from minitx.cli.main import COMMANDS, main
from minitx.config.errors import ConfigError, RunFailed
from minitx.generation.options import GenerationOptions
from short_configs import config_from_words
from tests.cli.conftest import ROOT, SETS, SMALL
from tests.training.interrupting import forked

REVERSE = ["--config", str(ROOT / "configs/reverse.yaml")]


def test_a_prompt_beyond_training_gets_one_note(run: Path, text_run: Path, tmp_path: Path, capsys: Any) -> None:
    main(["generate", str(run), " ".join("3" * 16)])
    main(["generate", str(text_run), "b" * 99, "--max_new_tokens", "1"])  # reads the end
    assert not capsys.readouterr().err
    main(["generate", str(run), *[" ".join("3" * 22)] * 2])
    main(["lens", str(text_run), "b" * 99, "--out", str(tmp_path / "x.html")])
    note = "minitx: this prompt has {} tokens, and the longest in training had {}: expect mistakes\n"
    assert capsys.readouterr().err == note.format(22, 16) + note.format(99, minitx.load(text_run, "cpu").task.block)


TRAIN = ["train", *REVERSE]
TEXT = ["train", "--config", "shakespeare"]
ANSWER = ["generate", "RUN", "3 1 4"]
BAD_USE = [
    (["trian"], "unknown command trian: did you mean train?"),
    (["train"], "nothing to train on"),
    ([*TRAIN, "--model.window_position.name", "ropee"], "did you mean rope?"),
    ([*TRAIN, "--resume"], "--resume: there is no runs/reverse/vN/last.ckpt to resume from"),
    ([*TRAIN, "--run.name=--"], "--run.name must not be --"),
    ([*TRAIN, "--run.folder", "~nosuchuser/runs"], "run.folder: there is no home folder for ~nosuchuser/runs"),
    ([*TRAIN, "--config", "~nosuchuser/a.yaml"], "--config: there is no home folder for ~nosuchuser/a.yaml"),
    ([*TRAIN, "--init_from", "a" * 5000], "cannot be read or written (File name too long)"),
    ([*TEXT, "--data.path", "~nosuchuser/a"], "data.path: there is no home folder for"),
    (TEXT, "no file data/shakespeare.txt (data/README.md describes where"),
    (["train", "--config", "multi30k_small"], "no folder data/multi30k (data/README.md describes"),
    ([*TEXT, "--data.path", "data/x.txt"], "no file data/x.txt; give"),
    ([*TEXT, "--data.path", "data/multi30k/x.en"], "no file data/multi30k/x.en (data/README.md describes"),
    ([*TRAIN, "--trainer.accelerator", "gpu"], "trainer.accelerator gpu: torch finds no GPU here"),
    (["describe", *REVERSE, "--plot", "a.jpg"], "--plot: must end in .png, .pdf, .svg, got a.jpg"),
    (["generate"], "required: checkpoint"),
    (["generate", "RUN", "--num_bems", "4", "3"], "unknown option --num_bems: did you mean --num_beams?\n"),
    (["generate", "RUN", "314"], "'314' is no symbol: put spaces between symbols, as in '3 1 4'"),
    (["generate", "RUN", "  ", "--stream"], "the prompt is empty"),
    (["generate", "RUN", "\udcff"], "arguments must be UTF-8, got '\\udcff'; the locale (LC_ALL) sets the encoding"),
    ([*ANSWER, "--data.tokenizer.size", "5"], "unknown option --data.tokenizer.size"),
    ([*ANSWER, "--stream=1"], "argument --stream: takes no value, got '1'"),
    ([*ANSWER, "-der"], "; a text that begins with - comes last, after --"),
    ([*ANSWER, "--top_j", "3"], "unknown option --top_j: did you mean --top_p?"),
    ([*ANSWER, "--stream", "--json"], "--stream shows one text"),
    ([*ANSWER, "--stream", "--do_sample", "--num_return_sequences", "2"], "--stream shows one text"),
    (["evaluate", "RUN", "--plot", "a.png"], "--plot needs --lengths FROM:TO"),
    (["attend", "RUN", "1 2", "--out", "maps.jpg"], "--out: must end in .html, .png, .pdf, .svg, got maps.jpg"),
    (["attend", "RUN", "1 2", "--out", "nowhere/maps.png"], "--out: nowhere/maps.png cannot be written"),
    (["lens", "RUN", "1 2", "--json", "/proc/self/coredump_filter"], "--json: /proc/self/coredump_filter cannot be"),
    (["attend", "RUN", "3", "1", "4"], "minitx: unexpected argument '1'; a text with spaces needs quotes\n"),
    (["patch", "RUN", "3 1", "4", "1 5"], "minitx: unexpected argument '1 5'; the command takes 2 texts\n"),
    (["lens", "RUN", "1 2", "--json", "lens.html"], "--out and --json both name lens.html"),
    (["attend", "RUN", "1 2", "--step", "3"], "--step needs --logdir"),
    (["attend", "RUN", "1 2", "--logdir", "a" * 300], "a cannot be written"),
    ([*ANSWER, "--num_beams", "two"], "minitx: argument --num_beams: expected an integer, got 'two'\n"),
    ([*ANSWER, "--temperature", "hot"], "minitx: argument --temperature: expected a number, got 'hot'\n"),
    (["ablate", "RUN", "--split", "training"], "--split must be test or validation, got training"),
    (["ablate", "RUN", "--together", "cross"], "--together must be KIND.LAYER.HEAD, KIND.LAYER.ffn or"),
    (["ablate", "RUN", "--parts", "ffn", "--out", "heads.png"], "--out plots heads, and --parts ffn has none"),
    (["ablate", "RUN", "--by", "resample", "--examples", "1"], "--examples must be at least 2, got 1"),
    (["completion", "cmd.exe"], "argument shell: invalid choice: 'cmd.exe'"),
]


@pytest.mark.parametrize(("words", "expected"), BAD_USE)
def test_bad_use_is_one_sentence(
    words: list[str], expected: str, run: Path, tmp_path: Path, refused: Any, monkeypatch: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("minitx.training.resolve.training_device", lambda accelerator: "cpu")
    assert expected in refused(*(str(run) if word == "RUN" else word for word in words))
    assert not any(tmp_path.iterdir()), "no work before the refusal"


def test_checking_an_output_changes_no_link(tmp_path: Path) -> None:
    (tmp_path / "link.png").symlink_to(tmp_path / "missing.png")
    assert output(".png")(str(tmp_path / "link.png")) == tmp_path / "link.png"
    assert [path.name for path in tmp_path.iterdir()] == ["link.png"]


@pytest.mark.parametrize("columns", [70, 200])
def test_each_command_has_help_and_the_version_of_the_package(columns: int, capsys: Any, monkeypatch: Any) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    main(["--version"])
    assert capsys.readouterr().out == f"minitx {metadata.version('minitx')}\n"
    with pytest.raises(SystemExit, match="0"):
        main(["--help"])
    whole = capsys.readouterr().out
    for name, command in COMMANDS.items():
        assert f"  {name} " in whole
        with pytest.raises(SystemExit, match="0"):
            main([name, "--help"])
        shown = capsys.readouterr().out
        assert str(command.run.__doc__)[:20] in shown
        assert max(map(len, shown.splitlines())) <= min(columns, 100)
        for section in ("model:", "log.attention:") if name == "train" else ():
            keys = re.findall("^  --([a-z.]+)", shown.partition(f"\n{section}\n")[2].partition("\n\n")[0], re.MULTILINE)
            assert {key.startswith(section.replace(":", ".")) for key in keys} == {True}
        for option in fields(GenerationOptions) if name == "generate" else ():
            assert f"--{option.name}" in shown


def test_typos_and_help_load_no_torch() -> None:
    """The typo in train.py, which is `minitx train`."""
    code = (
        "import atexit, runpy, sys; from contextlib import suppress; from minitx.cli.main import main\n"
        "atexit.register(lambda: print('torch' in sys.modules))\n"
        "for words in ([], ['train'], ['generate']):\n    with suppress(SystemExit): main([*words, '--help'])\n"
        f"runpy.run_path({str(ROOT / 'train.py')!r}, run_name='__main__')"
    )
    command = [sys.executable, "-c", code, *REVERSE, "--model.d_modl", "3"]
    result = subprocess.run(command, capture_output=True, text=True)
    assert (result.returncode, result.stdout.splitlines()[-1]) == (2, "False"), result.stderr
    assert "did you mean model.d_model?" in result.stderr


def test_another_text_with_overlapping_windows(text_run: Path, tmp_path: Path, impatient: None, capsys: Any) -> None:
    main(["evaluate", str(text_run)])
    assert "evaluating: 3 of 3 examples, 00:00 left\n" in capsys.readouterr().err
    (tmp_path / "other.txt").write_text("not to be\n" * 200)
    words = ["--stride", "8", "--path", str(tmp_path / "other.txt"), "--json", str(tmp_path / "out.json")]
    main(["evaluate", str(text_run), *words])
    report = json.loads((tmp_path / "out.json").read_text())
    assert (report["stride"], report["bits_per_character"]) == (8, pytest.approx(report["bits_per_token"]))
    out, err = capsys.readouterr()
    assert re.search(r"evaluating: (\d+) of \1 windows", err)
    block = minitx.load(text_run, device="cpu").task.longest[1]
    assert f"{math.ceil((1999 - block) / 8) + 1} examples of {tmp_path / 'other.txt'}\n" in out, "all of it"
    assert "stride (tokens between overlapping windows)         8\n" in out
    assert "perplexity (per token)" in out


def test_describe_prints_and_plots_what_configs_mean(tmp_path: Path, saved_figures: list[Figure], capsys: Any) -> None:
    picture = tmp_path / "describe.png"
    changed = ["--model.position", "{name: alibi}", "--model.n_heads", "2", "--optimizer.lr", "0.005"]
    main(["describe", *REVERSE, *changed, "--plot", str(picture)])
    out = capsys.readouterr().out
    assert out.startswith("reverse: encoder_decoder")
    assert all(part in out for part in ("GFLOP", "learning rate (cosine, peak 0.005)", str(picture)))
    rest = out.partition("parameters ")[2]
    total, *parts = [line.split()[-1].replace(",", "") for line in rest.split("\n\n")[0].splitlines()]
    assert sum(int(part) for part in parts) == int(total)
    for place in ("encoder self_attn", "decoder self_attn", "decoder cross_attn"):
        (line,) = (line for line in out.splitlines() if line.strip().startswith(place))
        assert line.split()[2] in ("fused:", "explicit", "flex")
    titles = [axes.get_title(loc="left") for axes in saved_figures[0].axes if axes.get_title(loc="left")]
    biases = [f"{stack}: bias, head {head}" for stack in ("encoder", "decoder") for head in (1, 2)]
    assert titles == ["learning rate", *biases]
    rates = saved_figures[0].axes[0].lines[0].get_ydata()
    assert 2 * rates[-1] < max(rates) <= 0.005


@pytest.mark.parametrize("words", [["--help"], ["train", "--help"]])
def test_a_closed_pipe_is_no_error(words: list[str]) -> None:
    """As in `minitx --help | head -1`; by python -m, where no script is on the path."""
    reads, writes = os.pipe()
    os.close(reads)
    done = subprocess.run([sys.executable, "-m", "minitx", *words], stdout=writes, stderr=subprocess.PIPE, text=True)
    os.close(writes)
    assert (done.returncode in (0, 1), done.stderr) == (True, "")


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
@pytest.mark.parametrize("closed", [False, True])
def test_output_that_cannot_be_written(closed: bool, stream: str) -> None:
    """A full disk is one sentence; nothing is printed to a closed file."""
    command = f"exec {sys.executable} -um minitx {'train --help' if stream == 'stdout' else 'no-command'}"
    shell = f"{command} {1 if stream == 'stdout' else 2}>{'&-' if closed else '/dev/full'}"
    done = subprocess.run(["sh", "-c", shell], capture_output=True, text=True)
    sentence = "minitx: the output cannot be written (No space left on device)\n"
    expected = {"stdout": (0, "") if closed else (1, sentence), "stderr": (2, "")}
    assert (done.returncode, done.stderr) == expected[stream]


@pytest.mark.parametrize("closed", [False, True])
def test_training_needs_no_standard_output(closed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("minitx.training.callbacks.profiling.WARMUP_STEPS", 1)

    def training() -> None:
        os.dup2(os.open(tmp_path / "errors", os.O_WRONLY | os.O_CREAT), 2)
        sys.stderr = open(2, "w", closefd=False)  # noqa: SIM115
        if closed:
            os.close(1)
            sys.stdout = None  # type: ignore[assignment]  # as Python sets it
        else:
            os.dup2(os.open("/dev/full", os.O_WRONLY), 1)
            sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115
        main(["train", *REVERSE, *SMALL, *SETS, "--trainer.profile", "1", "--run.folder", str(tmp_path / "runs")])

    process = forked(training)
    process.join()
    assert process.exitcode == (0 if closed else 1)
    folder = tmp_path / "runs/reverse"
    sentence = f"standard output cannot be written (No space left on device); the run in {folder} is trained and saved"
    printed = (tmp_path / "errors").read_text()
    assert printed == "" if closed else printed.startswith(f"minitx: {sentence}")
    assert (folder / "v0/results.json").exists()


def test_no_half_file_on_a_full_disk(run: Path, text_run: Path, tmp_path: Path, monkeypatch: Any, capsys: Any) -> None:
    """Every option that names a file to write, and the folder of an export."""
    full = Mock(side_effect=(OSError(errno.ENOSPC, "No space left on device") for _ in range(20)))
    monkeypatch.setattr(Figure, "savefig", lambda figure, file, **options: file.write(b"a picture"))
    for name in ("os.fsync", "minitx.tensorboard.events.EventFile.close", "minitx.huggingface.exporting.save_file"):
        monkeypatch.setattr(name, full)
    commands = {
        "a.png": ["attend", str(run), "3 1", "--out"],
        "a.html": ["attend", str(run), "3 1", "--out"],
        "e.json": ["evaluate", str(run), "--json"],
        "e.png": ["evaluate", str(run), "--lengths", "3:3", "--plot"],
        "b.json": ["ablate", str(run), "--examples", "2", "--json"],
        "d.png": ["describe", *REVERSE, "--plot"],
        "export": ["export", str(text_run), "--to", "safetensors"],
        "log": ["attend", str(run), "3 1", "--out", "unwritten.png", "--logdir"],
    }
    for name, command in commands.items():
        if "." in name:
            (tmp_path / name).write_text("before")
        if name == "log":
            monkeypatch.setattr("minitx.interpret.attention_maps.AttentionMaps.save_image", lambda *_, **__: None)
        with pytest.raises(SystemExit, match="1"):
            main([*command, str(tmp_path / name)])
        error = capsys.readouterr().err
        assert re.search(rf"^minitx: .*{name} .*written \(No space left on device\)\n\Z", error, re.MULTILINE), error
    left = {path.name: path.is_dir() or path.read_text() for path in tmp_path.rglob("*")}
    assert left == {**{name: "before" for name in commands if "." in name}, "log": True}


@pytest.mark.parametrize(("error", "code", "sentence"), [
    (KeyboardInterrupt(), 130, ""),
    (RunFailed("the run failed"), 1, "minitx: the run failed\n"),
    (ConfigError("one\ntwo"), 2, "minitx: one\nminitx: two\n"),
    (MemoryError(), 2, "minitx: there is not enough memory: make"),
    (RuntimeError("CUDA out of memory. Tried to allocate 2.5 GiB. ..."), 2, "enough memory for 2.5 GiB more: make"),
    (OSError(errno.ENOSPC, "No space left on device", "a.png"), 1, "a.png cannot be read or written (No space"),
    (FileNotFoundError(errno.ENOENT, "a bug"), None, ""),
    (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes"), 2, "for 9 bytes"),
    (RuntimeError("a bug: out of memory slots"), None, ""),
    (ValueError("a bug"), None, ""),
], ids=repr)  # fmt: skip
def test_only_mistakes_of_a_user_lose_their_traceback(
    error: BaseException, code: int | None, sentence: str, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("minitx.inference.predictor.load", Mock(side_effect=error))
    with pytest.raises(type(error) if code is None else SystemExit) as stopped:
        main(["evaluate", "x.ckpt"])
    assert code is None or stopped.value.code == code
    assert sentence in capsys.readouterr().err
    if code in (1, 2) and not isinstance(error, OSError):
        monkeypatch.setenv("MINITX_TRACEBACK", "1")
        with pytest.raises(type(error)):
            main(["evaluate", "x.ckpt"])


def test_the_printed_config_is_the_config(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--data.name", "reverse", "--run.name", "1e-3", "--run.folder", "läufe 猫", "--model.d_model", "32"]
    with pytest.raises(SystemExit) as stopped:
        main(["train", *words, "--print_config"])
    assert not stopped.value.code
    (tmp_path / "printed.yaml").write_text(out := capsys.readouterr().out, encoding="utf-8")
    assert config_from_words("--config", str(tmp_path / "printed.yaml")) == config_from_words(*words)
    assert ("  folder: läufe 猫\n" in out, (tmp_path / "runs").exists()) == (True, False)


def test_ablate_writes_heat_map_and_json(answers: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, figures = tmp_path / "heads.png", tmp_path / "heads.json"
    together = ["--together", "cross.1.1,encoder.2.2", "--split", "validation"]
    main(["ablate", answers, "--examples", "12", "--out", str(out), "--json", str(figures), *together])
    printed = capsys.readouterr().out
    assert all(part in printed for part in ("12 examples held out for validation", "exact match", str(out)))
    report = json.loads(figures.read_text())
    assert (report["split"], report["examples"], len(report["parts"])) == ("validation", 12, 3 * 2 * 2)
    assert report["groups"][-1]["parts"] == ["cross.1.1", "encoder.2.2"]
    assert Image.open(out).format == "PNG"


@pytest.mark.parametrize(("words", "expected", "name"), [
    ("lens MODEL '3 1 4'", "2 decoder layers and 2 encoder layers", "found.html"),
    ("lens MODEL '3 1 4'", "2 decoder layers and 2 encoder layers", "found.svg"),
    ("patch MODEL '3 1 4' '3 1 5' --sites heads --answers '4 1' '5 1'", "cross, head 2.1, at <bos>", "found.svg"),
    ("patch MODEL '3 1 4' '3 1 5' --sender decoder.1.1 --answers 4 5", "head 2.2, at queries", "found.html"),
])  # fmt: skip
def test_lens_and_patch_write_pages_and_images(
    words: str, expected: str, name: str, answers: str, tmp_path: Path, capsys: Any
) -> None:
    out, figures = tmp_path / name, tmp_path / "found.json"
    words = words.replace("MODEL", shlex.quote(answers))
    main([*shlex.split(words), "--device", "cpu", "--out", str(out), "--json", str(figures)])
    printed = capsys.readouterr().out
    assert str(out) in printed
    assert expected in printed
    assert (f" of {json.loads(figures.read_text())['title']}\n" in printed) == words.startswith("patch")
    assert ("<svg" if name.endswith("svg") else "Content-Security-Policy") in out.read_text()
