"""Running text, and masked language modelling: the choice of tokens, their replacement, texts with <mask>."""

import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from minitx.data.batch import IGNORE
from minitx.data.example_texts import decode_masked
from minitx.data.examples import Masked, Stream
from minitx.data.tasks import TASKS, MaskedText, Text, generator
from minitx.data.tasks.text import MASK_SHARE, RANDOM_SHARE, mask_tokens
from minitx.data.text import corpora
from minitx.data.text.tokenizer_training import CharTokenizer
from minitx.data.tokenizers import SpecialIds

Writer = Callable[..., Text]


@pytest.fixture
def make(tmp_path: Path) -> Writer:
    """make(content, **options): the task on a file."""

    def task(content: str, kind: type[Text] = Text, **options: object) -> Any:
        path = tmp_path / "some.txt"
        path.write_text(content, newline="")
        return kind(path=str(path), **options)  # type: ignore[arg-type]

    return task


def distinct(length: int) -> str:
    """A text of different characters."""
    return "".join(chr(0x4E00 + place) for place in range(length))


def words(length: int) -> str:
    return " ".join(f"w{number}\n" if number % 7 == 0 else f"w{number}" for number in range(length))[:length]


def spelt(task: Text, ids: Tensor) -> str:
    return task.vocabulary.decode(ids.flatten().tolist())


def predicted(task: Text, stream: Stream) -> str:
    """The text that a model predicts, example after example."""
    labels = stream.ids[:, 1:]
    return spelt(task, labels[labels != task.vocabulary.special.pad])


@pytest.mark.parametrize("block", [1, 7])
def test_training_blocks_are_pieces_of_the_training_part_and_reach_all_of_it(make: Writer, block: int) -> None:
    text = distinct(60)
    task = make(text, block=block, validation_share=0.2, test_share=0.1)
    training = text[:42]
    ids = task.batch(generator(1), 3000).ids
    assert ids.shape == (3000, block + 1)
    pieces = {spelt(task, row) for row in ids}
    assert pieces == {training[start : start + block + 1] for start in range(len(training) - block)}


@pytest.mark.parametrize("length", [100, 237])
@pytest.mark.parametrize("block", [1, 9])
def test_validation_asks_for_the_whole_held_out_text_once_and_in_order(make: Writer, length: int, block: int) -> None:
    text = words(length)
    task = make(text, block=block, validation_share=0.3)
    stream = task.examples("validation")
    held_out = text[int(length * 0.7) :]
    assert stream.ids.size(1) == block + 1
    assert (stream.ids[:, 1] != task.vocabulary.special.pad).all(), "every example predicts a token"
    assert spelt(task, stream.ids[0, :1]) + predicted(task, stream) == held_out
    # What is read for each prediction is what stands before it.
    for row in stream.ids:
        real = row[row != task.vocabulary.special.pad]
        assert spelt(task, real) in held_out


def test_the_three_parts_follow_one_another_and_share_nothing(make: Writer) -> None:
    text = distinct(200)
    task = make(text, block=5, validation_share=0.1, test_share=0.25)
    test, validation = task.examples("test"), task.examples("validation")
    assert spelt(task, test.ids[0, :1]) + predicted(task, test) == text[130:180]
    assert spelt(task, validation.ids[0, :1]) + predicted(task, validation) == text[180:]


def test_a_limit_takes_examples_evenly_from_beginning_to_end(make: Writer) -> None:
    text = distinct(1000)
    task = make(text, block=4, validation_share=0.5)
    everything = task.examples("validation").ids
    for limit in (1, 5, 30):
        ids = task.examples("validation", limit).ids
        places = [int((everything == row).all(dim=1).nonzero()[0, 0]) for row in ids]
        assert len(places) == len(set(places)) == limit
        assert places[0] == 0
        if limit > 1:
            assert places[-1] == len(everything) - 1
            gaps = [after - before for before, after in itertools.pairwise(places)]
            assert max(gaps) - min(gaps) <= 1
    assert torch.equal(task.examples("validation", 5).ids, task.examples("validation", 5).ids)


@pytest.mark.parametrize(("length", "block"), [(5, 128), (99, 90)])
def test_a_text_too_short_for_a_block_is_refused(make: Writer, length: int, block: int) -> None:
    task = make("x" * length, block=block)
    for use in (lambda: task.batch(generator(1), 2), lambda: task.examples("validation")):
        with pytest.raises(ValueError, match=r"data\.block") as caught:
            use()
        assert str(block) in str(caught.value)


@pytest.mark.parametrize("split", ["validation", "test"])
def test_a_share_of_nothing_is_refused(make: Writer, split: str) -> None:
    task = make("some text " * 10, block=4, validation_share=0.0)
    with pytest.raises(ValueError, match=rf"data\.{split}_share"):
        task.examples(split)  # type: ignore[arg-type]


def test_nothing_is_read_before_it_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(corpora, "load", lambda path: pytest.fail("read the corpus"))
    task = Text(path="/nowhere/at/all.txt", block=12)
    assert task.longest == (0, 12)
    assert task.final_split == "validation"


# ---- masked text -----------------------------------------------------------------------------------------------------

SPECIAL, VOCAB = SpecialIds(pad=1, bos=0, eos=3, sep=4, unk=5, mask=2), 56  # in an order of their own
some_ids = st.integers(1, 12).flatmap(
    lambda width: st.lists(st.lists(st.integers(0, VOCAB - 1), min_size=width, max_size=width), min_size=1, max_size=5)
)


