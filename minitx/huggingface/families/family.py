"""The base class of model families: tables of settings and of weights in both formats, for import and export."""

import dataclasses
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from minitx.config.errors import ConfigError
from minitx.config.schema import ModelConfig

ANY_VALUE = {"dropout", "attention_dropout", "scale_residual", "vocab_size"}
"""Keys of ModelConfig that do not change the outputs of a trained model."""

_NAMES = {
    "d_model": "d_model hidden_size n_embd",
    "n_heads": "encoder_attention_heads num_attention_heads n_head num_heads", "n_kv_heads": "num_key_value_heads",
    "d_head": "head_dim d_kv", "n_layers": "encoder_layers num_hidden_layers n_layer num_layers",
    "n_decoder_layers": "decoder_layers num_decoder_layers",
    "d_ff": "encoder_ffn_dim intermediate_size n_inner d_ff", "window": "sliding_window",
    "norm_eps": "layer_norm_eps layer_norm_epsilon rms_norm_eps",
    "dropout": "dropout hidden_dropout_prob resid_pdrop resid_dropout hidden_dropout dropout_rate",
    "attention_dropout": "attention_dropout attention_probs_dropout_prob attn_pdrop",
    "softcap": "attn_logit_softcapping", "logit_softcap": "final_logit_softcapping",
    "parallel_residual": "use_parallel_residual", "tie_embeddings": "tie_word_embeddings",
    "scale_embeddings": "scale_embedding",
}  # fmt: skip
NAMES = {name: key for key, names in _NAMES.items() for name in names.split()}
"""The key of ModelConfig for each setting of Hugging Face."""


class Conversion(NamedTuple):
    """The conversion of a tensor of Hugging Face to the weights of minitx that it contains, and back."""

    from_hf: Callable[[Tensor, int], Sequence[Tensor]]  # of the tensor and the number of weights
    to_hf: Callable[[Sequence[Tensor]], Tensor]


UNCHANGED = Conversion(lambda tensor, _: [tensor], lambda parts: parts[0])


def scaled(factor: float) -> Conversion:
    """Multiply one tensor by a factor."""
    return Conversion(lambda tensor, _: [tensor * factor], lambda parts: parts[0] / factor)


def in_layers(name: str, hf_name: str, modules: Mapping[str, str]) -> dict[str, str]:
    """A table of the modules in numbered layers; # stands for the number."""
    return {f"{name}.#.{module}": f"{hf_name}.#.{hf_module}" for module, hf_module in modules.items()}


