"""Every key of a run as frozen dataclasses: its type, range and meaning. No torch, so that `--help` prints at once.

The meaning is the docstring below a key, or that of a section's class. Sections are open where users may register more:
`data`, `model.position`, `model.window_position` and `model.position_ids` hold a registered `name` and that class's own
options, which config/registry.py checks once the class is known.
"""

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, TypeAdapter

from minitx.config.training_sections import OptimizerConfig, TrainerConfig
from minitx.config.validation import Count, Fraction, Natural, NullIs, Positive, check_plain, section, validate


def named(value: Any) -> Any:
    """An open section, which may be given by its name alone: rope is {name: rope}."""
    return {"name": value} if isinstance(value, str) else value


Options = Annotated[dict[str, Any], BeforeValidator(named)]
"""An open section: `name`, and the options of the class registered under it; or the name alone."""


@section("run")
class RunConfig:
    """The name and the folder of a run, and its seed."""

    name: str = "run"
    """The run's name; its files are written to `<folder>/<name>/v0`, `v1`, ..."""
    seed: Annotated[int, Field(ge=-(2**63), lt=2**63)] = 1
    """Determines initial weights, training batches and dropout. Validation and test sets do not depend on it."""
    folder: str = "runs"
    """The folder of all runs: the argument of `tensorboard --logdir`."""
    init_from: str | None = None
    """A checkpoint file or run folder whose weights the run starts from, and for text its tokenizer: --init_from."""


Window = Annotated[int, Field(ge=1, lt=2**31)] | None


