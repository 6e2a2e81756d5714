"""The cache changes the cost of decoding, never the logits."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from minitx.nn import POSITION_IDS, POSITIONS, Cache
from minitx.nn.cache import FIRST_CAPACITY

VOCAB = 11
every_decoder = pytest.mark.parametrize("architecture", ["decoder_only", "encoder_decoder"])
every_scheme = pytest.mark.parametrize("name", [*POSITIONS, "all_hooks"])
every_policy = pytest.mark.parametrize("numbering", POSITION_IDS)
variants = pytest.mark.parametrize(
    "options",
    [{"window": 3}, {"n_kv_heads": 1}, {"n_kv_heads": 2, "qk_norm": True, "d_head": 6}, {"norm_first": False}],
    ids=str,
)


@pytest.fixture(autouse=True)
def _no_grad():
    torch.manual_seed(0)
    with torch.no_grad():
        yield


def close(one: Tensor, other: Tensor) -> None:
    torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)


def draw(*shape: int) -> Tensor:
    return torch.randint(0, VOCAB, shape)


class Decoding:
    """A model that decodes, with a source of ragged length where it wants one; the same calls for both families."""

    def __init__(self, model, rows: int) -> None:
        self.model, self.source = model, ()
        if hasattr(model, "encode"):
            self.source = (draw(rows, 6), torch.arange(6)[None] < 6 - torch.arange(rows)[:, None] % 4)

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
        assert sum(pieces) == ids.size(1)
        return torch.cat([self.model.step(piece, cache) for piece in ids.split(pieces, dim=1)], dim=1)


def check_pieces(decoding: Decoding, rows: int) -> None:
    for pieces in ([9], [1] * 9, [5, 1, 1, 2], [1, 4, 4]):
        ids, cache = draw(rows, 9), decoding.start()
        close(decoding.in_pieces(ids, cache, pieces), decoding.full(ids))
        assert cache.length == 9


@every_decoder
@every_policy
@every_scheme
def test_pieces_equal_the_full_forward_however_tokens_are_numbered(
    name: str, numbering: str, architecture: str, tiny
) -> None:
    check_pieces(Decoding(tiny(architecture, name, numbering), rows=3), rows=3)


@every_decoder
@variants
def test_pieces_equal_the_full_forward_in_other_shapes(options: dict, architecture: str, tiny) -> None:
    check_pieces(Decoding(tiny(architecture, "sinusoidal", **options), rows=3), rows=3)


@every_decoder
@every_scheme
def test_growth_past_several_blocks(name: str, architecture: str, tiny) -> None:
    """The capacity doubles when it is full, and keeps what it held, however the tokens arrive."""
    decoding, length = Decoding(tiny(architecture, name), rows=2), 4 * FIRST_CAPACITY + 2
    ids = draw(2, length)
    full = decoding.full(ids)
    to_the_brim = [FIRST_CAPACITY - 1, 1, 1, 1, FIRST_CAPACITY - 3, 1, 1, 2 * FIRST_CAPACITY - 1, 1, 1]
    close(decoding.in_pieces(ids, decoding.start(), to_the_brim), full)
    close(decoding.in_pieces(ids, decoding.start(), [length]), full)


def left_padded(prompts: list[Tensor]) -> tuple[Tensor, Tensor]:
    """ids and keep [B, T]; the padding holds arbitrary tokens."""
    width = max(prompt.numel() for prompt in prompts)
    ids, keep = draw(len(prompts), width), torch.zeros(len(prompts), width, dtype=torch.bool)
    for row, prompt in enumerate(prompts):
        ids[row, width - prompt.numel() :], keep[row, width - prompt.numel() :] = prompt, True
    return ids, keep


def check_ragged(decoding: Decoding, pieces: tuple[int, ...]) -> None:
    """Prompts of 3, 6, 4 and 1 tokens, padded on the left, then three tokens more: as if each stood alone."""
    prompts, further = [draw(length) for length in (3, 6, 4, 1)], draw(4, 3)
    ids, keep = left_padded(prompts)
    cache = decoding.start()
    logits = [
        decoding.model.step(part, cache, part_keep)
        for part, part_keep in zip(ids.split(pieces, dim=1), keep.split(pieces, dim=1), strict=True)
    ]
    logits += [decoding.model.step(further[:, step : step + 1], cache) for step in range(3)]
    together = torch.cat(logits, dim=1)
    assert together.isfinite().all()  # padding that sees nothing included
    for row, prompt in enumerate(prompts):
        alone = decoding.full(torch.cat((prompt, further[row]))[None], torch.tensor([row]))
        close(together[row, 6 - prompt.numel() :], alone[0])


@every_decoder
@every_policy
@every_scheme
@pytest.mark.parametrize("pieces", [(6,), (2, 3, 1)], ids=str)
def test_ragged_prompts_however_tokens_are_numbered(
    pieces: tuple[int, ...], name: str, numbering: str, architecture: str, tiny
) -> None:
    check_ragged(Decoding(tiny(architecture, name, numbering), rows=4), pieces)


@every_decoder
@every_policy
def test_a_cache_numbers_as_evaluation_does_also_in_training(numbering: str, architecture: str, tiny) -> None:
    """Ids sampled again at each step would not fit the cached keys."""
    model = tiny(architecture, "learned", numbering)
    decoding, ids = Decoding(model, rows=3), draw(3, 9)
    if architecture == "encoder_decoder":
        cache = decoding.start()  # the source is read once: its ids need not be repeated
        expected = decoding.full(ids)
        model.decoder.train()
    else:
        expected = decoding.full(ids)
        model.train()
        cache = decoding.start()
    close(decoding.in_pieces(ids, cache, [4, 1, 1, 3]), expected)


@every_decoder
@variants
def test_ragged_prompts_in_other_shapes(options: dict, architecture: str, tiny) -> None:
    check_ragged(Decoding(tiny(architecture, "learned", **options), rows=4), (6,))


@every_decoder
def test_padding_may_arrive_after_unpadded_tokens(architecture: str, tiny) -> None:
    """A later piece with keep counts what came before it as real."""
    decoding = Decoding(tiny(architecture, "learned"), rows=2)
    ids, keep = draw(2, 5), torch.tensor([[False, True], [True, True]])
    cache = decoding.start()
    decoding.model.step(ids[:, :3], cache)
    logits = decoding.model.step(ids[:, 3:], cache, keep)
    skipped = ids[:1, [0, 1, 2, 4]]
    close(logits[0, -1], decoding.full(skipped, torch.tensor([0]))[0, -1])
    close(logits[1], decoding.full(ids[1:], torch.tensor([1]))[0, 3:])


@every_decoder
@every_policy
@every_scheme
@pytest.mark.parametrize("rows", [[2, 0, 1], [1], [1, 1, 1, 0, 2, 0]], ids=str)
@pytest.mark.parametrize("padded", [False, True], ids=["", "padding"])
def test_select_reorders_repeats_and_drops(
    padded: bool, rows: list[int], name: str, numbering: str, architecture: str, tiny
) -> None:
    """Beam search between steps: each new row continues the row that it was copied from, tokens included."""
    decoding, chosen = Decoding(tiny(architecture, name, numbering), rows=3), torch.tensor(rows)
    prompts = [draw(length) for length in ((2, 5, 3) if padded else (5, 5, 5))]
    ids, keep = left_padded(prompts)
    cache = decoding.start()
    decoding.model.step(ids, cache, keep if padded else None)
    cache.select(chosen)
    further = draw(len(rows), 2)
    logits = torch.cat([decoding.model.step(further[:, step : step + 1], cache) for step in range(2)], dim=1)
    for new, old in enumerate(rows):
        alone = decoding.full(torch.cat((prompts[old], further[new]))[None], torch.tensor([old]))
        close(logits[new], alone[0, -2:])


def test_select_before_the_first_step(tiny) -> None:
    """Several answers to each source: the memory is repeated before any token is decoded."""
    decoding, rows = Decoding(tiny("encoder_decoder", "sinusoidal"), rows=2), torch.tensor([0, 0, 1, 1])
    cache, ids = decoding.start(), draw(4, 3)
    cache.select(rows)
    close(decoding.model.step(ids, cache), decoding.full(ids, rows))


def test_two_caches_do_not_mix(tiny) -> None:
    """Modules hold no state: two generations of one model may take turns."""
    model = tiny("decoder_only", "learned")
    ids, caches = draw(2, 1, 4), (model.start(), model.start())
    logits = [[model.step(ids[which, :, step : step + 1], caches[which]) for which in (0, 1)] for step in range(4)]
    for which in (0, 1):
        close(torch.cat([pair[which] for pair in logits], dim=1), model(ids[which]))


def test_the_memory_is_projected_once(tiny) -> None:
    model, calls = tiny("encoder_decoder"), []
    cross = model.decoder.layers[0].cross_attn
    cross.k_proj.register_forward_hook(lambda *_: calls.append("k"))
    cache = model.start(draw(2, 5))
    for _ in range(4):
        model.step(draw(2, 1), cache)
    assert calls == ["k"]


def test_the_model_advances_the_cache_once_and_the_stack_never(tiny) -> None:
    model, cache, ids = tiny("decoder_only"), Cache(), draw(1, 3)
    pos = cache.append(ids, None, model.decoder.position_ids)
    model.decoder(model.embedding(ids), pos, cache=cache)
    assert cache.length == 0
    cache.advance(3)
    model.step(draw(1, 2), cache)
    assert cache.length == 5


def test_the_cache_keeps_no_graph(tiny) -> None:
    """Memory must not grow with the graph of each step, even without no_grad."""
    with torch.enable_grad():
        model = tiny("decoder_only")
        cache = model.start()
        model.step(draw(1, 3), cache)
        keys, _ = cache.layer(0).extend(*[torch.zeros(1, 4, 1, 4)] * 2)
        assert not keys.requires_grad
