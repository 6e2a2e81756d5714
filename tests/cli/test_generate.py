"""minitx generate in pipes and at a terminal."""

from __future__ import annotations

import io
import json
import os
import pty
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import minitx
from minitx.checkpoints import format as checkpoint
from minitx.cli.main import main
from minitx.generation.options import GenerationOptions
from minitx.inference.predictor import Predictor
from predictors import trained

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A checkpoint that answers questions."""
    path = tmp_path_factory.mktemp("answers") / "model.ckpt"
    checkpoint.write(trained("encoder_decoder"), path)
    return str(path)


@pytest.fixture(scope="module")
def endless(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A checkpoint that continues a text and never ends it."""
    path = tmp_path_factory.mktemp("text") / "model.ckpt"
    checkpoint.write(trained("decoder_only", text=True, ends=False), path)
    return str(path)


def printed(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[str]:
    """The printed lines."""
    capsys.readouterr()
    main(["generate", *arguments, "--device", "cpu"])
    captured = capsys.readouterr()
    assert captured.err == ""
    assert captured.out.endswith("\n")
    return captured.out[:-1].split("\n")


def complaint(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    capsys.readouterr()
    with pytest.raises(SystemExit) as stopped:
        main(["generate", *arguments, "--device", "cpu"])
    captured = capsys.readouterr()
    assert stopped.value.code == 2
    assert captured.out == ""
    assert captured.err.startswith("minitx: ")
    assert captured.err.count("\n") == 1
    return captured.err


# ---- what is printed -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [[], ["--num_beams", "3"], ["--do_sample", "--seed", "2"], ["--num_beams", "4", "--num_return_sequences", "3"]],
    ids=" ".join,
)
def test_json_lines_contain_the_texts(options: list[str], answers: str, capsys: pytest.CaptureFixture[str]) -> None:
    texts = printed(capsys, answers, "3 1 4", "5", *options)
    lines = [json.loads(line) for line in printed(capsys, answers, "3 1 4", "5", *options, "--json")]
    assert [line["text"] for line in lines] == texts
    count = len(texts) // 2
    assert [line["prompt"] for line in lines] == ["3 1 4"] * count + ["5"] * count
    predictor = minitx.load(answers, "cpu")
    for line in lines:
        assert line.keys() == {"prompt", "text", "ids", "log_probability", "stopped"}
        kept = line["ids"][:-1] if line["stopped"] == "end" else line["ids"]
        assert predictor.tokenizer.decode(kept) == line["text"]
        if line["stopped"] == "end":
            assert line["log_probability"] == pytest.approx(predictor.score(line["prompt"], line["text"]), abs=1e-3)


def test_json_keeps_text_in_one_line_and_in_its_own_letters(endless: str, capsys: pytest.CaptureFixture[str]) -> None:
    lines = printed(capsys, endless, "a\nb", "--max_new_tokens", "30", "--do_sample", "--seed", "1", "--json")
    assert len(lines) == 1
    line = json.loads(lines[0])
    assert line["prompt"] == "a\nb"
    assert "\n" in line["text"], "the test would show little"
    assert line["stopped"] == "length"
    assert len(line["ids"]) == 30


def test_a_text_is_printed_after_its_prompt(endless: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = [endless, "abc", "--max_new_tokens", "12"]
    whole = "\n".join(printed(capsys, *words))
    predictor = minitx.load(endless, "cpu")
    assert whole == "abc" + predictor.generate("abc", max_new_tokens=12)
    assert "\n".join(printed(capsys, *words, "--stream")) == whole
    assert json.loads(printed(capsys, *words, "--json")[0])["text"] == whole[3:]


def test_a_stream_ends_at_a_stop_token_like_the_text(endless: str, capsys: pytest.CaptureFixture[str]) -> None:
    whole = minitx.load(endless, "cpu").generate("abc", max_new_tokens=40)
    letters = sorted({*whole} - {"\n", whole[0]})[:2]
    options = [word for letter in letters for word in ("--stop", letter)]
    expected = whole[: min(whole.index(letter) for letter in letters)]
    for how in ([], ["--stream"]):
        lines = printed(capsys, endless, "abc", "--max_new_tokens", "40", *options, *how)
        assert "\n".join(lines) == "abc" + expected
    line = json.loads(printed(capsys, endless, "abc", "--max_new_tokens", "40", *options, "--json")[0])
    assert (line["text"], line["stopped"]) == (expected, "stop")


def test_a_line_of_input_a_line_of_output(
    answers: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = printed(capsys, answers, "3 1 4", "5", "--num_beams", "2")
    monkeypatch.setattr(sys, "stdin", io.StringIO("3 1 4\n5\n"))
    assert printed(capsys, answers, "--num_beams", "2") == expected
    monkeypatch.setattr(sys, "stdin", io.StringIO(""))
    main(["generate", answers, "--device", "cpu"])
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--stream", "--json"], "--stream shows one text"),
        (["--stream", "--num_beams", "2"], "--stream shows one text"),
        (["--stream", "--do_sample", "--num_return_sequences", "2"], "--stream shows one text"),
        (["--max_new_tokens", "0"], "max_new_tokens must be at least 1, got 0"),
        (["--num_return_sequences", "2"], "num_return_sequences must be at most num_beams"),
        (["--num_beams", "2", "--do_sample"], "do_sample and num_beams exclude each other"),
        (["--num_beams", "two"], "--num_beams: invalid int value: 'two'"),
        (["--num_beams", "0"], "num_beams must be at least 1, got 0"),
        (["--length_penalty", "1"], "length_penalty needs num_beams above 1"),
        (["--num_beams", "2", "--early_stopping", "sometimes"], "early_stopping"),
        (["--min_new_tokens", "3", "--max_new_tokens", "2"], "min_new_tokens must be at most max_new_tokens"),
        (["--repetition_penalty", "0"], "repetition_penalty must be larger than 0"),
        (["--stop", "3 1"], "stop must name single tokens, got '3 1', which is 2 tokens"),
        (["--stop", "x"], "'x' is not in the tokenizer's alphabet"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_bad_options(options: list[str], expected: str, answers: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert expected in complaint(capsys, answers, "3 1 4", *options)


@pytest.mark.parametrize("how", [[], ["--stream"], ["--json"], ["--num_beams", "2"]], ids=" ".join)
def test_an_empty_prompt(how: list[str], answers: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert "the prompt is empty" in complaint(capsys, answers, "  ", *how)


@pytest.mark.parametrize(("word", "value"), [("true", True), ("false", False), ("never", "never")])
def test_early_stopping_in_words(
    word: str, value: object, answers: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    received: list[GenerationOptions] = []
    original = Predictor.generations

    def listen(self: Predictor, texts: list[str], options: GenerationOptions) -> object:
        received.append(options)
        return original(self, texts, options)

    monkeypatch.setattr(Predictor, "generations", listen)
    printed(capsys, answers, "3 1", "--num_beams", "2", "--early_stopping", word, "--length_penalty", "-0.5")
    assert received[0].early_stopping == value
    assert type(received[0].early_stopping) is type(value)
    assert received[0].length_penalty == -0.5


# ---- at a terminal ---------------------------------------------------------------------------------------------------


RUN = (
    "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); from minitx.cli.main import main; main()"
)


def command(*arguments: str) -> list[str]:
    """A command with Ctrl-C enabled: background processes ignore it."""
    return [sys.executable, "-c", RUN, "generate", *arguments, "--device", "cpu"]


def wait_for(descriptor: int, text: str, seen: str = "", seconds: float = 60.0) -> str:
    """The output of a terminal up to this text."""
    end = time.monotonic() + seconds
    while text not in seen:
        ready, _, _ = select.select([descriptor], [], [], max(end - time.monotonic(), 0))
        assert ready, f"waited in vain for {text!r}, saw {seen!r}"
        try:
            piece = os.read(descriptor, 4096)
        except OSError:  # the other side has closed
            piece = b""
        assert piece, f"it ended before {text!r}, with {seen!r}"
        seen += piece.decode()
    return seen


@pytest.mark.parametrize("beams", [1, 3])
def test_a_conversation(beams: int, answers: str) -> None:
    """Two prompts, between them an invalid and an empty one, then Ctrl-D."""
    expected = minitx.load(answers, "cpu").generate(["3 1 4", "5"], num_beams=beams)
    words = command(answers, "--num_beams", str(beams))
    ours, theirs = pty.openpty()
    talk = subprocess.Popen(words, stdin=theirs, stdout=theirs, stderr=theirs, cwd=ROOT, close_fds=True)
    os.close(theirs)
    try:
        assert "Ctrl-D" in wait_for(ours, "> ")
        os.write(ours, b"3 1 4\n")
        assert expected[0] in wait_for(ours, "\r\n> ").splitlines()
        os.write(ours, b"3 x\n")
        seen = wait_for(ours, "\r\n> ")
        assert "minitx: 'x' is not in the tokenizer's alphabet" in seen
        assert "Traceback" not in seen
        os.write(ours, b"\n")
        assert "minitx: the prompt is empty" in wait_for(ours, "\r\n> ")
        os.write(ours, b"5\n")
        assert expected[1] in wait_for(ours, "\r\n> ").splitlines()
        os.write(ours, b"\x04")
        assert talk.wait(timeout=60) == 0
    finally:
        talk.kill()
        talk.wait()
        os.close(ours)


@pytest.mark.skipif(sys.platform == "win32", reason="signals are of another kind there")
def test_ctrl_c_keeps_the_text(endless: str) -> None:
    """With a newline at its end, and the exit code of an interrupted program."""
    words = command(endless, "abc", "--stream", "--max_new_tokens", "1000000000")
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=ROOT) as talk:
        assert talk.stdout is not None
        seen = wait_for(talk.stdout.fileno(), "abc")
        while len(seen) < 12:
            piece = os.read(talk.stdout.fileno(), 4096)
            assert piece, "it ended by itself"
            seen += piece.decode()
        talk.send_signal(signal.SIGINT)
        try:
            rest, errors = talk.communicate(timeout=60)
        finally:
            talk.kill()
    whole = seen + rest.decode()
    assert talk.returncode == 130
    assert errors == b""
    assert whole.endswith("\n")
    expected = "abc" + minitx.load(endless, "cpu").generate("abc", max_new_tokens=len(whole) - 4)
    assert whole[:-1] == expected


def test_a_closed_pipe(endless: str) -> None:
    """As in minitx generate ... | head -1: no traceback, and it ends."""
    words = command(endless, "abc", "--stream", "--max_new_tokens", "1000000000")
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=ROOT) as talk:
        assert talk.stdout is not None
        assert talk.stderr is not None
        assert talk.stdout.read(4) == b"abc" + minitx.load(endless, "cpu").generate("abc", max_new_tokens=1).encode()
        talk.stdout.close()
        try:
            assert talk.wait(timeout=60) == 1
        finally:
            talk.kill()
        assert talk.stderr.read() == b""
