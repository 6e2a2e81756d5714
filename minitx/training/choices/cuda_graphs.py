"""`trainer.compile: auto`: replay training steps as CUDA graphs, if a GPU waits for its kernels to be launched.

A step of a small model takes a GPU less time than it takes Python to launch its kernels, one by one. A CUDA graph holds
the kernels of forward and backward with all memory that they use, and launches them together. Nothing is compiled: they
are the same kernels, on the same numbers.
"""

from collections import Counter
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import Callback
from torch import Tensor, nn

from minitx.data.batch import Batch
from minitx.hardware.captures import abandon_capture
from minitx.training.choices.auto_compile import DEVICES, in_one_line, loss_gradients, step_seconds
from minitx.training.choices.races import MIN_GAIN
from minitx.training.folder import print_line
from minitx.training.module import TransformerModule

AFTER_BATCHES = 10
"""Late enough for a warm machine, early enough for a run of seconds."""
MIN_LAUNCH_SHARE = 0.7
"""Of a step's duration: a smaller share of launching leaves nothing to gain for the memory of a graph."""
MAX_GRAPHS = 32
"""Shapes of batches. Each has a copy of the gradients; batches of further shapes are computed without a graph."""
MIN_MEMORY_LEFT = 0.5
"""Share of a GPU's memory that is free before a capture: what follows must fit too."""
TOLERANCE = 1e-3
"""Of gradients, relative to their norm: sums in another order differ by less, frozen random numbers by more."""


class CudaGraphs(Callback):
    """Replay forward and backward of a small model from its tenth batch on.

    Each shape of batch is captured where it comes the second time. The first graph must give the gradients of the
    step without it, for a batch and random numbers that it has not seen; otherwise, and where a part of the model
    cannot be captured, the run continues without.
    """

    def __init__(self) -> None:
        self.batches = 0

    def on_train_batch_end(self, trainer: pl.Trainer, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Decide, once in each process, after AFTER_BATCHES."""
        self.batches += 1
        if self.batches != AFTER_BATCHES or not _graphs_fit(trainer, module):
            return
        graphed = GraphedLoss(module)
        try:
            seconds, launching = step_seconds(trainer, module, batch)
            if launching < MIN_LAUNCH_SHARE * seconds:
                return
            graphed.capture(_inputs(batch))
            difference = _difference(trainer, module, batch, graphed)
            if not difference < TOLERANCE:  # or NaN
                print_line(f"no CUDA graph: its gradients differ by {difference:.2g} of their norm")
                return
            module.step_loss = graphed
            replayed, _ = step_seconds(trainer, module, batch)
        except Exception as error:  # such as an operator that waits for the GPU, in someone's own position scheme
            graphed.stop(error)
            return
        if MIN_GAIN * replayed > seconds:
            module.step_loss = module.summed_loss
        else:
            print_line(f"CUDA graphs: {1e3 * replayed:.2f} ms for forward and backward instead of {1e3 * seconds:.2f}")

    def teardown(self, trainer: pl.Trainer, module: Any, stage: str) -> None:
        """Free the graphs."""
        module.step_loss = module.summed_loss


class GraphedLoss:
    """The summed loss of batches, from one CUDA graph for each shape; in place of TransformerModule.summed_loss."""

    def __init__(self, module: TransformerModule) -> None:
        self.module, self.pool = module, torch.cuda.graph_pool_handle()
        self.seen: Counter[Any] = Counter()  # by shape
        self.graphs: dict[Any, nn.Module] = {}

    def __call__(self, batch: Batch) -> Tensor:
        """The loss of a batch []; its backward gives the gradients of the weights."""
        module, inputs = self.module, _inputs(batch)
        if module.model._compiled_call_impl is not None or not module.model.training:
            return module.summed_loss(batch)
        shape = _shape(inputs)
        self.seen[shape] += 1
        wanted = shape not in self.graphs and self.seen[shape] > 1 and len(self.graphs) < MAX_GRAPHS
        if wanted and memory_left(module.device) > MIN_MEMORY_LEFT:
            try:
                self.capture(inputs)
            except Exception as error:
                self.stop(error)
            module.reseed(module.trainer.fit_loop.total_batch_idx)  # capturing has advanced the random generator
        graph = self.graphs.get(shape)
        return module.summed_loss(batch) if graph is None else graph(*inputs.values())

    def capture(self, inputs: dict[str, Tensor]) -> None:
        """Add the graph of a shape."""
        loss = _BatchLoss(self.module, [*inputs])
        with self.module.trainer.precision_plugin.train_step_context():
            copies = tuple(part.clone() for part in inputs.values())
            torch.cuda.make_graphed_callables(loss, copies, allow_unused_input=True, pool=self.pool)
        self.graphs[_shape(inputs)] = loss

    def stop(self, error: Exception) -> None:
        """Continue without graphs, after a capture that failed."""
        self.module.step_loss = self.module.summed_loss
        self.graphs.clear()
        abandon_capture(self.module.device)
        print_line(f"no CUDA graph ({in_one_line(error)}); training continues without")


class _BatchLoss(nn.Module):
    """The loss of batches of one shape as a module with tensors for arguments, which torch can capture."""

    def __init__(self, module: TransformerModule, names: list[str]) -> None:
        super().__init__()
        self.model, self.loss, self.names = module.model, module.summed_loss, names

    def forward(self, *inputs: Tensor) -> Any:
        fields: dict[str, Any] = dict.fromkeys(Batch.__dataclass_fields__)
        return self.loss(Batch(**fields | dict(zip(self.names, inputs, strict=True))))


def memory_left(device: torch.device) -> float:
    """The share of a GPU's memory that is free."""
    free, total = torch.cuda.mem_get_info(device)
    return free / total


def _inputs(batch: Batch) -> dict[str, Tensor]:
    """The tensors that a loss depends on, by field."""
    return {name: part for name, part in vars(batch).items() if part is not None and name != "step_labels"}


def _shape(inputs: dict[str, Tensor]) -> Any:
    return tuple((name, part.shape) for name, part in inputs.items())


def _graphs_fit(trainer: pl.Trainer, module: TransformerModule) -> bool:
    """Whether a step is one forward and backward on one GPU, without hooks, which a graph would not call."""
    settings = module.config.trainer
    one = trainer.world_size == trainer.accumulate_grad_batches == 1 and not settings.recompute_activations
    hooks = any(
        part._forward_hooks or part._forward_pre_hooks or part._backward_hooks or part._backward_pre_hooks
        for part in module.model.modules()
    )
    return one and not hooks and module.device.type in DEVICES and module.model._compiled_call_impl is None


def _difference(trainer: pl.Trainer, module: TransformerModule, batch: Batch, graphed: GraphedLoss) -> float:
    """The difference of a graph's gradients from those without it, relative to their norm.

    The batch is not the one that was captured, and neither are the random numbers.
    """
    other = batch.map(lambda part: part.flip([*range(part.dim())]))
    found = []
    for loss in (graphed, module.summed_loss):
        module.reseed(trainer.fit_loop.total_batch_idx + 1)
        gradients = loss_gradients(trainer, module, other, loss)
        found.append(torch.cat([each.flatten().float() for each in gradients if each is not None]))
    with_graph, without = found
    return float((with_graph - without).norm() / without.norm())
