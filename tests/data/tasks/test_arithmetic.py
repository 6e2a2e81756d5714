import itertools

import pytest

from minitx.data.tasks import generator
from minitx.nn.position_ids import CoupledIds
from toy import make, questions, spelt


@pytest.mark.parametrize("split", ["training", "test"])
def test_the_operands_alone_decide_the_split(split: str) -> None:
    def operands(**options: bool) -> list[tuple[int, ...]]:
        task = make("addition", digits=(1, 2), **options)
        pairs = task.batch(generator(5), 400) if split == "training" else task.examples(split, 400)
        step = -1 if options.get("reverse_operands") else 1
        return [tuple(int(part[::step]) for part in "".join(row).split("+")) for row in questions(task, pairs)]

    plain = operands()
    assert len(plain) > 300
    for reverse, reverse_operands, pad in itertools.product([False, True], repeat=3):
        assert operands(reverse=reverse, reverse_operands=reverse_operands, pad=pad) == plain


def test_splits_are_planned_by_the_digits_of_both_operands() -> None:
    task = make("addition", digits=(1, 3))
    ids, keep = task.question(generator(1), 500)
    digits = [tuple(map(len, "".join(row).split("+"))) for row in spelt(task, ids, keep)]
    strata = task.strata(ids, keep).tolist()  # of which every split has the same shares
    assert len({*digits}) == len({*strata}) == len({*zip(digits, strata, strict=True)}) == 9


@pytest.mark.parametrize("pad", [False, True])
@pytest.mark.parametrize("architecture", ["decoder_only", "encoder_decoder"])
def test_digits_of_equal_significance_bear_equal_numbers(architecture: str, pad: bool) -> None:
    task = make("addition", digits=(1, 5), reverse=True, reverse_operands=True, pad=pad)
    special, vocabulary = task.vocabulary.special, task.vocabulary
    batch = task.batch(generator(1), 100).frame(architecture, special)
    number = CoupledIds(causal=True, after=tuple(task.boundaries)).eval()
    boundaries = {vocabulary.encode("+")[0], special.bos, special.sep}
    for ids in (batch.tgt,) if batch.src is None else (batch.src, batch.tgt):
        for row, positions in zip(ids.tolist(), number(ids).tolist(), strict=True):
            significance = 0
            for token, position in zip(row, positions, strict=True):
                if token in (special.pad, special.eos):
                    break
                significance = 0 if token in boundaries else significance + 1
                assert position == significance, vocabulary.tokens(row)


@pytest.mark.parametrize("share", [0.1, 0.8])
@pytest.mark.parametrize("modulus", [5, 19])
def test_the_parts_of_all_pairs_are_disjoint_and_cover_everything(modulus: int, share: float) -> None:
    task = make("modular_addition", modulus=modulus, train_share=share, validation_size=10**6, test_size=10**6)
    held_out = {split: questions(task, task.examples(split)) for split in ("training", "validation", "test")}
    every = [pair for part in held_out.values() for pair in part]
    assert len(every) == len({*every}) == modulus**2
    assert len(held_out["training"]) == round(modulus**2 * share)
    assert abs(len(held_out["validation"]) - len(held_out["test"])) <= 1
    batch = make("modular_addition", modulus=modulus, train_share=share).batch(generator(1), 5_000)
    assert {*questions(task, batch)} == {*held_out["training"]}
