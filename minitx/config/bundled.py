"""The configs that come with minitx, by name: `--config reverse` works wherever it was installed. No torch here."""

from __future__ import annotations

from functools import cache
from pathlib import Path

_PACKAGE = Path(__file__).parent.parent


@cache
def folder() -> Path:
    """Where they lie: in the installed package, or beside it in a checkout."""
    inside = _PACKAGE / "configs"
    return inside if inside.is_dir() else _PACKAGE.parent / "configs"


def configs() -> dict[str, Path]:
    """Every bundled config by name: reverse, model/llama, ..."""
    files = sorted(folder().rglob("*.yaml"), key=lambda path: (path.parent != folder(), path))
    return {path.relative_to(folder()).with_suffix("").as_posix(): path for path in files}


def summary(config: Path) -> str:
    """A config's first sentence: its leading comment up to the first line break, without the sign."""
    return config.read_text(encoding="utf-8").partition("\n")[0].removeprefix("#").strip()
