"""Their tokenizers in our hands: the same ids and the same text as AutoTokenizer from the same folder."""

from __future__ import annotations

from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from huggingface.theirs import CASES
from minitx.data.tokenizers import Tokenizer
from minitx.huggingface.tokenizer_files import read_tokenizer, write_tokenizer

transformers = pytest.importorskip("transformers")

SHARED = Path(__file__).parents[2].parent / "shared" / "data"
KINDS = {"gpt2": "decoder_only", "llama": "decoder_only", "llama3": "decoder_only", "bert": "encoder_only",
         "t5": "encoder_decoder", "bart": "encoder_decoder"}  # fmt: skip
LINES = 1000


@cache
def real_lines() -> list[str]:
    """German and English sentences, and lines of a play."""
    files = [SHARED / "multi30k/train.de", SHARED / "multi30k/train.en", SHARED / "tinyshakespeare.txt"]
    if not all(file.exists() for file in files):
        pytest.skip(f"there is no real text beside this repository: {SHARED}")
    lines = []
    for file in files:
        with file.open(encoding="utf-8") as text:
            lines += [line for line in islice((line.rstrip("\n") for line in text), 1200) if line.strip()]
    return lines


@cache
def trained(name: str) -> Any:
    """A tokenizer of the family's kind, trained on real text."""
    return CASES[name].tokenizer(real_lines(), 2000)


def both(name: str, folder: Path) -> tuple[Any, Tokenizer]:
    """Their tokenizer, loaded from a folder, and ours from the same folder."""
    case, backend = CASES[name], trained(name)
    transformers.PreTrainedTokenizerFast(tokenizer_object=backend, **case.special).save_pretrained(folder)
    config = {key: backend.token_to_id(case.special[token]) for key, token in case.ids.items()}
    return transformers.AutoTokenizer.from_pretrained(folder), read_tokenizer(folder, KINDS[name], config)


@pytest.mark.parametrize("name", KINDS)
def test_a_thousand_lines_of_real_text(name: str, tmp_path: Path) -> None:
    theirs, ours = both(name, tmp_path)
    lines = real_lines()
    chosen = lines[:: len(lines) // LINES][:LINES]
    assert len(chosen) == LINES
    whole = 0
    for line in chosen:
        ids = theirs(line)["input_ids"]
        assert ours.encode_question(line) == ids
        assert ours.encode(line) == theirs(line, add_special_tokens=False)["input_ids"]
        text = theirs.decode(ids, skip_special_tokens=True)
        assert ours.decode(ids) == text
        whole += text == line
    if name in ("gpt2", "llama3", "bart"):  # bytes: nothing is lost on the way there and back
        assert whole == LINES
    elif name != "bert":  # which writes lower case
        assert whole > 0.95 * LINES
    assert ours.encode_batch(chosen) == theirs(chosen, add_special_tokens=False)["input_ids"]


@pytest.mark.parametrize("name", KINDS)
def test_written_out_it_is_the_same(name: str, tmp_path: Path) -> None:
    _, ours = both(name, tmp_path / "theirs")
    again = Tokenizer.from_dict(ours.to_dict())  # as a checkpoint keeps it
    (tmp_path / "again").mkdir()
    write_tokenizer(again, tmp_path / "again", "stream", KINDS[name], 64)
    loaded = transformers.AutoTokenizer.from_pretrained(tmp_path / "again")
    for line in real_lines()[::100]:
        assert again.encode_question(line) == ours.encode_question(line) == loaded(line)["input_ids"]
        assert again.special_tokens == ours.special_tokens
    assert loaded.pad_token_id == ours.special.pad
    assert loaded.model_max_length == 64


def test_translation_frames_as_the_model_is_used_to(tmp_path: Path) -> None:
    """What a model is trained on afterwards: <s> ... </s> around what is read, <s> before what is written."""
    from minitx.data.tasks import Translation, generator

    for split in ("train", "val"):
        for language in ("de", "en"):
            (tmp_path / f"{split}.{language}").write_text(f"ein {split} {language}\n" * 3)
    backend = CASES["bart"].tokenizer(["ein train val de en"], 300)
    transformers.PreTrainedTokenizerFast(tokenizer_object=backend, **CASES["bart"].special).save_pretrained(tmp_path)
    ids = {"pad_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 2}
    task = Translation(path=str(tmp_path), test=None, batch_size=2)
    task.vocabulary = read_tokenizer(tmp_path, "encoder_decoder", ids)
    pairs = task.batch(generator(1), 2)
    read, written = pairs.source[0][pairs.source_keep[0]].tolist(), pairs.target[0][pairs.target_keep[0]].tolist()
    assert (read[0], read[-1]) == (0, 2)
    assert written[0] == 0
    assert 2 not in written  # framing puts it behind


def test_special_tokens_may_come_last() -> None:
    import torch

    from minitx.data.special_tokens import SpecialIds
    from minitx.data.text.masking import hide

    special = SpecialIds(pad=0, bos=-1, eos=-1, sep=-1, unk=-1, mask=9)
    hidden = hide(torch.arange(1, 9).repeat(50, 1), special, 10, 0.5, torch.Generator().manual_seed(0))
    assert int(hidden.source.max()) == 9
    assert (hidden.source[~hidden.chosen] == hidden.target[~hidden.chosen]).all()
