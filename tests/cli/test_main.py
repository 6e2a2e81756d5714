"""The command line: output, exit codes, and one sentence for every bad input."""

import json
import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from matplotlib.figure import Figure
from PIL import Image

from minitx.checkpoints import format as checkpoint
from minitx.cli.main import COMMANDS, main

ROOT = Path(__file__).parents[2]
REVERSE = ["--config", str(ROOT / "configs/reverse.yaml")]
SMALL = ["--model.d_model", "32", "--model.n_layers", "1", "--data.test_size", "50", "--data.validation_size", "20"]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a short run of reversal."""
    folder = tmp_path_factory.mktemp("cli")
    main(["train", *REVERSE, *SMALL, "--trainer.max_steps", "4", "--run.folder", str(folder / "runs")])
    return folder / "runs/reverse"


@pytest.fixture(scope="module")
def text_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a short run on text."""
    folder = tmp_path_factory.mktemp("text")
    (folder / "text.txt").write_text("to be, or not to be: that is the question.\n" * 40)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MINITX_CACHE", str(folder / "cache"))
        arguments = ["--config", str(ROOT / "configs/shakespeare.yaml"), "--data.path", str(folder / "text.txt")]
        main(["train", *arguments, *SMALL[:4], "--trainer.max_steps", "4", "--run.folder", str(folder / "runs")])
    return folder / "runs/shakespeare"


