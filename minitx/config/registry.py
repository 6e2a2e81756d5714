"""Open sections of a config: a registered `name` plus that class's own options, checked and built. No torch here."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from importlib import import_module
from typing import Any, NoReturn, TypeVar

from jsonargparse import ArgumentParser

from minitx.config.messages import check_none, did_you_mean, explain, keys
from minitx.config.schema import Options

T = TypeVar("T")


class LazyRegistry(dict[str, Any]):
    """Registered classes by name; the module that registers a class is imported when the class is first asked for.

    Iterating and `in` give the names of all classes and import nothing; values() and items() import every module.

    Args:
        modules: for each module, the names that it registers and their classes.
    """

    def __init__(self, modules: Mapping[str, Mapping[str, str]]) -> None:
        super().__init__()
        self.modules = {name: module for module, classes in modules.items() for name in classes}
        self.classes = {kind: module for module, classes in modules.items() for kind in classes.values()}

    def __missing__(self, name: str) -> Any:
        if name not in self.modules:
            raise KeyError(name)
        import_module(self.modules[name])
        return dict.__getitem__(self, name)

    def __contains__(self, name: object) -> bool:
        return super().__contains__(name) or name in self.modules

    def __iter__(self) -> Iterator[str]:
        return iter({**self.modules, **dict.fromkeys(dict.keys(self))})

    def __len__(self) -> int:
        return len(list(iter(self)))

    def keys(self) -> Any:
        """The names of all classes."""
        return list(self)

    def values(self) -> Any:
        """All classes."""
        return [self[name] for name in self]

    def items(self) -> Any:
        """All names with their classes."""
        return [(name, self[name]) for name in self]

    def get(self, name: str, default: Any = None) -> Any:
        """The class of a name, or the default."""
        return self[name] if name in self else default  # noqa: SIM401 (dict.get would not import)


class _ClassParser(ArgumentParser):
    """A parser for the arguments of one class, whose complaints are one sentence."""

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        """Raise ValueError instead of leaving the process."""
        raise ValueError(explain(message, keys(self)))


def resolve(registry: Mapping[str, type[T]], options: Options, section: str, given: Iterable[str] = ()) -> Options:
    """Check an open section against the constructor of the class that it names, and fill in its defaults.

    Args:
        registry: classes by name.
        options: the section as written.
        section: its dotted key, for messages.
        given: constructor arguments that do not come from the section.

    Raises:
        ValueError: no name, an unknown name, an unknown option or a wrong type.
    """
    name = options.get("name")
    if name is None:
        raise ValueError(f"{section}.name is missing: it is one of {', '.join(sorted(registry))}")
    if not isinstance(name, str) or name not in registry:
        raise ValueError(f"{section}.name: unknown name {name!r}; {did_you_mean(str(name), registry)}")
    parser = _class_parser(registry[name], frozenset(given))  # type: ignore[arg-type]
    own = {key: value for key, value in options.items() if key != "name"}
    try:
        resolved = parser.parse_object(own).as_dict()
    except ValueError as error:
        sentence = re.sub(r"^(unknown key )?([\w.]+)", rf"\1{section}.\2", str(error))
        sentence = re.sub(r"did you mean ([\w.]+)\?", rf"did you mean {section}.\1?", sentence)
        raise ValueError(f"{sentence} (for {section}.name {name})") from None
    check_none(registry[name], resolved, section)
    return {"name": name, **resolved}


@cache
def _class_parser(kind: type, given: frozenset[str]) -> ArgumentParser:
    """A parser for a class's own options; reading the class is slow, so once is enough."""
    parser = _ClassParser(exit_on_error=False, allow_abbrev=False)
    parser.add_class_arguments(kind, skip=set(given))
    return parser


def build(registry: Mapping[str, type[T]], options: Options, section: str, **given: Any) -> T:
    """The object that an open section describes; see resolve."""
    resolved = resolve(registry, options, section, given)
    return registry[resolved.pop("name")](**given, **resolved)
