"""Masked language modelling: the choice of tokens, their replacement, and texts with <mask> in them."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from minitx.data.batch import IGNORE
from minitx.data.examples import Masked
from minitx.data.tasks import MaskedText, generator
from minitx.data.tasks.text import MASK_SHARE, RANDOM_SHARE, mask_tokens
from minitx.data.text.tokenizer_training import CharTokenizer
from minitx.data.tokenizers import SpecialIds

SPECIAL, VOCAB = SpecialIds(pad=1, bos=0, eos=3, sep=4, unk=5, mask=2), 56  # in an order of their own
some_ids = st.integers(1, 12).flatmap(
    lambda width: st.lists(st.lists(st.integers(0, VOCAB - 1), min_size=width, max_size=width), min_size=1, max_size=5)
)


def hidden(ids: torch.Tensor, share: float = 0.15, seed: int = 0) -> Masked:
    return mask_tokens(ids, SPECIAL, VOCAB, share, torch.Generator().manual_seed(seed))


def text(*shape: int) -> torch.Tensor:
    return torch.randint(6, VOCAB, shape, generator=torch.Generator().manual_seed(1))


def test_the_shares_are_those_of_the_paper() -> None:
    ids = text(400, 200)
    source, _, _, chosen = hidden(ids, 0.15)
    assert chosen.float().mean().item() == pytest.approx(0.15, rel=0.05)
    assert (chosen.float().mean(0) - 0.15).abs().max() < 0.1, "every position is as likely"
    masked, kept = source[chosen] == SPECIAL.mask, source[chosen] == ids[chosen]
    assert masked.float().mean().item() == pytest.approx(MASK_SHARE, abs=0.02)
    # A random token is the same again in one of 50 cases.
    assert kept.float().mean().item() == pytest.approx(1 - MASK_SHARE - RANDOM_SHARE + RANDOM_SHARE / 50, abs=0.02)
    replaced = source[chosen][~masked & ~kept]
    assert len(replaced) / len(masked) == pytest.approx(RANDOM_SHARE * 49 / 50, abs=0.02)
    assert set(replaced.tolist()) == set(range(6, VOCAB))  # any of them, and nothing special


@given(some_ids, st.floats(0.01, 0.99), st.integers(0, 2**32))
@settings(deadline=None)
def test_special_tokens_and_tokens_that_are_not_chosen_are_unchanged(
    rows: list[list[int]], share: float, seed: int
) -> None:
    ids = torch.tensor(rows)
    source, keep, target, chosen = hidden(ids, share, seed)
    assert torch.equal(target, ids)
    assert torch.equal(keep, ids != SPECIAL.pad)
    special = ids < 6
    assert not (chosen & special).any()
    assert torch.equal(source[~chosen], ids[~chosen])
    put = source[chosen & (source != ids)]
    assert ((put == SPECIAL.mask) | (put >= 6)).all()
    assert torch.equal(chosen.any(dim=1), (~special).any(dim=1)), "a row without labels teaches nothing"
    torch.manual_seed(6)  # only the generator decides
    again = hidden(ids, share, seed)
    assert all(torch.equal(one, other) for one, other in zip(again, (source, keep, target, chosen), strict=True))


def test_at_the_smallest_share_one_token_of_each_row_is_chosen() -> None:
    *_, chosen = hidden(text(300, 20), 1e-9)
    assert (chosen.sum(1) == 1).all()
    assert len(set(chosen.long().argmax(1).tolist())) > 10  # not always the same


def test_only_the_chosen_are_labels() -> None:
    ids = text(5, 12)
    ids[2, 7:] = SPECIAL.pad
    examples = hidden(ids, 0.4)
    batch = examples.frame("encoder_only", SPECIAL)
    assert torch.equal(batch.labels, torch.where(examples.chosen, ids, IGNORE))
    assert torch.equal(batch.src, examples.source)
    assert torch.equal(batch.src_keep, ids != SPECIAL.pad)
    assert batch.tgt is None
    assert {*batch.model_inputs()} == {"ids", "keep"}


# --- the task -------------------------------------------------------------------------------------------------------


@pytest.fixture
def make(tmp_path: Path) -> Callable[..., MaskedText]:
    """make(content, **options): the task on a file of its own."""

    def task(content: str, **options: object) -> MaskedText:
        (tmp_path / "text.txt").write_text(content)
        return MaskedText(path=str(tmp_path / "text.txt"), **options)  # type: ignore[arg-type]

    return task


def distinct(length: int) -> str:
    """A text of different characters."""
    return "".join(chr(0x4E00 + place) for place in range(length))


def test_training_never_touches_what_is_held_out(make: Callable) -> None:
    """The text itself: a random token in a hidden one's place may be any of the vocabulary."""
    content = distinct(60)
    task = make(content, block=7, validation_share=0.2, test_share=0.1)
    examples = task.batch(generator(1), 2000)
    assert isinstance(examples, Masked)
    assert examples.source.shape == (2000, 7)
    spelt = {task.vocabulary.decode(row) for row in examples.target.tolist()}
    assert spelt == {content[start : start + 7] for start in range(42 - 7)}
    for split, part in (("test", content[42:48]), ("validation", content[48:])):
        held = task.examples(split)
        assert set(task.vocabulary.decode(held.target.flatten().tolist())) <= set(part)
        assert held.source_keep.sum() == len(part), "padded after the end"