def complaint(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """The sentence on stderr, after checking that there is one and the exit code is 2."""
    with pytest.raises(SystemExit) as stopped:
        main(arguments)
    captured = capsys.readouterr()
    assert stopped.value.code == 2, captured
    assert captured.out == ""
    assert captured.err.startswith("minitx: ")
    assert captured.err.count("\n") == 1, captured.err
    assert "Traceback" not in captured.err
    return captured.err


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        (["--model.d_modl", "3"], "unknown key model.d_modl: did you mean model.d_model?"),
        (["--trainer.max_step", "3"], "did you mean trainer.max_steps?"),
        (["--data.symbls", "3"], "did you mean data.symbols?"),
        (["--model.position.bas", "3"], "did you mean model.position.base?"),
        (["--run.name=--"], "--run.name must not be --"),
        (["--model.d_model", "wide"], "model.d_model: expected an integer of at least 1, got 'wide'"),
        (["--data.symbols", "many"], "data.symbols: expected an integer, got 'many'"),
        (["--model.architecture", "rnn"], "model.architecture: expected one of"),
        (["--model.n_heads", "5"], "d_model 64 and n_heads 5"),
        (["--data.name", "revers"], "did you mean reverse?"),
        (["--model.position.name", "sinusoid"], "did you mean sinusoidal?"),
        (
            ["--model.position.name", "learned", "--model.position.max_len", "9"],
            "model.position.max_len must be at least",
        ),
        (["--trainer.max_steps", "-1"], "trainer.max_steps: expected an integer of at least 1, got -1"),
        (["--data.length", "[5, 2]"], "data.length must be [shortest, longest]"),
        (["--model.dropout", "1.5"], "model.dropout: expected a number of at least 0 and below 1, got 1.5"),
        (["--run.name", "a/b"], "run.name must be a plain folder name"),
        (["--run.folder", __file__], "run.folder"),
        (["--optimizer.lr", "-1"], "optimizer.lr: expected a number above 0, got -1"),
    ],
)
def test_bad_settings(overrides: list[str], expected: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert expected in complaint(["train", *REVERSE, "--run.folder", str(tmp_path / "runs"), *overrides], capsys)
    assert not (tmp_path / "runs").exists(), "no work before the refusal"


@pytest.mark.parametrize(
    ("yaml", "expected"),
    [
        ("modl: {d_model: 3}", "unknown key modl"),
        ("model: {d_modl: 3}", "did you mean model.d_model?"),
        ("model: {d_model: [1]}", "model.d_model"),
        ("data: {name: reverse, lenght: [1, 2]}", "did you mean data.length?"),
        ("data: {symbols: 3}", "data.name is missing"),
        ("model: [", "config"),
        ("just text", "config"),
    ],
)
def test_bad_yaml(yaml: str, expected: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "bad.yaml").write_text(yaml)
    sentence = complaint(["train", "--config", str(tmp_path / "bad.yaml"), "--run.folder", str(tmp_path)], capsys)
    assert expected in sentence


@pytest.mark.parametrize(
    ("contents", "expected"),
    [
        (None, "there is no file"),
        (b"", "is empty"),
        ("caf\xe9 au lait".encode("latin-1") * 100, "is not UTF-8 text"),
        (b"too short", "fewer than one block"),
    ],
)
def test_bad_text(
    contents: bytes | None,
    expected: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("MINITX_CACHE", str(tmp_path / "cache"))
    path = tmp_path / "text.txt"
    if contents is not None:
        path.write_bytes(contents)
    arguments = ["--config", str(ROOT / "configs/shakespeare.yaml"), "--data.path", str(path)]
    assert expected in complaint(["train", *arguments, "--run.folder", str(tmp_path / "runs")], capsys)


class Hostile:
    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, ("touch hostile-code-ran",)


def truncated(path: Path, good: Path) -> None:
    path.write_bytes(good.read_bytes()[: good.stat().st_size // 2])


def newer(path: Path, good: Path) -> None:
    contents = checkpoint.read(good)
    contents["minitx"]["format"] = 99
    checkpoint.write(contents, path)


BAD_CHECKPOINTS: dict[str, tuple[Callable[[Path, Path], object], str]] = {
    "missing": (lambda path, good: None, "there is no checkpoint"),
    "empty": (lambda path, good: path.touch(), "damaged"),
    "truncated": (truncated, "damaged"),
    "foreign": (lambda path, good: torch.save({"model": torch.ones(3)}, path), "is not a minitx checkpoint"),
    "hostile": (lambda path, good: path.write_bytes(pickle.dumps(Hostile())), "damaged, or not a minitx checkpoint"),
    "newer": (newer, "update minitx"),
    "text": (lambda path, good: path.write_text("hello"), "damaged"),
    "empty folder": (lambda path, good: path.mkdir(), "holds no checkpoint"),
}


@pytest.mark.parametrize("kind", BAD_CHECKPOINTS)
@pytest.mark.parametrize("command", [["generate", "1"], ["evaluate"], ["attend", "1"]], ids=lambda words: words[0])
def test_bad_checkpoints(
    kind: str, command: list[str], run: Path, tmp_path: Path,
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    make, expected = BAD_CHECKPOINTS[kind]
    make(tmp_path / "bad.ckpt", run / "v0/best.ckpt")
    capsys.readouterr()
    assert expected in complaint([command[0], "bad.ckpt", *command[1:]], capsys)
    assert not (tmp_path / "hostile-code-ran").exists()


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["generate", "RUN", "3 1 x"], "'x' is not in the tokenizer's alphabet, which is: 0 1 2 3 4 5 6 7 8 9"),
        (["generate", "RUN", "1", "--temperature", "2"], "temperature needs do_sample"),
        (["generate", "RUN", "1", "--do_sample", "--top_p", "1.5"], "top_p must be in (0, 1], got 1.5"),
        (["generate", "RUN", "1", "--top_j", "3"], "did you mean --top_p?"),
        (["attend", "RUN", "1 2", "--out", "maps.jpg"], "--out must end in .png or .html"),
        (["attend", "RUN", "1 2", "--out", "nowhere/maps.png"], "cannot be written"),
        (["attend", "RUN", "1 2", "--target", "x"], "'x' is not in the tokenizer's alphabet"),
        (["evaluate", "RUN", "--lengths", "5:1"], "--lengths must be FROM:TO"),
        (["evaluate", "RUN", "--split", "training"], "--split must be test or validation"),
        (["evaluate", "RUN", "--path", "x.txt"], "--path is for language models"),
        (["evaluate", "RUN", "--stride", "3"], "--stride is for language models"),
        (["describe", *REVERSE, "--plot", "a.pdf"], "--plot takes a .png file, got a.pdf"),
        (["describe", *REVERSE, "--plot", "nowhere/a.png"], "cannot be written"),
        (["evaluate", "RUN", "--plot", "a.png"], "--plot takes a .png file, and --lengths"),
        (["evaluate", "RUN", "--lengths", "1:2", "--plot", "a.pdf"], "--plot takes a .png file"),
        (["evaluate", "RUN", "--lengths", "1:2", "--plot", "nowhere/a.png"], "cannot be written"),
        (["evaluate", "RUN", "--json", "nowhere/x.json"], "cannot be written"),
        (["trian"], "did you mean train?"),
        (["train"], "nothing to train on"),
        (["train", "--config", "none.yaml"], "there is no file"),
        (["generate"], "required: checkpoint"),
        (["generate", "RUN", "3 1", "--data.tokenizer.size", "5"], "unknown option --data.tokenizer.size"),
        (["generate", "RUN", "\udcff"], "arguments must be UTF-8, got"),
        (["generate", "RUN", "a\0b"], "arguments must be UTF-8, got"),
    ],
)
def test_bad_use(
    arguments: list[str], expected: str, run: Path, tmp_path: Path,
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    capsys.readouterr()
    assert expected in complaint([str(run) if word == "RUN" else word for word in arguments], capsys)


def test_our_own_bugs_keep_their_traceback(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("minitx.inference.predictor.load", lambda *_: int("a bug"))
    with pytest.raises(ValueError, match="invalid literal"):
        main(["generate", str(run), "1"])


@pytest.mark.parametrize("command", COMMANDS)
def test_each_command_has_help(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main([command, "--help"])
    assert stopped.value.code == 0
    assert COMMANDS[command].help.split(":")[0][:20] in capsys.readouterr().out


def test_help_explains_every_key(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["train", "--help"])
    words = " ".join(capsys.readouterr().out.split())
    assert "Steps between validations; the last step is always followed by one." in words
    assert "Layer norm before each sublayer" in words


def test_typos_and_help_load_no_torch() -> None:
    code = (
        "import sys; from minitx.cli.main import main\ntry: main(sys.argv[1:])\nfinally: print('torch' in sys.modules)"
    )
    for arguments in (["--help"], ["train", "--help"], ["train", *REVERSE, "--model.d_modl", "3"]):
        result = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True)
        assert result.stdout.splitlines()[-1] == "False", arguments


def test_evaluate_writes_json(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plot = ["--plot", str(tmp_path / "out.png")]
    main(["evaluate", str(run), "--lengths", "3:4", "--json", str(tmp_path / "out.json"), *plot])
    assert Image.open(tmp_path / "out.png").width > 800
    report = json.loads((tmp_path / "out.json").read_text())
    assert report["split"] == "test"
    assert report["examples"] == 50
    assert {"exact_match", "token_accuracy", "loss", "by_length"} <= report.keys()
    assert set(report["by_length"]) == {"3", "4"}
    assert "free-running" in capsys.readouterr().out


def test_evaluate_a_language_model_on_another_text(
    text_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MINITX_CACHE", str(tmp_path / "cache"))
    (tmp_path / "other.txt").write_text("not to be\n" * 200)
    main(["evaluate", str(text_run), "--path", str(tmp_path / "other.txt"), "--json", str(tmp_path / "out.json")])
    report = json.loads((tmp_path / "out.json").read_text())
    assert report["loss"] > 0
    assert report["bits_per_token"] == pytest.approx(report["loss"] / 0.6931471805599453)
    assert report["bits_per_character"] == pytest.approx(report["bits_per_token"]), "a character is a token here"
    assert report["perplexity"] == pytest.approx(2 ** report["bits_per_token"])


def test_evaluate_a_language_model_with_overlapping_windows(
    text_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    losses = {}
    for stride in (None, 64, 8):
        words = [] if stride is None else ["--stride", str(stride)]
        main(["evaluate", str(text_run), *words, "--json", str(tmp_path / "out.json")])
        report = json.loads((tmp_path / "out.json").read_text())
        assert report.get("stride") == stride
        losses[stride] = report["loss"]
    assert losses[64] == pytest.approx(losses[None])
    assert losses[8] != pytest.approx(losses[None], rel=1e-5)
    out = capsys.readouterr().out
    assert "stride (tokens between overlapping windows)   8\n" in out
    assert "perplexity (per token)" in out


def test_attend_writes_image_page_and_log(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["attend", str(run), "3 1 4", "--out", str(tmp_path / "maps.HTML")])
    assert all(
        f'"{kind}/example_1"' in (tmp_path / "maps.HTML").read_text() for kind in ("encoder", "decoder", "cross")
    )
    assert "1 encoder, 1 decoder and 1 cross layers" in capsys.readouterr().out
    main(["attend", str(run), "3 1 4", "--out", str(tmp_path / "maps.png"), "--logdir", str(tmp_path / "log")])
    assert Image.open(tmp_path / "maps.png").width > 50
    assert list((tmp_path / "log").glob("events.*"))


def test_describe_prints_size_cost_and_learning_rate(capsys: pytest.CaptureFixture[str]) -> None:
    main(["describe", *REVERSE, "--optimizer.lr", "0.005"])
    out = capsys.readouterr().out
    assert "parameters" in out
    assert "GFLOP" in out
    assert "learning rate (cosine, peak 0.005)" in out
    head, _, rest = out.partition("parameters ")
    total, *parts = [line.split()[-1].replace(",", "") for line in rest.split("\n\n")[0].splitlines()]
    assert sum(int(part) for part in parts) == int(total)
    assert "encoder_decoder" in head
    for place in ("encoder self_attn", "decoder self_attn", "decoder cross_attn"):
        (line,) = (line for line in out.splitlines() if line.strip().startswith(place))
        assert line.split()[2] in ("fused:", "explicit", "flex")


def test_describe_plots_positions_and_learning_rate(
    tmp_path: Path, saved_figures: list[Figure], capsys: pytest.CaptureFixture[str]
) -> None:
    picture = tmp_path / "describe.png"
    changed = ["--model.position", "{name: alibi}", "--model.n_heads", "2", "--optimizer.lr", "0.005"]
    main(["describe", *REVERSE, *changed, "--plot", str(picture)])
    assert str(picture) in capsys.readouterr().out
    assert picture.read_bytes().startswith(b"\x89PNG")
    titles = [axes.get_title(loc="left") for axes in saved_figures[0].axes if axes.get_title(loc="left")]
    biases = [f"{stack}: bias, head {head}" for stack in ("encoder", "decoder") for head in (1, 2)]
    assert titles == ["learning rate", *biases]
    rates = saved_figures[0].axes[0].lines[0].get_ydata()
    assert max(rates) <= 0.005
    assert rates[-1] < max(rates) / 2


def test_train_py_is_minitx_train(tmp_path: Path) -> None:
    command = [sys.executable, str(ROOT / "train.py"), *REVERSE, "--model.d_modl", "3"]
    result = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert result.returncode == 2
    assert "did you mean model.d_model?" in result.stderr


def test_resume_continues_a_finished_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["train", *REVERSE, *SMALL, "--run.folder", str(tmp_path), "--trainer.val_every_n_steps", "2"]
    main([*words, "--trainer.max_steps", "4"])
    capsys.readouterr()
    main([*words, "--trainer.max_steps", "6", "--resume"])
    assert "step 6/6" in capsys.readouterr().out
    assert [folder.name for folder in (tmp_path / "reverse").iterdir()] == ["v0"]
    assert torch.load(tmp_path / "reverse/v0/last.ckpt", weights_only=True)["global_step"] == 6


def test_a_bad_logdir_is_refused_before_the_work(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").touch()
    out = ["--out", str(tmp_path / "maps.png")]
    for logdir in (tmp_path / "file", tmp_path / ("a" * 300)):
        message = complaint(["attend", str(run), "3 1", *out, "--logdir", str(logdir)], capsys)
        assert f"the folder {logdir} cannot be written" in message
    assert not (tmp_path / "maps.png").exists()


@pytest.mark.parametrize("words", [["--help"], ["train", "--help"], ["list"]])
def test_a_closed_pipe_is_no_error(words: list[str]) -> None:
    """As in `minitx --help | head -1`; by python -m, where no script is on the path."""
    reads, writes = os.pipe()
    os.close(reads)
    done = subprocess.run([sys.executable, "-m", "minitx", *words], stdout=writes, stderr=subprocess.PIPE, text=True)
    os.close(writes)
    assert done.returncode in (0, 1)
    assert done.stderr == ""
