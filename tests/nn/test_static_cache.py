"""The cache of a compiled step: the numbers of the other one, in tensors that never change their shape."""

from __future__ import annotations

import functools

import pytest
import torch
from torch import Tensor

from minitx.generation import compiled, decode
from minitx.nn import POSITION_IDS, POSITIONS

PROMPT, NEW, CAPACITY = 5, 7, 16
every_pair = pytest.mark.parametrize(
    ("scheme", "numbering"), [(scheme, numbering) for scheme in POSITIONS for numbering in POSITION_IDS]
)


@pytest.fixture(autouse=True)
def _no_grad():
    with torch.no_grad():
        yield


def draw(*shape: int) -> Tensor:
    return torch.randint(6, 11, shape)


@every_pair
@pytest.mark.parametrize("architecture", ["decoder_only", "encoder_decoder"])
def test_every_step_gives_the_numbers_of_the_growing_cache(
    architecture: str, scheme: str, numbering: str, tiny
) -> None:
    model = tiny(architecture, scheme, numbering)
    source = (draw(3, 4), torch.tensor([[True] * 4, [True, True, False, False], [True] * 4]))
    start = model.start(*(source if architecture == "encoder_decoder" else ()))
    again = model.start(*(source if architecture == "encoder_decoder" else ()))
    ids, keep = draw(3, PROMPT), torch.ones(3, PROMPT, dtype=torch.bool)
    keep[1, :3] = False
    model.step(ids, start, keep)
    model.step(ids, again, keep)
    static = model.static_cache(again, CAPACITY)
    for _ in range(NEW):
        new = draw(3, 1)
        torch.testing.assert_close(model.step(new, static), model.step(new, start), atol=1e-5, rtol=1e-5)


def test_no_tensor_changes_its_place_or_shape(tiny) -> None:
    model = tiny("decoder_only", "rope")
    cache = model.start()
    model.step(draw(2, PROMPT), cache)
    static = model.static_cache(cache, CAPACITY)

    def places() -> list[tuple[int, torch.Size]]:
        tensors = [static.ids, static.keep, static.at, *(part.keys for part in map(static.layer, range(2)))]
        return [(tensor.data_ptr(), tensor.shape) for tensor in tensors]

    before = places()
    for _ in range(NEW):
        model.step(draw(2, 1), static)
    assert places() == before
    assert static.at.tolist() == [PROMPT + NEW]


def test_the_growing_cache_is_left_as_it_was(tiny) -> None:
    model = tiny("decoder_only", "rope")
    cache = model.start()
    model.step(draw(2, PROMPT), cache)
    keys = cache.layer(0).keys.clone()
    model.step(draw(2, 1), model.static_cache(cache, CAPACITY))
    assert cache.length == PROMPT
    assert torch.equal(cache.layer(0).keys[:, :, :PROMPT], keys[:, :, :PROMPT])


@pytest.mark.parametrize("architecture", ["decoder_only", "encoder_decoder"])
def test_a_window_is_refused(architecture: str, tiny) -> None:
    model = tiny(architecture, "rope", window=3)
    cache = model.start(*([draw(1, 4)] if architecture == "encoder_decoder" else []))
    model.step(draw(1, 2), cache)
    with pytest.raises(ValueError, match=r"model\.window"):
        model.static_cache(cache, CAPACITY)


def test_capacity_grows_between_steps(tiny) -> None:
    model = tiny("decoder_only", "rope")
    start, again = model.start(), model.start()
    ids = draw(2, PROMPT)
    model.step(ids, start)
    model.step(ids, again)
    static = model.static_cache(again, PROMPT + 1)
    for count in range(NEW):
        if count in (1, 3):
            static.grow(PROMPT + 3 * count)
        new = draw(2, 1)
        torch.testing.assert_close(model.step(new, static), model.step(new, start), atol=1e-5, rtol=1e-5)


@pytest.fixture
def graphs(monkeypatch: pytest.MonkeyPatch) -> list:
    """What a compiler would have been handed."""
    seen = []

    def backend(graph, inputs, **options):
        seen.append(graph)
        return graph.forward

    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend=backend))
    torch._dynamo.reset()
    compiled.program.cache_clear()
    return seen


@pytest.mark.parametrize(("context", "tokens"), [(None, 12), (8, 20)])
@pytest.mark.parametrize("scheme", ["learned", "rope", "alibi"])
def test_a_compiled_step_writes_the_same_and_is_traced_once(
    scheme: str, context: int | None, tokens: int, tiny, graphs: list
) -> None:
    model, ids, keep = tiny("decoder_only", scheme), draw(3, 4), torch.ones(3, 4, dtype=torch.bool)
    keep[1, :2] = False
    options = {"keep": keep, "max_new_tokens": tokens, "eos": -1, "pad": 0, "context": context}
    expected = decode.generate(model, ids, **options).ids
    for _ in range(2):
        assert torch.equal(decode.generate(model, ids, compiled=True, **options).ids, expected)
    assert len(graphs) == 1, "one program serves every step"


def test_a_program_for_each_model_batch_and_capacity(tiny, graphs: list, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled, "CAPACITY_UNIT", 4)
    models = [tiny("decoder_only", scheme, n_layers=1) for scheme in ("rope", "none")]
    options = {"max_new_tokens": 6, "eos": -1, "pad": 0}
    prompts = [draw(rows, 3) for rows in (1, 2)]
    expected = [decode.generate(model, ids, **options).ids for model in models for ids in prompts]
    for _ in range(2):
        written = [decode.generate(model, ids, compiled=True, **options).ids for model in models for ids in prompts]
        assert all(torch.equal(*pair) for pair in zip(written, expected, strict=True))
    assert len(graphs) == 4 * 2, "capacities of 4 and 8 tokens, each traced once"


def test_texts_that_grow_in_turn_do_not_mix(tiny, graphs: list, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled, "CAPACITY_UNIT", 4)
    models = [tiny("decoder_only", scheme, n_layers=1) for scheme in ("rope", "alibi")]
    prompts, options = [draw(1, 3), draw(1, 6)], {"max_new_tokens": 6, "eos": -1, "pad": 0}
    alone = [decode.generate(model, ids, **options).ids for model, ids in zip(models, prompts, strict=True)]
    streams = [decode.steps(*pair, compiled=True, **options) for pair in zip(models, prompts, strict=True)]
    together = list(zip(*streams, strict=True))
    for index, text in enumerate(alone):
        assert torch.equal(torch.stack([columns[index].ids for columns in together], dim=1), text)
