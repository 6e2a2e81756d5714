"""Which logits depend on which tokens, by gradient and by change; batches, padding and documents as one by one."""

from typing import Any

import pytest
import torch

from minitx.nn import Stack
from small_models import ARCHITECTURES, SCHEMES, build_tiny, close, draw, every_pairing, keep_of, pairwise, reach, run

DOCUMENTS = torch.tensor([[0, 0, 0, 1, 1, 2, 2, 2, 2], [4, 3, 3, 3, 3, 3, 0, 0, 5]])
WINDOWS: list[dict[str, Any]] = [
    {}, {"window": 3, "norm_first": False, "n_kv_heads": 1}, {"window": (1, 5), "parallel_residual": True},
    {"window": (5, None)},
]  # fmt: skip


@pairwise({"options": WINDOWS, "name": SCHEMES, "architecture": [*ARCHITECTURES]})
def test_logits_depend_on_what_the_masks_of_all_layers_allow(options: dict, name: str, architecture: str) -> None:
    """Two layers: a decoder depends on the past within the sum of their windows, an encoder on both sides."""
    ids, source = draw(2, 7), draw(2, 5)
    arguments = (source, ids) if architecture == "encoder_decoder" else (ids,)
    found, *of_source = reach(build_tiny(architecture, name, **options), *arguments)
    distance = torch.arange(7)[:, None] - torch.arange(7)
    window = options.get("window")
    windows = window if isinstance(window, tuple) else (window, window)
    before = sum(7 if each is None else each - 1 for each in windows)
    if architecture == "encoder_only":
        allowed = distance.abs() <= before // 2 if all(windows) else distance < 7
    else:
        allowed = (distance >= 0) & (distance <= before)
    assert torch.equal(found, allowed.expand(2, -1, -1))
    assert all(part.all() for part in of_source)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@every_pairing
def test_a_ragged_batch_equals_one_by_one(name: str, numbering: str, architecture: str) -> None:
    """With padding on the right, on the left and on both sides."""
    model, ids, source = build_tiny(architecture, name, numbering), draw(3, 9), draw(3, 9)
    keep, source_keep = keep_of(2, 9, 7), keep_of(6, 9, 4)
    keep[1, :4], source_keep[1, :8] = False, False
    keep[2, :2], source_keep[2, :1] = False, False
    with torch.no_grad():
        whole = run(model, source, ids, source_keep, keep)
        assert whole.isfinite().all()
        for row in range(3):
            close(whole[row, keep[row]], run(model, source[row, source_keep[row]][None], ids[row, keep[row]][None])[0])


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("name", SCHEMES)
def test_absolute_schemes_are_those_that_a_shift_of_all_ids_changes(name: str, architecture: str) -> None:
    model, source, ids = build_tiny(architecture, name), draw(2, 5), draw(2, 7)
    before = run(model, source, ids)
    for stack in (part for part in model.modules() if isinstance(part, Stack)):
        stack.position_ids.forward = lambda *args, own=stack.position_ids.forward, **more: own(*args, **more) + 13
    assert torch.allclose(run(model, source, ids), before, atol=1e-4) != stack.position.absolute


PACKED: list[dict[str, Any]] = [
    {"window": (3, None)}, {"n_kv_heads": 1, "softcap": 2.0, "position_ids": "offset"}, {"position_ids": "coupled"},
]  # fmt: skip
"""Randomized ids are left out: their documents share a sample."""


@pairwise({"options": PACKED, "name": SCHEMES, "architecture": ["decoder_only", "encoder_only"]})
def test_each_document_as_if_alone(options: dict, name: str, architecture: str) -> None:
    """Padding between and after documents included, whatever its document number."""
    model, ids = build_tiny(architecture, name, **options), draw(3, 9)
    keep = torch.tensor([1, 1, 0, 1, 1, 1, 0, 1, 0]).bool().expand(3, -1)
    documents = torch.tensor([[0, 0, 0, 1, 1, 1, 1, 2, 2], [0, 0, 1, 1, 1, 1, 2, 2, 2], [0, 0, 9, 1, 1, 1, 9, 2, 9]])
    with torch.no_grad():
        packed, beside_padding = model(ids[:2], documents=DOCUMENTS), model(ids, keep, documents=documents)
        assert beside_padding.isfinite().all()
        for row, numbers in enumerate(DOCUMENTS.tolist()):
            for number in set(numbers):
                columns = DOCUMENTS[row] == number
                close(packed[row, columns], model(ids[row, columns][None])[0])
        for row in range(3):
            for columns in (slice(0, 2), slice(3, 6), slice(7, 8)):
                close(beside_padding[row, columns], model(ids[row : row + 1, columns])[0])


@pytest.mark.parametrize("name", SCHEMES)
def test_a_prefix_is_read_in_both_directions_and_the_rest_is_causal(name: str) -> None:
    ids, prefix = draw(4, 7), torch.tensor([4, 1, 0, 7])
    allowed = torch.ones(4, 7, 7).tril().bool() | (torch.arange(7) < prefix[:, None, None])
    assert torch.equal(reach(build_tiny("decoder_only", name, prefix_lm=True), ids, prefix=prefix)[0], allowed)
    usual = build_tiny("decoder_only", name)
    assert torch.equal(usual(ids, prefix=prefix), usual(ids))


def test_documents_go_together_with_a_prefix_and_not_with_a_cache() -> None:
    """The prefix of the first document is read in both directions; the second is causal and does not see it."""
    model, ids, prefix = build_tiny("decoder_only", "rope", prefix_lm=True), draw(1, 8), torch.tensor([3])
    documents = torch.tensor([[0] * 5 + [1] * 3])
    packed = model(ids, prefix=prefix, documents=documents)
    close(torch.compile(model, backend="eager", fullgraph=True)(ids, prefix=prefix, documents=documents), packed)
    close(packed[:, :5], model(ids[:, :5], prefix=prefix))
    close(packed[:, 5:], model(ids[:, 5:]))
    with pytest.raises(ValueError, match="cache"):
        model(ids, cache=model.start(), documents=documents)


@every_pairing
def test_steps_after_a_whole_prompt_equal_the_forward_with_a_prefix(name: str, numbering: str) -> None:
    """Prompts of ragged length, padded on the left."""
    model, lengths, further = build_tiny("decoder_only", name, numbering, prefix_lm=True), (3, 6, 1), draw(3, 10)
    ids, keep, cache = draw(3, 6), keep_of(*lengths, left=True), model.start()
    with torch.no_grad():
        logits = [model.step(ids, cache, keep), *(model.step(part, cache) for part in further.split([1, 9], dim=1))]
        together = torch.cat(logits, dim=1)
        assert together.isfinite().all()
        for row, length in enumerate(lengths):
            whole = torch.cat((ids[row, 6 - length :], further[row]))[None]
            close(together[row, 6 - length :], model(whole, prefix=torch.tensor([length]))[0])
