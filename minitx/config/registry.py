"""Open sections of a config: a registered `name` and the options of that class, checked and built. No torch here."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from importlib import import_module
from typing import Any, TypeVar, get_type_hints

from pydantic import ConfigDict, Field, TypeAdapter, create_model

from minitx.config.errors import ConfigError, did_you_mean
from minitx.config.schema import Options
from minitx.config.validation import shown, validate

T = TypeVar("T")


class LazyRegistry(dict[str, Any]):
    """Registered classes by name; the module that registers a class is imported when the class is first asked for.

    Iteration and `in` cover the names of all classes and import nothing; values() and items() import every module.

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


def resolve(registry: Mapping[str, type[T]], options: Options, section: str, given: Iterable[str] = ()) -> Options:
    """Check an open section against the constructor of the class that it names, and fill in its defaults.

    Args:
        registry: classes by name.
        options: the section.
        section: its dotted key, for messages.
        given: constructor arguments that do not come from the section.

    Raises:
        ConfigError: no name, an unknown name, or a line for each option that is unknown or does not fit.
    """
    name = options.get("name")
    if name is None:
        raise ConfigError(f"{section}.name is missing: it is one of {', '.join(sorted(registry))}")
    if not isinstance(name, str) or name not in registry:
        raise ConfigError(f"{section}.name: unknown name {shown(name)}; {did_you_mean(str(name), registry)}")
    kind: Any = registry[name]
    return check_options(name, parameters(kind, frozenset(given)), options, section)


def check_options(name: str, expected: Mapping[str, tuple[Any, Any]], options: Options, section: str) -> Options:
    """Check an open section against the options of its class, and fill in their defaults.

    Args:
        name: of the class.
        expected: annotation and default of each option.
        options: the section.
        section: its dotted key, for messages.

    Raises:
        ConfigError: with a line for each option that is unknown or does not fit.
    """
    model = create_model(name, __config__=ConfigDict(extra="forbid", protected_namespaces=()), **expected)  # type: ignore[call-overload]
    own = {key: value for key, value in options.items() if key != "name"}
    try:
        return {"name": name, **vars(validate(TypeAdapter(model), own, model.__pydantic_fields__, section))}
    except ConfigError as error:
        lines = [f"{line} (for {section}.name {name})" for line in str(error).split("\n")]
        raise ConfigError("\n".join(lines)) from None


def build(registry: Mapping[str, type[T]], options: Options, section: str, **given: Any) -> T:
    """Build the object that an open section describes; see resolve."""
    resolved = resolve(registry, options, section, given)
    return registry[resolved.pop("name")](**given, **resolved)


@cache
def parameters(kind: Any, given: frozenset[str] = frozenset()) -> dict[str, tuple[Any, Any]]:
    """The options of a registered class: annotation and default by name; none for a function.

    Args:
        kind: the class.
        given: constructor arguments that are no options.
    """
    if not inspect.isclass(kind):
        return {}
    hints = get_type_hints(kind if dataclasses.is_dataclass(kind) else kind.__init__)
    factories = {
        field.name: Field(default_factory=field.default_factory)
        for field in (dataclasses.fields(kind) if dataclasses.is_dataclass(kind) else ())
        if field.default_factory is not dataclasses.MISSING
    }
    return {
        each.name: (hints[each.name], factories.get(each.name, ... if each.default is each.empty else each.default))
        for each in inspect.signature(kind).parameters.values()
        if each.name not in given and each.kind is not each.VAR_POSITIONAL and each.kind is not each.VAR_KEYWORD
    }
