"""The whole vocabulary of a run, as frozen dataclasses. No torch here: `--help` and a typo must answer at once.

Three sections are open, because anybody may register more of them: `data`, `model.position` and `model.position_ids`
hold a registered `name` plus that class's own options, which options.py checks once the class is known. Everything else
is typed here.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any, Literal

Options = dict[str, Any]
"""An open section: `name`, and the options of the class registered under it."""


@dataclass(frozen=True)
class RunConfig:
    """Where a run lands and which random numbers it draws."""

    name: str = "run"
    """The run's name; its files land in `<folder>/<name>/v0`, `v1`, ..."""
    seed: int = 1
    """Decides initial weights, training batches and dropout. Validation and test sets do not depend on it."""
    folder: str = "runs"
    """The folder of all runs: what `tensorboard --logdir` is pointed at."""
    init_from: str | None = None
    """A checkpoint file or run folder whose weights the run begins with, and for text its tokenizer: --init_from."""


@dataclass(frozen=True)
class ModelConfig:
    """The Transformer to build."""

    architecture: Literal["encoder_decoder", "decoder_only", "encoder_only"] = "encoder_decoder"
    """encoder_decoder (Vaswani et al.), decoder_only (GPT) or encoder_only (one output for each input position)."""
    d_model: int = 64
    """Width of the vectors between layers."""
    n_heads: int = 4
    """Attention heads in each attention."""
    n_layers: int = 2
    """Layers in each stack."""
    n_decoder_layers: int | None = None
    """Layers in the decoder of an encoder_decoder, where it differs from the encoder. Default: n_layers."""
    n_kv_heads: int | None = None
    """Key-value heads, a divisor of n_heads: fewer save memory (grouped-query attention). Default: n_heads."""
    d_head: int | None = None
    """Width of one head. Default: d_model / n_heads."""
    d_ff: int | None = None
    """Inner width of the feed-forward networks; 0: none, attention alone. Default: 4 x d_model."""
    position: Options = field(default_factory=lambda: {"name": "sinusoidal"})
    """How positions are told: a registered `name` (minitx list) and its own options."""
    position_ids: Options = field(default_factory=lambda: {"name": "consecutive"})
    """Which number each token is told to stand at: a registered `name` (minitx list) and its own options."""
    window: int | None = None
    """Number of keys that a query of self-attention may see, itself included. Default: all."""
    norm_first: bool = True
    """Layer norm before each sublayer (pre-norm), or after the addition (post-norm, the original)."""
    norm: Literal["layernorm", "rmsnorm"] = "layernorm"
    """The normalisation: by mean and variance, or by the root of the mean square alone (Llama, T5)."""
    norm_eps: float | None = None
    """What norms add to the variance before its root. Default: 1e-5 for layernorm, fp32's epsilon for rmsnorm."""
    activation: Literal["relu", "gelu", "gelu_tanh", "silu", "relu2", "swiglu", "geglu", "geglu_tanh"] = "gelu"
    """Non-linearity of the feed-forward networks; swiglu and geglu are gated, with a third matrix. _tanh: the
    approximation of gelu with which GPT-2 and T5 1.1 were trained."""
    dropout: float = 0.0
    """Dropped share of embeddings, sublayer outputs and inner activations in training."""
    attention_dropout: float = 0.0
    """Dropped share of attention weights in training; not zero, it costs the fused kernel its speed on a CPU."""
    qk_norm: bool = False
    """Normalise queries and keys by head before they meet."""
    softcap: float | None = None
    """Bend attention scores into (-softcap, softcap) by a hyperbolic tangent (Gemma 2). Default: leave them."""
    prefix_lm: bool = False
    """decoder_only: read the question in both directions, write the answer causally (Raffel et al. 2020)."""
    embedding_norm: bool = False
    """Normalise the embeddings once their positions are added (BERT)."""
    bias: bool = True
    """Biases in the linear maps of the layers."""
    qkv_bias: bool | None = None
    """Biases in the maps to queries, keys and values, where they differ from the others (Qwen2). Default: bias."""
    tie_embeddings: bool = True
    """Let the output head share the embedding's table."""
    scale_embeddings: bool = True
    """Multiply token embeddings by sqrt(d_model) (Vaswani et al.); GPT-2, BERT and Llama do not."""
    head_bias: bool = False
    """A bias for each token in the output head (BERT, BART)."""
    head_transform: bool = False
    """A linear map, the activation and a norm before the output head (BERT)."""
    scale_residual: bool = True
    """Begin the maps into the residual stream smaller, by 1 / sqrt(2 x layers), so that its sum keeps its size."""
    vocab_size: int | None = None
    """Number of tokens. Left out, it is the tokenizer's."""


@dataclass(frozen=True)
class ScheduleConfig:
    """The learning rate over optimiser steps."""

    name: Literal["constant", "linear", "cosine", "noam"] = "cosine"
    """After the warm-up: constant; linear or cosine decay to the end of the run; noam: 1 / sqrt(step)."""
    warmup_steps: int = 100
    """Steps over which the learning rate rises in a straight line from 0 to optimizer.lr, its peak."""
    final_ratio: float = 0.1
    """Where linear and cosine decay end, as a share of the peak."""


