"""A replayed step computes what the model's own step computes; fused linear maps round differently."""

import copy
import sys
from functools import partial, wraps
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch
from torch import Tensor

from minitx import record_attention
from minitx.compilation import batched_attention, packed_linear, recorded_step, replay
from minitx.compilation.replay import REPLAYED, ReplayedStep
from minitx.models import transformers
from minitx.nn import POSITIONS, FeedForward, feed_forward, norms
from minitx.nn import cache as nn_cache
from minitx.nn.positions import RotaryPositions
from small_models import DECODERS, PAIRINGS, VOCAB, build_tiny, draw, keep_of, pairwise

PROMPT, ROWS, STEPS, BEAMS = 6, 3, 18, 4  # the buffers grow once
HEADS = torch.nn.Parameter(torch.arange(4.0).view(-1, 1, 1), requires_grad=False)
OTHERS = "all_hooks"  # the scheme that is not minitx's own


@pytest.fixture(autouse=True)
def small_buffers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Read whole on a CPU (as tokens alone: test_graphed_step.py); on a GPU, no graphs."""
    monkeypatch.setattr(batched_attention, "MIN_NUMBERS", 0)
    monkeypatch.setattr(batched_attention, "is_faster", lambda *given: True)
    monkeypatch.setattr(replay, "can_capture", lambda cache: False)
    for name, tokens in (("FIRST_CAPACITY", 16), ("NEXT_CAPACITY", {}), ("MAX_DEAD_TOKENS", 16)):
        monkeypatch.setattr(nn_cache, name, tokens)


def started(model: Any, padded: Any = False) -> Any:
    """A cache with a prompt in it, always the same one."""
    torch.manual_seed(1)
    ids, keep = draw(ROWS, PROMPT), torch.ones(ROWS, PROMPT, dtype=torch.bool)
    keep[1, :2], keep[2] = not padded, padded != "alone"
    cache = model.start(ids, keep) if hasattr(model, "encoder") else model.start()
    read = (ids[:, :1], cache) if hasattr(model, "encoder") else (ids, cache, keep if padded else None)
    model.step(*read)
    return cache


def programs(model: Any) -> list[Any]:
    every = ReplayedStep._programs.get(model, {})
    return [program for known in every.values() for program in known.by_key.values()]


def same_step(model: Any, ids: Tensor, replayed: Any, ours: Any) -> None:
    """Take a step into each of two equal caches, the second by the modules."""
    torch.testing.assert_close(model.step(ids, replayed), model.compute_step(ids, ours), rtol=1e-5, atol=1e-5)


def check_equal(model: Any, padded: Any = False, steps: int = STEPS, between: Any = lambda count, cache: None) -> None:
    with torch.inference_mode():
        ours, replayed = started(model, padded), started(model, padded)
        for count in range(steps):
            between(count, ours)
            between(count, replayed)
            if count == 13 and ours.ids.device.type not in recorded_step.GRAPH_DEVICES:  # whose graphs check no id
                with pytest.raises(ValueError, match=r"^ids must be in \[0, 11\), got 11 to 11$"):
                    model.step(torch.full((ROWS, 1), VOCAB), replayed)
            same_step(model, draw(len(ours.ids), 1), replayed, ours)
    sizes = [[layer.buffers[0].shape for layer in cache.layers.values()] for cache in (ours, replayed)]
    assert sizes[0] == sizes[1]


@pairwise({"name,numbering": PAIRINGS, "architecture": DECODERS, "padded": [False, True, "alone"]})
def test_equal_to_the_step(architecture: str, padded: Any, name: str, numbering: str) -> None:
    model = build_tiny(architecture, name, numbering)
    check_equal(model, padded)
    assert [*map(bool, programs(model))] == [True] * (name != OTHERS), "one for all capacities"


@pytest.mark.parametrize(("position", "changes"), [
    *((name, {"window": (20, 3)}) for name in sorted(POSITIONS)), ("rope", {"window": 2}), ("rope", {"window": 8}),
    ("t5", {"window": (None, 8)}), ("rope", {"window": (15, None), "window_position": "alibi"}),
    ("rope", {"norm": "rmsnorm", "activation": "swiglu", "n_kv_heads": 2, "qk_norm": True}),
    ("rope", {"softcap": 3.0, "logit_softcap": 2.0, "sandwich_norm": True, "parallel_residual": True}),
])  # fmt: skip
def test_equal_with_windows_and_other_parts(position: str, changes: dict[str, Any]) -> None:
    model = build_tiny("decoder_only", position, **changes)
    check_equal(model, steps=48 if "window" in changes else STEPS)  # buffers of a window of 20 are full after 40
    assert {*map(bool, programs(model))} == {True}


@pairwise({"name,numbering": PAIRINGS, "architecture": DECODERS, "padded,window": [(True, None), (False, (11, None))]})
def test_equal_with_beams(architecture: str, padded: bool, window: Any, name: str, numbering: str) -> None:
    """Between steps, beams continue each other, tokens that no beam has are dropped, and a prompt leaves."""
    model = build_tiny(architecture, name, numbering, window=window)
    with torch.inference_mode():
        caches = [started(model, padded).branch(BEAMS) for _ in range(2)]
        prompts = ROWS
        for count in range(STEPS):
            if count == STEPS // 2:
                prompts = 2
                for cache in caches:
                    cache.select(torch.tensor([0, 2]))
            parents, ids = torch.randint(1 + count % 2, (prompts, BEAMS)), draw(prompts, BEAMS)
            for cache in caches:
                cache.reorder(parents)
                cache.compact(int(cache.alive()))
            same_step(model, ids, caches[1], caches[0])
    assert [*map(bool, programs(model))] == [True, True] * (name != OTHERS), "one for each number of prompts"


def test_beams_whose_layers_have_buffers_of_two_sizes() -> None:
    """A window's are larger for a prompt of 29 tokens; beams have no window, and fill the others sooner."""
    model = build_tiny("decoder_only", "rope", window=(None, 3))
    with torch.inference_mode():
        caches = [model.start(), model.start()]
        same_step(model, draw(ROWS, 29), *caches)
        ours, theirs = (cache.branch(BEAMS) for cache in caches)
        same_step(model, draw(ROWS, BEAMS), ours, theirs)
        for cache in (ours, theirs):
            cache.select(torch.tensor([0, 2]))
        for _ in range(STEPS):
            same_step(model, draw(2, BEAMS), ours, theirs)
    assert any(programs(model))


