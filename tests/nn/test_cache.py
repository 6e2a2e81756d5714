"""The cache changes the cost of decoding, never the logits."""

from typing import Any

import pytest
import torch
from torch import Tensor

from minitx.nn import Cache
from small_models import PAIRINGS, build_tiny, close, draw, every_decoder, every_numbering, keep_of

every_variant = pytest.mark.parametrize(
    "variant",
    [
        *({"position": name, "position_ids": ids} for name, ids in PAIRINGS),
        {"position": "learned", "window": 3},
        {"position": "learned", "n_kv_heads": 1},
        {"position": "learned", "n_kv_heads": 2, "qk_norm": True, "d_head": 6},
        {"position": "learned", "norm_first": False},
        {"position": "learned", "window": (None, 3)},
        {"position": "rope", "window": (3, 5, None), "n_layers": 4, "window_position": "alibi"},
        {"position": "rope", "parallel_residual": True, "sandwich_norm": True, "logit_softcap": 1.0},
    ],
    ids=str,
)


@pytest.fixture(autouse=True)
def _no_grad():
    with torch.no_grad():
        yield


class Decoding:
    """A model that decodes, with a source of ragged length where it reads one; the same calls for both families."""

    def __init__(self, architecture: str, rows: int, **variant: Any) -> None:
        self.model: Any = build_tiny(architecture, **variant)
        lengths = [6 - row % 4 for row in range(rows)]
        self.source = (draw(rows, 6), keep_of(*lengths)) if architecture == "encoder_decoder" else ()

    def start(self) -> Cache:
        return self.model.start(*self.source)

    def full(self, ids: Tensor, rows: Tensor | None = None) -> Tensor:
        """Logits of a forward without a cache, for all rows of the batch or for these."""
        if not self.source:
            return self.model(ids)
        src, keep = self.source if rows is None else (part[rows] for part in self.source)
        return self.model(src, ids, keep)

    def in_pieces(self, ids: Tensor, cache: Cache, pieces: list[int]) -> Tensor:
        """The logits of step over ids cut into pieces."""
        return torch.cat([self.model.step(piece, cache) for piece in ids.split(pieces, dim=1)], dim=1)


def left_padded(prompts: list[Tensor]) -> tuple[Tensor, Tensor]:
    """ids and keep [B, T]; the padding holds arbitrary tokens."""
    keep = keep_of(*map(len, prompts), left=True)
    ids = draw(*keep.shape)
    ids[keep] = torch.cat(prompts)
    return ids, keep


@every_decoder
@every_variant
def test_pieces_equal_the_full_forward(
    variant: dict[str, Any], architecture: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The capacity doubles three times, and the buffers keep their contents."""
    monkeypatch.setattr("minitx.nn.cache.FIRST_CAPACITY", 2)
    decoding = Decoding(architecture, 3, **variant)
    for pieces in ([9], [1] * 9, [5, 1, 1, 2], [1, 4, 4]):
        ids, cache = draw(3, 9), decoding.start()
        close(decoding.in_pieces(ids, cache, pieces), decoding.full(ids))
        assert cache.length == 9


@every_decoder
@every_variant
def test_ragged_prompts_equal_one_by_one(variant: dict[str, Any], architecture: str) -> None:
    """Prompts of 3, 6, 4 and 1 tokens, padded on the left and read in pieces, then three tokens more."""
    decoding, prompts, further = Decoding(architecture, 4, **variant), [draw(n) for n in (3, 6, 4, 1)], draw(4, 3)
    ids, keep = left_padded(prompts)
    for pieces in ([6], [2, 3, 1]):
        cache = decoding.start()
        parts = zip(ids.split(pieces, dim=1), keep.split(pieces, dim=1), strict=True)
        logits = [decoding.model.step(part, cache, part_keep) for part, part_keep in parts]
        together = torch.cat([*logits, decoding.in_pieces(further, cache, [1, 1, 1])], dim=1)
        assert together.isfinite().all()  # also where all keys of a query are padding
        for row, prompt in enumerate(prompts):
            alone = decoding.full(torch.cat((prompt, further[row]))[None], torch.tensor([row]))
            close(together[row, 6 - len(prompt) :], alone[0])


@every_decoder
@every_variant
def test_select_reorders_repeats_and_drops(variant: dict[str, Any], architecture: str) -> None:
    """Each new row continues the row that it was copied from, tokens and padding included."""
    decoding, prompts = Decoding(architecture, 3, **variant), [draw(n) for n in (2, 5, 3)]
    ids, keep = left_padded(prompts)
    for rows in ([2, 2, 0], [1]):
        cache, further = decoding.start(), draw(len(rows), 2)
        decoding.model.step(ids, cache, keep)
        cache.select(torch.tensor(rows))
        logits = decoding.in_pieces(further, cache, [1, 1])
        for new, old in enumerate(rows):
            alone = decoding.full(torch.cat((prompts[old], further[new]))[None], torch.tensor([old]))
            close(logits[new], alone[0, -2:])


@every_decoder
@every_numbering
def test_a_cache_numbers_as_evaluation_does_also_in_training(numbering: str, architecture: str) -> None:
    """Ids sampled again at each step would not fit the cached keys. (The source is read once, and may be.)"""
    decoding, ids = Decoding(architecture, 3, position="learned", position_ids=numbering), draw(3, 9)
    expected, cache = decoding.full(ids), decoding.start()
    decoding.model.decoder.train()
    close(decoding.in_pieces(ids, cache, [4, 1, 1, 3]), expected)


@every_decoder
def test_padding_may_arrive_after_unpadded_tokens(architecture: str) -> None:
    """A later piece with keep counts all earlier tokens as real."""
    decoding = Decoding(architecture, 2, position="learned")
    ids, keep, cache = draw(2, 5), torch.tensor([[False, True], [True, True]]), decoding.start()
    decoding.model.step(ids[:, :3], cache)
    logits = decoding.model.step(ids[:, 3:], cache, keep)
    close(logits[0, -1], decoding.full(ids[:1, [0, 1, 2, 4]], torch.tensor([0]))[0, -1])
    close(logits[1], decoding.full(ids[1:], torch.tensor([1]))[0, 3:])


def test_select_before_the_first_step() -> None:
    """Several answers to each source: the memory is repeated before any token is decoded."""
    decoding, rows = Decoding("encoder_decoder", 2, position="sinusoidal"), torch.tensor([0, 0, 1, 1])
    cache, ids = decoding.start(), draw(4, 3)
    cache.select(rows)
    close(decoding.model.step(ids, cache), decoding.full(ids, rows))


def test_the_memory_is_projected_once() -> None:
    model, calls = build_tiny("encoder_decoder"), []
    model.decoder.layers[0].cross_attn.k_proj.register_forward_hook(lambda *_: calls.append("k"))
    cache = model.start(draw(2, 5))
    for _ in range(4):
        model.step(draw(2, 1), cache)
    assert calls == ["k"]


def test_the_cache_keeps_no_graph() -> None:
    """Memory must not grow with the graph of each step, even without no_grad."""
    with torch.enable_grad():
        model: Any = build_tiny("decoder_only")
        cache = model.start()
        model.step(draw(1, 3), cache)
        assert not any(buffer.requires_grad for buffer in cache.layers[0].buffers)
