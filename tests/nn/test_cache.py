"""The cache changes the cost of decoding, never the logits: in pieces, by beams, and where a window drops tokens."""

from copy import deepcopy
from typing import Any

import pytest
import torch
from torch import Tensor

from minitx.nn.cache import FIRST_CAPACITY, Cache, LayerCache
from small_models import DECODERS, PAIRINGS, build_tiny, close, draw, every_decoder, keep_of, pairwise, run

BEAMS, STEPS = 3, 12
pytestmark = pytest.mark.usefixtures("no_grad")

VARIANTS: list[dict[str, Any]] = [
    *({"position": name, "position_ids": ids} for name, ids in PAIRINGS),
    {"position": "learned", "window": 3}, {"position": "learned", "window": (None, 3)},
    {"position": "learned", "n_kv_heads": 1}, {"position": "learned", "norm_first": False},
    {"position": "learned", "n_kv_heads": 2, "qk_norm": True, "d_head": 6},
    {"position": "rope", "window": (3, 5, None), "n_layers": 4, "window_position": "alibi"},
    {"position": "rope", "parallel_residual": True, "sandwich_norm": True, "logit_softcap": 1.0},
]  # fmt: skip


class Decoding:
    """A model that decodes, with a source of ragged length where it reads one. Its steps are those of a decoder in
    training mode, which must not sample ids again: they would not fit the cached keys."""

    def __init__(self, architecture: str, rows: int, **variant: Any) -> None:
        self.model: Any = build_tiny(architecture, **variant)
        self.trained = deepcopy(self.model)
        self.trained.decoder.train()
        self.rows, lengths = rows, [6 - row % 4 for row in range(rows)]
        self.source = (draw(rows, 6), keep_of(*lengths)) if architecture == "encoder_decoder" else ()

    def start(self) -> Cache:
        """Rows are reordered before the first step, too."""
        cache = self.trained.start(*(part.flip(0) for part in self.source))
        cache.select(torch.arange(self.rows).flip(0))
        return cache

    def full(self, ids: Tensor, row: int) -> Tensor:
        """Logits [T, V] of a forward without a cache over one row's tokens [T]."""
        src, keep = (part[row : row + 1] for part in self.source) if self.source else (None, None)
        return run(self.model, src, ids[None], keep)[0]

    def steps(self, ids: Tensor, cache: Cache, pieces: list[int], keep: Tensor | None = None) -> Tensor:
        """The logits of step over ids cut into pieces."""
        keeps = [None] * len(pieces) if keep is None else keep.split(pieces, dim=1)
        parts = zip(ids.split(pieces, dim=1), keeps, strict=True)
        return torch.cat([self.trained.step(part, cache, part_keep) for part, part_keep in parts], dim=1)


