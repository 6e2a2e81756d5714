"""YAML read as plain values, and keys set in them: nothing is imported, called, or looked up in the environment.

A config is a file, or one of the bundled configs by name, so that `--config reverse` works in any installation.
"""

import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NoReturn

import yaml

from minitx.config.errors import ConfigError, did_you_mean, expanded
from minitx.config.schema import Config, merged
from minitx.config.validation import MAX_VALUES, keys

Values = dict[str, Any]

MAX_BYTES = 2**20  # of a config file; an experiment takes about two thousand
MAX_DIGITS = 100  # of a number

TEXTS = frozenset(key for key, field in keys(Config) if field.annotation in (str, str | None))
"""The keys whose values are texts, which `--run.name 2024` may set as well."""
_PACKAGE = Path(__file__).parents[1]


class Loader(yaml.SafeLoader):
    """PyYAML's safe loader, with 1e-3 as a number and no, yes, on, off and dates as text (YAML 1.2), without repeated
    keys, octal 010 and numbers in base 60, and with limits.

    Values count wherever they occur: aliases and merge keys could repeat a few of them millions of times.
    """

    def __init__(self, stream: str) -> None:
        super().__init__(stream)
        self.sizes: dict[yaml.Node, int] = {}  # number of values in each node, itself included

    def compose_node(self, parent: Any, index: Any) -> Any:
        """Refuse a repeated key, too many values, a section within itself, and a number that takes long to convert."""
        is_alias = self.check_event(yaml.AliasEvent)
        node: Any = super().compose_node(parent, index)
        if is_alias:
            return node
        pairs = node.value if isinstance(node, yaml.MappingNode) else []
        parts = [part for pair in pairs for part in pair] or (node.value if isinstance(node, yaml.SequenceNode) else [])
        self.sizes[node] = 1 + sum(self.sizes.get(part, MAX_VALUES) for part in parts)  # missing: within itself
        if max(self.sizes[node], len(self.sizes)) > MAX_VALUES:
            self._refuse(f"more than {MAX_VALUES:,} values", node)
        is_number = node.tag.endswith((":int", ":float"))
        if is_number and len(node.value) > MAX_DIGITS:
            self._refuse(f"a number of more than {MAX_DIGITS} characters", node)
        if is_number and re.search("^[-+]?0[0-9_]+$|:", node.value):
            self._refuse(f"{node.value}, which YAML 1.1 reads in base 8 or 60", node)
        names: set[str] = set()
        for key, _ in pairs:
            if str(key.value) in names and key.value != "<<":  # YAML would drop the first value
                self._refuse(f"the key {key.value!r} again", key)
            names.add(str(key.value))
        return node

    def _refuse(self, problem: str, node: yaml.Node) -> NoReturn:
        raise yaml.MarkedYAMLError(problem=problem, problem_mark=node.start_mark)


class Dumper(yaml.SafeDumper):
    """PyYAML's safe dumper, with quotes around 1e-3, a number to Loader, and around no, false to other readers."""


_BOOLEAN, _TIME = "tag:yaml.org,2002:bool", "tag:yaml.org,2002:timestamp"
Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag not in (_BOOLEAN, _TIME)]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
Loader.add_implicit_resolver(_BOOLEAN, re.compile("(?:true|True|TRUE|false|False|FALSE)$"), list("tTfF"))
_EXPONENT = re.compile(r"[-+]?[0-9][0-9_]*(\.[0-9_]*)?[eE][-+]?[0-9]+$")
yaml.add_implicit_resolver("tag:yaml.org,2002:float", _EXPONENT, list("-+0123456789"), Loader, Dumper)


def bundled() -> dict[str, Path]:
    """Every bundled config by name, reverse, model/llama, ...: in the installed package, or beside it in a checkout."""
    inside = _PACKAGE / "configs"
    folder = inside if inside.is_dir() else _PACKAGE.parent / "configs"
    files = sorted(folder.rglob("*.yaml"), key=lambda path: (path.parent != folder, path))
    return {path.relative_to(folder).with_suffix("").as_posix(): path for path in files}


def parse(text: str) -> Any:
    """Read a value of the command line: YAML, or else the text itself. # begins a comment only after a quoted value."""
    try:
        value = yaml.load(text, Loader)
    except Exception:  # see read
        return text
    quoted = text.lstrip()[:1] in ("'", '"')
    cut = not quoted and not isinstance(value, dict | list) and re.search(r"(^|\s)#", text)
    return text.strip() if cut else value


def value_of(key: str, text: str) -> Any:
    """Read a value of the command line for a key; a key whose values are texts takes it unchanged."""
    return text if key in TEXTS and text != "null" else parse(text)


def read(name: str) -> Values:
    """The values in a YAML file, given by its path or by the name of a bundled config."""
    path = expanded(name, "--config")
    if not os.path.isfile(path):  # Path.is_file raises an error for a name that is too long
        known = bundled()
        if name not in known:
            short = re.sub(r"^configs/|\.ya?ml$", "", name)
            hint = did_you_mean(f"model/{short}" if f"model/{short}" in known else short, known)
            a_path = set("/.") & set(name) and not hint.startswith("did")  # a list of names would not help
            near = "" if a_path else f", nor a config of that name: {hint}"
            raise ConfigError(f"--config: there is no file {name or repr(name)}{near}")
        path = known[name]
    if path.stat().st_size > MAX_BYTES:
        raise ConfigError(f"--config: {path} must be a YAML file of at most {MAX_BYTES:,} bytes, got a larger one")
    try:
        values = yaml.load(path.read_bytes(), Loader)  # in UTF-8, or in UTF-16 with its mark
    except OSError as error:
        raise ConfigError(f"--config: {path} cannot be read ({error.strerror})") from None
    except RecursionError:
        raise ConfigError(f"--config: {path} must have sections within sections, got them nested too deeply") from None
    except Exception as error:  # PyYAML raises a dozen types for values that do not fit their tags
        problem = str(error)
        if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark:
            problem = f"line {error.problem_mark.line + 1}: {error.context or ''} {error.problem}"
        raise ConfigError(f"--config: {path} must be YAML, got {' '.join(problem.split())}") from None
    if not isinstance(values, dict):
        raise ConfigError(f"--config: {path}: expected keys and their values, got {values!r:.80}")
    return values


def nested(key: str, value: Any) -> Any:
    """A value under its dotted key: {"trainer": {"max_steps": 300}} for trainer.max_steps."""
    for name in reversed(key.split(".")):
        value = {name: value}
    return value


def overridden(values: Mapping[str, Any], settings: Mapping[str, Any] | Iterable[tuple[str, Any]]) -> Values:
    """Set keys in values, by dotted key; a text is read as on the command line.

    The last value of a key wins; of a mapping, whose order has no meaning, that of the longer key.
    """
    if isinstance(settings, Mapping):
        settings = sorted(settings.items(), key=lambda setting: setting[0].count("."))
    changes: Values = {}
    for key, value in settings:
        if isinstance(value, str):
            value = value_of(key, value)
        changes = merged(changes, nested(key, value), replace=False)
    return dict(merged(values, changes))