@dataclass(frozen=True)
class OptimizerConfig:
    """How weights are changed."""

    name: Literal["adamw", "muon"] = "adamw"
    """adamw (Loshchilov and Hutter 2019), fused; muon (Jordan 2024) for the layers' matrices and AdamW for the rest."""
    lr: float = 1e-3
    """The learning rate at its peak."""
    betas: tuple[float, float] = (0.9, 0.98)
    """Decay of the running means of the gradient and of its square."""
    weight_decay: float = 0.01
    """Pull of the matrices towards zero; norms and biases, those of attention scores too, are left alone."""
    schedule: ScheduleConfig = ScheduleConfig()
    """The learning rate over the run."""


@dataclass(frozen=True)
class TrainerConfig:
    """How long, how precisely and on what to train."""

    max_steps: int = 2000
    """Optimiser steps of the whole run."""
    val_every_n_steps: int = 200
    """Steps between validations; there is one behind the last step too."""
    save_every_n_steps: int = 200
    """Steps between saves of last.ckpt: what a crash can cost."""
    keep_every_n_steps: int = 0
    """Steps between checkpoints that stay beside last.ckpt: step_00001000.ckpt, whole, to go on from; 0 keeps none."""
    precision: Literal["auto", "32-true", "bf16-mixed", "16-mixed", "bf16-true", "64-true"] = "auto"
    """auto: bf16 where the hardware multiplies it natively, else fp32. Or one of Lightning's."""
    accumulate_grad_batches: int = 1
    """Batches whose gradients make one optimiser step."""
    gradient_clip_val: float = 1.0
    """Largest norm of the gradient over all weights; 0 does not clip."""
    skip_nonfinite_steps: bool = False
    """Pass over a step whose loss or gradient is not finite, and count it, instead of ending the run."""
    label_smoothing: float = 0.0
    """Share of the target's probability that is spread over all tokens (Szegedy et al. 2016)."""
    compile: bool | Literal["auto"] = "auto"
    """Let torch.compile write the training step's programs: quicker steps, after a minute of compiling. auto tries it
    early in a run on a GPU that has minutes ahead, and keeps what is faster."""
    compile_mode: Literal["default", "reduce-overhead", "max-autotune"] = "default"
    """torch.compile's own: reduce-overhead replays CUDA graphs, for small models that keep a GPU waiting. Only default
    accumulates gradients."""
    recompute_activations: bool = False
    """Keep only what goes into each layer, and compute the layer again in the backward: less memory, a third slower."""
    profile: int = 0
    """Watch this many steps, early in the run, and print where their time goes; 0 does not."""
    accelerator: Literal["auto", "cpu", "gpu"] = "auto"
    """What to train on; auto takes a GPU when there is one, NVIDIA's or Apple's."""
    devices: int | str = "auto"
    """How many devices; auto: all GPUs, or one CPU process."""
    strategy: str = "auto"
    """For several devices: auto, ddp, fsdp2 (weights spread over them), or another of Lightning's."""
    num_nodes: int = 1
    """How many machines."""


@dataclass(frozen=True)
class AttentionLogConfig:
    """Attention in TensorBoard: the maps of its Attention tab, and what each head does."""

    every_n_validations: int = 1
    """Log the maps at each n-th validation, and at the last; 0 never."""
    examples: int = 2
    """How many of the validation examples to look at, always the same ones."""
    max_tokens: int = 64
    """Of running text, look at this many tokens of each example."""
    pictures: bool = True
    """The maps as pictures, too, for the tab IMAGES."""


@dataclass(frozen=True)
class EmbeddingLogConfig:
    """Tokens as points in TensorBoard's projector, written at the end of training."""

    examples: int = 0
    """Tokens of how many validation examples to show, before and after each stack; 0 none."""
    max_tokens: int = 64
    """Of running text, show this many tokens of each example."""
    max_points: int = 1000
    """Show at most this many tokens in their context for each stack."""


@dataclass(frozen=True)
class LogConfig:
    """What is written down during training."""

    every_n_steps: int = 50
    """Steps between points of the training curves, and between updates of the progress line."""
    attention: AttentionLogConfig = AttentionLogConfig()
    """Attention maps."""
    embeddings: EmbeddingLogConfig = EmbeddingLogConfig()
    """Token embeddings."""


@dataclass(frozen=True)
class Config:
    """One experiment: what one YAML file says."""

    run: RunConfig = RunConfig()
    data: Options = field(default_factory=dict)
    model: ModelConfig = ModelConfig()
    optimizer: OptimizerConfig = OptimizerConfig()
    trainer: TrainerConfig = TrainerConfig()
    log: LogConfig = LogConfig()

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types, as they stand in config.yaml and in a checkpoint."""
        return _plain(dataclasses.asdict(self))


def changes(before: dict[str, Any], now: dict[str, Any], within: str = "") -> dict[str, tuple[Any, Any]]:
    """What differs between two plain configs, or two of their sections, by dotted key: the value before and now.

    Args:
        before: as Config.to_dict gives it.
        now: likewise.
        within: the dotted key of the section, to stand in front.
    """
    found: dict[str, tuple[Any, Any]] = {}
    for key in dict.fromkeys((*before, *now)):
        old, new = before.get(key), now.get(key)
        dotted = f"{within}.{key}" if within else key
        if isinstance(old, dict) and isinstance(new, dict):
            found |= changes(old, new, dotted)
        elif old != new:
            found[dotted] = (old, new)
    return found


def _plain(value: Any) -> Any:
    """Tuples to lists, through all levels."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value
