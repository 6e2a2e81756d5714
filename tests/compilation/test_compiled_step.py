"""The cache of a compiled step: the numbers of the other one, in tensors that never change their shape."""

import functools
from contextlib import nullcontext
from unittest.mock import Mock

import pytest
import torch

from minitx import record_attention, trace
from minitx.compilation import compiled_step, graphed_step, recorded_step
from minitx.compilation.compiled_step import CompiledStep
from minitx.compilation.static_cache import StaticBeamCache, StaticCache, StaticLayerCache
from minitx.generation import decode
from minitx.generation.beam import beam_search
from minitx.nn import cache
from small_models import build_tiny, close, draw, every_decoder, every_pairing, keep_of

PROMPT, NEW = 5, 7
pytestmark = pytest.mark.usefixtures("no_grad")


def places(static: StaticCache) -> list[tuple[int, torch.Size]]:
    """The storage and the shape of each tensor that a compiled step changes; it may hold the addresses."""
    buffers = [part for layer in static.layers.values() for part in layer.buffers]
    tensors = [static.ids, static.keep, static.at, *buffers]
    return [(tensor.untyped_storage().data_ptr(), tensor.shape) for tensor in tensors]


@every_decoder
@every_pairing
def test_every_step_gives_the_numbers_of_the_growing_cache(name: str, numbering: str, architecture: str) -> None:
    """Also where the capacity grows between steps; otherwise no tensor changes its place or shape."""
    model, source = build_tiny(architecture, name, numbering), (draw(3, 4), keep_of(4, 2, 4))
    growing, copied = (model.start(*(source if architecture == "encoder_decoder" else ())) for _ in range(2))
    ids, keep = draw(3, PROMPT), keep_of(5, 2, 5, left=True)
    model.step(ids, growing, keep)
    model.step(ids, copied, keep)
    static = StaticCache(copied, PROMPT + 1)
    for count in range(NEW):
        if count in (1, 3):
            static.grow(PROMPT + 3 * count)
        before, new = places(static), draw(3, 1)
        close(model.step(new, static), model.step(new, growing))
        assert places(static) == before


@every_decoder
def test_a_window_is_refused(architecture: str) -> None:
    model = build_tiny(architecture, "rope", window=(None, 3))
    model.step(draw(1, 2), cache := model.start(*([draw(1, 4)] if architecture == "encoder_decoder" else [])))
    for static in (lambda: StaticCache(cache, 16), lambda: StaticBeamCache(cache.branch(2), 16)):
        with pytest.raises(ValueError, match=r"model\.window"):
            static()


@pytest.fixture
def graphs(monkeypatch: pytest.MonkeyPatch) -> list:
    """The graphs that torch.compile traced."""
    seen = []
    trace = functools.partial(torch.compile, backend=lambda graph, *_, **more: seen.append(graph) or graph.forward)
    monkeypatch.setattr(torch, "compile", trace)
    monkeypatch.setattr(recorded_step, "GRAPH_DEVICES", ())
    torch._dynamo.reset()
    compiled_step.compiled_step.cache_clear()
    return seen


@pytest.fixture
def captures(monkeypatch: pytest.MonkeyPatch) -> Mock:
    """In place of captures on a GPU: a graph is the step itself, on tensors that stay in their place."""
    capture = Mock(wraps=lambda step, stream: step)
    monkeypatch.setattr(graphed_step, "warm_up", lambda step, device: step())
    monkeypatch.setattr(graphed_step, "captured", capture)
    monkeypatch.setattr(compiled_step, "restored_if_failed", nullcontext)
    return capture


@pytest.mark.parametrize("on_gpu", [False, True])
def test_one_compiled_step_writes_the_same(on_gpu: bool, graphs: list, captures: Mock, monkeypatch) -> None:
    """Also where it cannot be captured as a CUDA graph."""
    model, ids, keep = build_tiny("decoder_only", "learned"), draw(3, 4), keep_of(4, 2, 4, left=True)
    options = {"max_new_tokens": 20, "eos": -1, "pad": 0, "context": 8}
    expected = decode.generate(model, ids, keep=keep, **options).ids
    captures.side_effect = RuntimeError("waits for the GPU")
    monkeypatch.setattr(recorded_step, "GRAPH_DEVICES", (ids.device.type,) * on_gpu)
    monkeypatch.setattr(compiled_step, "MAX_PROGRAMS", 1)
    for rows in (3, 3, 2):
        found = decode.generate(model, ids[:rows], keep=keep[:rows], stepper=CompiledStep, **options).ids
        assert torch.equal(found, expected[:rows])
    assert len(graphs) == 2, "one program serves every step of as many rows"
    assert captures.called == on_gpu