@section("model")
class ModelConfig:
    """The Transformer to build."""

    architecture: Literal["encoder_decoder", "decoder_only", "encoder_only"] = "encoder_decoder"
    """encoder_decoder (Vaswani et al.), decoder_only (GPT) or encoder_only (one output for each input position)."""
    d_model: Count = 64
    """Width of the vectors between layers."""
    n_heads: Count = 4
    """Attention heads in each attention."""
    n_layers: Count = 2
    """Layers in each stack."""
    n_decoder_layers: Count | None = None
    """Layers in the decoder of an encoder_decoder, if it differs from the encoder. Default: n_layers."""
    n_kv_heads: Count | None = None
    """Key-value heads, a divisor of n_heads: fewer save memory (grouped-query attention). Default: n_heads."""
    d_head: Count | None = None
    """Width of one head. Default: d_model / n_heads."""
    d_ff: Natural | None = None
    """Inner width of the feed-forward networks; 0: none, attention alone. Default: 4 x d_model."""
    position: Options = Field(default_factory=lambda: {"name": "sinusoidal"}, examples=["{name: rope}"])
    """The position scheme: a registered `name` (minitx list) and its own options."""
    position_ids: Options = Field(default_factory=lambda: {"name": "consecutive"}, examples=["{name: offset}"])
    """How tokens are numbered: a registered `name` (minitx list) and its own options."""
    window: Annotated[Window | Annotated[tuple[Window, ...], Field(min_length=1)], Field(examples=["[9, null]"])] = None
    """Keys that a query of self-attention may attend to, itself included; a list by layer repeats. Default: all."""
    window_position: Options | None = None
    """The position scheme of layers with a window, if it differs (Gemma 3). Default: position."""
    norm_first: bool = True
    """Layer norm before each sublayer (pre-norm), or after the addition (post-norm, the original)."""
    sandwich_norm: bool = False
    """With norm_first: normalize the output of each sublayer too, before it is added (Gemma 2)."""
    parallel_residual: bool = False
    """With norm_first: all sublayers read the input of the layer, instead of one after the other (GPT-NeoX)."""
    shared_norm: bool = False
    """With parallel_residual: one norm before all sublayers of a layer (Phi)."""
    norm: Literal["layernorm", "rmsnorm"] = "layernorm"
    """The normalization: by mean and variance, or by the root of the mean square alone (Llama, T5)."""
    norm_eps: Positive | None = None
    """Added to the variance before its root. Default: 1e-5 for layernorm; torch's for rmsnorm, 1.2e-7 in fp32."""
    activation: Literal["relu", "gelu", "gelu_tanh", "silu", "relu2", "swiglu", "geglu", "geglu_tanh"] = "gelu"
    """Non-linearity of the feed-forward networks; swiglu and geglu are gated, with a third matrix. _tanh: the
    approximation of gelu with which GPT-2 and T5 1.1 were trained."""
    dropout: Fraction = 0.0
    """Dropout of embeddings, sublayer outputs and inner activations in training."""
    attention_dropout: Fraction = 0.0
    """Dropout of attention weights in training; above zero, the fused kernel is slow on a CPU."""
    qk_norm: bool = False
    """Normalize queries and keys by head before their product."""
    softcap: Positive | None = None
    """Cap attention scores softly: softcap x tanh(score / softcap) (Gemma 2). Default: no cap."""
    logit_softcap: Positive | None = None
    """Cap the logits softly, in the same way (Gemma 2). Default: no cap."""
    prefix_lm: bool = False
    """decoder_only: read the question in both directions, write the answer causally (Raffel et al. 2020)."""
    embedding_norm: bool = False
    """Normalize the embeddings once their positions are added (BERT)."""
    bias: bool = True
    """Biases in the linear maps of the layers."""
    qkv_bias: bool | None = None
    """Biases in the maps to queries, keys and values, if they differ from the others (Qwen2). Default: bias."""
    tie_embeddings: bool = True
    """Let the output head share the embedding's table."""
    scale_embeddings: bool = True
    """Multiply token embeddings by sqrt(d_model) (Vaswani et al.); GPT-2, BERT and Llama do not."""
    head_bias: bool = False
    """A bias for each token in the output head (BERT, BART)."""
    head_transform: bool = False
    """A linear map, the activation and a norm before the output head (BERT)."""
    scale_residual: bool = True
    """Initialize the maps into the residual stream smaller, by 1 / sqrt(2 x layers), so that its sum keeps its size."""
    vocab_size: Count | None = None
    """Number of tokens. Default: the tokenizer's."""

    def _mistakes(self) -> Iterator[str]:
        if self.d_head is None and self.d_model % self.n_heads:
            got = f"got d_model {self.d_model} and n_heads {self.n_heads}"
            yield f"model.d_model must be divisible by model.n_heads, {got} (or set model.d_head)"
        if self.n_kv_heads is not None and self.n_heads % self.n_kv_heads:
            yield f"model.n_heads must be divisible by model.n_kv_heads, got {self.n_heads} and {self.n_kv_heads}"
        if self.n_decoder_layers is not None and self.architecture != "encoder_decoder":
            yield f"model.n_decoder_layers is for encoder_decoder; {self.architecture} has n_layers only"
        if (self.sandwich_norm or self.parallel_residual) and not self.norm_first:
            yield "model.sandwich_norm and model.parallel_residual need model.norm_first true, got false"
        if self.shared_norm and not self.parallel_residual:
            yield "model.shared_norm needs model.parallel_residual true, got false"

    @property
    def windows(self) -> tuple[int | None, ...]:
        """The windows of the first layers, which later layers repeat."""
        return self.window if isinstance(self.window, tuple) else (self.window,)

    @property
    def decoder_layers(self) -> int:
        """n_decoder_layers if it is set, otherwise n_layers."""
        return self.n_layers if self.n_decoder_layers is None else self.n_decoder_layers

    @property
    def inner_width(self) -> int:
        """Inner width of the feed-forward networks; 0: there are none."""
        return 4 * self.d_model if self.d_ff is None else self.d_ff


@section("log.attention")
class AttentionLogConfig:
    """Attention in TensorBoard: the maps of its Attention tab, and the statistics of each head."""

    every_n_steps: Natural | None = None
    """Log the maps before the first step, after every n-th and after the last; 0: never; null: about 50 times a run."""
    every_n_validations: Natural = 1
    """Log generated outputs at the first validation, every n-th after it, and the last; 0 logs no maps either."""
    examples: Natural = 2
    """How many validation examples to log, always the same ones: the longest of the first 16 questions."""
    max_tokens: Count = 64
    """Of running text, log this many tokens of each example."""
    pictures: bool = False
    """Log the maps as pictures too, for the tab IMAGES."""