def check_search(model: Any, keep: Tensor, steps: list[list[int]]) -> list[int]:
    """Beams of one prompt, with the parents of each step; returns the number of tokens dropped before each."""
    dropped = []
    with torch.inference_mode():
        ids, caches = draw(*keep.shape), [model.start(), model.start()]
        for cache in caches:
            model.step(ids, cache, keep)
        ours, theirs = (cache.branch(len(steps[0])) for cache in caches)
        for parents in steps:
            for cache in (ours, theirs):
                cache.reorder(torch.tensor([parents]))
                before = cache.length
                cache.compact(int(cache.alive()))
            dropped.append(before - cache.length)
            same_step(model, draw(1, len(parents)), ours, theirs)
    assert REPLAYED[ours]._program is not None
    return dropped


def test_tokens_dropped_between_two_recorded_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """As many as a step adds: the lengths of both steps are equal, and yet no constants."""
    monkeypatch.setattr(nn_cache, "FIRST_CAPACITY", 32)
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


def check_sources(model: Any, *sources: tuple[Tensor, ...]) -> None:
    bos = torch.zeros(ROWS, 1, dtype=torch.long)
    with torch.inference_mode():
        for source in sources:
            ours, replayed = model.start(*source), model.start(*source)
            for _ in range(2 * replay.MIN_STEPS + 1):
                same_step(model, bos, replayed, ours)


