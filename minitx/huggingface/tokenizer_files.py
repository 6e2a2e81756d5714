"""Their tokenizers with our names for what is special, and ours with theirs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from minitx.config.errors import ConfigError
from minitx.data.special_tokens import SpecialIds, SpecialTokens
from minitx.data.tokenizers import Tokenizer
from minitx.huggingface.hub_files import settings

NONE = -1


def read_tokenizer(folder: Path, architecture: str, config: Mapping[str, Any]) -> Tokenizer:
    """The tokenizer of a folder, with everything that its model was used to.

    Args:
        folder: with tokenizer.json; tokenizer_config.json and generation_config.json where there are any.
        architecture: of our model.
        config: their config.json.

    Raises:
        ConfigError: no tokenizer.json, a damaged one, or no token that the architecture cannot do without.
    """
    plain = settings(folder, "tokenizer.json")
    if not plain:
        raise ConfigError(f"{folder} has no tokenizer.json: save it as a fast tokenizer (save_pretrained writes one)")
    nothing = SpecialTokens(SpecialIds(*[NONE] * len(SpecialIds._fields)))
    bare = Tokenizer.from_dict({"backend": plain, "conventions": nothing.to_dict()})
    told = settings(folder, "special_tokens_map.json") | settings(folder, "tokenizer_config.json")
    generation = settings(folder, "generation_config.json")

    def token(name: str) -> int:
        """The id of a special token, by the tokenizer's own words."""
        spelt = told.get(f"{name}_token")
        spelt = spelt.get("content") if isinstance(spelt, dict) else spelt
        found = bare.id_of(spelt) if isinstance(spelt, str) else None
        return NONE if found is None else found

    def number(name: str) -> Any:
        """A setting of generation, which config.json may tell as well."""
        return generation.get(name) if generation.get(name) is not None else config.get(name)

    prefix, suffix = bare.template()
    if "add_bos_token" in told or "add_eos_token" in told:
        prefix = (token("bos"),) if told.get("add_bos_token") and token("bos") != NONE else ()
        suffix = (token("eos"),) if told.get("add_eos_token") and token("eos") != NONE else ()
    ends = number("eos_token_id")
    ends = [token("eos")] if ends is None else ends if isinstance(ends, list) else [ends]
    pad = config.get("pad_token_id")
    ids = {"pad": token("pad") if pad is None else pad, "bos": token("bos"), "eos": ends[0]}
    if architecture == "encoder_only":
        ids |= {"bos": token("cls"), "eos": token("sep")}
    if architecture == "encoder_decoder":
        start = number("decoder_start_token_id")
        if start is None:
            raise ConfigError(f"{folder} does not tell decoder_start_token_id, which its decoder begins with")
        ids["bos"] = start
    ids |= {name: token(name) for name in ("sep", "unk", "mask")}
    if ids["pad"] == NONE:
        ids["pad"] = max(ids["eos"], 0)  # GPT-2 and Llama have none: what stands in the place of padding is never read
    needed = {"encoder_only": ("mask",), "decoder_only": (), "encoder_decoder": ("eos",)}[architecture]
    for name in needed:
        if ids[name] == NONE:
            raise ConfigError(f"{folder} does not tell {name}_token, which {architecture} needs")
    never = [words[0] for words in generation.get("bad_words_ids") or [] if len(words) == 1]
    last = number("forced_eos_token_id")
    conventions = SpecialTokens(
        SpecialIds(**ids),
        prefix,
        suffix,
        tuple(ends[1:]),
        number("forced_bos_token_id"),
        last[0] if isinstance(last, list) else last,
        tuple(never),
    )
    return Tokenizer.from_dict({"backend": plain, "conventions": conventions.to_dict()})


def write_tokenizer(tokenizer: Tokenizer, folder: Path, kind: str, architecture: str, longest: int) -> None:
    """tokenizer.json and tokenizer_config.json, as PreTrainedTokenizerFast loads them.

    Args:
        tokenizer: ours, or one that was imported.
        folder: where.
        kind: what the task yields.
        architecture: of the model.
        longest: tokens that the model takes.
    """
    plain = tokenizer.to_dict()
    if tokenizer.imported:
        plain = plain["backend"]
    else:
        plain |= {"added_tokens": _added(tokenizer), "post_processor": _template(tokenizer, kind, architecture)}
    special = tokenizer.special._asdict()
    if architecture == "encoder_only" and tokenizer.imported:
        special |= {"cls": special["bos"], "bos": NONE, "eos": NONE}
    spelt = {f"{name}_token": tokenizer.tokens([index])[0] for name, index in special.items() if index != NONE}
    told = {
        **spelt, "tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": longest,
        "padding_side": "left" if architecture == "decoder_only" else "right", "clean_up_tokenization_spaces": False,
    }  # fmt: skip
    write_json(folder / "tokenizer.json", plain)
    write_json(folder / "tokenizer_config.json", told)


def generation_settings(tokenizer: Tokenizer, architecture: str, most: int) -> dict[str, Any]:
    """generation_config.json: what stands at the beginning and at the end of what is written.

    Args:
        tokenizer: of the model.
        architecture: of the model.
        most: tokens to write where nobody says.
    """
    special, conventions = tokenizer.special, tokenizer.special_tokens
    ends = [special.eos, *conventions.other_ends]
    told: dict[str, Any] = {
        "pad_token_id": special.pad, "eos_token_id": ends[0] if len(ends) == 1 else ends, "max_new_tokens": most,
        "forced_bos_token_id": conventions.forced_first, "forced_eos_token_id": conventions.forced_last,
        "bad_words_ids": [[token] for token in conventions.never] or None,
    }  # fmt: skip
    start = "decoder_start_token_id" if architecture == "encoder_decoder" else "bos_token_id"
    told[start] = special.bos if special.bos != NONE else None
    return {name: value for name, value in told.items() if value is not None}


def _added(tokenizer: Tokenizer) -> list[dict[str, Any]]:
    """Our special tokens, declared as such."""
    shape = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    ids = sorted(tokenizer.special)
    return [{"id": index, "content": token, **shape} for index, token in zip(ids, tokenizer.tokens(ids), strict=True)]


def _template(tokenizer: Tokenizer, kind: str, architecture: str) -> dict[str, Any] | None:
    """A decoder alone reads its question up to <sep>; nothing stands around other texts of ours."""
    if kind != "pairs" or architecture != "decoder_only":
        return None
    (separator,) = tokenizer.tokens([tokenizer.special.sep])
    single = [{"Sequence": {"id": "A", "type_id": 0}}, {"SpecialToken": {"id": separator, "type_id": 0}}]
    special = {separator: {"id": separator, "ids": [tokenizer.special.sep], "tokens": [separator]}}
    pair = [*single, {"Sequence": {"id": "B", "type_id": 0}}]
    return {"type": "TemplateProcessing", "single": single, "pair": pair, "special_tokens": special}


def write_json(path: Path, plain: Mapping[str, Any]) -> None:
    """A JSON file that a person can read."""
    path.write_text(json.dumps(plain, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
