"""Position ids of every numbering."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from minitx.nn.position_ids import POSITION_IDS, ConsecutiveIds
from small_models import every_direction

keep_rows = st.integers(1, 10).flatmap(
    lambda width: st.lists(st.lists(st.booleans(), min_size=width, max_size=width), min_size=1, max_size=4)
)
VOCAB, SEP, LARGEST, RANGE, LONGEST = 11, 3, 7, 40, 20
OPTIONS: dict[str, dict] = {
    "offset": {"largest": LARGEST}, "randomized": {"range": RANGE, "longest": LONGEST}, "coupled": {"after": (SEP,)},
}  # fmt: skip
every_policy = pytest.mark.parametrize("name", POSITION_IDS)
rows_of_tokens = st.lists(st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=9), min_size=1, max_size=4)


def policy(name: str, causal: bool = True, **options) -> ConsecutiveIds:
    """One that counts differently from the others as soon as it can; in evaluation mode."""
    return POSITION_IDS[name](causal, **(options or OPTIONS.get(name, {}))).eval()


@every_direction
@every_policy
@given(keep_rows, st.integers(0, 2**16))
@settings(max_examples=20)
def test_ids_of_a_row_depend_neither_on_padding_nor_on_other_rows(name: str, causal: bool, rows, seed: int) -> None:
    """Wherever the padding is, and whatever its token, such as a boundary: a cache may hold padding within a row."""
    torch.manual_seed(seed)
    keep, numbering = torch.tensor(rows), policy(name, causal)
    ids = torch.randint(0, VOCAB, keep.shape).masked_fill(~keep, SEP)
    together = numbering(ids, keep)
    assert together.dtype == torch.long
    for index, real in enumerate(keep):
        if real.any():
            assert torch.equal(together[index, real], numbering(ids[index, real][None])[0])


@every_policy
@given(rows_of_tokens, st.integers(0, 2**16))
@settings(max_examples=20)
def test_causal_ids_of_a_beginning_do_not_depend_on_later_tokens(name: str, rows, seed: int) -> None:
    """Nor on their number, also in training: the same seed gives the same ids."""
    row = rows[0]
    for training in (False, True):
        numbering = policy(name).train(training)
        torch.manual_seed(seed)
        whole = numbering(torch.tensor([row, row[::-1]]))
        for length in range(1, len(row) + 1):
            torch.manual_seed(seed)
            beginning = numbering(torch.tensor([row, row[::-1]])[:, :length])
            assert torch.equal(beginning.expand(2, -1), whole.expand(2, -1)[:, :length])


@every_direction
@every_policy
def test_nothing_is_random_outside_training_or_where_it_must_not_be(name: str, causal: bool) -> None:
    ids, numbering = torch.randint(0, VOCAB, (3, 8)), policy(name, causal)
    once = numbering(ids)
    assert torch.equal(numbering(ids), once)
    assert torch.equal(policy(name, causal)(ids), once)  # another object, after a load
    assert torch.equal(numbering.train()(ids, fixed=True).expand_as(ids), once.expand_as(ids))
    differs = [not torch.equal(numbering(ids).expand_as(ids), once.expand_as(ids)) for _ in range(5)]
    assert any(differs) == (name in ("offset", "randomized"))


@every_direction
@every_policy
@given(st.integers(1, 60) | st.just(RANGE), st.integers(0, 2**16), st.data())
@settings(max_examples=20)
def test_no_id_of_max_tokens_lies_beyond_the_table(name: str, causal: bool, table: int, seed: int, data) -> None:
    numbering = policy(name, causal).train(data.draw(st.booleans()))
    longest = min(numbering.max_tokens(table), numbering.max_len or table)
    if longest < 1:
        return
    torch.manual_seed(seed)
    ids = torch.randint(0, VOCAB, (3, longest))
    ids[0] = 0  # a row without any boundary
    numbers = numbering(ids)
    assert int(numbers.max()) < table
    assert int(numbers.min()) >= 0
    assert int(numbering(ids, torch.rand(3, longest) < 0.7).max()) < table


@every_policy
@given(rows_of_tokens, st.data())
@settings(max_examples=20)
def test_documents_are_numbered_as_if_alone(name: str, rows, data) -> None:
    """With padding anywhere: it may have the number of the document before it, of the one after it, or another."""
    numbering, ids, keep, documents, places = policy(name), [], [], [], []
    for number, row in enumerate(rows):
        pads = data.draw(st.integers(0, 2))
        ids += [SEP] * pads + row
        keep += [False] * pads + [True] * len(row)
        documents += [data.draw(st.sampled_from([number, -1 - number, number - 1]))] * pads + [number] * len(row)
        places.append(len(ids) - len(row))
    packed = numbering(torch.tensor([ids]), torch.tensor([keep]), torch.tensor([documents]))[0]
    for place, row in zip(places, rows, strict=True):
        assert torch.equal(packed[place : place + len(row)], numbering(torch.tensor([row]))[0])


def test_offset_counts_on_from_every_start_alike() -> None:
    numbers = policy("offset").train()(torch.zeros(4000, 6, dtype=torch.long))
    assert torch.equal(numbers - numbers[:, :1], torch.arange(6).expand(4000, -1))
    counts = numbers[:, 0].bincount()
    assert len(counts) == LARGEST + 1
    assert (counts > 4000 / (LARGEST + 1) * 0.7).all()


def test_an_encoder_samples_as_many_as_there_are_tokens() -> None:
    """So every id of the range is as likely as any other; the padding of a short row has none."""
    numbering, keep = policy("randomized", causal=False).train(), torch.zeros(6000, 9, dtype=torch.bool)
    keep[:, 3:6] = True
    numbers = numbering(torch.zeros(6000, 9, dtype=torch.long), keep)[:, 3:6]
    assert (numbers.diff(dim=1) > 0).all()
    counts = numbers.flatten().bincount(minlength=RANGE)
    mean = 6000 * 3 / RANGE
    assert (counts > 0.75 * mean).all()
    assert (counts < 1.25 * mean).all()


@given(st.lists(st.integers(1, 8), min_size=1, max_size=4))
def test_documents_of_an_encoder_share_the_sample_of_the_longest(lengths: list[int]) -> None:
    numbering, ids = policy("randomized", causal=False), torch.zeros(1, sum(lengths), dtype=torch.long)
    numbers = numbering(ids, documents=torch.arange(len(lengths)).repeat_interleave(torch.tensor(lengths))[None])
    longest = numbering(ids[:, : max(lengths)])[0]
    assert torch.equal(numbers[0], torch.cat([longest[:length] for length in lengths]))


def test_a_decoder_assigns_from_the_smallest_of_its_longest() -> None:
    """The first of 20 out of 40 is small; the 20th is where the largest of 20 is."""
    numbers = policy("randomized").train()(torch.zeros(4000, LONGEST, dtype=torch.long)).double()
    expected = (torch.arange(LONGEST) + 1) * (RANGE + 1) / (LONGEST + 1) - 1  # mean of order statistics
    torch.testing.assert_close(numbers.mean(dim=0), expected.double(), rtol=0.05, atol=0.1)


@pytest.mark.parametrize(("causal", "key", "limit"), [(True, "longest", LONGEST), (False, "range", RANGE)])
def test_randomized_refuses_what_it_cannot_number(causal: bool, key: str, limit: int) -> None:
    numbering, ids = policy("randomized", causal), torch.zeros(1, limit + 1, dtype=torch.long)
    with pytest.raises(ValueError, match=rf"{limit + 1} tokens.*model\.position_ids\.{key}, {limit}"):
        numbering(ids)
    numbering(ids, torch.arange(limit + 1)[None] > 0)  # padding asks for no id
    assert policy("randomized", causal, range=1, longest=1)(ids[:, :1]).tolist() == [[0]]
    assert policy("offset", causal, largest=0).train()(ids).tolist() == [[*range(limit + 1)]]


@given(rows_of_tokens)
def test_coupled_ids_are_the_distance_from_the_last_boundary(rows: list[list[int]]) -> None:
    for row in rows:
        number, top, expected, mirrored = 0, 0, [], []
        for index, token in enumerate(row):
            top = (number + 1 if index else 0) if token in (SEP, 5) else top
            number = 0 if token in (SEP, 5) else number + 1
            expected.append(number)
            mirrored.append(abs(top - number))
        assert policy("coupled", after=(SEP, 5))(torch.tensor([row]))[0].tolist() == expected
        assert policy("coupled", after=(SEP, 5), mirrored=True)(torch.tensor([row]))[0].tolist() == mirrored