@pytest.mark.parametrize("changes", [{}, {"softcap": 3.0, "n_kv_heads": 2}])
def test_a_program_serves_sources_of_all_lengths_and_another_one_those_with_padding(changes: dict[str, Any]) -> None:
    model, source, keep = build_tiny("encoder_decoder", **changes), draw(ROWS, PROMPT), keep_of(2, 2, 2, width=PROMPT)
    check_sources(model, *((draw(ROWS, length),) for length in (PROMPT, PROMPT + 3, PROMPT - 2)))
    (program,) = programs(model)
    assert program is not None
    check_sources(model, (source, keep), (source,))
    assert len(programs(model)) == 2


def test_a_program_has_few_calls_and_no_copies_of_large_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    """Per layer four linear maps instead of seven and one rotation instead of two; views of views are one view."""
    model = build_tiny("decoder_only", "rope", norm="rmsnorm", activation="swiglu")
    with patch.object(model, "compute_step", wraps=model.compute_step) as plain:
        check_equal(model)
    assert plain.call_count == 2 + STEPS + 3 + torch.empty(0).is_cpu, "2 prompts, 1 search, 2 recordings, 1 refused"
    (program,) = programs(model)
    names = [node.name.rstrip("0123456789").rstrip("_") for node in program.func.__self__.graph.nodes]
    assert names.count("linear") == 4 * len(model.decoder.layers) + 1
    assert names.count("roll") == len(model.decoder.layers)
    assert not {"view", "transpose", "flatten", "split"} & {*names}
    monkeypatch.setattr(recorded_step, "MAX_FUSED_WEIGHT", 10)
    check_equal(model := build_tiny("decoder_only", "rope"))
    assert [known.fused for known in ReplayedStep._programs[model].values()] == [[]]


@pytest.mark.parametrize("rotate", [
    lambda x, prepared: x.roll(1, dims=1) * prepared[0],
    lambda x, prepared: x.mul_(2) * prepared[0], lambda x, prepared: x * HEADS,
    lambda x, prepared: torch.cat(((x * prepared[0])[..., 1:], x[..., :1]), dim=-1),
    lambda x, prepared: x + prepared[0] * 2,
])  # fmt: skip
def test_heads_of_queries_and_keys_that_cannot_be_computed_at_once(rotate: Any, monkeypatch) -> None:
    """Each reads another, is changed in place before it is read, has its own factor, is read in parts, or has none."""
    monkeypatch.setattr(recorded_step, "_is_called_by_own", lambda: True)
    monkeypatch.setattr(RotaryPositions, "rotate", lambda self, x, prepared: rotate(x, prepared))
    model = build_tiny("decoder_only", "rope")
    check_equal(model)
    assert all(programs(model))


