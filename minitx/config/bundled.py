"""The bundled configs by name, so that `--config reverse` works in any installation. No torch here."""

from __future__ import annotations

from functools import cache
from pathlib import Path

_PACKAGE = Path(__file__).parent.parent


@cache
def folder() -> Path:
    """The folder of the configs: in the installed package, or beside it in a checkout."""
    inside = _PACKAGE / "configs"
    return inside if inside.is_dir() else _PACKAGE.parent / "configs"


def configs() -> dict[str, Path]:
    """Every bundled config by name: reverse, model/llama, ..."""
    files = sorted(folder().rglob("*.yaml"), key=lambda path: (path.parent != folder(), path))
    return {path.relative_to(folder()).with_suffix("").as_posix(): path for path in files}


def summary(config: Path) -> str:
    """The first line of a config's leading comment."""
    return config.read_text(encoding="utf-8").partition("\n")[0].removeprefix("#").strip()
