"""Their tokenizers with our names for what is special, and ours with theirs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from minitx.data.conventions import Conventions, SpecialIds
from minitx.data.tokenizers import Tokenizer
from minitx.huggingface.reading import settings

NONE = -1


def read_tokenizer(folder: Path, architecture: str, config: Mapping[str, Any]) -> Tokenizer:
    """The tokenizer of a folder, with everything that its model was used to.

    Args:
        folder: with tokenizer.json; tokenizer_config.json and generation_config.json where there are any.
        architecture: of our model.
        config: their config.json.

    Raises:
        ValueError: no tokenizer.json, a damaged one, or no token that the architecture cannot do without.
    """
    plain = settings(folder, "tokenizer.json")
    if not plain:
        raise ValueError(f"{folder} has no tokenizer.json: save it as a fast tokenizer (save_pretrained writes one)")
    nothing = Conventions(SpecialIds(*[NONE] * len(SpecialIds._fields)))
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
            raise ValueError(f"{folder} does not tell decoder_start_token_id, which its decoder begins with")
        ids["bos"] = start
    ids |= {name: token(name) for name in ("sep", "unk", "mask")}
    if ids["pad"] == NONE:
        ids["pad"] = max(ids["eos"], 0)  # GPT-2 and Llama have none: what stands in the place of padding is never read
    needed = {"encoder_only": ("mask",), "decoder_only": (), "encoder_decoder": ("eos",)}[architecture]
    for name in needed:
        if ids[name] == NONE:
            raise ValueError(f"{folder} does not tell {name}_token, which {architecture} needs")
    never = [words[0] for words in generation.get("bad_words_ids") or [] if len(words) == 1]
    last = number("forced_eos_token_id")
    conventions = Conventions(
        SpecialIds(**ids),
        prefix,
        suffix,
        tuple(ends[1:]),
        number("forced_bos_token_id"),
        last[0] if isinstance(last, list) else last,
        tuple(never),
    )
    return bare.with_conventions(conventions)
