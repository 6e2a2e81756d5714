"""minitx generate in pipes and at a terminal."""

import io
import json
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import minitx
from minitx.cli.main import COMMANDS, main
from minitx.inference.text_generation import TextGenerator


@pytest.fixture
def printed(capsys: pytest.CaptureFixture[str]) -> Callable[..., list[str]]:
    """printed(*words): the printed lines."""

    def ask(*words: str) -> list[str]:
        capsys.readouterr()
        main(["generate", *words, "--device", "cpu"])
        captured = capsys.readouterr()
        assert captured.err == ""
        return captured.out.removesuffix("\n").split("\n")

    return ask


@pytest.mark.parametrize(
    "options",
    [[], ["--num_beams", "3"], ["--do_sample", "--seed", "2"], ["--num_beams", "4", "--num_return_sequences", "3"]],
    ids=" ".join,
)
def test_json_lines_contain_the_texts(options: list[str], answers: str, printed: Callable) -> None:
    texts = printed(answers, "3 1 4", "5", *options)
    sys.stdout.reconfigure(encoding="ascii")  # as a file on Windows, it lacks some characters
    lines = [json.loads(line) for line in printed(answers, "3\xa01 4", "5", *options, "--json")]
    assert [line["text"] for line in lines] == texts
    count = len(texts) // 2
    assert [line["prompt"] for line in lines] == ["3\xa01 4"] * count + ["5"] * count
    predictor = minitx.load(answers, "cpu")
    for line in lines:
        assert line.keys() == {"prompt", "text", "ids", "log_probability", "stopped"}
        assert predictor.tokenizer.decode(line["ids"][:-1] if line["stopped"] == "end" else line["ids"]) == line["text"]
        if line["stopped"] == "end":
            assert line["log_probability"] == pytest.approx(predictor.score(line["prompt"], line["text"]), abs=1e-3)


def test_a_stream_ends_at_a_stop_token_like_the_text(endless: str, printed: Callable) -> None:
    whole = minitx.load(endless, "cpu").generate("abc", max_new_tokens=40)
    letters = sorted({*whole} - {"\n", whole[0]})[:2]
    words = [endless, "abc", "--max_new_tokens", "40", *(f"--stop={letter}" for letter in letters)]
    expected = whole[: min(whole.index(letter) for letter in letters)]
    assert all("\n".join(printed(*words, *how)) == "abc" + expected for how in ([], ["--stream"]))
    line = json.loads(printed(*words, "--json")[0])
    assert (line["text"], line["stopped"]) == (expected, "stop")


def test_a_line_for_a_line(answers: str, endless: str, printed: Callable, refused: Callable, monkeypatch: Any) -> None:
    one, other = printed(answers, "3 1 4", "5", "--num_beams", "2")
    lines = io.BytesIO(b"\xef\xbb\xbf3 1 4\r\n\r\n5")
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(lines, "ascii", newline="\n"))
    assert printed(answers, "--num_beams", "2") == [one, "", other]
    monkeypatch.setattr(sys, "stdin", io.StringIO("abc\n\n"))
    assert [len(json.loads(line)["ids"]) for line in printed(endless, "--json", "--max_new_tokens=2")] == [2, 0]
    monkeypatch.setattr(sys, "stdin", io.StringIO(""))
    assert printed(answers) == [""]
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"3 \xff\n"), encoding="utf-8"))
    assert refused("generate", answers) == "minitx: line 1 of standard input: a text must be UTF-8, got '3 \\udcff'\n"


@pytest.mark.parametrize(("word", "value"), [("true", True), ("false", False), ("never", "never")])
def test_options_have_their_types(word: str, value: object) -> None:
    words = f"x.ckpt 3 --early_stopping {word} --length_penalty -0.5 --top_k=2 --stop a --stop=b 1".split()
    parsed = COMMANDS["generate"].parser("generate").parse_args(words)
    assert type(parsed.early_stopping) is type(value)
    assert (parsed.early_stopping, parsed.length_penalty, parsed.top_k) == (value, -0.5, 2)
    assert (parsed.texts, parsed.stop, parsed.do_sample, parsed.num_beams) == (["3", "1"], ["a", "b"], False, 1)


@pytest.mark.parametrize("beams", [1, 3])
def test_a_conversation(beams: int, answers: str, capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two prompts, between them an invalid and an empty one, then Ctrl-D."""
    monkeypatch.setattr(sys, "stdin", io.StringIO("3 1 4\n3 x\n\n5\n"))
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True)
    main(["generate", answers, "--num_beams", str(beams), "--device", "cpu"])
    captured = capsys.readouterr()
    first, second = minitx.load(answers, "cpu").generate(["3 1 4", "5"], num_beams=beams)
    assert captured.out == f"> {first}\n> > > {second}\n> "
    hint, alphabet, empty, end = captured.err.split("\n", 3)
    assert "Ctrl-D" in hint
    assert alphabet.startswith("minitx: 'x' is not in the tokenizer's alphabet")
    assert empty.startswith("minitx: the prompt is empty")
    assert end == "\n"


def test_ctrl_c_keeps_text(endless: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """With a newline at its end, and the exit code of an interrupted program."""
    stream = TextGenerator.stream

    def interrupted(*arguments: Any) -> Iterator[str]:
        for count, piece in enumerate(stream(*arguments)):
            if count == 5:
                raise KeyboardInterrupt
            yield piece

    monkeypatch.setattr(TextGenerator, "stream", interrupted)
    with pytest.raises(SystemExit) as stopped:
        main(["generate", endless, "abc", "--stream", "--max_new_tokens", "1000000000", "--device", "cpu"])
    monkeypatch.undo()
    assert stopped.value.code == 130
    assert capsys.readouterr() == (f"abc{minitx.load(endless, 'cpu').generate('abc', max_new_tokens=5)}\n", "")
