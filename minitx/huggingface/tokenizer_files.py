"""Tokenizers in Hugging Face's files: tokenizer.json, tokenizer_config.json, generation_config.json."""

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers.processors import TemplateProcessing

from minitx.config.errors import ConfigError
from minitx.data.tokenizers import SPECIAL_TOKENS, SpecialIds, SpecialTokens, Tokenizer
from minitx.huggingface.hub_files import read_json, write_json

NO_TOKEN = -1  # the id of a special token that a tokenizer lacks


def read_tokenizer(folder: Path, architecture: str, config: Mapping[str, Any]) -> Tokenizer:
    """Read a tokenizer with the special tokens that its model was trained with; config is the config.json."""
    backend = read_json(folder, "tokenizer.json")
    if not backend:
        raise ConfigError(f"{folder} has no tokenizer.json: save it as a fast tokenizer (save_pretrained writes one)")

    none = SpecialTokens(SpecialIds(*[NO_TOKEN] * len(SpecialIds._fields)))
    bare = Tokenizer.from_dict({"backend": backend, "conventions": none.to_dict()})
    settings = read_json(folder, "special_tokens_map.json") | read_json(folder, "tokenizer_config.json")
    generation = read_json(folder, "generation_config.json")

    def token(name: str) -> int:
        """The id of a special token."""
        # Early BERT files do not name their special tokens.
        spelling = settings.get(f"{name}_token", f"[{name.upper()}]" if architecture == "encoder_only" else None)
        spelling = spelling.get("content") if isinstance(spelling, dict) else spelling
        index = bare.backend.token_to_id(spelling) if isinstance(spelling, str) else None
        return NO_TOKEN if index is None else index

    prefix, suffix = _template(bare)
    defaults = generation or config  # transformers reads config.json only without generation_config.json
    ends = defaults.get("eos_token_id")
    ends = token("eos") if ends is None else ends
    ends = (ends or [NO_TOKEN]) if isinstance(ends, list) else [ends]
    ids: dict[str, Any] = {name: token(name) for name in SpecialIds._fields} | {"eos": ends[0]}
    if config.get("pad_token_id") is not None:
        ids["pad"] = config["pad_token_id"]
    if architecture == "encoder_only" and token("cls") != NO_TOKEN:
        ids |= {"bos": token("cls"), "eos": token("sep")}
    if architecture == "encoder_decoder":
        ids["bos"] = start = generation.get("decoder_start_token_id", config.get("decoder_start_token_id"))
        if not isinstance(start, int):
            found = "no" if start is None else f"{start!s:.50} as its"
            raise ConfigError(f"{folder} has {found} decoder_start_token_id, the first token of its decoder")
    rows = config.get("vocab_size") or sys.maxsize
    if ids["pad"] == NO_TOKEN or (isinstance(ids["pad"], int) and ids["pad"] >= rows):
        # GPT-2 and Llama have none, and padding is masked. Decoded text lacks it: the last choice is a rare token.
        last = min(rows, bare.vocab_size) - 1
        ids["pad"] = next(index for index in (ids["eos"], ids["unk"], last) if index >= 0)
    required = {"encoder_only": "mask", "encoder_decoder": "eos"}.get(architecture)
    if required and ids[required] == NO_TOKEN:
        raise ConfigError(f"{folder} has no {required}_token, which {architecture} requires")
    forced_first, forced_last = defaults.get("forced_bos_token_id"), defaults.get("forced_eos_token_id")
    if defaults is config and config.get("force_bos_token_to_be_generated"):  # early BART files
        forced_first = config.get("bos_token_id", 0)
    if architecture != "encoder_decoder":
        forced_first = None  # transformers forces the decoder's second token, which is in a decoder-only model's prompt
    forced_last = forced_last[0] if isinstance(forced_last, list) else forced_last
    banned = [*(defaults.get("bad_words_ids") or []), *([token] for token in defaults.get("suppress_tokens") or [])]
    never = tuple(words[0] for words in banned if len(words) == 1)
    added = bare.backend.get_added_tokens_decoder()
    if beyond := {token.content for index, token in added.items() if index >= rows}:  # one for images in Gemma 3
        backend["added_tokens"] = [token for token in backend["added_tokens"] if token["content"] not in beyond]
        bare = Tokenizer.from_dict({"backend": backend, "conventions": none.to_dict()})
    special = SpecialTokens(SpecialIds(**ids), prefix, suffix, tuple(ends[1:]), forced_first, forced_last, never)
    return Tokenizer(bare.backend, special)


