"""Asking the command line in process, as somebody would who does not know what comes: what came of each question."""

from __future__ import annotations

import contextlib
import io
import traceback
from collections import Counter
from collections.abc import Callable
from typing import Any

from minitx.cli.main import main

FINE, REFUSED = "fine", "refused with a sentence"


class Asked:
    """What came of many questions: how many went well, how many were refused with a sentence, and what else came."""

    def __init__(self) -> None:
        self.came: Counter[str] = Counter()
        self.others: list[tuple[str, str]] = []

    def line(self, *words: str, what: str = "") -> str:
        """Ask minitx with these words."""
        told, said = io.StringIO(), io.StringIO()
        code: Any = 0
        try:
            with contextlib.redirect_stderr(told), contextlib.redirect_stdout(said):
                main(list(words))
        except SystemExit as end:
            code = end.code or 0
        except BaseException as error:
            return self.note("traceback", what or " ".join(words), "".join(traceback.format_exception(error)))
        sentence = told.getvalue().strip()
        if code == 2 and sentence.startswith("minitx: ") and "\n" not in sentence:
            return self.note(REFUSED, what, sentence)
        return self.note(FINE if code == 0 else f"code {code}", what or " ".join(words), sentence)

    def call(self, function: Callable[[], Any], what: str) -> str:
        """Call something of ours that refuses with a ValueError of one line."""
        try:
            function()
        except ValueError as error:
            frames = traceback.extract_tb(error.__traceback__)
            ours = "/minitx/" in frames[-1].filename and "site-packages" not in frames[-1].filename
            if ours and "\n" not in str(error) and len(str(error)) > 15:
                return self.note(REFUSED, what, str(error))
            return self.note("traceback", what, "".join(traceback.format_exception(error)))
        except Exception as error:
            return self.note("traceback", what, "".join(traceback.format_exception(error)))
        return self.note(FINE, what, "")

    def note(self, came: str, what: str, told: str) -> str:
        self.came[came] += 1
        if came not in (FINE, REFUSED):
            self.others.append((what, told))
        return told

    def check(self, fine: bool = True) -> None:
        """Nothing came but what should, and both of what should."""
        print({"tried": self.came.total(), **self.came})
        assert not self.others, "\n\n".join(f"{what}\n{told[-1500:]}" for what, told in self.others[:3])
        assert self.came[REFUSED], "nothing was refused: the test asks too little"
        assert self.came[FINE] or not fine, "nothing went well: the test asks for nonsense only"
