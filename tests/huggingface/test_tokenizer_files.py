"""Imported tokenizers: the ids and texts of AutoTokenizer from the same folder, and back."""

import json
from functools import cache
from itertools import islice
from pathlib import Path

import pytest
import tokenizers as library
from tokenizers import models, processors

from huggingface.hf_models import CASES
from minitx.data.text.readers import Chunk
from minitx.data.text.token_cache import _encoded
from minitx.data.tokenizers import Tokenizer
from minitx.huggingface.hub_files import read_json, write_json
from minitx.huggingface.tokenizer_files import generation_settings, read_tokenizer, write_tokenizer

transformers = pytest.importorskip("transformers")

SHARED = Path(__file__).parents[2].parent / "shared" / "data"
KINDS = {"gpt2": "decoder_only", "llama": "decoder_only", "llama-3": "decoder_only", "bert": "encoder_only",
         "t5": "encoder_decoder", "bart": "encoder_decoder"}  # fmt: skip


@cache
def real_lines() -> list[str]:
    """German and English sentences, and lines of a play."""
    files = [SHARED / "multi30k/train.de", SHARED / "multi30k/train.en", SHARED / "tinyshakespeare.txt"]
    if not all(file.exists() for file in files):
        pytest.skip(f"no real text in {SHARED}")
    lines = [line.rstrip("\n") for file in files for line in islice(file.open(encoding="utf-8"), 250)]
    return [line for line in lines if line.strip()]


@pytest.mark.parametrize("name", KINDS)
def test_ids_and_texts_are_equal_on_real_text_and_after_export(name: str, tmp_path: Path) -> None:
    CASES[name].tokens.trained(real_lines(), 600).save_pretrained(tmp_path)
    hf = transformers.AutoTokenizer.from_pretrained(tmp_path)
    ours = read_tokenizer(tmp_path, KINDS[name], CASES[name].ids(hf))
    lines = real_lines()[::3]
    assert len(lines) > 225
    unchanged = 0
    for line in lines:
        ids = hf(line)["input_ids"]
        text = hf.decode(ids, skip_special_tokens=True)
        assert ours.encode_question(line) == ids
        assert ours.encode(line) == hf(line, add_special_tokens=False)["input_ids"]
        assert ours.decode(ids) == text
        unchanged += text == line
    assert unchanged >= {"gpt2": 1.0, "llama-3": 1.0, "bart": 1.0, "bert": 0.0}.get(name, 0.95) * len(lines)
    assert ours.encode_batch(lines) == hf(lines, add_special_tokens=False)["input_ids"]

    old = read_json(tmp_path, "tokenizer.json")  # then as the first releases of `tokenizers` wrote it
    del old["model"]["type"]
    old["model"] |= {key: [*map(" ".join, pairs)] for key, pairs in old["model"].items() if key == "merges"}
    write_json(tmp_path / "tokenizer.json", {part: rules for part, rules in old.items() if rules and part != "version"})
    (tmp_path / "tokenizer_config.json").rename(tmp_path / ("unread" if name == "bert" else "tokenizer_config.json"))
    assert read_tokenizer(tmp_path, KINDS[name], CASES[name].ids(hf)).to_dict() == ours.to_dict()

    (tmp_path / "exported").mkdir()
    write_tokenizer(ours, tmp_path / "exported", [], KINDS[name], 64)
    exported = transformers.AutoTokenizer.from_pretrained(tmp_path / "exported")
    assert (exported.pad_token_id, exported.model_max_length) == (ours.special.pad, 64)