@section("log.embeddings")
class EmbeddingLogConfig:
    """Tokens as points in TensorBoard's projector, written at the end of training."""

    examples: Natural = 0
    """Number of validation examples whose tokens are shown, before and after each stack; 0: none."""
    max_tokens: Count = 64
    """Of running text, show this many tokens of each example."""
    max_points: Count = 1000
    """Show at most this many tokens in their context for each stack."""


@section("log")
class LogConfig:
    """Logging during training."""

    to: Annotated[tuple[Literal["tensorboard", "csv", "wandb", "mlflow"], ...], NullIs([])] = ("tensorboard",)
    """Where curves and final figures are written; attention maps and embeddings only to TensorBoard."""
    every_n_steps: Count = 50
    """Steps between points of the training curves, and between updates of the progress line."""
    attention: Annotated[AttentionLogConfig, NullIs({"every_n_validations": 0})] = AttentionLogConfig()
    embeddings: Annotated[EmbeddingLogConfig, NullIs({"examples": 0})] = EmbeddingLogConfig()


@section("")
class Config:
    """One experiment: the contents of one YAML file."""

    run: RunConfig = RunConfig()
    data: Options = Field(default_factory=dict, examples=["{name: reverse}"])
    """The task: a registered `name` (minitx list) and its own options."""
    model: ModelConfig = ModelConfig()
    optimizer: OptimizerConfig = OptimizerConfig()
    trainer: TrainerConfig = TrainerConfig()
    log: LogConfig = LogConfig()
    imports: Annotated[tuple[str, ...] | dict[str, str], NullIs([])] = Field(default=(), examples=["[mytask.py]"])
    """Python files of your own that register tasks, position schemes or corpora: --import FILE. A checkpoint
    stores their paths and hashes; it imports nothing."""

    def _mistakes(self) -> Iterator[str]:
        if self.trainer.strategy == "fsdp2" and self.optimizer.name == "muon":
            yield "trainer.strategy fsdp2 shards AdamW's states only: optimizer.name must be adamw, got muon"
        if self.trainer.strategy == "fsdp2" and self.trainer.ema:
            yield f"trainer.ema must be 0 with trainer.strategy fsdp2, got {self.trainer.ema}"

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types, as in config.yaml and in a checkpoint."""
        return TypeAdapter(Config).dump_python(self, mode="json")


OPEN_SECTIONS = ("data", "model.position", "model.position_ids", "model.window_position")
"""The sections that hold a registered name and the options of its class."""


def config_from_dict(values: Mapping[str, Any]) -> Config:
    """Build the Config from plain JSON types (Config.to_dict), checked as a YAML file is.

    Raises:
        ConfigError: with a line for each key or value that does not fit.
    """
    check_plain(values, "the config")
    return validate(Config, values)


def merged(before: Any, after: Any, section: str = "", replace: bool = True) -> Any:
    """Merge values into earlier ones, section by section; an open section that names another class replaces it. Without
    `replace` the earlier options are kept, because both come from one command line."""
    if section in (*OPEN_SECTIONS, "data.tokenizer"):
        before, after = named(before), named(after)
    if not (isinstance(before, Mapping) and isinstance(after, Mapping)):
        return after
    both = replace and section.startswith(OPEN_SECTIONS) and "name" in before and "name" in after
    if both and before["name"] != after["name"]:
        return dict(after)
    section = f"{section}.".lstrip(".")
    return {**before, **{name: merged(before.get(name), after[name], f"{section}{name}", replace) for name in after}}


def open_section(values: Any, section: str) -> dict[str, Any]:
    """An open section of values by its dotted key; empty if it is missing or not a mapping."""
    for name in section.split("."):
        values = named(values.get(name)) if isinstance(values, dict) else None
    return values if isinstance(values, dict) else {}
