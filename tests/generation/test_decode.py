"""The decoding loop: first with scripted models, then with real ones against forwards without a cache."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from minitx.config.schema import ModelConfig
from minitx.generation.decode import generate, steps
from minitx.generation.sampling import greedy
from minitx.models.builder import build_model
from minitx.models.transformers import DecoderOnly, EncoderDecoder
from minitx.nn import POSITIONS

VOCABULARY = 12
PAD, EOS = 0, 2


class Scripted:
    """Prefers script[row][n] at its n-th step; records what it reads."""

    def __init__(self, *script: list[int]) -> None:
        self.script = script
        self.starts: list[tuple[Tensor, ...]] = []
        self.reads: list[tuple[list[list[int]], list[list[bool]] | None]] = []

    def start(self, *source: Tensor) -> Any:
        self.starts.append(source)
        return SimpleNamespace(length=0)

    def step(self, ids: Tensor, cache: Any, keep: Tensor | None = None) -> Tensor:
        logits = torch.zeros(*ids.shape, VOCABULARY)
        for row, tokens in enumerate(self.script):
            logits[row, -1, tokens[len(self.reads)]] = 1.0
        self.reads.append((ids.tolist(), None if keep is None else keep.tolist()))
        return logits


class Counting:
    """Prefers the latest token plus one; records the ids of the first row for each new cache."""

    def __init__(self) -> None:
        self.reads: list[list[int]] = []

    def start(self) -> Any:
        self.reads.append([])
        return SimpleNamespace(length=0)

    def step(self, ids: Tensor, cache: Any, keep: Tensor | None = None) -> Tensor:
        self.reads[-1] += ids[0].tolist()
        return torch.nn.functional.one_hot((ids + 1) % 1000, 1000).float()


def write(model: Any, ids: list[list[int]], *source: Tensor, **options: Any) -> list[list[int]]:
    options = {"max_new_tokens": 5, "eos": EOS, "pad": PAD, **options}
    return generate(model, torch.tensor(ids), *source, **options).ids.tolist()


def test_decoding_ends_with_the_last_row_and_earlier_ones_get_padding() -> None:
    model = Scripted([5, EOS, EOS, 9, 9], [6, 7, 8, EOS, 9], [EOS, EOS, 9, 9, 9])
    assert write(model, [[3], [3], [3]]) == [[5, EOS, PAD, PAD], [6, 7, 8, EOS], [EOS, PAD, PAD, PAD]]


def test_the_prompt_is_read_once_and_then_each_new_token() -> None:
    model, keep = Scripted([5, 6, 7], [8, EOS, 9]), torch.tensor([[True, True], [False, True]])
    write(model, [[3, 4], [PAD, 4]], max_new_tokens=3, keep=keep)
    assert model.reads == [([[3, 4], [PAD, 4]], keep.tolist()), ([[5], [8]], None), ([[6], [EOS]], None)]
    assert model.starts == [()]


def test_steps_are_computed_on_demand() -> None:
    model: Any = Scripted([5, EOS, 9], [6, 7, EOS])
    several = steps(model, torch.tensor([[3], [3]]), max_new_tokens=4, eos=EOS, pad=PAD)
    assert next(several).ids.tolist() == [5, 6]
    assert len(model.reads) == 1
    assert [step.ids.tolist() for step in several] == [[EOS, 7], [PAD, EOS]]


# ---- a context that fills up -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("context", [1, 2, 7, 50])
def test_decoding_continues_past_the_context(context: int) -> None:
    model = Counting()
    assert write(model, [[10]], max_new_tokens=40, context=context) == [list(range(11, 51))]
    assert max(map(len, model.reads)) <= context


def test_a_prompt_as_long_as_the_context_is_read_whole_before_it_is_halved() -> None:
    model = Counting()
    assert write(model, [[1, 2, 3, 4]], max_new_tokens=3, context=4) == [[5, 6, 7]]
    assert model.reads == [[1, 2, 3, 4], [4, 5, 6]]


def test_padding_stays_hidden_in_the_last_half_of_a_context() -> None:
    model = Scripted([5, 6], [5, 6])
    ids, keep = left_padded([[3, 4, 5, 6, 7, 8, 9, 10], [11]])
    write(model, ids, keep=keep, context=8, max_new_tokens=2)
    assert len(model.starts) == 2
    assert model.reads[1] == ([[8, 9, 10, 5], [PAD, PAD, 11, 5]], [[True] * 4, [False, False, True, True]])


# ---- real models, against forwards without a cache -------------------------------------------------------------------


def rough(architecture: Any, position: str) -> DecoderOnly | EncoderDecoder:
    """A random model with weights large enough that every token read matters."""
    torch.manual_seed(1)
    sizes = {"d_model": 16, "n_heads": 2, "n_layers": 2, "vocab_size": VOCABULARY}
    # Tied, a random model repeats what it reads.
    config = ModelConfig(architecture=architecture, position={"name": position}, tie_embeddings=False, **sizes)
    model = build_model(config).eval()
    assert isinstance(model, DecoderOnly | EncoderDecoder)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() > 1 and "embedding" not in name:
                parameter.mul_(2)
            elif parameter.dim() == 1:
                parameter.add_(0.1 * torch.randn_like(parameter))
    return model


class Recording:
    """Greedy, and keeps the logits: equal tokens alone would prove little."""

    def __init__(self) -> None:
        self.logits: list[Tensor] = []

    def __call__(self, logits: Tensor, rows: Tensor | None = None) -> Tensor:
        self.logits.append(logits)
        return greedy(logits)


def without_cache(forward: Callable[[list[int]], Tensor], ids: list[int], limit: int) -> tuple[list[int], Tensor]:
    """One row, the whole sequence through the model for each token: the new tokens, and their logits [T, V]."""
    written: list[int] = []
    logits = []
    while len(written) < limit and EOS not in written:
        with torch.no_grad():
            logits.append(forward(ids + written)[-1])
        written.append(int(logits[-1].argmax()))
    return written, torch.stack(logits)


RAGGED = [[3, 4, 5, 6, 7], [8], [9, 10, 4]]


def left_padded(rows: list[list[int]]) -> tuple[list[list[int]], Tensor]:
    longest = max(map(len, rows))
    keep = torch.arange(longest) >= longest - torch.tensor([[len(row)] for row in rows])
    return [[PAD] * (longest - len(row)) + row for row in rows], keep


@pytest.mark.parametrize("position", sorted(POSITIONS))
@pytest.mark.parametrize("architecture", ["decoder_only", "encoder_decoder"])
def test_a_cache_changes_nothing(architecture: str, position: str) -> None:
    """Alone and in a ragged batch, the same tokens from the same logits as without a cache."""
    model, recorded = rough(architecture, position), Recording()
    prompts, keep = left_padded(RAGGED)
    sources: tuple[Any, ...] = ()
    if architecture == "encoder_decoder":
        padding = [[PAD] * (5 - len(row)) for row in RAGGED]
        sources = torch.tensor([[*row, *after] for row, after in zip(RAGGED, padding, strict=True)]), keep.flip(1)
        together = write(model, [[1]] * 3, *sources, max_new_tokens=12, sampler=recorded)
    else:
        together = write(model, prompts, keep=keep, max_new_tokens=12, sampler=recorded)
    for index, row in enumerate(RAGGED):
        source, first = ((torch.tensor([row]),), [1]) if sources else ((), row)
        written, logits = without_cache(lambda ids, source=source: model(*source, torch.tensor([ids]))[0], first, 12)
        alone = Recording()
        assert write(model, [first], *source, max_new_tokens=12, sampler=alone) == [written]
        torch.testing.assert_close(torch.cat(alone.logits), logits, atol=1e-4, rtol=0)
        assert together[index] == written + [PAD] * (len(together[index]) - len(written))
        torch.testing.assert_close(torch.stack(recorded.logits)[: len(written), index], logits, atol=1e-4, rtol=0)


def test_a_context_is_what_a_model_without_cache_would_see() -> None:
    model, recorded = rough("decoder_only", "sinusoidal"), Recording()
    written = write(model, [[3, 4]], max_new_tokens=30, context=8, eos=-1, sampler=recorded)[0]
    seen, everything = [3, 4], [3, 4]
    for token, logits in zip(written, recorded.logits, strict=True):
        if len(seen) > 8:  # eight tokens have been read and another was generated: the newest four remain
            seen = everything[-4:]
        with torch.no_grad():
            torch.testing.assert_close(model(torch.tensor([seen]))[0, -1], logits[0], atol=1e-4, rtol=0)
        seen, everything = [*seen, token], [*everything, token]


def test_a_row_without_a_possible_token_has_no_log_probability() -> None:
    """A row that has ended has failed in no case."""

    def forbid(logits: Tensor, history: Tensor, keep: Tensor | None, generated: int) -> Tensor:
        return logits if generated < 2 else torch.full_like(logits, -torch.inf)

    options = {"max_new_tokens": 4, "eos": EOS, "pad": PAD, "scores": True}
    model = Scripted([5, EOS, 0, 0], [5, 6, 7, EOS])
    failed = generate(model, torch.tensor([[1], [1]]), **options, logits_processor=forbid).log_probabilities
    assert failed is not None
    assert failed.isnan().tolist() == [False, True]
