"""What a family of models has to tell, and the settings that all of them share.

A family is told once, for both directions: `keys` are settings with another name, `fixed` are keys of our config whose
value is the family's own, `required` are keys of theirs that we have one value for; the rest is code in `to_ours` and
`to_theirs`. Its weights are `links`, for a config of ours.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, NamedTuple, TypeVar

import torch

from minitx.config.errors import ConfigError
from minitx.config.schema import ModelConfig
from minitx.huggingface.links import Link, same

FAMILIES: dict[str, Family] = {}
"""Every family by their model_type."""

Kind = TypeVar("Kind", bound="type[Family]")


def register(kind: Kind) -> Kind:
    """Make a family available under its model_type."""
    FAMILIES[kind.model_type] = kind()
    return kind


class Key(NamedTuple):
    """A setting: our key, and their value where a config.json is silent."""

    ours: str
    default: Any


FREE = {"dropout", "attention_dropout", "scale_residual", "vocab_size"}
"""Keys of ModelConfig that change nothing about what a trained model computes."""


class Family:
    """One model_type. All attributes below are the family's to set."""

    model_type: ClassVar[str]
    model: ClassVar[str]
    """Their class of model that has what ours has."""
    base: ClassVar[str]
    """What the names of weights begin with, but not in files of the bare model."""
    task: ClassVar[str]
    """Name of the task that an imported model is given."""
    length: ClassVar[str]
    """Their key for the longest sequence."""
    keys: ClassVar[Mapping[str, Key]]
    """Settings by their name."""
    fixed: ClassVar[Mapping[str, Any]]
    """Keys of ModelConfig with the family's own value, where it is not the default."""
    position: ClassVar[str]
    """Its scheme of positions."""
    handled: ClassVar[frozenset[str]] = frozenset()
    """Keys of ModelConfig that to_ours and to_theirs see to, besides position."""
    required: ClassVar[Mapping[str, Any]] = {}
    """Their keys with the one value that ours can express, which is also what a silent config.json means."""
    activations: ClassVar[Mapping[str, str]]
    """Names of non-linearities, theirs to ours."""
    activation_key: ClassVar[tuple[str, str]]
    """Their key of the non-linearity, and its value where a config.json is silent."""
    ignored: ClassVar[str] = r"(?!)"
    """What the names of weights match that are not needed."""
    copies: ClassVar[Mapping[str, str]] = {}
    """Second names of a tensor, with the first; ours have one tensor only, so that they must be equal."""
    table: ClassVar[str]
    """The name of their embedding's weight."""
    lm_head: ClassVar[str] = "lm_head.weight"
    """The name of their head's weight."""

    def to_ours(self, theirs: Mapping[str, Any]) -> ModelConfig:
        """The config of a model whose config.json this is.

        Raises:
            ConfigError: something that ours do not have, by its name.
        """
        for key, value in self.required.items():
            if theirs.get(key, value) != value:
                raise ConfigError(f"{key} {theirs[key]} is not known here, for {self.model_type} only {value} is")
        told = {ours: theirs.get(key, default) for key, (ours, default) in self.keys.items()}
        key, default = self.activation_key
        name = theirs.get(key, default)
        if name not in self.activations:
            known = ", ".join(self.activations)
            raise ConfigError(f"{key} {name} is not known here, for {self.model_type} only {known} are")
        told |= {"activation": self.activations[name], "vocab_size": theirs.get("vocab_size")}
        return ModelConfig(**{**self.fixed, **told, **self.more_of_ours(theirs)})

    def to_theirs(self, config: ModelConfig, longest: int) -> dict[str, Any]:
        """Their config.json for a config of ours.

        Raises:
            ConfigError: every setting that they do not have, by its name.
        """
        config = resolved(config)
        if wrong := self.wrong(config):
            raise ConfigError(", ".join(wrong))
        names = {ours: theirs for theirs, ours in self.activations.items()}
        told = {key: getattr(config, ours) for key, (ours, _) in self.keys.items()}
        told |= {self.activation_key[0]: names[config.activation], "vocab_size": config.vocab_size, **self.required}
        return {
            "model_type": self.model_type, "architectures": [self.model], "dtype": "float32", self.length: longest,
            "tie_word_embeddings": config.tie_embeddings, **told, **self.more_of_theirs(config),
        }  # fmt: skip

    def wrong(self, config: ModelConfig) -> list[str]:
        """What this family cannot express of a resolved config, each as `key value`."""
        mapped = {ours for ours, _ in self.keys.values()} | self.handled | FREE | {"position"}
        usual = {field.name: field.default for field in dataclasses.fields(ModelConfig)}
        usual |= {"n_kv_heads": config.n_heads, "qkv_bias": config.bias, "n_decoder_layers": config.n_decoder_layers}
        usual |= {"d_head": config.d_model // config.n_heads, "position_ids": {"name": "consecutive"}} | {**self.fixed}
        found = [
            f"model.{name} {_shown(getattr(config, name))}"
            for name, value in usual.items()
            if name not in mapped - self.fixed.keys() and name != "activation" and getattr(config, name) != value
        ]
        if config.activation not in self.activations.values():
            found.append(f"model.activation {config.activation}")
        if config.d_ff == 0:
            found.append("model.d_ff 0")
        if config.position["name"] != self.position:
            return [*found, f"model.position.name {config.position['name']}"]
        return found + self.more_wrong(config)

    def more_of_ours(self, theirs: Mapping[str, Any]) -> dict[str, Any]:
        """Keys of ours that need more than another name."""
        return {}

    def more_of_theirs(self, config: ModelConfig) -> dict[str, Any]:
        """Keys of theirs that need more than another name."""
        return {}

    def more_wrong(self, config: ModelConfig) -> list[str]:
        """What else of a config with its scheme of positions this family cannot express."""
        return []

    def links(self, config: ModelConfig) -> Iterator[Link]:
        """All weights of a model of ours with this config."""
        raise NotImplementedError

    def ends(self, config: ModelConfig) -> Iterator[Link]:
        """The embedding, and the head where it has a table of its own."""
        yield same("embedding.table.weight", self.table)
        if not config.tie_embeddings:
            yield same("head.weight", self.lm_head)


def resolved(config: ModelConfig) -> ModelConfig:
    """The same config with every default that depends on another key written out."""
    epsilon = {"layernorm": 1e-5, "rmsnorm": torch.finfo(torch.float32).eps}[config.norm]
    own = config.n_decoder_layers if config.architecture == "encoder_decoder" else None
    return dataclasses.replace(
        config,
        n_kv_heads=config.n_heads if config.n_kv_heads is None else config.n_kv_heads,
        d_head=config.d_model // config.n_heads if config.d_head is None else config.d_head,
        d_ff=4 * config.d_model if config.d_ff is None else config.d_ff,
        n_decoder_layers=config.n_layers if own is None else own,
        norm_eps=epsilon if config.norm_eps is None else config.norm_eps,
        qkv_bias=config.bias if config.qkv_bias is None else config.qkv_bias,
    )


def _shown(value: Any) -> str:
    return str(value["name"]) if isinstance(value, dict) and "name" in value else str(value).lower()
