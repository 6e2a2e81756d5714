"""Made-up languages: a sentence of numbers in words, and the same numbers in other words."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import normalizers

from minitx.config.errors import ConfigError
from minitx.config.schema import Config, ModelConfig, RunConfig
from minitx.data.tasks import Translation, generator
from minitx.data.text import parallel_files as parallel
from minitx.evaluation.report import data_has_changed, on_file
from minitx.generation.options import GenerationOptions
from minitx.inference.predictor import Predictor
from minitx.playground.play_requests import Session
from minitx.training.describe import typical_batch
from minitx.training.resolve import resolve
from minitx.training.start import Start
from parallel_files import made_up, make_files, write_split
from toy import check_even, texts

NEAR = [
    "Ein Hund, ganz nah", "ein Hund  ganz nah!", "„EIN HUND“ GANZ-NAH...", "Ein\u00a0Hund ganz nah …",
    "Ｅin Hund ganz nah.",
]  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return make_files(tmp_path)


def make(folder: Path, **options: Any) -> Translation:
    return Translation(path=str(folder), **{"tokenizer": {"name": "bpe", "size": 300}, **options})


def sampled(task: Translation, batches: int = 60, size: int = 32) -> set[tuple[str, str]]:
    return {pair for step in range(batches) for pair in texts(task, task.batch(generator(1, step, 0), size))}


def test_training_samples_every_pair_of_the_file_and_no_other_in_either_direction(folder: Path) -> None:
    pairs = {*made_up(100, seed=5)}
    assert sampled(make(folder)) == pairs
    backwards = make(folder, source="en", target="de")
    assert sampled(backwards) == {(target, source) for source, target in pairs}
    for split in ("validation", "test"):
        assert [pair[::-1] for pair in backwards.sentences(split)] == make(folder).sentences(split)


@pytest.mark.parametrize("split", ["validation", "test"])
def test_held_out_examples_are_the_file_in_its_order(folder: Path, split: Any) -> None:
    task = make(folder)
    whole = parallel.read(str(folder), getattr(task, split), "de", "en", split)
    assert texts(task, task.examples(split)) == task.sentences(split) == whole
    assert texts(task, task.examples(split, 5)) == task.sentences(split, 5) == whole[:5]
    fewer = make(folder, validation_size=7, test_size=7)
    assert texts(fewer, fewer.examples(split)) == fewer.sentences(split) == whole[:7]


@pytest.mark.parametrize("split", ["val", "test"])
def test_pairs_with_a_sentence_that_is_held_out_or_nearly_so_are_left_out(folder: Path, split: str) -> None:
    write_split(folder, split, [("Ein Hund ganz nah.", "A dog quite near."), ("? !", "α\u0345\u0301")])
    others = [("Kein Hund ganz nah.", "No dog quite near."), ("Ein Hund 2 ganz nah", "A dog 2 quite near"), ("!?", "!")]
    same = [("  EIN  hund ganz nah.\t", "rare"), ("rare", "A DOG   quite near."), ("?  !", "r"), ("r", "αι\u0301")]
    near = [*zip(NEAR, map(str, range(5)), strict=True), ("x", "a dog; quite near")]
    write_split(folder, "train", [*made_up(40, seed=1), *others, *same, *near])
    task = make(folder)
    assert sampled(task) == {*made_up(40, seed=1), *others}
    assert task.notes == [
        "43 pairs to train on; left out: 4 with a sentence of validation or test, "
        "6 that differ from one of validation or test in punctuation or spacing only"
    ]
    assert "rare" not in " ".join(text for batch in task._training_texts() for text in batch), "nor is the tokenizer"
    resumed = make(folder)
    resumed.sampling = 1  # began with an earlier version
    assert sampled(resumed) == {*made_up(40, seed=1), *others, *near}
    write_split(folder, "train", same)
    with pytest.raises(ValueError, match=r"data\.training: every pair of train"):
        make(folder).batch(generator(1), 2)


def test_pairs_with_an_empty_side_are_left_out_and_counted(folder: Path) -> None:
    write_split(folder, "train", [("uno", ""), *made_up(40, seed=1), (" ", "one"), ("", "")])
    write_split(folder, "val", [("", "x y"), ("sechs sieben", "x y")])
    task = make(folder)
    assert sampled(task) == set(made_up(40, seed=1))
    assert task.sentences("validation") == texts(task, task.examples("validation")) == [("sechs sieben", "x y")]
    left_out = "left out of validation: 1 with an empty side"
    assert task.notes == ["40 pairs to train on; left out: 3 with an empty side", left_out]


def test_a_sentence_longer_than_allowed_is_not_trained_on_but_measured(folder: Path) -> None:
    pairs, long = made_up(40, seed=1), (" ".join(["acht"] * 70), "eight")
    write_split(folder, "train", [*pairs, long, long[::-1]])
    write_split(folder, "test", [("drei elf", "three eleven"), (long[0] + " neun", "nine eleven")])
    vocabulary = make(folder).vocabulary
    most = max(len(vocabulary.encode(text)) for pair in pairs for text in pair)
    task = make(folder, max_tokens=most)
    assert (sampled(task), task.longest) == ({*pairs}, (most, most))
    assert task.notes == [f"40 pairs to train on; left out: 2 longer than data.max_tokens {most}"]
    test = task.examples("test")
    assert texts(task, test)[1][0] == long[0] + " neun"
    assert task.reach[0] == test.source.size(1) > most
    write_split(folder, "train", [long])
    with pytest.raises(ValueError, match=rf"data\.max_tokens: no training pair has at most {most} tokens"):
        make(folder, max_tokens=most).batch(generator(1), 2)


def test_without_a_test_a_run_is_measured_on_validation(folder: Path) -> None:
    (folder / "test.de").unlink()
    task = make(folder, test=None)
    assert (task.final_split, task.reach) == ("validation", (100, 100))
    assert sampled(task, 5)
    with pytest.raises(ValueError, match=r"data\.test names no file"):
        task.examples("test")
    with pytest.raises(ValueError, match=r"data\.test: there is no file"):
        make(folder).batch(generator(1), 2)


def test_one_tokenizer_for_both_languages_is_trained_on_training_pairs_only(folder: Path) -> None:
    write_split(folder, "val", [("zzqq zzqq zzqq", "xxjj xxjj xxjj")] * 50)
    tokens = set(make(folder, tokenizer={"name": "word", "size": 1000}).vocabulary.alphabet)
    training = parallel.read(str(folder), "train", "de", "en", "training")
    assert tokens == {word for pair in training for text in pair for word in text.split()} | {" "}


def test_in_lower_case_everything_is_read_and_written_so(folder: Path) -> None:
    write_split(folder, "train", [(a.upper(), b.title()) for a, b in made_up(40, seed=1)])
    write_split(folder, "val", [("DREI Ä", "Three Ä")])
    task = make(folder, lowercase=True)
    assert sampled(task) == {(a.lower(), b.lower()) for a, b in made_up(40, seed=1)}
    assert texts(task, task.examples("validation")) == [("drei ä", "three ä")]
    assert task.sentences("validation") == [("DREI Ä", "Three Ä")], "references keep their case"
    merged = [token.strip("Ġ") for token in task.vocabulary.alphabet if len(token) > 2]
    assert {token == token.lower() for token in merged} == {True}
    again = type(task.vocabulary).from_dict(task.vocabulary.to_dict())
    assert again.decode(again.encode("DREI vier")) == "drei vier", "also from a checkpoint"
    other = make(folder, lowercase=True)
    other.vocabulary = other.adopted(make(folder).vocabulary)  # of another run, cased
    assert sampled(other) == sampled(task)
    assert other.adopted(other.vocabulary) is other.vocabulary, "resumed"
    replacing = make(folder).vocabulary  # as an imported one may do
    replacing.backend.normalizer = normalizers.Sequence([normalizers.Replace("x", "rei"), normalizers.Prepend("d")])
    adopted = other.adopted(replacing)
    assert (adopted.decode(adopted.encode("X")), other.adopted(adopted)) == ("drei", adopted)


def test_every_pair_is_as_likely_as_any_other_though_buckets_differ_in_size(folder: Path) -> None:
    pairs = [(" ".join(["elf"] * words), "eleven") for words in (7, 1, 5, 10, 2, 9, 3, 11, 8, 4, 6)]
    write_split(folder, "train", pairs)  # 11 pairs in 4 buckets: 2, 3, 3, 3
    task = make(folder, tokenizer={"name": "word", "size": 100}, buckets=4, batch_size=2)
    widths = [task.batch(generator(seed), 8).source_keep.sum(dim=1) for seed in range(1500)]
    assert {int(batch.max() - batch.min()) for batch in widths} <= {0, 2, 4}, "neighbours, with the spaces"
    check_even(torch.cat(widths).tolist(), range(1, 22, 2))


def test_groups_are_of_equal_longer_sides(folder: Path) -> None:
    """Both sides are padded, so pairs with as many tokens in all are not alike if one has a longer side."""
    sizes = [(1, 5), (5, 5), (1, 7), (7, 7)]  # neither the shorter side nor the sum divides them as the longer does
    pairs = [(" ".join(["drei"] * source), " ".join(["elf"] * target)) for source, target in sizes]
    write_split(folder, "train", pairs * 4)
    task = make(folder, tokenizer={"name": "word", "size": 100}, buckets=2, batch_size=4)
    batches = [task.batch(generator(step), 6) for step in range(20)]
    longer = [torch.maximum(pairs.source_keep.sum(dim=1), pairs.target_keep.sum(dim=1)) for pairs in batches]
    assert {tuple(widths.unique().tolist()) for widths in longer} == {(9,), (13,)}, "words and spaces between them"


def test_a_group_holds_a_batch_even_in_a_small_file(folder: Path) -> None:
    task = make(folder, batch_size=64)
    several = [len({*texts(task, task.batch(generator(step), 64))}) for step in range(5)]
    assert min(several) > 64 / 3, "few pairs in many groups would repeat the same sentences"
    few = make(folder, batch_size=4)
    assert len({*texts(few, few.batch(generator(1), 64))}) <= 5
    larger, digest = config(folder, "encoder_decoder"), f"{'0' * 16}-1c3ffe5ada11d441c14684ddb11fe492"
    start = Start(folder, {"data_digest": digest, "global_step": 0}, larger, task.vocabulary, True, "", 0)
    assert start.check(dataclasses.replace(larger, data={**larger.data, "batch_size": 4}), few), "the same pairs"
    targets = few.vocabulary.encode_batch([target for _, target in few.sentences("training")])
    for seed in (1, 2):
        tokens = (typical_batch(dataclasses.replace(larger, run=RunConfig(seed=seed)), few).labels >= 0).sum()
        assert int(tokens) == pytest.approx(4 * sum(len(row) + 1 for row in targets) / 100, rel=0.1), "the mean"


def config(folder: Path, architecture: Any, **model: Any) -> Config:
    data = {"name": "translation", "path": str(folder), "tokenizer": {"name": "bpe", "size": 300}}
    sizes = {"d_model": 16, "n_heads": 2, "n_layers": 1}
    return Config(data=data, model=ModelConfig(architecture=architecture, **sizes, **model))


def test_an_encoder_alone_and_a_table_that_does_not_reach_the_longest_sentence_are_refused(folder: Path) -> None:
    with pytest.raises(ValueError, match=r"model\.architecture: encoder_only answers position by position"):
        resolve(config(folder / "nowhere", "encoder_only"))  # before any file is read
    write_split(folder, "test", [(" ".join(["acht"] * 150), "eight")])
    needed = make(folder).reach[0]
    assert needed > 101
    fits = {"name": "learned", "max_len": needed}
    resolve(config(folder, "encoder_decoder", position=fits))
    with pytest.raises(ValueError, match=rf"model\.position\.max_len must be at least {needed}"):
        resolve(config(folder, "encoder_decoder", position={**fits, "max_len": needed - 1}))


def test_other_pairs_fit_a_table_of_positions_if_each_of_them_does(folder: Path, tmp_path: Path) -> None:
    """The longest question and the longest answer together do not fit."""
    run = resolve(config(folder, "decoder_only", position={"name": "learned", "max_len": 202}))
    predictor, file = Predictor(run.model, run.task.vocabulary, run.config), tmp_path / "other.tsv"
    long = [run.task.vocabulary.decode(run.task.vocabulary.encode(f"{word} " * 150)[:150]) for word in ("acht", "elf")]
    file.write_text(f"de\ten\n{long[0]}\telf\nacht\t{long[1]}\n")
    on_file(predictor, str(file))
    file.write_text(f"de\ten\n{long[0]}\t{long[1]}\n")
    with pytest.raises(ConfigError, match="more than the model has positions: the table of learned positions ends at"):
        on_file(predictor, str(file))


@pytest.mark.parametrize("architecture", ["encoder_decoder", "decoder_only"])
def test_a_trained_model_needs_no_file_to_translate(folder: Path, architecture: str) -> None:
    whole, task, model, *_ = resolve(config(folder, architecture))
    elsewhere = dataclasses.replace(whole, data={**whole.data, "path": "/removed/after/training"})
    predictor = Predictor(model.eval(), task.vocabulary, elsewhere)
    assert [*map(type, predictor.generate(["drei vier", "neun"], num_beams=2))] == [str, str]
    predictor.data_digest = f"{'0' * 16}-of_training"
    assert not data_has_changed(predictor), "unknown"
    assert Session(predictor).description()["form"] == "Task: Sentences to translate from de to en."
    assert len(predictor.generations(["drei"], GenerationOptions(min_new_tokens=101))[0][0].ids) == 101, "no further"