def _template(tokenizer: Tokenizer) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Ids that the library's own post-processor puts before and after a text."""
    encode, added = tokenizer.backend.encode, tokenizer.backend.get_added_tokens_decoder().values()
    words = ["a", *{*tokenizer.backend.get_vocab()}.difference(token.content for token in added)]
    known = next((word for word in words if encode(word, add_special_tokens=False).ids), "")
    plain, whole = (encode(known, add_special_tokens=special).ids for special in (False, True))
    offsets = range(len(whole) - len(plain) + 1)
    start = next((offset for offset in offsets if whole[offset : offset + len(plain)] == plain), 0)
    return tuple(whole[:start]), tuple(whole[start + len(plain) :])


def write_tokenizer(
    tokenizer: Tokenizer, folder: Path, question: list[int], architecture: str, max_length: int
) -> None:
    """Write tokenizer.json and tokenizer_config.json for PreTrainedTokenizerFast.

    `question` is an encoded question, in which <unk> marks the place of the text.
    """
    backend, special = tokenizers.Tokenizer.from_str(tokenizer.backend.to_str()), tokenizer.special._asdict()
    if not tokenizer.imported:
        backend.add_special_tokens([*SPECIAL_TOKENS])
        ids = dict(zip(tokenizer.tokens(question), question, strict=True))
        single = " ".join(ids).replace("<unk>", "$A")
        options = {"single": single, "pair": f"{single} $B:0", "special_tokens": [*ids.items()]}
        backend.post_processor = TemplateProcessing(**options) if len(question) > 1 else None
    elif architecture == "encoder_only":
        special |= {"cls": special["bos"], "bos": NO_TOKEN, "eos": NO_TOKEN}
    elif architecture == "encoder_decoder":
        special["bos"] = NO_TOKEN  # that is the decoder's first token
    spelled = {name: tokenizer.backend.id_to_token(index) for name, index in special.items() if index != NO_TOKEN}
    names = {f"{name}_token": token for name, token in spelled.items() if token is not None}
    write_json(folder / "tokenizer.json", json.loads(backend.to_str()))
    write_json(folder / "tokenizer_config.json", {
        **names, "tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": max_length,
        "padding_side": "left" if architecture == "decoder_only" else "right", "clean_up_tokenization_spaces": False,
    })  # fmt: skip


def special_ids(tokenizer: Tokenizer, architecture: str) -> dict[str, int | None]:
    """The special tokens in config.json and generation_config.json; None for one that the tokenizer lacks."""
    special = tokenizer.special
    ids = {"pad_token_id": special.pad, "bos_token_id": special.bos, "eos_token_id": special.eos}
    if architecture == "encoder_decoder":
        ids |= {"decoder_start_token_id": special.bos, "bos_token_id": NO_TOKEN if tokenizer.imported else special.bos}
    return {name: None if index == NO_TOKEN else index for name, index in ids.items()}


def generation_settings(tokenizer: Tokenizer, architecture: str, max_new_tokens: int) -> dict[str, Any]:
    """The generation_config.json of a model."""
    tokens = tokenizer.special_tokens
    settings: dict[str, Any] = {
        **special_ids(tokenizer, architecture), "max_new_tokens": max_new_tokens,
        "forced_bos_token_id": tokens.forced_first,
        "forced_eos_token_id": tokens.forced_last, "bad_words_ids": [[token] for token in tokens.never] or None,
    }  # fmt: skip
    if tokens.other_ends:
        settings["eos_token_id"] = [tokenizer.special.eos, *tokens.other_ends]
    return {name: value for name, value in settings.items() if value is not None}
