"""Averages of weights: an exponential moving average during training, and the mean of saved checkpoints."""

from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import Callback
from torch import Tensor
from torch.optim.swa_utils import get_ema_multi_avg_fn

from minitx.checkpoints import format as checkpoint
from minitx.config.errors import ConfigError

TRAINED = "trained_weights"
"""Key of a checkpoint whose state_dict is an average: the weights that training continues from."""


class AverageWeights(Callback):
    """Exponential moving average of the weights, in fp32, which is validated and saved in their place.

    After step t the decay is min(decay, (1 + t) / (10 + t)), so that the initial weights soon count little; a resumed
    run has the same average. Maps and losses logged during training are those of the trained weights.
    """

    def __init__(self, decay: float) -> None:
        self.decay = decay
        self._average: dict[Tensor, Tensor] = {}  # by parameter
        self._trained: dict[Tensor, Tensor] = {}  # the parameters' own values during a validation

    def setup(self, trainer: pl.Trainer, module: Any, stage: str) -> None:
        """Start from the initial weights; from now on the module's state_dict holds the average."""
        self._average = {weight: _widened(weight).clone() for weight in module.parameters()}
        module.register_state_dict_post_hook(lambda module, state, *_: state.update(_by_name(module, self._average)))

    def on_train_start(self, trainer: pl.Trainer, module: Any) -> None:
        self._average = {weight: copy.to(weight.device) for weight, copy in self._average.items()}

    def on_train_batch_end(self, trainer: pl.Trainer, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Update the average after an optimizer step."""
        if (batch_idx + 1) % trainer.accumulate_grad_batches:
            return
        step = trainer.global_step
        update = get_ema_multi_avg_fn(min(self.decay, (1 + step) / (10 + step)))
        update([*self._average.values()], [*map(_widened, self._average)], None)

    def on_validation_start(self, trainer: pl.Trainer, module: Any) -> None:
        """Put the average in the place of the weights."""
        self._trained = {weight: weight.detach().clone() for weight in self._average}
        _set(self._average)

    def on_validation_end(self, trainer: pl.Trainer, module: Any) -> None:
        _set(self._trained)
        self._trained = {}

    def on_save_checkpoint(self, trainer: pl.Trainer, module: Any, contents: dict[str, Any]) -> None:
        """Add the trained weights, to resume from."""
        contents[TRAINED] = _by_name(module, {weight: weight.detach() for weight in self._average})

    def on_load_checkpoint(self, trainer: pl.Trainer, module: Any, contents: dict[str, Any]) -> None:
        """Restore the average and the trained weights; a run without an average starts one from its weights."""
        names = {weight: name for name, weight in module.named_parameters()}
        saved = contents["state_dict"]  # maybe of a run of another precision
        self._average = {weight: saved[names[weight]].to(own, copy=True) for weight, own in self._average.items()}
        if TRAINED in contents:
            _set({weight: contents[TRAINED][names[weight]] for weight in self._average})


def _widened(weight: Tensor) -> Tensor:
    """A weight in fp32, or fp64 if it is: small changes of an average vanish in half precision."""
    return weight.detach().to(torch.promote_types(weight.dtype, torch.float32))


def _by_name(module: Any, values: dict[Tensor, Tensor]) -> dict[str, Tensor]:
    """Values of parameters under all their names, of which tied ones have several."""
    state = module.model.state_dict(prefix="model.", keep_vars=True)
    return {name: values[weight] for name, weight in state.items() if weight in values}


@torch.no_grad()
def _set(values: dict[Tensor, Tensor]) -> None:
    for weight, value in values.items():
        weight.copy_(value)


def average(run: str | Path, last: int, out: str | Path | None = None) -> tuple[Path, list[Path]]:
    """Write the mean of the newest kept checkpoints of a run: its file, and the files that it is the mean of.

    Args:
        run: a run folder, whose step_*.ckpt count up to the step of last.ckpt, or a checkpoint in place of last.ckpt.
        last: how many of them.
        out: the checkpoint to write; by default average.ckpt in their folder.

    Raises:
        ConfigError: the run has kept fewer than two, or fewer than `last`, or they are of different models.
    """
    file = checkpoint.find(run, "last")
    folder, latest = file.parent, f"step_{checkpoint.read(file).get('global_step', 0)!s:0>8}.ckpt"
    files = sorted(each for each in folder.glob("step_*.ckpt") if each.name <= latest)  # later ones may be abandoned
    if not 2 <= last <= len(files):
        must = f"must be at least 2 and at most the number of step_*.ckpt up to the step of {file}, got {last}"
        raise ConfigError(f"--last {must}: there are {len(files)}, kept by trainer.keep_every_n_steps")
    files = files[-last:]
    contents = checkpoint.read(files[-1])
    states = [*(checkpoint.read(file)["state_dict"] for file in files[:-1]), contents["state_dict"]]
    shapes = [{name: weight.shape for name, weight in state.items()} for state in states]
    for file, found in zip(files, shapes, strict=True):
        if found != shapes[-1]:
            differ = f"{file} and {files[-1].name} are of different models, whose weights have no mean"
            raise ConfigError(f"{differ}: move one of them to another folder, or make --last smaller")
    mean = {
        name: (sum(state[name].double() for state in states) / len(states)).to(weight.dtype)
        for name, weight in states[-1].items()
    }
    out = folder / "average.ckpt" if out is None else Path(out)
    others: dict[str, Any] = {key: contents[key] for key in ("minitx", "global_step", "precision") if key in contents}
    checkpoint.write(others | {"state_dict": mean, "averaged": [file.name for file in files]}, out)
    return out, files
