"""Weights, gradients and optimiser states spread over processes (FSDP2; Zhao et al. 2023): trainer.strategy fsdp2.

Each layer's weights are brought together when it is their turn and let go of behind it. What a checkpoint holds is
whole, so that any number of processes, with any strategy, can go on with it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from lightning.pytorch.strategies import ModelParallelStrategy
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict, set_optimizer_state_dict
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

from minitx.checkpoints import format as checkpoint
from minitx.nn import Stack
from minitx.training.optim import regrouped


class ShardedStrategy(ModelParallelStrategy):
    """Lightning's strategy for FSDP2, over all processes there are and without tensor parallelism."""

    def __init__(self) -> None:
        super().__init__(tensor_parallel_size=1, save_distributed_checkpoint=False)

    def setup_environment(self) -> None:
        """All processes share the work on data; Lightning's own default would be the nodes only."""
        self._data_parallel_size = self.num_processes * self.num_nodes
        super().setup_environment()

    def load_checkpoint(self, checkpoint_path: Any, weights_only: bool | None = None) -> dict[str, Any]:
        """Give each process its share of a checkpoint that any strategy has written.

        Lightning's own way takes for granted that an optimiser has its parameters in the order of the model, which
        holds for none with several groups.
        """
        assert self.model is not None
        contents = checkpoint.read(self.broadcast(checkpoint_path))
        options = StateDictOptions(full_state_dict=True)
        set_model_state_dict(self.model, contents.pop("state_dict"), options=options)
        names = {parameter: name for name, parameter in self.model.named_parameters()}
        for optimizer, saved in zip(self.optimizers, contents.pop("optimizer_states", []), strict=False):
            by_name = _by_name(regrouped(saved, self.model), optimizer, names)
            set_optimizer_state_dict(self.model, optimizer, by_name, options=options)
        return contents


def _by_name(saved: dict[str, Any], optimizer: Optimizer, names: dict[Any, str]) -> dict[str, Any]:
    """The state of an optimiser with the names of parameters in place of their numbers."""
    known = {
        number: names[parameter]
        for then, now in zip(saved["param_groups"], optimizer.param_groups, strict=True)
        for number, parameter in zip(then["params"], now["params"], strict=True)
    }
    groups = [{**group, "params": [known[number] for number in group["params"]]} for group in saved["param_groups"]]
    return {"state": {known[number]: state for number, state in saved["state"].items()}, "param_groups": groups}


def shard(model: nn.Module, mesh: DeviceMesh) -> None:
    """Spread each layer of a model by itself, and together what is left: tables, norms, the head."""
    processes = mesh["data_parallel"]
    stacks = [part for part in model.modules() if isinstance(part, Stack)]
    layers = [fully_shard(layer, mesh=processes) for stack in stacks for layer in stack.layers]
    whole_model = fully_shard(model, mesh=processes)
    # What a backward fetches ahead is said outright. Left alone, FSDP goes by all forwards since the last backward, and
    # those with which the first process alone looks inside would make it wait for a piece that no other sends.
    for layer, ahead in zip(layers, [layers[0], *layers[:-1]], strict=True):
        layer.set_modules_to_backward_prefetch([ahead])
    whole_model.set_modules_to_backward_prefetch([layers[-1]])


@contextmanager
def gathered(model: nn.Module) -> Iterator[None]:
    """Within this block every process holds all weights, so that each can write answers as long as it likes.

    Written answers end after different numbers of steps, and layers that wait for each other's pieces would wait for
    ever. A model that is not spread is left as it is.
    """
    parts = [part for part in model.modules() if isinstance(part, FSDPModule)]
    for part in parts:
        part.set_reshard_after_forward(False, recurse=False)
        part.unshard()
    try:
        yield
    finally:
        for part in parts:
            part.set_reshard_after_forward(True, recurse=False)
            part.reshard()


def whole(tensor: Tensor) -> Tensor:
    """A tensor that may be spread over processes, as it is for all."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
