"""Running text, and masked language modelling: the choice of tokens, their replacement, texts with <mask>."""

import itertools
from operator import attrgetter
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from minitx.data.batch import IGNORE
from minitx.data.example_texts import decode_masked
from minitx.data.examples import Masked
from minitx.data.tasks import MaskedText, Text, generator
from minitx.data.tasks.text import MASK_SHARE, RANDOM_SHARE, mask_tokens
from minitx.data.text.tokenizer_training import CharTokenizer
from minitx.data.tokenizers import SpecialIds

DISTINCT = "".join(map(chr, range(0x4E00, 0x4E00 + 1000)))  # different characters
LETTERS = CharTokenizer().train([["abc <>mask\n"]])
SPECIAL, VOCAB = SpecialIds(pad=1, bos=0, eos=3, sep=4, unk=5, mask=2), 56  # in an order of their own
some_ids = st.integers(1, 12).flatmap(
    lambda width: st.lists(st.lists(st.integers(0, VOCAB - 1), min_size=width, max_size=width), min_size=1, max_size=5)
)


def make(folder: Path, content: str, kind: type[Text] = Text, **options: Any) -> Any:
    path = folder / "some.txt"
    path.write_text(content, newline="")
    return kind(path=str(path), **options)


def spelt(task: Text, ids: Tensor) -> str:
    return task.vocabulary.decode(ids.flatten().tolist())


@pytest.mark.parametrize("block", [1, 7, 9])
@pytest.mark.parametrize("kind", [Text, MaskedText])
def test_training_reaches_its_whole_part_others_are_read_in_order(tmp_path: Path, kind: type[Text], block: int) -> None:
    """The last token of a stream is not read, only predicted; masked text has none to predict beyond a block."""
    text, stream = DISTINCT[:200], kind is Text
    task = make(tmp_path, text, kind, block=block, validation_share=0.1, test_share=0.25)
    parts = attrgetter("ids" if stream else "target")
    pieces = {spelt(task, row) for row in parts(task.batch(generator(1), 3000))}
    assert pieces == {text[start : start + block + stream] for start in range(130 - block)}
    for split, part in (("test", text[130:180]), ("validation", text[180:])):
        examples = task.examples(split)
        ids = parts(examples)
        assert all(spelt(task, row) in part for row in ids)
        if stream:
            assert spelt(task, torch.cat((ids[0, :1], ids[:, 1:].flatten()))) == part
            assert (ids[:, 1] != task.vocabulary.special.pad).all(), "every example predicts a token"
        else:
            assert spelt(task, ids) == part[: ids.numel()]
            assert examples.source_keep.sum() == min(len(part), ids.numel()), "padded after the end"


def test_a_limit_takes_examples_evenly_from_beginning_to_end(tmp_path: Path) -> None:
    task = make(tmp_path, DISTINCT, block=4, validation_share=0.5)
    everything = task.examples("validation").ids
    for limit in (1, 5, 30):
        places = [int((everything == row).all(dim=1).nonzero()[0, 0]) for row in task.examples("validation", limit).ids]
        assert len(places) == len(set(places)) == limit
        assert places[0] == 0
        if limit > 1:
            assert places[-1] == len(everything) - 1
            gaps = [after - before for before, after in itertools.pairwise(places)]
            assert max(gaps) - min(gaps) <= 1


def test_a_text_too_short_for_a_block_and_a_share_of_nothing_are_refused(tmp_path: Path) -> None:
    """Of 90 characters, 81 are for training: enough for a block of 80 and the character after it."""
    assert make(tmp_path, "x" * 90, block=80).batch(generator(1), 2)
    task = make(tmp_path, "x" * 90, block=81)
    for use in (lambda: task.batch(generator(1), 2), lambda: task.examples("validation")):
        with pytest.raises(ValueError, match=r"data\.block: .* 81 tokens for training, fewer than one block of 81"):
            use()
    task = make(tmp_path, "some text " * 10, block=4, validation_share=0.0)
    for split in ("validation", "test"):
        with pytest.raises(ValueError, match=rf"data\.{split}_share"):
            task.examples(split)