def test_a_users_own_code_is_not_replayed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A method that decides by numbers, or by a size that grows; a module that decides by anything else."""
    prepare, rotate, state = RotaryPositions.prepare, RotaryPositions.rotate, {"skips": False}

    class Skipped(torch.nn.Sequential):
        def forward(self, x: Tensor) -> Tensor:
            return x if state["skips"] else super().forward(x)

    def by_number(own: Any, x: Tensor, prepared: Any) -> Tensor:
        return rotate(own, x, prepared) if int(100 * prepared[0].min()) == -99 else x

    def by_size(own: Any, q: Tensor, k: Tensor) -> Any:
        return prepare(own, q + 7 * (k.size(1) > PROMPT + STEPS // 2), k)

    for name, method in (("rotate", by_number), ("prepare", by_size), ("prepare", prepare)):
        with monkeypatch.context() as patched:
            patched.setattr(RotaryPositions, name, method)
            model = build_tiny("decoder_only", "rope")
            if method is prepare:
                model.decoder.layers[1].ffn = Skipped(model.decoder.layers[1].ffn)
            check_equal(model, between=lambda count, cache: state.update(skips=count > STEPS // 2))
            assert not any(programs(model))


@pytest.mark.parametrize("numbering", ["consecutive", "randomized"])
def test_replayed_steps_end_where_the_positions_do(numbering: str) -> None:
    model = build_tiny("decoder_only", "learned", numbering)
    steps = transformers.max_positions(model) - PROMPT
    check_equal(model, steps=steps)
    caches: list[Any] = []
    with torch.device("cpu"), pytest.raises(ValueError, match=r"position|longer"):  # a GPU checks no index
        check_equal(model.cpu(), steps=steps + 1, between=lambda _, cache: caches.append(cache))
    assert caches[-1].ids.size(1) == PROMPT + steps, "a token that is refused is not in the cache"


@pytest.mark.parametrize("packed", [True, False])
def test_weights_may_change(packed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """In place, as in training; without a trace in their version; replaced; pruned. And layers, and NumPy's numbers."""
    monkeypatch.setattr(packed_linear, "MIN_WEIGHT", 0)
    monkeypatch.setattr(packed_linear, "is_faster", lambda *given: packed)
    model = build_tiny("decoder_only", "rope", norm="rmsnorm", activation="swiglu")
    check_equal(model, steps=8)
    with torch.no_grad():
        torch._foreach_mul_([*model.parameters()], 1.2)
    check_equal(model, padded=True, steps=8)  # which has no program yet
    with patch.object(replay.Programs, "update", autospec=True, side_effect=replay.Programs.update) as update:
        check_equal(model)
    assert update.call_count == 1, "once for a cache, whose buffers grow"
    torch._foreach_mul_([parameter.data for parameter in model.parameters()], 0.8)
    check_equal(model, steps=8)
    model.load_state_dict({name: 0.5 * value for name, value in model.state_dict().items()}, assign=True)
    check_equal(model, steps=8)
    model.embedding.scale = np.float64(3.0)
    check_equal(model.double(), steps=8)
    for layer in model.decoder.layers:
        layer.self_attn.k_proj.weight = model.decoder.layers[0].self_attn.q_proj.weight  # with a bias of its own
    check_equal(model, steps=8)
    ffn = model.decoder.layers.append(model.decoder.layers[0])[0].ffn
    check_equal(model, steps=8)
    for part in (*ffn.up_proj.parameters(), *ffn.gate_proj.parameters()):
        part.data = part.data[:12]
    ffn.down_proj.weight.data = ffn.down_proj.weight.data[:, :12]
    check_equal(model, steps=8)
    ffn.forward = torch.zeros_like  # no weight, but another step
    check_equal(model, steps=8)