def test_settings_of_generation_and_padding_are_read_and_written_back(tmp_path: Path) -> None:
    CASES["llama-3"].tokens.trained(["to be or not to be"], 300).save_pretrained(tmp_path)
    settings = {"pad_token_id": 1, "eos_token_id": [1, 2], "max_new_tokens": 7,
                "forced_bos_token_id": 3, "forced_eos_token_id": 4, "bad_words_ids": [[5], [6]]}  # fmt: skip
    write_json(tmp_path / "generation_config.json", settings | {"bos_token_id": 5})  # not read: not the decoder's first
    older = dict.fromkeys(("eos_token_id", "forced_bos_token_id", "forced_eos_token_id"), 7)  # in config.json
    older |= {"force_bos_token_to_be_generated": True, "decoder_start_token_id": 0}
    tokenizer = read_tokenizer(tmp_path, "encoder_decoder", older)
    assert generation_settings(tokenizer, "encoder_decoder", 7) == settings | {"decoder_start_token_id": 0}
    write_json(tmp_path / "generation_config.json", {"suppress_tokens": [7]})
    special = read_tokenizer(tmp_path, "encoder_decoder", older).special_tokens
    assert (special.special.eos, special.forced_first, special.forced_last, special.never) == (1, None, None, (7,))
    write_json(tmp_path / "generation_config.json", {"eos_token_id": []})
    assert read_tokenizer(tmp_path, "decoder_only", older).special[:3] == (tokenizer.vocab_size - 1, 0, -1), "no <eos>"
    ours = read_tokenizer(tmp_path, "decoder_only", {"pad_token_id": 5000})  # a table may have more rows than tokens
    write_tokenizer(ours, tmp_path, [], "decoder_only", 64)
    assert transformers.AutoTokenizer.from_pretrained(tmp_path).pad_token is None
    (tmp_path / "generation_config.json").unlink()
    for config in (older, older | {"bos_token_id": 5}):  # the default of BART is 0
        theirs = transformers.GenerationConfig.from_model_config(transformers.BartConfig(**config))
        kinds = ("encoder_decoder", "decoder_only")
        first, other = (read_tokenizer(tmp_path, kind, config).special_tokens.forced_first for kind in kinds)
        assert (first, other) == (theirs.forced_bos_token_id, None) == (config.get("bos_token_id", 0), None)


def test_a_template_is_found_whatever_the_tokenizer_knows(tmp_path: Path) -> None:
    """And is all that decides about the tokens around a text, as in transformers 5."""
    backend = library.Tokenizer(models.BPE(vocab={"<s>": 0, "A": 1, "C": 2}, merges=[]))
    backend.add_special_tokens(["<s>"])
    backend.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    for flag in (None, True, False):
        transformers.PreTrainedTokenizerFast(tokenizer_object=backend, bos_token="<s>").save_pretrained(tmp_path)
        settings = read_json(tmp_path, "tokenizer_config.json") | {"add_bos_token": flag, "add_eos_token": flag}
        write_json(tmp_path / "tokenizer_config.json", settings)
        theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
        ours = read_tokenizer(tmp_path, "decoder_only", {})
        assert ours.encode_question("AC") == theirs("AC")["input_ids"] == [0, 1, 2], flag


def test_a_text_is_encoded_whole(tmp_path: Path) -> None:
    """SentencePiece puts a space before each text or part between special tokens, or before each word (T5)."""
    CASES["t5"].tokens.trained(["to be or not to be"], 300).save_pretrained(tmp_path)
    ours, text = read_tokenizer(tmp_path, "decoder_only", {}), "to be</s>be\n" * 800
    backend = ours.to_dict()["backend"]
    prepended = {"pre_tokenizer": None, "normalizer": {"type": "Prepend", "prepend": "\u2581"}}
    words = {"type": "Sequence", "pretokenizers": [{"type": "WhitespaceSplit"}, backend["pre_tokenizer"]]}
    for rules in ({}, prepended, {"pre_tokenizer": words}):
        each = Tokenizer(library.Tokenizer.from_str(json.dumps(backend | rules)), ours.special_tokens)
        chunks = Chunk([text[:600]], True, 0), Chunk([text[600:1205]], True, 0), Chunk([text[1205:]], False, 0)
        assert [token for part in _encoded(iter(chunks), each) for token in part] == each.encode(text)
