"""FSDP2 (Zhao et al. 2023): weights, gradients and optimizer states sharded over processes, as trainer.strategy fsdp2.

Checkpoints hold whole tensors, so that any number of processes, with any strategy, can resume from them.
"""

from typing import Any

import torch
from lightning.pytorch.strategies import ModelParallelStrategy, StrategyRegistry
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict, set_optimizer_state_dict
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.optim import Optimizer

from minitx.nn import NoPositions, Stack


@StrategyRegistry.register("fsdp2")
class ShardedStrategy(ModelParallelStrategy):
    """Lightning's FSDP2 over all processes, without tensor parallelism."""

    def __init__(self) -> None:
        super().__init__(tensor_parallel_size=1, save_distributed_checkpoint=False)
        self.units: list[FSDPModule] = []  # the layers, lowest first, and the rest

    def setup_environment(self) -> None:
        """Shard over all processes; Lightning's default is the nodes only."""
        self._data_parallel_size = self.num_processes * self.num_nodes
        super().setup_environment()

    def shard(self, model: nn.Module) -> None:
        """Shard each layer as a unit, and as another unit the rest: tables, norms, head, shared position schemes."""
        if isinstance(model, FSDPModule):  # Lightning calls configure_model more than once
            return
        processes = self.device_mesh["data_parallel"]
        shared = nn.ModuleList(part for part in model.modules() if isinstance(part, NoPositions) and part.shared)
        ignored = {*shared.parameters()}  # by the layers, which all have them
        whole = [layer for part in model.modules() if isinstance(part, Stack) for layer in part.layers]
        layers = [fully_shard(layer, mesh=processes, ignored_params=ignored) for layer in whole]
        model.add_module("shared", shared)  # FSDP does not search the layers again: a scheme may be nowhere else
        root = fully_shard(model, mesh=processes)
        self.units = [*layers, root]
        del model.shared
        # Explicit, because FSDP derives the prefetch order from all forwards since the last backward. Forwards of the
        # first process alone (attention maps) would make it wait for shards that no other process sends.
        for layer, following in zip(layers, [layers[0], *layers[:-1]], strict=True):
            layer.set_modules_to_backward_prefetch([following])
        root.set_modules_to_backward_prefetch([layers[-1]])

    def on_validation_start(self) -> None:
        """Keep all weights in every process during a validation.

        Generated outputs end after different numbers of steps, and a process that waits for the shards of another one
        that has finished would wait forever.
        """
        with torch.inference_mode(False):  # memory that is allocated here serves training too
            for unit in self.units:
                unit.set_reshard_after_forward(False, recurse=False)
                unit.unshard()

    def on_validation_end(self) -> None:
        for unit in self.units:
            # FSDP's default: the rest is not resharded after a forward; a lens uses it outside of a forward.
            unit.set_reshard_after_forward(unit is not self.units[-1], recurse=False)
            unit.reshard()

    def load_checkpoint(self, checkpoint_path: Any, weights_only: bool | None = None) -> dict[str, Any]:
        """Load each process's shard of a checkpoint of any strategy.

        Lightning's own assumes optimizer parameters in the order of the model, which several groups break.
        """
        assert self.model is not None
        contents = dict(self.checkpoint_io.load_checkpoint(self.broadcast(checkpoint_path)))
        names = {parameter: name for name, parameter in self.model.named_parameters()}
        weights = contents.pop("state_dict")
        # Not strict: a shared weight is under its first name alone, and a weight without a gradient has no state.
        options = StateDictOptions(full_state_dict=True, strict=False)
        set_model_state_dict(self.model, {name: weights[name] for name in names.values()}, options=options)
        for optimizer, saved in zip(self.optimizers, contents.pop("optimizer_states", []), strict=False):
            set_optimizer_state_dict(self.model, optimizer, _by_name(saved, optimizer, names), options=options)
        return contents


def _by_name(saved: dict[str, Any], optimizer: Optimizer, names: dict[Any, str]) -> dict[str, Any]:
    """An optimizer's state with parameter names instead of numbers."""
    name = {
        number: names[parameter]
        for before, now in zip(saved["param_groups"], optimizer.param_groups, strict=True)
        for number, parameter in zip(before["params"], now["params"], strict=True)
    }
    groups = [{**group, "params": [name[number] for number in group["params"]]} for group in saved["param_groups"]]
    return {"state": {name[number]: state for number, state in saved["state"].items()}, "param_groups": groups}
