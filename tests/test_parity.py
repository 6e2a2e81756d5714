"""Whole models against those of transformers: logits, gradients and bf16 with the same weights.

In fp32 throughout; in float64 theirs go through fp32 here and there, in norms and angles.
"""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from huggingface.hf_models import converted, pair
from small_models import keep_of

every_family = pytest.mark.parametrize("name", ["qwen3", "bert", "t5"])


def batch(ours: Any) -> tuple[dict[str, Tensor], tuple[Tensor, ...], Tensor]:
    """A padded batch in their words and in ours, and which outputs count; the padding holds random tokens too."""
    keep, tgt_keep = keep_of(45, 4, 21), keep_of(8, 12, 11)
    ids, tgt = (torch.randint(0, ours.head.out_features, part.shape) for part in (keep, tgt_keep))
    theirs = {"input_ids": ids, "attention_mask": keep.long()}
    if not hasattr(ours, "decode"):
        return theirs, (ids, keep), keep
    theirs |= {"decoder_input_ids": tgt, "decoder_attention_mask": tgt_keep.long()}
    return theirs, (ids, tgt, keep, tgt_keep), tgt_keep


@every_family
def test_logits_and_gradients_equal(name: str) -> None:
    """Of a loss with respect to each of their weights; through ours too, whose weights are made of theirs."""
    theirs, ours = pair(name)
    inputs, arguments, keep = batch(ours)
    exact = theirs(**inputs)[0][keep]
    assert 0.1 < exact.std() < 10.0  # 1e-5 is little beside it
    torch.testing.assert_close(ours(*arguments)[keep], exact, atol=1e-5, rtol=1e-5)
    parameters = dict(theirs.named_parameters())
    labels = torch.randint(0, 48, keep.shape)[keep]

    def gradients(logits: Tensor) -> tuple[Tensor, ...]:
        return torch.autograd.grad(F.cross_entropy(logits[keep], labels), list(parameters.values()))

    expected = gradients(theirs(**inputs)[0])
    weights = converted(name, parameters)
    found = gradients(torch.func.functional_call(ours, weights, arguments))
    largest = max(part.abs().max() for part in expected)  # the unit below: BERT's biases of keys have none but noise
    found, expected = (dict(zip(parameters, parts, strict=True)) for parts in (found, expected))
    torch.testing.assert_close(found, expected, atol=1e-5 * float(largest), rtol=0)


@every_family
def test_bf16_is_as_exact_as_theirs(name: str) -> None:
    """Both in bf16, measured by theirs in fp32."""
    theirs, ours = pair(name)
    inputs, arguments, keep = batch(ours)
    exact = theirs(**inputs)[0][keep]
    for part in theirs.parameters():  # its frequencies stay in fp32, as they do when they load a checkpoint in bf16
        part.data = part.data.bfloat16()
    error_of_theirs, error = (
        (logits[keep].float() - exact).square().mean().sqrt()
        for logits in (theirs(**inputs)[0], ours.bfloat16()(*arguments))
    )
    assert 0 < error < 1.5 * error_of_theirs