class Family:
    """One model_type: tables of what differs only in names and values, and methods for the rest."""

    model_type: ClassVar[str]
    model: ClassVar[str]  # class of transformers
    base: ClassVar[str]  # prefix of weight names, absent from files of the model without its head
    task: ClassVar[str]  # task of an imported model
    length: ClassVar[tuple[str, int]]  # Hugging Face name of the maximum length, and its default
    defaults: ClassVar[Mapping[str, Any]]  # settings that are in NAMES, and their values if a config.json omits them
    fixed: ClassVar[Mapping[str, Any]]  # keys of ModelConfig with one value in the family, if not the default
    position: ClassVar[str] = "learned"  # position scheme
    divisible: ClassVar[bool] = True  # whether transformers requires a d_model divisible by n_heads
    handled: ClassVar[frozenset[str]] = frozenset()  # keys of ModelConfig that the _extra methods convert
    required: ClassVar[Mapping[str, Any]] = {}  # Hugging Face settings with the one supported value, their default
    activation: ClassVar[tuple[str, str]]  # Hugging Face name of the activation, and its default
    activations: ClassVar[Mapping[str, str]] = {  # Hugging Face to minitx
        "gelu_fast": "gelu_tanh", "gelu_pytorch_tanh": "gelu_tanh",  # export writes the last name of a function
        "gelu": "gelu", "gelu_new": "gelu_tanh", "relu": "relu", "silu": "silu",
    }  # fmt: skip
    modules: ClassVar[Mapping[str, str]]  # minitx to Hugging Face: single weights, or modules with all their weights
    ignored: ClassVar[str] = r"(?!)"  # pattern of the names of weights that are not needed
    copies: ClassVar[Mapping[str, str]] = {}  # second names of a tensor, with the first; minitx has one tensor
    separate: ClassVar[frozenset[str]] = frozenset()  # copies that are weights of their own if the head is untied
    zeros: ClassVar[frozenset[str]] = frozenset()  # biases of the head that are zero if a file lacks them
    added: ClassVar[Mapping[str, str]] = {}  # tables of two rows, the first of which is added to another table

    def from_hf(self, hf: Mapping[str, Any]) -> ModelConfig:
        """The ModelConfig of a config.json; raises ConfigError with the name of an unsupported setting."""
        own = {NAMES[key]: key for key in self.defaults}
        # Names that transformers reads in all families take precedence over the family's own names.
        common = {"hidden_size", "num_attention_heads", "num_hidden_layers", "head_dim"} & hf.keys()
        hf = {**hf, **{own[NAMES[key]]: hf[key] for key in common if NAMES[key] in own}}
        for key, value in self.required.items():
            if (hf.get(key, value) or None) != (value or None):
                raise ConfigError(f"{key} {hf[key]} is not supported; minitx imports {self.model_type} with {value}")
        activation = hf.get(*self.activation)
        if activation not in self.activations:
            known = f"{self.model_type} with {', '.join(self.activations)}"
            raise ConfigError(f"{self.activation[0]} {activation} is not supported; minitx imports {known}")
        settings = {NAMES[key]: hf.get(key, default) for key, default in self.defaults.items()}
        settings |= {"activation": self.activations[activation], "vocab_size": hf.get("vocab_size")}
        return ModelConfig(**{**self.fixed, **settings, "position": self._position(hf), **self._extra_settings(hf)})

    def to_hf(self, config: ModelConfig, max_length: int) -> dict[str, Any]:
        """The config.json of a resolved ModelConfig; raises ConfigError with every setting that the family lacks."""
        if lacking := self._unsupported(config):
            raise ConfigError(", ".join(lacking))
        activation = {name: hf_name for hf_name, name in self.activations.items()}[config.activation]
        return {
            "model_type": self.model_type, "architectures": [self.model], "dtype": "float32",
            self.length[0]: max_length, "tie_word_embeddings": config.tie_embeddings,
            **{key: getattr(config, NAMES[key]) for key in self.defaults},
            self.activation[0]: activation, "vocab_size": config.vocab_size, **self.required, **self._extra_hf(config),
        }  # fmt: skip

    def _unsupported(self, config: ModelConfig) -> list[str]:
        """`key value` of every setting of a resolved config that the family lacks."""
        expected = {field.name: field.default for field in dataclasses.fields(ModelConfig)}
        expected |= {"n_kv_heads": config.n_heads, "d_head": config.d_model // config.n_heads, "qkv_bias": config.bias}
        expected |= {"n_decoder_layers": config.n_decoder_layers, "position_ids": {"name": "consecutive"}, **self.fixed}
        free = ANY_VALUE | self.handled | {NAMES[key] for key in self.defaults}
        for name in (free - self.fixed.keys()) | {"position", "activation"}:
            del expected[name]
        lacking = [name for name, value in expected.items() if getattr(config, name) != value]
        limited = {
            "activation": config.activation not in self.activations.values(),
            "d_head": self.divisible and config.d_model % config.n_heads != 0,
            "d_ff": config.d_ff == 0,
            "window": isinstance(config.window, tuple) and "window" not in self.handled,  # one for all layers
        }
        lacking += [name for name, is_lacking in limited.items() if is_lacking and name not in lacking]
        sentences = [f"model.{name} {_shown(getattr(config, name))}" for name in lacking]
        if len({*config.windows} - {None}) > 1 and "window" in self.handled:
            sentences.append(f"model.window {_shown(config.window)} with several sizes")
        return sentences + self._unsupported_scheme(config.position)

    def _unsupported_scheme(self, position: Mapping[str, Any]) -> list[str]:
        """`key value` of a position scheme, or of each of its options, that the family lacks."""
        if position["name"] != self.position:
            return [f"model.position.name {position['name']}"]
        return self._unsupported_position(position)

    def _position(self, hf: Mapping[str, Any]) -> dict[str, Any]:
        """model.position, by default a learned table."""
        return {"name": "learned", "max_len": hf.get(*self.length)}

    def _unsupported_position(self, position: Mapping[str, Any]) -> list[str]:
        """`key value` of every option of the family's position scheme that the family lacks."""
        return []

    def _extra_settings(self, hf: Mapping[str, Any]) -> dict[str, Any]:
        """Keys of ModelConfig that need more than another name."""
        return {}

    def _extra_hf(self, config: ModelConfig) -> dict[str, Any]:
        """Hugging Face keys that need more than another name."""
        return {}

    def hf_name(self, name: str, config: ModelConfig) -> str:
        """The Hugging Face name of a weight."""
        number = re.search(r"\d+", name)
        template = re.sub(r"\d+", "#", name)
        module = max((part for part in self.modules if f"{template}.".startswith(f"{part}.")), key=len)
        hf_template = self.modules[module] + template.removeprefix(module)
        return hf_template.replace("#", number[0]) if number else hf_template

    def _conversion(self, name: str, config: ModelConfig) -> Conversion:
        """The conversion of a weight."""
        return UNCHANGED

    def fold(self, hf: Mapping[str, Any], tensors: dict[str, Tensor]) -> None:
        """Apply the effect of a setting of config.json that minitx lacks to weights of minitx."""

    def links(self, names: Iterable[str], config: ModelConfig) -> list[tuple[str, list[str], Conversion]]:
        """Each tensor of Hugging Face with the weights of a resolved config that it contains, in this order."""
        groups: dict[str, list[str]] = {}
        for name in names:
            groups.setdefault(self.hf_name(name, config), []).append(name)
        return [(hf_name, group, self._conversion(group[0], config)) for hf_name, group in groups.items()]


def resolved(config: ModelConfig) -> ModelConfig:
    """The config in evaluation, with all defaults that depend on other keys, without windows that no layer has."""
    epsilon = {"layernorm": 1e-5, "rmsnorm": torch.finfo(torch.float32).eps}[config.norm]
    defaults: dict[str, Any] = {
        "n_kv_heads": config.n_heads, "d_head": config.d_model // config.n_heads, "d_ff": config.inner_width,
        "norm_eps": epsilon, "qkv_bias": config.bias,
    }  # fmt: skip
    if config.architecture == "encoder_decoder":
        defaults["n_decoder_layers"] = config.decoder_layers
    changes = {key: value for key, value in defaults.items() if getattr(config, key) is None}
    if isinstance(config.window, tuple):
        windows = config.window[: max(config.n_layers, config.decoder_layers)]
        changes["window"] = windows if len({*windows}) > 1 else windows[0]
    if changes.get("window", config.window) is None:
        changes["window_position"] = None
    if config.position_ids["name"] == "offset":
        changes["position_ids"] = {"name": "consecutive"}
    return dataclasses.replace(config, **changes)


def _shown(value: Any) -> str:
    return str(value["name"]) if isinstance(value, dict) else value if isinstance(value, str) else json.dumps(value)