@pairwise({"variant": VARIANTS, "architecture": DECODERS, "lengths": [(6, 6, 6, 6), (3, 6, 4, 1)]})
def test_pieces_equal_a_forward_over_each_row(
    lengths: tuple[int, ...], variant: dict[str, Any], architecture: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Prompts, padded on the left; then rows are repeated, reordered and dropped, and continue. Buffers grow more than
    once, or drop the tokens before a window."""
    monkeypatch.setattr("minitx.nn.cache.FIRST_CAPACITY", 2)
    monkeypatch.setattr("minitx.nn.cache.NEXT_CAPACITY", {})
    decoding, prompts = Decoding(architecture, 4, **variant), [draw(n) for n in lengths]
    ids, keep = draw(4, 6), keep_of(*lengths, left=True)
    ids[keep] = torch.cat(prompts)
    ways = ([6], [2, 2, 0], [1] * 5), ([2, 3, 1], [3, 1], [1, 3, 1]), ([1] * 6, [0, 1, 2, 3], [5])
    for pieces, rows, further in ways:
        cache, new = decoding.start(), draw(len(rows), 5)
        logits = decoding.steps(ids, cache, pieces, None if keep.all() else keep)
        assert logits.isfinite().all()  # also where all keys of a query are padding
        cache.select(torch.tensor(rows))
        logits = torch.cat((logits[rows], decoding.steps(new, cache, further)), dim=1)
        assert cache.length == 11
        for row, old in enumerate(rows):
            close(logits[row, 6 - lengths[old] :], decoding.full(torch.cat((prompts[old], new[row])), old))


@every_decoder
def test_padding_may_arrive_after_unpadded_tokens(architecture: str) -> None:
    """A later piece with keep counts all earlier tokens as real."""
    decoding = Decoding(architecture, 2, position="learned")
    ids, keep, cache = draw(2, 5), torch.tensor([[False, True], [True, True]]), decoding.start()
    decoding.steps(ids[:, :3], cache, [3])
    logits = decoding.steps(ids[:, 3:], cache, [2], keep)
    close(logits[0, -1], decoding.full(ids[0, [0, 1, 2, 4]], 0)[-1])
    close(logits[1], decoding.full(ids[1], 1)[3:])


def test_the_memory_is_projected_once_and_no_graph_is_kept() -> None:
    """Memory must not grow with the graph of each step, even without no_grad."""
    model, calls = build_tiny("encoder_decoder"), []
    model.decoder.layers[0].cross_attn.k_proj.register_forward_hook(lambda *_: calls.append("k"))
    with torch.enable_grad():
        cache = model.start(draw(2, 5))
        for _ in range(4):
            model.step(draw(2, 1), cache)
    assert calls == ["k"]
    assert not any(buffer.requires_grad for buffer in cache.layers[0].buffers)


@pairwise({"window": [None, (None, 5)], "name,numbering": PAIRINGS, "architecture": DECODERS})
def test_beams_are_rows_that_continue_each_other(
    window: Any, name: str, numbering: str, architecture: str, monkeypatch: Any
) -> None:
    """Two prompts, padded on the left; tokens that no beam has any more are dropped; one prompt leaves."""
    monkeypatch.setattr("minitx.nn.cache.MAX_DEAD_TOKENS", 3)
    model = build_tiny(architecture, name, numbering, window=window, n_layers=2)
    source = (draw(2, 5), keep_of(5, 3)) if architecture == "encoder_decoder" else ()
    rows, beams = (model.start(*source) for _ in range(2))
    ids, keep = draw(2, 4), keep_of(4, 2, left=True)
    for cache in (rows, beams):
        model.step(ids, cache, keep)
    rows.select(torch.arange(2).repeat_interleave(BEAMS))
    beams = beams.branch(BEAMS)
    for count in range(STEPS):
        if count == STEPS // 2:
            rows.select(torch.arange(BEAMS, 2 * BEAMS))
            beams.select(torch.tensor([1]))
        prompts = len(rows.ids) // BEAMS
        parents = torch.randint(BEAMS, (prompts, BEAMS))
        rows.select((parents + BEAMS * torch.arange(prompts)[:, None]).flatten())
        beams.reorder(parents)
        beams.compact(int(beams.alive()))
        new = draw(prompts, BEAMS)
        close(model.step(new, beams), model.step(new.view(-1, 1), rows).view(prompts, BEAMS, -1), 1e-4)
    assert beams.length < rows.length + (BEAMS - 1) * STEPS, "tokens were dropped"


@pytest.mark.parametrize("window", [1, FIRST_CAPACITY - 1, FIRST_CAPACITY, FIRST_CAPACITY + 1, None])
def test_the_capacity_of_a_window_does_not_grow(window: int | None) -> None:
    """A long text takes no more memory than its window, or than was read at once; without a window it grows."""
    layer, most, drops = LayerCache(), 0, 0
    layer.extend(*torch.randn(2, 1, 1, 7, 2))
    for _ in range(4 * FIRST_CAPACITY):
        before = layer.used
        layer.extend(*torch.randn(2, 1, 1, 1, 2), window)
        most, drops = max(most, layer.buffers[0].size(2)), drops + (layer.used <= before)
    assert drops <= 5, "each for as many tokens as the window, or more"
    assert most >= 4 * FIRST_CAPACITY if window is None else most <= max(FIRST_CAPACITY, 2 * window)
