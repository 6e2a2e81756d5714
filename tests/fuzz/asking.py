"""Calls of the command line in process with arbitrary input, and a record of their outcomes."""

import contextlib
import io
import resource
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from minitx.cli.main import main
from minitx.config.errors import ConfigError

FINE, REFUSED = "fine", "refused with a sentence"
MAX_SECONDS = 10.0  # of processor time, for one input


def few_and_many(few: int, many: int, seeds: int) -> Any:
    """Parametrize a test by count and seed: few inputs, and in slow tests many of each of several seeds."""
    slow = [pytest.param(many, seed, marks=pytest.mark.slow) for seed in range(2, 2 + seeds)]
    return pytest.mark.parametrize(("count", "seed"), [(few, 1), *slow])


@contextlib.contextmanager
def limited(kilobytes: int = 2**20) -> Iterator[None]:
    """Fail where one input takes too much time, or raises the peak of memory by more than that."""
    before = resource.getrusage(resource.RUSAGE_SELF)
    try:
        yield
    finally:
        after = resource.getrusage(resource.RUSAGE_SELF)
        assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < MAX_SECONDS
        assert after.ru_maxrss - before.ru_maxrss < kilobytes


class Asked:
    """Outcomes of many calls: successes, refusals with a sentence per mistake, and anything else."""

    def __init__(self) -> None:
        self.came: Counter[str] = Counter()
        self.others: list[tuple[str, str]] = []

    def line(self, *words: str, what: str = "") -> str:
        errors, output = io.StringIO(), io.StringIO()
        code: Any = 0
        try:
            with limited(), contextlib.redirect_stderr(errors), contextlib.redirect_stdout(output):
                main(list(words))
        except SystemExit as end:
            code = end.code or 0
        except BaseException as error:
            return self.note("traceback", what or " ".join(words), "".join(traceback.format_exception(error)))
        sentence = errors.getvalue().strip()
        if code == 2 and all(line.startswith("minitx: ") for line in sentence.split("\n")):
            return self.note(REFUSED, what, sentence)
        return self.note(FINE if code == 0 else f"code {code}", what or " ".join(words), sentence)

    def call(self, function: Callable[[], Any], what: str) -> str:
        """Call a function that may refuse its input with a ConfigError."""
        try:
            with limited():
                function()
        except Exception as error:
            if isinstance(error, ConfigError) and all(len(line) > 15 for line in str(error).split("\n")):
                return self.note(REFUSED, what, str(error))
            return self.note("traceback", what, "".join(traceback.format_exception(error)))
        return self.note(FINE, what, "")

    def note(self, came: str, what: str, message: str) -> str:
        self.came[came] += 1
        if came not in (FINE, REFUSED):
            self.others.append((what, message))
        return message

    def check(self, fine: bool = True) -> None:
        """Assert that there were refusals and successes, and nothing else."""
        print({"tried": self.came.total(), **self.came})
        assert not self.others, "\n\n".join(f"{what}\n{message[-1500:]}" for what, message in self.others[:3])
        assert self.came[REFUSED], "nothing was refused: the test asks too little"
        assert self.came[FINE] or not fine, "nothing went well: the test asks for nonsense only"
