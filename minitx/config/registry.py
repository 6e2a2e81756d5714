"""Open sections of a config: a registered `name` and the options of that class, checked and built. No torch here."""

import dataclasses
import inspect
from collections import UserDict
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from importlib import import_module
from typing import Any, TypeVar, get_type_hints

from pydantic import BaseModel, ConfigDict, FiniteFloat, create_model

from minitx.config.errors import ConfigError, UnknownName, did_you_mean
from minitx.config.schema import Options
from minitx.config.validation import Integer, shown, validate

Kind = TypeVar("Kind", bound=Callable[..., Any])


class LazyRegistry(UserDict[str, Any]):
    """Registered classes by name, or the module that registers one, imported when the class is first requested."""

    def __getitem__(self, name: str) -> Any:
        if isinstance(self.data[name], str):
            import_module(self.data[name])  # replaces the name of the module by the class
        return self.data[name]

    def register(self, name: str) -> Callable[[Kind], Kind]:
        """Decorator that adds a class or a function; a ConfigError if minitx has another one of this name."""

        def add(kind: Kind) -> Kind:
            other = self.data.get(name, kind)
            module = other if isinstance(other, str) else other.__module__
            if module.startswith("minitx.") and module != kind.__module__:
                raise ConfigError(f"{kind.__name__} cannot be registered as {name}: minitx has a {name} of its own")
            self.data[name] = kind
            return kind

        return add


def resolve(registry: Mapping[str, Any], options: Options, section: str, given: Iterable[str] = ()) -> Options:
    """Check an open section against the class that it names, and fill in its defaults.

    `registry` has the class of each name, or its options as from `parameters`; `section` is the dotted key, for
    messages; `given` are constructor arguments that do not come from it.
    """
    name = options.get("name")
    if name is None:
        raise ConfigError(f"{section}.name is missing: it is one of {', '.join(sorted(registry))}")
    if not isinstance(name, str) or name not in registry:
        raise UnknownName(f"{section}.name: unknown name {shown(name)}", did_you_mean(name, registry))
    kind = registry[name]
    known = kind if isinstance(kind, dict) else parameters(kind, frozenset(given))
    try:
        own = validate(_model(name, {"name": (str, ...), **known}), options, section)
    except ConfigError as error:
        raise ConfigError(*(f"{line} (for {section}.name {name})" for line in error.args)) from None
    return vars(own)


def check_fields(built: Any, section: str) -> None:
    """Check and convert the fields of an instance of a registered dataclass by their annotations, as resolve does."""
    kind: Any = type(built)
    vars(built).update(vars(validate(_model(kind.__name__, parameters(kind)), vars(built), section)))


def _model(name: str, options: Mapping[str, tuple[Any, Any]]) -> type[BaseModel]:
    limited: Any = {
        key: (Integer if kind is int else FiniteFloat if kind is float else kind, default)
        for key, (kind, default) in options.items()
    }
    return create_model(name, __config__=ConfigDict(extra="forbid", protected_namespaces=()), **limited)


def build(registry: Mapping[str, Any], options: Options, section: str, **given: Any) -> Any:
    """Build the object that an open section describes; `given` are arguments that do not come from it."""
    values = dict(resolve(registry, options, section, given))
    return registry[values.pop("name")](**given, **values)


@cache
def parameters(kind: Any, given: frozenset[str] = frozenset()) -> dict[str, tuple[Any, Any]]:
    """The options of a registered class: annotation and default by name, `...` without a default; none for a function.

    `given` are constructor arguments that are not options.
    """
    if not inspect.isclass(kind):
        return {}
    fields = dataclasses.fields(kind) if dataclasses.is_dataclass(kind) else ()
    hints = get_type_hints(kind if fields else kind.__init__, include_extras=True)
    made = {each.name: each.default_factory() for each in fields if each.default_factory is not dataclasses.MISSING}
    return {
        each.name: (hints.get(each.name, Any), made.get(each.name, ... if each.default is each.empty else each.default))
        for each in inspect.signature(kind).parameters.values()
        if each.name not in given and each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD)
    }