def hidden(ids: torch.Tensor, share: float = 0.15, seed: int = 0) -> Masked:
    return mask_tokens(ids, SPECIAL, VOCAB, share, torch.Generator().manual_seed(seed))


def random_ids(*shape: int) -> torch.Tensor:
    return torch.randint(6, VOCAB, shape, generator=torch.Generator().manual_seed(1))


def test_the_shares_are_those_of_the_paper() -> None:
    ids = random_ids(400, 200)
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
    *_, chosen = hidden(random_ids(300, 20), 1e-9)
    assert (chosen.sum(1) == 1).all()
    assert len(set(chosen.long().argmax(1).tolist())) > 10  # not always the same


def test_training_never_touches_what_is_held_out(make: Writer) -> None:
    """The text itself: a random token in a hidden one's place may be any of the vocabulary."""
    content = distinct(60)
    task = make(content, MaskedText, block=7, validation_share=0.2, test_share=0.1)
    examples = task.batch(generator(1), 2000)
    assert isinstance(examples, Masked)
    assert examples.source.shape == (2000, 7)
    read = {task.vocabulary.decode(row) for row in examples.target.tolist()}
    assert read == {content[start : start + 7] for start in range(42 - 7)}
    for split, part in (("test", content[42:48]), ("validation", content[48:])):
        held = task.examples(split)
        assert set(task.vocabulary.decode(held.target.flatten().tolist())) <= set(part)
        assert held.source_keep.sum() == len(part), "padded after the end"


# --- text with <mask> in it -----------------------------------------------------------------------------------------

LETTERS = CharTokenizer().train([["abc <>mask\n"]])


@given(st.lists(st.text("abc <>ms\n", max_size=6), min_size=1, max_size=5))
@settings(deadline=None)
def test_masks_in_a_text_come_back(pieces: list[str]) -> None:
    typed = "<mask>".join(pieces)
    ids = LETTERS.encode_masked(typed)
    assert decode_masked(ids, LETTERS) == typed
    assert ids.count(LETTERS.special.mask) == typed.count("<mask>") == len(typed.split("<mask>")) - 1
    assert [token for token in ids if token != LETTERS.special.mask] == LETTERS.encode("".join(typed.split("<mask>")))
    assert len(ids) == len(typed) - 5 * typed.count("<mask>")


def test_special_tokens_and_unknown_characters_beside_a_mask() -> None:
    special = LETTERS.special
    a, b = LETTERS.encode("ab")
    assert decode_masked([special.bos, a, special.mask, b, special.pad, special.unk], LETTERS) == "a<mask>b"
    with pytest.raises(ValueError, match="'z' is not in the tokenizer's alphabet"):
        LETTERS.encode_masked("ab<mask>z")


# ---- documents in one stream, separated by <eos>, isolated if requested ---------------------------------------------

DOCUMENTS = ["abc", "d", "efghij", "kl", "mnopqrs"] * 6


@pytest.fixture
def packed(tmp_path: Path) -> Callable[..., Any]:
    """packed(name, **options): the task on a table of DOCUMENTS, or of others."""

    def task(name: str = "text", documents_are: list[str] = DOCUMENTS, **options: object) -> Any:
        path = tmp_path / "table.jsonl"
        path.write_text("".join(json.dumps({"text": text}) + "\n" for text in documents_are))
        return TASKS[name](path=str(path), **{"block": 12, "validation_share": 0.3, **options})  # type: ignore[arg-type]

    return task


def test_an_end_token_stands_between_two_documents(packed: Callable) -> None:
    task = packed()
    stream = torch.cat([torch.from_numpy(task._parts[part].astype("int64")) for part in ("training", "validation")])
    assert "".join(task.vocabulary.tokens(stream.tolist())) == "<eos>".join(DOCUMENTS)


def test_with_isolation_nothing_is_predicted_across_a_border(packed: Callable) -> None:
    task = packed(isolate=True)
    stream = task.batch(generator(1), 50)
    assert stream.documents is not None
    assert torch.equal(stream.ids, packed().batch(generator(1), 50).ids)
    batch = stream.frame("decoder_only", task.vocabulary.special)
    end = task.vocabulary.special.eos
    assert torch.equal(batch.labels == IGNORE, batch.tgt == end), "the token after an end belongs to another document"
    assert torch.equal(batch.labels[batch.labels != IGNORE], stream.ids[:, 1:][batch.tgt != end])
    assert (batch.labels == end).any(), "that a document ends is predicted"
    assert torch.equal(batch.model_inputs()["documents"], stream.documents[:, :-1])
    for row, numbers in zip(batch.tgt.tolist(), batch.documents.tolist(), strict=True):
        for place in range(1, len(row)):
            assert numbers[place] == numbers[place - 1] + (row[place - 1] == end)


def test_nothing_to_isolate_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.txt").write_text("some text\n\nand more\n\n" * 20)
    task = Text(path=str(tmp_path / "x.txt"), isolate=True, block=4)
    with pytest.raises(ValueError, match=r"data\.isolate: .*x\.txt is read as one running text; set data\.documents"):
        _ = task.vocabulary
    assert Text(path=str(tmp_path / "x.txt"), isolate=True, block=4, documents="paragraph").batch(generator(1), 2)