@pytest.mark.parametrize("split", ["validation", "test"])
def test_held_out_examples_are_always_the_same(make: Callable, split: str) -> None:
    task = make("the cat sat on the mat, " * 40, block=16, test_share=0.2)
    first = task.examples(split)
    torch.manual_seed(9)
    task.batch(generator(1), 4)
    for other in (task, make("the cat sat on the mat, " * 40, block=16, test_share=0.2)):
        again = other.examples(split)
        assert all(torch.equal(one, two) for one, two in zip(first, again, strict=True))
    assert len(task.examples(split, 3)) == 3
    assert (first.chosen & (first.source == task.vocabulary.special.mask)).any()


@pytest.mark.parametrize("share", [0.0, 1.0, -0.5, 2.0])
def test_a_share_that_makes_no_sense_is_refused(share: float) -> None:
    with pytest.raises(ValueError, match=rf"data\.mask_share: expected a number above 0 and below 1, got {share}"):
        MaskedText(mask_share=share)


# --- text with <mask> in it -----------------------------------------------------------------------------------------

LETTERS = CharTokenizer().train([["abc <>mask\n"]])


@given(st.lists(st.text("abc <>ms\n", max_size=6), min_size=1, max_size=5))
@settings(deadline=None)
def test_masks_in_a_text_come_back(pieces: list[str]) -> None:
    typed = "<mask>".join(pieces)
    ids = LETTERS.encode_masked(typed)
    assert LETTERS.decode_masked(ids) == typed
    assert ids.count(LETTERS.special.mask) == typed.count("<mask>") == len(typed.split("<mask>")) - 1
    assert [token for token in ids if token != LETTERS.special.mask] == LETTERS.encode("".join(typed.split("<mask>")))
    assert len(ids) == len(typed) - 5 * typed.count("<mask>")


def test_other_special_tokens_are_not_shown() -> None:
    special = LETTERS.special
    a, b = LETTERS.encode("ab")
    assert LETTERS.decode_masked([special.bos, a, special.mask, b, special.pad, special.unk]) == "a<mask>b"
    assert LETTERS.decode_masked([]) == ""
    assert LETTERS.encode_masked("") == []
    assert LETTERS.encode_masked("<mask><mask>") == [special.mask] * 2


def test_unknown_characters_are_refused_beside_a_mask_too() -> None:
    with pytest.raises(ValueError, match="'z' is not in the tokenizer's alphabet"):
        LETTERS.encode_masked("ab<mask>z")
