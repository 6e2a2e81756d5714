"""Errors that a user can correct, and parts of their messages. No torch and no pydantic here.

`ConfigError` is raised where a mistake is found and becomes one line per mistake with exit code 2. All exceptions
but those below keep their traceback, so that a bug is never mistaken for bad input.
"""

import difflib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any


class ConfigError(ValueError):
    """Input that a user can mend: what was expected, what came, and which key to change; an argument per mistake."""

    def __str__(self) -> str:
        return "\n".join(map(str, self.args))


class UnknownName(ConfigError):
    """A name that no class is registered under, and a hint: a mistake, or from a file of the user's own (--import)."""

    def __str__(self) -> str:
        return "; ".join(self.args)


class RunFailed(Exception):
    """A run that cannot continue, or whose outcome could not be written: one sentence, exit code 1."""


def did_you_mean(name: object, known: Iterable[str], prefix: str = "", listed: Iterable[str] | None = None) -> str:
    """End a sentence about an unknown name with the nearest known one, or with all (or `listed`) if none is near."""
    name, known = str(name), sorted(known)
    # A key without its section is the end of the whole key.
    whole = [other for other in known if other.endswith(f".{name.lstrip('-')}")]
    if near := whole or difflib.get_close_matches(name, known, n=1, cutoff=0.65):
        return f"did you mean {prefix}{' or '.join(near)}?"
    return f"known are: {', '.join(sorted(listed or known))}" if known else "it has none"


def first_line(error: Exception, with_class: bool = False) -> str:
    """The first line of an error's message, or the name of its class; with_class begins with the class in any case."""
    line, name = str(error).strip().partition("\n")[0], type(error).__name__
    return f"{name}: {line}" if line and with_class else line or name


def counted(number: int, noun: str) -> str:
    """1 example, 2,000 examples."""
    return f"{number:,} {noun}{'s' * (number != 1)}"


def expanded(path: str, key: str) -> Path:
    """Expand ~ and ~user in the path of a key; a ConfigError if there is no such home folder."""
    try:
        return Path(path).expanduser()
    except RuntimeError:
        raise ConfigError(f"{key}: there is no home folder for {path}; give the whole path") from None


def all_results(*parts: Callable[[], Any]) -> list[Any]:
    """Call every part, and raise the mistakes of all of them in one ConfigError."""
    found, mistakes = [], []
    for part in parts:
        try:
            found.append(part())
        except ConfigError as error:
            mistakes.append(error)
    if mistakes:
        raise ConfigError(*mistakes)
    return found
