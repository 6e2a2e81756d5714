"""`trainer.compile: auto`: replay training steps as CUDA graphs, if a GPU waits for its kernels to be launched.

A step of a small model takes a GPU less time than it takes Python to launch its kernels, one by one. A CUDA graph holds
the kernels of forward and backward with all memory that they use, and launches them together. Nothing is compiled: they
are the same kernels, on the same numbers.
"""

from collections import Counter
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import Callback
from torch import Tensor, nn

from minitx.data.batch import Batch
from minitx.hardware.captures import captured, restored_if_failed, warm_up
from minitx.hardware.races import MIN_GAIN
from minitx.training.choices.auto_compile import in_one_line, loss_gradients, step_seconds
from minitx.training.folder import print_line
from minitx.training.module import TransformerModule

AFTER_BATCHES = 10
"""Late enough for a warm machine, early enough for a run of seconds."""
MIN_LAUNCH_SHARE = 0.7
"""Minimum share of launching in a step's duration for which a graph saves enough time to justify its memory."""
MAX_GRAPHS = 32
"""Maximum number of shapes of batches with a graph. Each has a copy of the gradients; further ones have none."""
MIN_MEMORY_LEFT = 0.5
"""Minimum share of a GPU's memory that is free before a capture: later allocations must fit too."""
TOLERANCE = 1e-3
"""Maximum difference of gradients relative to their norm: reordered sums differ less, frozen random numbers more."""


