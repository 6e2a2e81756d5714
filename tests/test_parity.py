"""Whole models against those of transformers: logits, gradients, bf16 and cached decoding with the same weights.

In fp32 throughout; in float64 theirs go through fp32 here and there, in norms and angles.
"""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from minitx.generation.decode import generate
from minitx.generation.sampling import greedy
from minitx.nn.cache import FIRST_CAPACITY
from parity import FAMILIES, VOCAB, D, pair

every_family = pytest.mark.parametrize("name", FAMILIES)


def ragged(*lengths: int, left: bool = False) -> tuple[Tensor, Tensor]:
    """Random ids and keep [B, T]; the padding holds random tokens too."""
    steps = torch.arange(max(lengths))
    keep = (steps.flip(0) if left else steps) < torch.tensor(lengths)[:, None]
    return torch.randint(0, VOCAB, keep.shape), keep


def batch(name: str) -> tuple[dict[str, Tensor], tuple[Tensor, ...], Tensor]:
    """A padded batch in their words and in ours, and which outputs count."""
    ids, keep = ragged(45, 4, 21)
    theirs = {"input_ids": ids, "attention_mask": keep.long()}
    if FAMILIES[name].ours.architecture != "encoder_decoder":
        return theirs, (ids, keep), keep
    tgt, tgt_keep = ragged(8, 12, 11)
    theirs |= {"decoder_input_ids": tgt, "decoder_attention_mask": tgt_keep.long()}
    return theirs, (ids, tgt, keep, tgt_keep), tgt_keep


# --- the same numbers -------------------------------------------------------------------------------------------------


@every_family
def test_logits_equal(name: str) -> None:
    theirs, ours = pair(name)
    inputs, arguments, keep = batch(name)
    expected = theirs(**inputs)[0][keep]
    assert 0.1 < expected.std() < 10.0  # 1e-5 is little beside it
    torch.testing.assert_close(ours(*arguments)[keep], expected, atol=1e-5, rtol=1e-5)


@every_family
def test_gradients_equal(name: str) -> None:
    """Of a loss with respect to each of their weights; through ours too, whose weights are made of theirs."""
    theirs, ours = pair(name)
    inputs, arguments, keep = batch(name)
    parameters = dict(theirs.named_parameters())
    labels = torch.randint(0, D, keep.shape)[keep]

    def gradients(logits: Tensor) -> tuple[Tensor, ...]:
        return torch.autograd.grad(F.cross_entropy(logits[keep], labels), list(parameters.values()))

    expected = gradients(theirs(**inputs)[0])
    weights = FAMILIES[name].weights(parameters, FAMILIES[name].ours)
    found = gradients(torch.func.functional_call(ours, dict(weights), arguments))
    largest = max(part.abs().max() for part in expected)  # the unit below: BERT's biases of keys have none but noise
    for key, one, other in zip(parameters, found, expected, strict=True):
        torch.testing.assert_close(
            one / largest, other / largest, atol=1e-5, rtol=0, msg=lambda text, key=key: f"{key}: {text}"
        )


@every_family
def test_bf16_is_as_exact_as_theirs(name: str) -> None:
    """Both in bf16, measured by theirs in fp32."""
    theirs, ours = pair(name)
    inputs, arguments, keep = batch(name)
    exact = theirs(**inputs)[0][keep]
    for part in theirs.parameters():  # its frequencies stay in fp32, as they do when they load a checkpoint in bf16
        part.data = part.data.bfloat16()
    error_of_theirs, error = (
        (logits[keep].float() - exact).square().mean().sqrt()
        for logits in (theirs(**inputs)[0], ours.bfloat16()(*arguments))
    )
    assert 0 < error < 1.5 * error_of_theirs


@pytest.mark.parametrize("name", [name for name in FAMILIES if name != "bert"])
def test_cached_decoding_writes_the_same_tokens(name: str) -> None:
    """Greedily, beside padding, and beyond the first capacity of our cache; with the same logits at every step."""
    theirs, ours = pair(name)
    reads_source = FAMILIES[name].ours.architecture == "encoder_decoder"
    ids, keep = ragged(7, 3, 5, left=not reads_source)
    start = {"decoder_start_token_id": 0} if reads_source else {}
    written = theirs.generate(
        ids, attention_mask=keep.long(), do_sample=False, max_new_tokens=FIRST_CAPACITY + 2, pad_token_id=0, **start,
        return_dict_in_generate=True, output_logits=True,
    )  # fmt: skip
    seen: list[Tensor] = []

    def choose(logits: Tensor, rows: Tensor | None = None) -> Tensor:
        seen.append(logits)
        return greedy(logits)

    arguments = (ids.new_zeros(3, 1), ids, keep) if reads_source else (ids,)
    found = generate(
        ours, *arguments, keep=None if reads_source else keep, sampler=choose,
        max_new_tokens=FIRST_CAPACITY + 2, eos=-1, pad=0,
    ).ids  # fmt: skip
    assert torch.equal(torch.cat((arguments[0], found), dim=1), written.sequences)
    torch.testing.assert_close(torch.stack(seen), torch.stack(written.logits), atol=1e-5, rtol=1e-5)
