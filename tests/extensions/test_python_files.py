"""A file of the user's own: used by every command that names it, and imported by nothing else."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from minitx.checkpoints import format as checkpoint
from minitx.cli.main import main
from minitx.config.errors import ConfigError
from minitx.data.tasks import TASKS
from minitx.data.text.corpora import CORPORA
from minitx.data.text.tokenizer_training import TOKENIZERS, ByteTokenizer
from minitx.extensions.python_files import import_files
from minitx.nn.positions import POSITIONS
from short_configs import short

OWN = '''
from dataclasses import dataclass
from pathlib import Path

from minitx.data.tasks import SequenceTask, register
from minitx.data.text import corpora, tokenizer_training
from minitx.nn import positions
import helper

with Path(__file__).with_name("imported.log").open("a") as log:
    log.write("imported\\n")

@register("same")
@dataclass(kw_only=True)
class Same(SequenceTask):
    """3 1 4 -> 3 1 4."""

    answer = helper.answer

@positions.register("ramp")
class Ramp(positions.NoPositions):
    def __init__(self, **given):
        super().__init__(**given)
        self.grid = positions.torch.arange(start=0.0, end=1.0, step=0.25) + positions.torch.arange(0.0, 4.0)
    def embed(self, x, pos):
        return x + 0.1 * pos[..., None]

@tokenizer_training.register("letters")
class Letters(tokenizer_training.CharTokenizer):
    pass

@corpora.register("rhyme")
def rhyme():
    yield str(Path(__file__).with_name("rhyme.txt"))
'''
SMALL = ["--model.d_model=16", "--model.n_heads=2", "--model.n_layers=1", *short(2)]
TRAIN = ["train", "--config", "reverse", "--data.name", "same", "--model.position", "ramp", *SMALL]


def forget() -> None:
    """As in a process that has imported no file of the user's own."""
    for registry, name in ((TASKS, "same"), (POSITIONS, "ramp"), (CORPORA, "rhyme"), (TOKENIZERS, "letters")):
        registry.pop(name, None)
    for name in [name for name in sys.modules if name.startswith("own_") or name == "helper"]:
        del sys.modules[name]


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """own.py in the working directory; imported.log has a line for each time that it ran."""
    (tmp_path / "own.py").write_text(OWN)
    (tmp_path / "helper.py").write_text("def answer(self, source, keep):\n    return source, keep\n")
    (tmp_path / "rhyme.txt").write_text("twinkle twinkle little star\n" * 60)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield tmp_path
    forget()


def times(own: Path) -> int:
    return len((own / "imported.log").read_text().splitlines())


def test_a_file_runs_once_and_the_modules_beside_it_are_found(own: Path) -> None:
    assert [*import_files(["own.py"]).values()] == [*import_files([str(own / "own.py")]).values()]
    assert (times(own), "same" in TASKS, "ramp" in POSITIONS, "rhyme" in CORPORA) == (1, True, True, True)
    (own / "beside").mkdir()
    for name, slope in (("own.py", 0.2), ("own.py", 0.1), ("beside/own.py", 0.1), ("own.py", 0.1)):
        (own / name).write_text(OWN.replace("0.1", str(slope)))
        import_files([name])
        code = POSITIONS["ramp"].embed.__code__
        assert (code.co_filename, slope in code.co_consts) == (str(own / name), True), "what was named last"
    (own / "wrong.py").write_text("1 / 0")
    for _ in range(2):
        with pytest.raises(ZeroDivisionError):  # a bug keeps its traceback, and half a module is not kept
            import_files(["wrong.py"])
    (own / "wrong.py").write_text("1 / 1\ndef f(:")
    (own / "null.py").write_bytes(b"\0")
    reasons = r"expected a Python file .* '(n...\.py|rhyme\.txt|\.)'|wrong\.py, line 2: |: there is no home folder for"
    for path in ("null.py", "none.py", "rhyme.txt", ".", "wrong.py", "~nosuchuser/own.py"):
        with pytest.raises(ConfigError, match=reasons):
            import_files([path])
    for module, name in (("data.tasks", "sort"), ("nn.positions", "rope")):
        (own / "own_name.py").write_text(f"from minitx.{module} import register\n@register('{name}')\nclass Own: pass")
        with pytest.raises(ConfigError, match=f"Own cannot be registered as {name}: minitx has a {name}"):
            import_files(["own_name.py"])


