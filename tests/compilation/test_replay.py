"""A replayed step computes what the model's own step computes; fused linear maps round differently."""

import sys
from typing import Any

import pytest
import torch
from torch import Tensor

from minitx import record_attention
from minitx.compilation import replay
from minitx.compilation.replay import ReplayedStep, is_replayable
from minitx.generation.decode import default_step
from minitx.models.transformers import DecoderOnly
from minitx.nn import POSITIONS
from minitx.nn import cache as nn_cache
from small_models import DECODERS, PAIRINGS, build_tiny, pairwise

PROMPT, ROWS, STEPS, BEAMS = 6, 3, 34, 4  # the buffers grow once


def started(model: Any, padded: bool) -> Any:
    """A cache with a prompt in it."""
    ids, keep = torch.randint(11, (ROWS, PROMPT)), torch.ones(ROWS, PROMPT, dtype=torch.bool)
    keep[1, :2] = not padded
    cache = model.start(ids, keep) if hasattr(model, "encoder") else model.start()
    if hasattr(model, "encoder"):
        model.step(ids[:, :1], cache)
    else:
        model.step(ids, cache, keep if padded else None)
    return cache


def programs(model: Any) -> list[Any]:
    return [program for known in ReplayedStep._programs[model].values() for program in known.by_key.values()]


def check_equal(model: Any, padded: bool = False, steps: int = STEPS) -> None:
    with torch.inference_mode():
        torch.manual_seed(1)
        ours = started(model, padded)
        torch.manual_seed(1)
        replayed = ReplayedStep(model, started(model, padded))
        for _ in range(steps):
            ids = torch.randint(11, (ROWS, 1))
            torch.testing.assert_close(replayed(ids), model.step(ids, ours), rtol=1e-5, atol=1e-5)


@pairwise({"name,numbering": PAIRINGS, "architecture": DECODERS, "padded": [False, True]})
def test_equal_to_the_step(architecture: str, padded: bool, name: str, numbering: str) -> None:
    model = build_tiny(architecture, name, numbering)
    check_equal(model, padded)
    (program,) = programs(model)  # one for all capacities
    assert program is not None


@pytest.mark.parametrize(
    ("position", "window"),
    [*((name, (40, 3)) for name in sorted(POSITIONS)), ("rope", 2), ("rope", 20), ("t5", (None, 20))],
)
def test_equal_with_a_window(position: str, window: Any) -> None:
    model = build_tiny("decoder_only", position, window=window)
    check_equal(model, steps=95)  # the buffers of a window of 40 are full after 80
    assert any(programs(model))


@pytest.mark.parametrize(
    "changes",
    [
        {"norm": "rmsnorm", "activation": "swiglu", "n_kv_heads": 2, "qk_norm": True},
        {"softcap": 3.0, "logit_softcap": 2.0, "sandwich_norm": True, "parallel_residual": True},
        {"window": (30, None), "window_position": "alibi"},
    ],
)
def test_equal_with_other_parts(changes: dict[str, Any]) -> None:
    model = build_tiny("decoder_only", "rope", **changes)
    check_equal(model)
    assert all(programs(model))


@pairwise({"name,numbering": PAIRINGS, "architecture": DECODERS, "padded,window": [(True, None), (False, (21, None))]})
def test_equal_with_beams(architecture: str, padded: bool, window: Any, name: str, numbering: str) -> None:
    """Between steps, beams continue each other, tokens that no beam has are dropped, and a prompt leaves."""
    model = build_tiny(architecture, name, numbering, window=window)
    with torch.inference_mode():
        caches = []
        for _ in range(2):
            torch.manual_seed(1)
            caches.append(started(model, padded).branch(BEAMS))
        replayed, prompts = ReplayedStep(model, caches[1]), ROWS
        for count in range(STEPS):
            if count == STEPS // 2:
                prompts = 2
                for cache in caches:
                    cache.select(torch.tensor([0, 2]))
            parents, ids = torch.randint(1 + count % 2, (prompts, BEAMS)), torch.randint(11, (prompts, BEAMS))
            for cache in caches:
                cache.reorder(parents)
                cache.compact(int(cache.alive()))
            torch.testing.assert_close(replayed(ids), model.step(ids, caches[0]), rtol=1e-5, atol=1e-5)
    assert len(programs(model)) == 2
    assert all(programs(model)), "one for each number of prompts"


def check_search(model: Any, keep: Tensor, steps: list[list[int]]) -> list[int]:
    """Beams of one prompt, with the parents of each step; returns the number of tokens dropped before each."""
    dropped = []
    with torch.inference_mode():
        ids, caches = torch.randint(11, keep.shape), [model.start(), model.start()]
        for cache in caches:
            model.step(ids, cache, keep)
        ours, theirs = (cache.branch(len(steps[0])) for cache in caches)
        replayed = ReplayedStep(model, ours)
        for parents in steps:
            for cache in (ours, theirs):
                cache.reorder(torch.tensor([parents]))
                before = cache.length
                cache.compact(int(cache.alive()))
            dropped.append(before - cache.length)
            new = torch.randint(11, (1, len(parents)))
            torch.testing.assert_close(replayed(new), model.step(new, theirs), rtol=1e-5, atol=1e-5)
    assert replayed._program is not None
    return dropped


