"""The loop that writes: first with models whose every word is scripted, then with real ones against no cache at all."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

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


@dataclass
class Memory:
    """A fake cache: what was read so far, as ids [B, T]."""

    source: tuple[Tensor, ...] = ()
    read: list[Tensor] = field(default_factory=list)
    length: int = 0


class Scripted:
    """Says script[row][n] as its n-th word; notes all that it is asked to read."""

    def __init__(self, *script: list[int]) -> None:
        self.script = script
        self.said = 0
        self.starts: list[tuple[Tensor, ...]] = []
        self.reads: list[tuple[list[list[int]], list[list[bool]] | None]] = []

    def start(self, *source: Tensor) -> Memory:
        self.starts.append(source)
        return Memory(source)

    def step(self, ids: Tensor, cache: Memory, keep: Tensor | None = None) -> Tensor:
        assert len(self.starts) >= 1
        self.reads.append((ids.tolist(), None if keep is None else keep.tolist()))
        cache.length += ids.size(1)
        logits = torch.zeros(*ids.shape, VOCABULARY)
        for row, words in enumerate(self.script):
            logits[row, -1, words[self.said]] = 1.0
        self.said += 1
        return logits


class Counting:
    """Says the last word that it read plus one; looks back on everything, so only the newest word may matter."""

    def __init__(self) -> None:
        self.starts = 0
        self.read: list[list[int]] = []  # of the first row, for each fresh start
        self.longest = 0

    def start(self) -> Memory:
        self.starts += 1
        self.read.append([])
        return Memory()

    def step(self, ids: Tensor, cache: Memory, keep: Tensor | None = None) -> Tensor:
        cache.length += ids.size(1)
        self.longest = max(self.longest, cache.length)
        self.read[-1] += ids[0].tolist()
        return torch.nn.functional.one_hot((ids + 1) % 1000, 1000).float()


def write(model: object, ids: list[list[int]], *source: Tensor, **options: object) -> list[list[int]]:
    options = {"max_new_tokens": 5, "eos": EOS, "pad": PAD, **options}
    return generate(model, torch.tensor(ids), *source, **options).ids.tolist()  # type: ignore[arg-type]


def test_writing_stops_when_the_last_row_has_ended_and_earlier_ones_get_padding() -> None:
    model = Scripted([5, EOS, 9, 9, 9], [6, 7, 8, EOS, 9], [EOS, 9, 9, 9, 9])
    assert write(model, [[3], [3], [3]]) == [[5, EOS, PAD, PAD], [6, 7, 8, EOS], [EOS, PAD, PAD, PAD]]


def test_an_ended_row_stays_ended_even_if_the_model_says_the_end_again() -> None:
    model = Scripted([EOS, EOS, 5], [6, 7, 8])
    assert write(model, [[3], [3]], max_new_tokens=3) == [[EOS, PAD, PAD], [6, 7, 8]]


def test_the_prompt_is_read_once_and_then_each_new_token() -> None:
    model = Scripted([5, 6, 7], [8, EOS, 9])
    keep = torch.tensor([[True, True], [False, True]])
    write(model, [[3, 4], [PAD, 4]], max_new_tokens=3, keep=keep)
    assert model.reads == [
        ([[3, 4], [PAD, 4]], [[True, True], [False, True]]),
        ([[5], [8]], None),
        ([[6], [EOS]], None),
    ]
    assert model.starts == [()]


def test_the_source_is_handed_to_start_once() -> None:
    source = torch.tensor([[4, 5]]), torch.tensor([[True, True]])
    model = Scripted([5, 6, EOS])
    write(model, [[1]], *source)
    assert model.starts == [source]


def test_steps_are_computed_when_they_are_asked_for() -> None:
    model = Scripted([5, EOS, 9], [6, 7, EOS])
    several = steps(model, torch.tensor([[3], [3]]), max_new_tokens=4, eos=EOS, pad=PAD)  # type: ignore[arg-type]
    assert next(several).ids.tolist() == [5, 6]
    assert model.said == 1
    assert [step.ids.tolist() for step in several] == [[EOS, 7], [PAD, EOS]]


@pytest.mark.parametrize("name", ["max_new_tokens", "context"])
@pytest.mark.parametrize("value", [0, -1])
def test_numbers_below_one_are_refused(name: str, value: int) -> None:
    with pytest.raises(ValueError, match=rf"{name} must be at least 1, got {value}"):
        write(Scripted([5]), [[3]], **{name: value})


def test_nothing_written_can_be_trained_on() -> None:
    torch.manual_seed(1)
    model = build_model(config("decoder_only", "none"))
    assert isinstance(model, DecoderOnly)
    written = generate(model, torch.tensor([[3]]), max_new_tokens=2, eos=EOS, pad=PAD).ids
    assert not written.requires_grad
    assert written.dtype == torch.long


# ---- a context that fills up -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("context", [1, 2, 3, 4, 7, 8, 50])
def test_writing_goes_on_past_the_context(context: int) -> None:
    model = Counting()
    assert write(model, [[10]], max_new_tokens=40, context=context) == [list(range(11, 51))]
    assert model.longest <= context, "the model never looks back further"


def test_a_full_context_is_exchanged_for_its_last_half() -> None:
    model = Counting()
    write(model, [[10, 11, 12]], max_new_tokens=12, context=6)
    first, *later = model.read
    assert first == [10, 11, 12, 13, 14, 15]
    for before, after in zip(model.read, later, strict=False):
        assert len(before) == 6
        # Of the six tokens that were in view or just written, the newest three are read anew.
        assert after[:3] == [before[-1] - 1, before[-1], before[-1] + 1]
    assert len(later) > 1


def test_a_prompt_as_long_as_the_context_is_read_whole_before_it_is_halved() -> None:
    model = Counting()
    assert write(model, [[1, 2, 3, 4]], max_new_tokens=3, context=4) == [[5, 6, 7]]
    assert model.read == [[1, 2, 3, 4], [4, 5, 6]]


def test_padding_stays_hidden_when_the_context_is_read_anew() -> None:
    model = Scripted([5, 6], [5, 6])
    ids, keep = left_padded([[3, 4, 5, 6, 7, 8, 9, 10], [11]])
    write(model, ids, keep=keep, context=8, max_new_tokens=2)
    assert len(model.starts) == 2
    assert model.reads[1] == ([[8, 9, 10, 5], [PAD, PAD, 11, 5]], [[True] * 4, [False, False, True, True]])


# ---- real models, against forwards without a cache -------------------------------------------------------------------


def config(architecture: str, position: str) -> ModelConfig:
    return ModelConfig(
        architecture=architecture,  # type: ignore[arg-type]
        d_model=16,
        n_heads=2,
        n_layers=2,
        vocab_size=VOCABULARY,
        position={"name": position},
        tie_embeddings=False,  # tied, a random model repeats what it reads
    )


def rough(architecture: str, position: str, seed: int = 1) -> DecoderOnly | EncoderDecoder:
    """A random model with weights large enough that every token read matters."""
    torch.manual_seed(seed)
    model = build_model(config(architecture, position)).eval()
    assert isinstance(model, DecoderOnly | EncoderDecoder)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() > 1 and "embedding" not in name:
                parameter.mul_(2)
            elif parameter.dim() == 1:
                parameter.add_(0.1 * torch.randn_like(parameter))
    return model


class Listening:
    """Greedy, and keeps the logits that it chose from: equal words alone would prove little."""

    def __init__(self) -> None:
        self.heard: list[Tensor] = []

    def __call__(self, logits: Tensor, rows: Tensor | None = None) -> Tensor:
        self.heard.append(logits)
        return greedy(logits)


def without_cache(forward: Callable[[list[int]], Tensor], ids: list[int], limit: int) -> tuple[list[int], Tensor]:
    """One row, the whole sequence through the model for each token: what is written, and the logits [T, V]."""
    written: list[int] = []
    heard = []
    while len(written) < limit and EOS not in written:
        with torch.no_grad():
            heard.append(forward(ids + written)[-1])
        written.append(int(heard[-1].argmax()))
    return written, torch.stack(heard)


def unpadded(row: list[int]) -> list[int]:
    return row[: row.index(EOS) + 1] if EOS in row else row


RAGGED = [[3, 4, 5, 6, 7], [8], [9, 10, 4]]


def left_padded(rows: list[list[int]]) -> tuple[list[list[int]], Tensor]:
    longest = max(map(len, rows))
    keep = torch.arange(longest) >= longest - torch.tensor([[len(row)] for row in rows])
    return [[PAD] * (longest - len(row)) + row for row in rows], keep


def check_against_no_cache(write_one: Callable, write_all: Callable, forwards: list[Callable], first: list) -> None:
    """One by one and together, the same words from the same logits as without a cache."""
    listening = Listening()
    together = write_all(sampler=listening)
    for index, forward in enumerate(forwards):
        written, logits = without_cache(forward, first[index], 12)
        alone = Listening()
        assert write_one(index, sampler=alone) == [written]
        assert torch.allclose(torch.stack(alone.heard)[:, 0], logits, atol=1e-4)
        assert unpadded(together[index]) == written
        assert torch.allclose(torch.stack(listening.heard)[: len(written), index], logits, atol=1e-4)


@pytest.mark.parametrize("position", sorted(POSITIONS))
def test_a_decoder_writes_what_it_would_write_without_a_cache(position: str) -> None:
    model = rough("decoder_only", position)
    ids, keep = left_padded(RAGGED)
    check_against_no_cache(
        lambda index, **options: write(model, [RAGGED[index]], max_new_tokens=12, **options),
        lambda **options: write(model, ids, keep=keep, max_new_tokens=12, **options),
        [lambda ids: model(torch.tensor([ids]))[0]] * 3,
        RAGGED,
    )


@pytest.mark.parametrize("position", sorted(POSITIONS))
def test_an_encoder_decoder_writes_what_it_would_write_without_a_cache(position: str) -> None:
    model = rough("encoder_decoder", position)
    longest = max(map(len, RAGGED))
    source = torch.tensor([row + [PAD] * (longest - len(row)) for row in RAGGED])
    keep = torch.arange(longest) < torch.tensor([[len(row)] for row in RAGGED])
    check_against_no_cache(
        lambda index, **options: write(model, [[1]], torch.tensor([RAGGED[index]]), max_new_tokens=12, **options),
        lambda **options: write(model, [[1]] * 3, source, keep, max_new_tokens=12, **options),
        [lambda ids, row=row: model(torch.tensor([row]), torch.tensor([ids]))[0] for row in RAGGED],
        [[1]] * 3,
    )


def test_a_context_is_what_a_model_without_cache_would_see() -> None:
    model = rough("decoder_only", "sinusoidal", 4)
    listening = Listening()
    written = write(model, [[3, 4]], max_new_tokens=30, context=8, eos=-1, sampler=listening)[0]
    seen, everything = [3, 4], [3, 4]
    for token, logits in zip(written, listening.heard, strict=True):
        if len(seen) > 8:  # eight tokens have been read and another was written: the newest four go on
            seen = everything[-4:]
        with torch.no_grad():
            assert torch.allclose(model(torch.tensor([seen]))[0, -1], logits[0], atol=1e-4)
        seen, everything = [*seen, token], [*everything, token]