def hidden(ids: torch.Tensor, share: float = 0.15, seed: int = 0) -> Masked:
    return mask_tokens(ids, SPECIAL, VOCAB, share, torch.Generator().manual_seed(seed))


def test_the_shares_are_those_of_the_paper() -> None:
    ids = torch.randint(6, VOCAB, (400, 200))
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
    *_, chosen = hidden(torch.randint(6, VOCAB, (300, 20)), 1e-9)
    assert (chosen.sum(1) == 1).all(), "at the smallest share one token of each row"
    assert len(set(chosen.long().argmax(1).tolist())) > 10  # not always the same


def test_special_tokens_may_come_last() -> None:
    """As in an imported model."""
    special = SpecialIds(pad=0, bos=-1, eos=-1, sep=-1, unk=-1, mask=9)
    masked = mask_tokens(torch.arange(1, 9).repeat(50, 1), special, 10, 0.5, torch.Generator().manual_seed(0))
    assert int(masked.source.max()) == 9


@given(some_ids, st.floats(0.01, 0.99), st.integers(0, 2**32))
def test_special_tokens_and_tokens_not_chosen_are_unchanged(rows: list[list[int]], share: float, seed: int) -> None:
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


@given(st.lists(st.text("abc <>ms\n", max_size=6), min_size=1, max_size=5))
def test_masks_in_a_text_come_back(pieces: list[str]) -> None:
    typed = "<mask>".join(pieces)
    ids = LETTERS.encode_masked(typed)
    assert decode_masked(ids, LETTERS) == typed
    assert ids.count(LETTERS.special.mask) == typed.count("<mask>") == len(typed.split("<mask>")) - 1
    assert [token for token in ids if token != LETTERS.special.mask] == LETTERS.encode("".join(typed.split("<mask>")))


def test_special_tokens_and_unknown_characters_beside_a_mask() -> None:
    special = LETTERS.special
    a, b = LETTERS.encode("ab")
    assert decode_masked([special.bos, a, special.mask, b, special.pad, special.unk], LETTERS) == "a<mask>b<unk>"
    with pytest.raises(ValueError, match="'z' is not in the tokenizer's alphabet"):
        LETTERS.encode_masked("ab<mask>z")


def test_with_isolation_nothing_is_predicted_across_a_border(tmp_path: Path) -> None:
    content = "\n".join(["abc", "d", "efghij", "kl", "mnopqrs"] * 6)
    lines: dict[str, Any] = {"content": content, "documents": "line", "block": 12, "validation_share": 0.3}
    task = make(tmp_path, **lines, isolate=True)
    stream = task.batch(generator(1), 50)
    assert torch.equal(stream.ids, make(tmp_path, **lines).batch(generator(1), 50).ids)
    batch = stream.frame("decoder_only", task.vocabulary.special)
    end = task.vocabulary.special.eos
    assert torch.equal(batch.labels == IGNORE, batch.tgt == end), "the token after an end belongs to another document"
    assert torch.equal(batch.labels[batch.labels != IGNORE], stream.ids[:, 1:][batch.tgt != end])
    assert (batch.labels == end).any(), "that a document ends is predicted"
    assert torch.equal(batch.model_inputs()["documents"], stream.documents[:, :-1])
    assert torch.equal(batch.documents.diff(dim=1), (batch.tgt[:, :-1] == end).long())


def test_nothing_to_isolate_is_refused(tmp_path: Path) -> None:
    text: dict[str, Any] = {"content": "some text\n\nand more\n\n" * 20, "isolate": True, "block": 4}
    with pytest.raises(ValueError, match=r"data\.isolate: .*some.txt is read as one running text; set data\.documents"):
        _ = make(tmp_path, **text).vocabulary
    assert make(tmp_path, **text, documents="paragraph").batch(generator(1), 2)