def test_code_may_change(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of modules, minitx's and torch's, and of functions; IPython's autoreload replaces `__code__`."""
    for change in (
        (RotaryPositions, "rotate", lambda self, x, prepared: x),
        (FeedForward, "forward", wraps(FeedForward.forward)(lambda self, x: 0 * x)),
        (torch.nn.Linear, "forward", lambda self, x: x @ self.weight.T),
        (feed_forward, "dropped", lambda x, dropout, training: x[..., :1].expand_as(x)),
        (norms.dropped, "__code__", (lambda x, dropout, training: x.flip(-1)).__code__),
    ):
        check_equal(model := build_tiny("decoder_only", "rope"))
        with monkeypatch.context() as patched:
            patched.setattr(*change)
            check_equal(model)


def test_hooks_recordings_and_autocast_are_seen_at_every_step() -> None:
    """Also in the middle of a generation, whose steps are replayed before and after."""
    model, seen = build_tiny("decoder_only", "rope"), []
    hooked = partial(model.decoder.layers[0].register_forward_hook, lambda *_: seen.append(None))
    with torch.inference_mode():
        ours, replayed = (started(model) for _ in range(2))
        autocast = partial(torch.autocast, ours.ids.device.type, torch.bfloat16)
        training = [partial(patch.object, part, "training", True) for part in (model, model.decoder.layers[0])]
        for around in (hooked, partial(record_attention, model), autocast, *training):
            for _ in range(2 * replay.MIN_STEPS):
                same_step(model, draw(ROWS, 1), replayed, ours)
            assert REPLAYED[replayed].is_plain()
            with around() as recorded:
                assert not REPLAYED[replayed].is_plain()
                ids = draw(ROWS, 1)
                found = model.step(ids, replayed)
            assert not isinstance(recorded, dict) or recorded["decoder.layers.0.self_attn"].size(-1) == replayed.length
            with around():
                torch.testing.assert_close(found, model.compute_step(ids, ours), rtol=1e-5, atol=1e-5)
    assert len(seen) == 2


def test_a_step_with_gradients_padding_or_several_tokens_is_not_replayed() -> None:
    model = build_tiny("decoder_only", "rope")
    ours, replayed, ids = model.start(), model.start(), draw(ROWS, 40)
    for tokens in (3, *[1] * 9, 2, *[1] * 9):
        with torch.inference_mode():
            same_step(model, ids[:, :tokens], replayed, ours)
        assert (replayed in REPLAYED) == (tokens == 1)
    keep = torch.tensor([[True], [False], [True]])
    with torch.inference_mode():
        torch.testing.assert_close(model.step(ids[:, :1], replayed, keep), model.compute_step(ids[:, :1], ours, keep))
        same_step(model, ids[:, :1], replayed, ours)
    cache = model.start()
    assert [model.step(ids[:, :1], cache).requires_grad for _ in range(2)] == [True, True]
    assert cache not in REPLAYED


def test_another_model_or_a_compiled_part_takes_its_own_steps() -> None:
    model = build_tiny("decoder_only", "rope")
    other = copy.deepcopy(model)
    with torch.inference_mode():
        other.head.weight.mul_(2)
        ours, replayed, ids = started(model), started(model), draw(ROWS, 1)
        for one in [model] * 9 + [other] * 9 + [model]:
            same_step(one, ids, replayed, ours)
        layer, compiled = model.decoder.layers[0], partial(torch.compile, backend="eager")
        parts = {"decoder": compiled(model.decoder), "embedding": compiled(torch.nn.Embedding(VOCAB, 16))}
        parts["head"] = torch.jit.trace(model.head, torch.zeros(1, 16))
        for change in ((layer, "_compiled_call_impl", layer._call_impl), *((model, *part) for part in parts.items())):
            with torch.compiler.set_stance("force_eager"), patch.object(*change):
                same_step(model, ids, cache := started(model), started(model))
                assert REPLAYED[cache]._known is None


def test_a_missing_extra_is_no_error_and_a_broken_one_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transformers, "_replay", transformers._replay.__wrapped__)
    model = build_tiny("decoder_only")
    with torch.inference_mode():
        cache, ids = started(model), draw(ROWS, 1)
        model.step(ids, cache)
        assert isinstance(REPLAYED.pop(cache), ReplayedStep)
        monkeypatch.setitem(sys.modules, "minitx.compilation.replay", None)  # its import raises ModuleNotFoundError
        with pytest.raises(ModuleNotFoundError):
            model.step(ids, cache)
        monkeypatch.setitem(sys.modules, "minitx.compilation", None)
        model.step(ids, cache)
        assert cache not in REPLAYED


def test_a_replayed_step_is_without_cudnn_like_the_recorded_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a GPU, where cuDNN would prepare a kernel for each token."""
    monkeypatch.setattr(replay, "CUDNN_DEVICES", ("cpu", "cuda"))
    model, cudnn = build_tiny("decoder_only", "rope"), []
    with torch.inference_mode():
        cache = started(model)
        for _ in range(4):
            model.step(draw(ROWS, 1), cache)
        program, enabled = REPLAYED[cache]._program, torch.backends.cuda.cudnn_sdp_enabled
        monkeypatch.setattr(REPLAYED[cache], "_program", lambda *given: cudnn.append(enabled()) or program(*given))
        model.step(draw(ROWS, 1), cache)
    assert cudnn == [False]