class CudaGraphs(Callback):
    """Replay forward and backward of a small model from its tenth batch on.

    Each shape of batch is captured when it occurs for the second time. The first graph must give the gradients of the
    step without it, for another batch and other random numbers than those captured; if it does not, or if a part of
    the model cannot be captured, the run continues without graphs.
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
            graphed.capture(batch)
            difference = _difference(trainer, module, batch, graphed)
            if not difference < TOLERANCE:  # or NaN
                print_line(f"no CUDA graph: its gradients differ by {difference:.2g} of their norm")
                return
            module.step_loss = graphed
            replayed, _ = step_seconds(trainer, module, batch)
        except Exception as error:  # such as an operator that waits for the GPU, in a user's position scheme
            graphed.stop(error)
            return
        if MIN_GAIN * replayed > seconds:
            module.step_loss = module.summed_loss
        else:
            print_line(f"CUDA graphs: {1e3 * replayed:.2f} ms for forward and backward instead of {1e3 * seconds:.2f}")

    def teardown(self, trainer: pl.Trainer, module: Any, stage: str) -> None:
        """Free the graphs."""
        if isinstance(module.step_loss, GraphedLoss):
            module.step_loss.graphs.clear()
        module.step_loss = module.summed_loss


class GraphedLoss:
    """The summed loss of batches, from two CUDA graphs for each shape; in place of TransformerModule.summed_loss."""

    def __init__(self, module: TransformerModule) -> None:
        self.module, self.pool = module, torch.cuda.graph_pool_handle()
        self.seen: Counter[Any] = Counter()  # by shape
        self.graphs: dict[Any, LossGraphs] = {}

    def __call__(self, batch: Batch) -> Tensor:
        """The loss of a batch []; its backward gives the gradients of the weights."""
        module, shape = self.module, _shape(batch)
        if module.model._compiled_call_impl is not None or not module.model.training:
            return module.summed_loss(batch)
        self.seen[shape] += 1
        wanted = shape not in self.graphs and self.seen[shape] > 1 and len(self.graphs) < MAX_GRAPHS
        if wanted and memory_left(module.device) > MIN_MEMORY_LEFT:
            try:
                self.capture(batch)
            except Exception as error:
                self.stop(error)
            module.reseed(module.trainer.fit_loop.total_batch_idx)  # capturing has advanced the random generator
        graph = self.graphs.get(shape)
        return module.summed_loss(batch) if graph is None else graph(*batch)

    def capture(self, batch: Batch) -> None:
        """Add the graphs of a shape."""
        fields = [name for name, part in vars(batch).items() if part is not None]
        weights = [weight for weight in self.module.model.parameters() if weight.requires_grad]
        context = self.module.trainer.precision_plugin.train_step_context()
        with restored_if_failed(self.module.device), context:
            self.graphs[_shape(batch)] = LossGraphs(partial(self._loss, fields), weights, batch, self.pool)

    def _loss(self, fields: list[str], *inputs: Tensor) -> Tensor:
        parts: dict[str, Any] = dict.fromkeys(Batch.__dataclass_fields__)
        return self.module.summed_loss(Batch(**parts | dict(zip(fields, inputs, strict=True))))

    def stop(self, error: Exception) -> None:
        """Continue without graphs, after a capture that failed."""
        self.module.step_loss = self.module.summed_loss
        self.graphs.clear()
        print_line(f"no CUDA graph ({in_one_line(error)}); training continues without one")


class LossGraphs:
    """A loss of inputs of one shape, and its gradients, as two CUDA graphs.

    The backward sets the gradients of the weights; torch's own would copy each of them. This replaces the gradients of
    an earlier backward, so batches cannot be accumulated.
    """

    def __init__(
        self, loss: Callable[..., Tensor], weights: list[nn.Parameter], inputs: Iterable[Tensor], pool: Any = None
    ) -> None:
        self.compute, self.weights, self.inputs = loss, weights, [part.clone() for part in inputs]
        dtype, device = torch.promote_types(weights[0].dtype, torch.float32), weights[0].device
        self.scale = torch.ones((), dtype=dtype, device=device)  # the gradient with respect to the loss
        self.loss: Tensor
        stream = warm_up(self._compute_both, device)
        self.replay_forward = captured(self._compute_loss, stream, pool)
        self.replay_backward = captured(self._compute_gradients, stream, pool)
        self.loss = self.loss.detach()  # otherwise batches without a graph would wait for the stream of the capture

    def __call__(self, *inputs: Tensor) -> Tensor:
        """The loss [] of other inputs."""
        for own, new in zip(self.inputs, inputs, strict=True):
            own.copy_(new)
        return _Replay.apply(self, self.weights[0])

    def _compute_both(self) -> None:
        self._compute_loss()
        self._compute_gradients()

    def _compute_loss(self) -> None:
        self.loss = self.compute(*self.inputs)

    def _compute_gradients(self) -> None:
        found = torch.autograd.grad(self.loss, self.weights, self.scale, allow_unused=True)
        # In the layout of the weights, as fused optimizers need them.
        self.gradients = [
            each if each is None or each.stride() == weight.stride() else torch.empty_like(weight).copy_(each)
            for each, weight in zip(found, self.weights, strict=True)
        ]


class _Replay(torch.autograd.Function):
    """Replays the graph of the forward and, in the backward of its loss, the graph of the backward."""

    @staticmethod
    def forward(ctx: Any, graphs: LossGraphs, weight: Tensor) -> Tensor:
        """The loss, which requires a gradient because `weight` does."""
        ctx.graphs = graphs
        graphs.replay_forward()
        return graphs.loss.detach()

    @staticmethod
    def backward(ctx: Any, scale: Tensor) -> Any:
        """Set the gradients of the weights."""
        graphs = ctx.graphs
        graphs.scale.copy_(scale)
        graphs.replay_backward()
        for weight, gradient in zip(graphs.weights, graphs.gradients, strict=True):
            weight.grad = gradient
        return None, None


def memory_left(device: torch.device) -> float:
    """The share of a GPU's memory that is free."""
    free, total = torch.cuda.mem_get_info(device)
    return free / total


def _shape(batch: Batch) -> tuple[torch.Size, ...]:
    """The shapes of the tensors in a batch; all batches of a run have the same fields, without step_labels, because
    nothing is accumulated."""
    return tuple(part.shape for part in batch)


def _graphs_fit(trainer: pl.Trainer, module: TransformerModule) -> bool:
    """Whether a step is one forward and backward in one process, without hooks, which a graph would not call.

    A strategy for several processes wraps the model, also for a single one, and counts the gradients of a backward.
    """
    settings = module.config.trainer
    single = trainer.world_size == trainer.accumulate_grad_batches == 1 and trainer.strategy.model is module
    hooks = any(
        part._forward_hooks or part._forward_pre_hooks or part._backward_hooks or part._backward_pre_hooks
        for part in module.model.modules()
    )
    return single and not hooks and not settings.recompute_activations and module.model._compiled_call_impl is None


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