@every_decoder
def test_a_cuda_graph_for_each_capacity(architecture: str, graphs: list, captures: Mock, monkeypatch) -> None:
    """Recorded attention has none, also within a text, which has one before and after; hooks are refused there too."""
    model, ids = build_tiny(architecture, "rope", "randomized", n_layers=1), draw(3, 3)
    source = (draw(3, 4), keep_of(4, 2, 4)) if architecture == "encoder_decoder" else ()
    options = {"keep": keep_of(3, 2, 3, left=True), "max_new_tokens": 36, "eos": -1, "pad": 0}
    expected = decode.generate(model, ids, *source, **options).ids
    monkeypatch.setattr(recorded_step, "GRAPH_DEVICES", (ids.device.type,))
    monkeypatch.setattr(compiled_step, "CAPACITY_UNIT", 16)
    assert torch.equal(decode.generate(model, ids, *source, stepper=CompiledStep, **options).ids, expected)
    assert captures.call_count == len(graphs) == 3, "16, 32 and 48 tokens: more than can be numbered at random"
    model.step(ids, cache := model.start(*source))
    with record_attention(model):
        (step := CompiledStep(model, cache, 8))(draw(3, 1))
    step(draw(3, 1))
    with record_attention(model) as maps:
        step(draw(3, 1))
    assert (bool(maps), captures.call_count) == (True, 4)
    with trace(model, "*.z"), pytest.raises(ValueError, match="compile must be false under trace"):
        step(draw(3, 1))


def test_a_compiled_step_searches_the_same(graphs: list, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beams, also more than twice the capacity, are reordered, tokens that none has are dropped, the capacity grows."""
    layers, compact = [], cache.LayerCache.compact
    monkeypatch.setattr(cache.LayerCache, "compact", lambda layer, index: layers.append(layer) or compact(layer, index))
    seen, before_step = set(), StaticBeamCache.before_step
    note = lambda own, *given: seen.add((own.length, *places(own))) or before_step(own, *given)  # noqa: E731
    monkeypatch.setattr(StaticBeamCache, "before_step", note)
    monkeypatch.setattr(cache, "MAX_DEAD_TOKENS", 4)
    monkeypatch.setattr(compiled_step, "CAPACITY_UNIT", 4)
    model, prompts = build_tiny("encoder_decoder", "rope"), [draw(3, 4), draw(3, 4), keep_of(4, 2, 4)]
    options = {"num_beams": 21, "max_new_tokens": 10, "eos": -1, "pad": 0, "keep": keep_of(4, 2, 3, left=True)}
    expected, found = (beam_search(model, *prompts, stepper=stepper, **options) for stepper in (None, CompiledStep))
    assert torch.equal(found.ids, expected.ids)
    close(found.scores, expected.scores)
    assert any(isinstance(layer, StaticLayerCache) for layer in layers), "tokens were dropped"
    assert 2 <= len(graphs) <= 5, "one for each capacity"
    assert len(seen) == len({length for length, *_ in seen}) > 1, "tensors keep their place until it grows"


def test_a_program_for_each_model_batch_and_capacity(graphs: list, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also for texts that grow in turn, which do not mix."""
    monkeypatch.setattr(compiled_step, "CAPACITY_UNIT", 4)
    rope, alibi = (build_tiny("decoder_only", scheme, n_layers=1) for scheme in ("rope", "alibi"))
    normed = build_tiny("decoder_only", "rope", n_layers=1, qk_norm=True)  # reads parts that the first one lacks
    cases = [(rope, draw(1, 4)), (normed, draw(1, 4)), (rope, draw(1, 3)), (rope, draw(2, 4)), (alibi, draw(1, 4))]
    options = {"max_new_tokens": 4, "eos": -1, "pad": 0}
    alone = [decode.generate(*case, **options).ids for case in cases]
    for _ in range(2):
        with trace(build_tiny("decoder_only"), "*.z"):  # which lets no compiled part of another model run
            together = list(zip(*(decode.steps(*case, stepper=CompiledStep, **options) for case in cases), strict=True))
        for index, text in enumerate(alone):
            assert torch.equal(torch.stack([columns[index].ids for columns in together], dim=1), text)
    assert len(graphs) == 2 + 1 + 1 + 1, "one for each capacity, of 4 and 8 tokens or of 8 alone, traced once"
