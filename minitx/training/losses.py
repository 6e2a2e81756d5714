"""Training losses: summed cross-entropy, for all logits at once or in chunks.

Legend: N examples, T tokens, D d_model, V vocabulary.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from minitx.data.batch import IGNORE, Batch
from minitx.models.transformers import Transformer

MAX_LOGITS = 2**26  # logits held at once, a quarter of a gigabyte in fp32; above it the loss is computed in chunks


def summed_loss(model: Transformer, batch: Batch, label_smoothing: float = 0.0) -> Tensor:
    """Cross-entropy of a batch, summed over the labels, in chunks above MAX_LOGITS."""
    labels, head = batch.labels, model.head
    sparse = labels.device.type == "cpu" and 4 * count(labels) < labels.numel()  # a GPU would wait for the count
    if not sparse and labels.numel() * head.out_features <= MAX_LOGITS:
        return cross_entropy(model(**batch.model_inputs()), labels, label_smoothing)
    hidden = model(**batch.model_inputs(), head=False)
    if sparse:
        labelled = labels != IGNORE
        hidden, labels = hidden[labelled][None], labels[labelled][None]
    return chunked_cross_entropy(hidden, head, labels, label_smoothing)


def cross_entropy(logits: Tensor, labels: Tensor, label_smoothing: float = 0.0) -> Tensor:
    """Cross-entropy in nats, summed over labelled positions: divide by `count(labels)` for the mean.

    logits are [N, T, V]; labels are [N, T], IGNORE where nothing is predicted; label_smoothing is the share of the
    target's probability that is spread over all tokens (Szegedy et al. 2016).
    """
    logits, labels = logits.flatten(0, 1).to(torch.promote_types(logits.dtype, torch.float32)), labels.flatten()
    return F.cross_entropy(logits, labels, ignore_index=IGNORE, reduction="sum", label_smoothing=label_smoothing)


def chunked_cross_entropy(
    hidden: Tensor, head: nn.Linear, labels: Tensor, label_smoothing: float = 0.0, max_logits: int = MAX_LOGITS
) -> Tensor:
    """`cross_entropy(head(hidden), labels)` with at most `max_logits` logits in memory, forward and backward.

    The backward recomputes each chunk (Chen et al. 2016): one more matrix product, instead of storing logits, their
    fp32 copy and their gradient for all tokens, which exceed the whole model for large vocabularies. hidden is
    [N, T, D]; a chunk has at least one row.
    """
    rows = max(1, max_logits // head.out_features)

    def chunk_loss(hidden: Tensor, labels: Tensor) -> Tensor:
        return cross_entropy(head(hidden)[None], labels[None], label_smoothing)

    if rows >= labels.numel():
        return chunk_loss(hidden.flatten(0, 1), labels.flatten())
    chunks = zip(hidden.flatten(0, 1).split(rows), labels.flatten().split(rows), strict=True)
    losses = [checkpoint(chunk_loss, *chunk, use_reentrant=False, preserve_rng_state=False) for chunk in chunks]
    return sum(losses, start=hidden.new_zeros((), dtype=torch.float32))


def count(labels: Tensor) -> Tensor:
    """Number of labelled positions, at least 1 so that it can divide: []."""
    return (labels != IGNORE).sum().clamp(min=1)