def test_tokens_dropped_between_two_recorded_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """As many as a step adds: the lengths of both steps are equal, and yet no constants."""
    monkeypatch.setattr(nn_cache, "MAX_DEAD_TOKENS", BEAMS)
    model, alone = build_tiny("decoder_only", "learned"), [*range(BEAMS)]
    check_equal(model, steps=1)  # finds linear maps to fuse, so that the first two steps are recorded
    dropped = check_search(model, torch.tensor([[False, True, True]]), [alone, [0] * BEAMS, *[alone] * 4])
    assert dropped[:2] == [0, BEAMS], "the padding, and all new tokens but one"


def test_a_single_beam_with_padding_dropped_and_without(monkeypatch: pytest.MonkeyPatch) -> None:
    """The lengths of the cache and of the text grow alike, and differ by what was dropped."""
    monkeypatch.setattr(nn_cache, "MAX_DEAD_TOKENS", 4)
    model = build_tiny("decoder_only", "learned", window=6)
    for padding in (8, 1, 20):
        dropped = check_search(model, torch.arange(padding + 3)[None] >= padding, [[0]] * 8)
        assert sum(dropped) == (padding if padding > 1 else 0)


def calls(program: Any) -> list[str]:
    return [node.name.rstrip("0123456789").rstrip("_") for node in program.func.__self__.graph.nodes]


def test_sources_with_padding_after_a_source_without() -> None:
    model, bos = build_tiny("encoder_decoder"), torch.zeros(ROWS, 1, dtype=torch.long)
    source, keep = torch.randint(11, (ROWS, PROMPT)), torch.ones(ROWS, PROMPT, dtype=torch.bool)
    keep[:, 2:] = False
    for given in ((source,), (source, keep), (source,)):
        with torch.inference_mode():
            ours, replayed = model.start(*given), model.start(*given)
            model.step(bos, ours), model.step(bos, replayed)
            step = ReplayedStep(model, replayed)
            for _ in range(2 * replay.MIN_STEPS):
                torch.testing.assert_close(step(bos), model.step(bos, ours), rtol=1e-5, atol=1e-5)
    assert len(programs(model)) == 2


@pytest.mark.parametrize("changes", [{}, {"softcap": 3.0, "n_kv_heads": 2}])
def test_a_program_serves_sources_of_all_lengths(changes: dict[str, Any]) -> None:
    model, bos = build_tiny("encoder_decoder", **changes), torch.zeros(ROWS, 1, dtype=torch.long)
    with torch.inference_mode():
        for length in (PROMPT, PROMPT + 3, PROMPT - 2):
            source = torch.randint(11, (ROWS, length))
            ours, replayed = model.start(source), model.start(source)
            model.step(bos, ours), model.step(bos, replayed)
            step = ReplayedStep(model, replayed)
            for _ in range(2 * replay.MIN_STEPS):
                torch.testing.assert_close(step(bos), model.step(bos, ours), rtol=1e-5, atol=1e-5)
    (program,) = programs(model)
    assert program is not None


def test_a_program_has_few_calls() -> None:
    """Per layer four linear maps instead of seven, and at most one view before or after each call that computes."""
    model = build_tiny("decoder_only", "rope", norm="rmsnorm", activation="swiglu")
    check_equal(model)
    (program,) = programs(model)
    names = calls(program)
    assert names.count("linear") == 4 * len(model.decoder.layers) + 1
    assert not {"view", "transpose", "flatten", "split"} & {*names}


def test_large_weights_are_not_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replay, "MAX_FUSED_WEIGHT", 10)
    model = build_tiny("decoder_only", "rope")
    check_equal(model)
    assert [known.fused for known in ReplayedStep._programs[model].values()] == [[]]


def test_weights_may_change() -> None:
    """In place, as in training; without a trace in their version; and replaced."""
    model = build_tiny("decoder_only", "rope")
    check_equal(model, steps=8)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.5)
    check_equal(model, steps=8)
    for parameter in model.parameters():
        parameter.data.mul_(0.8)
    check_equal(model, steps=8)
    model.load_state_dict({name: 0.5 * value for name, value in model.state_dict().items()}, assign=True)
    check_equal(model, steps=8)
    check_equal(model.double(), steps=8)


def test_code_that_reads_numbers_is_not_replayed() -> None:
    class Reading(DecoderOnly):
        def step(self, ids: Tensor, cache: Any, keep: Tensor | None = None) -> Tensor:
            logits = super().step(ids, cache, keep)
            return -logits if int(ids[0, 0]) == 3 else logits

    model = build_tiny("decoder_only", "rope")
    model.__class__ = Reading
    check_equal(model, steps=20)
    assert programs(model) == [None]


def test_hooks_recordings_and_autocast_are_seen() -> None:
    model = build_tiny("decoder_only", "rope")
    assert is_replayable(model)
    with record_attention(model):
        assert not is_replayable(model)
    with torch.autocast("cpu", torch.bfloat16):
        assert not is_replayable(model)
    handle = model.decoder.layers[0].register_forward_hook(lambda *_: None)
    assert not is_replayable(model)
    handle.remove()
    assert not is_replayable(model.train())
    assert is_replayable(model.eval())


def test_a_missing_extra_is_no_error_and_a_broken_one_is(monkeypatch: pytest.MonkeyPatch) -> None:
    model = build_tiny("decoder_only")
    assert isinstance(default_step(model, model.start()), ReplayedStep)
    monkeypatch.setitem(sys.modules, "minitx.compilation.replay", None)  # its import raises ModuleNotFoundError
    with pytest.raises(ModuleNotFoundError):
        default_step(model, model.start())
    monkeypatch.setitem(sys.modules, "minitx.compilation", None)
    assert not isinstance(default_step(model, model.start()), ReplayedStep)
