"""The sections `optimizer` and `trainer` of a config."""

import re
from collections.abc import Iterator
from typing import Annotated, Literal

from minitx.config.validation import Count, Fraction, Natural, NonNegative, NullIs, Positive, Share, section


@section("optimizer.schedule")
class ScheduleConfig:
    """The learning rate over optimizer steps."""

    name: Literal["constant", "linear", "cosine", "noam", "wsd"] = "cosine"
    """After the warm-up: constant; linear or cosine decay to the end of the run; noam: 1 / sqrt(step); wsd: constant,
    then linear decay over decay_share (warmup-stable-decay)."""
    warmup_steps: Natural = 100
    """Steps over which the learning rate rises linearly from 0 to optimizer.lr, its peak."""
    final_ratio: Share = 0.1
    """The final learning rate of linear, cosine and wsd, as a share of the peak."""
    decay_share: Share = 0.2
    """The share of the run's steps, its last ones, over which wsd decays."""


@section("optimizer")
class OptimizerConfig:
    """How weights are updated."""

    name: Literal["adamw", "muon"] = "adamw"
    """adamw (Loshchilov and Hutter 2019), fused; muon (Jordan 2024) for the layers' matrices and AdamW for the rest."""
    lr: Positive = 1e-3
    """The learning rate at its peak."""
    betas: tuple[Fraction, Fraction] = (0.9, 0.98)
    """Decay of the running means of the gradient and of its square."""
    weight_decay: NonNegative = 0.01
    """Decay of the matrices towards zero; norms and biases, those of attention scores included, do not decay."""
    schedule: ScheduleConfig = ScheduleConfig()


@section("trainer.stop_when")
class StopConfig:
    """The end of training before trainer.max_steps; the learning-rate schedule is still that of max_steps."""

    metric: Literal["exact_match", "token_accuracy", "bleu", "loss"] | None = None
    """The figure of the validations that decides; null: train for max_steps."""
    at_least: NonNegative | None = None
    """Stop once the figure is this high; for loss: at_most. With neither, stop once it no longer improves."""
    at_most: NonNegative | None = None
    """Stop once the loss is this low."""
    patience: Count = 2
    """How many validations in a row must reach the figure; without one, how many must not improve it."""

    def _mistakes(self) -> Iterator[str]:
        wanted, other = ("at_most", "at_least") if self.metric == "loss" else ("at_least", "at_most")
        if self.metric is not None and getattr(self, other) is not None:
            yield f"trainer.stop_when.{wanted} is for {self.metric}, got {other} {getattr(self, other)}"


@section("trainer")
class TrainerConfig:
    """How long, how precisely and on what to train."""

    max_steps: Count = 2000
    """Optimizer steps of the whole run."""
    val_every_n_steps: Count = 200
    """Steps between validations; the last step is always followed by one."""
    save_every_n_steps: Count = 200
    """Steps between saves of last.ckpt: the most that a crash can cost."""
    keep_every_n_steps: Natural = 0
    """Steps between checkpoints that are kept besides last.ckpt: step_00001000.ckpt, to resume from; 0 keeps none."""
    precision: Literal["auto", "32-true", "bf16-mixed", "16-mixed", "bf16-true", "64-true"] = "auto"
    """auto: bf16 on a GPU that has it; on a CPU the faster one of fp32 and bf16, measured. Or one of Lightning's;
    16-mixed is bf16-mixed on a CPU."""
    accumulate_grad_batches: Count = 1
    """Batches whose gradients make one optimizer step."""
    gradient_clip_val: NonNegative = 1.0
    """Largest norm of the gradient over all weights; 0 does not clip."""
    ema: Fraction = 0.0
    """Decay of a moving average of the weights, which is validated and saved in their place; 0 keeps none."""
    skip_nonfinite_steps: bool = False
    """Skip a step whose loss or gradient is not finite, and count it, instead of ending the run."""
    label_smoothing: Fraction = 0.0
    """Share of the target's probability that is spread over all tokens (Szegedy et al. 2016)."""
    compile: bool | Literal["auto"] = "auto"
    """Compile the training step with torch.compile: faster steps, after a minute of compiling. auto, on a GPU, captures
    CUDA graphs for a small model and compiles in a run of minutes, each if that is measured to be faster."""
    compile_mode: Literal["default", "reduce-overhead", "max-autotune"] = "default"
    """torch.compile's own: reduce-overhead replays CUDA graphs, for small models. Only default accumulates batches."""
    recompute_activations: bool = False
    """Keep only the input of each layer, and recompute the layer in the backward pass: less memory, a third slower."""
    profile: Natural = 0
    """Profile this many batches, early in the run, and print where their time goes; 0 does not."""
    accelerator: Literal["auto", "cpu", "gpu"] = "auto"
    """The device to train on; auto is a GPU, NVIDIA's or Apple's, if there is one."""
    devices: int | str = "auto"
    """How many devices; auto: all GPUs, or one CPU process."""
    strategy: str = "auto"
    """For several devices: ddp, which auto selects, or fsdp2, with the weights sharded over them."""
    num_nodes: Count = 1
    """How many machines."""
    stop_when: Annotated[StopConfig, NullIs({})] = StopConfig()

    def _mistakes(self) -> Iterator[str]:
        if not re.fullmatch(r"auto|-1|[1-9]\d*|(\d+, *)+(\d+)?", str(self.devices)):
            wanted = "auto, a number of devices (-1: all) or their indices, e.g. '0,1'"
            yield f"trainer.devices: expected {wanted}, got {self.devices!r}"
        if self.compile_mode != "default" and self.compile is not True:
            setting = "auto" if self.compile else "false"
            yield f"trainer.compile_mode {self.compile_mode} needs trainer.compile true, got {setting}"
        if self.compile_mode != "default" and self.accumulate_grad_batches > 1:
            # CUDA graphs overwrite the gradients of the batch before (pytorch issues 169545 and 96693).
            got = self.accumulate_grad_batches
            yield f"trainer.accumulate_grad_batches must be 1 with trainer.compile_mode {self.compile_mode}, got {got}"