def test_own_task_and_positions_on_the_command_line(own: Path, refused: Callable, capsys: Any) -> None:
    main([*TRAIN, "--import", "own.py"])
    assert checkpoint.read(own / "runs/reverse/v0/last.ckpt")["minitx"]["config"]["imports"] == import_files(["own.py"])
    TASKS["same"].examples = lambda *_: []
    empty = refused("train", "--config", "runs/reverse/v0/config.yaml", "--run.folder", "empty")
    assert ("the task same has no examples for test" in empty, (own / "empty").exists()) == (True, False)
    forget()
    commands = ["generate", "runs/reverse", "3 1"], ["evaluate", "runs/reverse"], ["attend", "runs/reverse", "3 1"]
    for words in commands:
        assert "which is not minitx's own; if you trust the code, add --import 'own.py'\n" in refused(*words)
    assert "add --import 'own.py'" in refused(*TRAIN[:3], "--resume")
    forget()
    for words in (*commands, [*TRAIN, "--trainer.max_steps=3", "--resume"]):
        main([*words, "--import", "own.py"])
    main(["list", "--import", "own.py"])
    assert "  same               3 1 4 -> 3 1 4." in capsys.readouterr().out
    assert times(own) == 2, "no checkpoint imports a file"
    for path, how in (("own.py", "has changed since"), (str(own / "own_copy.py"), "was not imported when")):
        (own / path).write_text(OWN + "\n")
        main(["generate", "runs/reverse", "3 1", "--import", path])
        assert capsys.readouterr().err == f"minitx: {path} {how} this model was trained\n"
    (own / "own.py").write_text(OWN.replace("super().__init__(**given)", "self.tabel()"))
    for words in (commands[0], [*TRAIN, "--resume"], [*TRAIN, "--init_from", "runs/reverse"]):
        with pytest.raises(ConfigError) as caught:
            main([*words, "--import", "own.py"])
        assert "self.tabel()" in str(caught.getrepr()), "an error of the file itself keeps its traceback"


def test_own_corpus_from_the_key_of_a_config(own: Path, refused: Callable) -> None:
    (own / "own.yaml").write_text("imports: [own.py]\ndata: {path: rhyme, block: 8, tokenizer: letters}\n")
    main(["train", "--config", "shakespeare", "--config", "own.yaml", *SMALL])
    forget()
    main(["generate", "runs/shakespeare", "twin", "--max_new_tokens", "3"])  # needs no corpus
    assert "there is no file rhyme" in refused("evaluate", "runs/shakespeare"), "no checkpoint imports a file"
    main(["evaluate", "runs/shakespeare", "--import", "own.py"])
    TOKENIZERS["letters"].train = ByteTokenizer.train  # type: ignore[attr-defined]  # its own file is the same
    assert TASKS["text"](path="rhyme", tokenizer={"name": "letters"}).vocabulary.vocab_size == 262, "trained again"


@pytest.mark.slow
def test_a_sweep_over_own_classes(own: Path) -> None:
    words = ["sweep", "--config", "reverse", "--import", "own.py", "--data.name", "same", "--seeds", "1", *SMALL]
    for _ in range(2):  # the second time with finished runs, whose checkpoints are read by length
        main([*words, "--set", "model.position=ramp,rope", "--lengths", "1:2"])
        (own / "runs/reverse_sweep/study.journal").unlink()
    assert len((own / "runs/reverse_sweep/table.csv").read_text().splitlines()) > 2
