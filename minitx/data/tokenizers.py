"""Text to ids and back, on the `tokenizers` library, and the special tokens around a text.

A tokenizer converts to plain JSON and back, so a checkpoint contains it and needs no other file. A tokenizer trained
here has the special ids alone; an imported one also the prefix, suffix and forced tokens of its model's training.
"""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from textwrap import shorten
from typing import Any, NamedTuple, Self

import tokenizers
from tokenizers import decoders, models, pre_tokenizers

from minitx.config.errors import ConfigError


class SpecialIds(NamedTuple):
    """Ids of the tokens that are not text; -1 if an imported tokenizer lacks one."""

    pad: int
    bos: int
    eos: int
    sep: int
    unk: int
    mask: int


@dataclass(frozen=True)
class SpecialTokens:
    """The special tokens of a model's inputs and outputs, as ids."""

    special: SpecialIds
    """bos is the first token that the decoder of an encoder-decoder reads, whatever its name elsewhere."""
    prefix: tuple[int, ...] = ()
    """Before every input text: <s> of Llama, [CLS] of BERT."""
    suffix: tuple[int, ...] = ()
    """After every input text: [SEP] of BERT, </s> of T5."""
    other_ends: tuple[int, ...] = ()
    """Further tokens that end an output."""
    forced_first: int | None = None
    """First token of every answer (forced_bos_token_id)."""
    forced_last: int | None = None
    """Last token of an answer that reaches the maximum length (forced_eos_token_id)."""
    never: tuple[int, ...] = ()
    """Tokens that are never generated (bad_words_ids of one token)."""

    def question(self, ids: Iterable[int]) -> list[int]:
        """An input text with its prefix and suffix."""
        return [*self.prefix, *ids, *self.suffix]

    def answer(self, ids: Iterable[int]) -> list[int]:
        """An output of an encoder-decoder, with its prefix and without the final <eos>."""
        return [*self.prefix, *ids]

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types."""
        plain = {name: [*value] if isinstance(value, tuple) else value for name, value in vars(self).items()}
        return plain | {"special": self.special._asdict()}

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any]) -> Self:
        """The inverse of to_dict."""
        values: dict[str, Any] = {k: tuple(value) if isinstance(value, list) else value for k, value in plain.items()}
        return cls(**values | {"special": SpecialIds(**plain["special"])})


SPECIAL_TOKENS = tuple(f"<{name}>" for name in SpecialIds._fields)
"""<pad>, <bos>, <eos>, <sep>, <unk>, <mask>: the first tokens of every vocabulary."""
MASK, SEPARATOR = "<mask>", "<sep>"
MAX_LISTED = 300  # characters of a vocabulary in a message
# In the alphabet of ByteLevel: a continuation byte of UTF-8 (0x80 to 0xBF), and a character beyond ASCII.
TRAIL = "[\u00a1-\u00ac\u00ae-\u00bf\u0122-\u0143]"
CHARACTER = re.compile(f"(?:[\u00c2-\u00df]|[\u00e0-\u00ef]{TRAIL}|[\u00f0-\u00f4]{TRAIL}{TRAIL}){TRAIL}")


class Tokenizer:
    """A vocabulary and the rules that cut text into its tokens, on a tokenizer of the `tokenizers` library.

    `special_tokens` are given for an imported tokenizer, which has other names for them; text may contain them.
    """

    def __init__(self, backend: tokenizers.Tokenizer, special_tokens: SpecialTokens | None = None) -> None:
        self.imported = special_tokens is not None
        backend.no_padding()  # of a file that was written for other models
        backend.no_truncation()
        if special_tokens is None:
            ids: list[Any] = [backend.token_to_id(token) for token in SPECIAL_TOKENS]
            if None in ids:
                raise ConfigError(f"a tokenizer needs the special tokens {' '.join(SPECIAL_TOKENS)}")
            special_tokens = SpecialTokens(SpecialIds(*ids))
        self.backend, self.special_tokens = backend, special_tokens
        words = isinstance(backend.decoder, decoders.Fuse) and any(len(word) > 1 for word in self.alphabet)
        self.accepts_unknown = self.imported or words  # as in training; an unknown symbol or character is a mistake

    def check_fits(self, rows: int) -> None:
        """Refuse an id that an embedding with these rows lacks."""
        own, vocabulary = self.special_tokens, self.backend.get_vocab().values()
        ids = [*own.prefix, *own.suffix, *own.other_ends, *own.never, own.forced_first, own.forced_last]
        ids = [*vocabulary, *(id for id in ids if id is not None), *(id for id in own.special if id != -1)]
        if wrong := [id for id in ids if type(id) is not int or not 0 <= id < rows]:
            raise ConfigError(f"its tokenizer has the id {wrong[0]!r:.30}, and its model the ids 0 to {rows - 1:,}")

    @property
    def special(self) -> SpecialIds:
        """Ids of the tokens that are not text."""
        return self.special_tokens.special

    @property
    def vocab_size(self) -> int:
        """Number of tokens, special ones included."""
        return self.backend.get_vocab_size()

    @property
    def separator(self) -> str | None:
        """The text between tokens: a space between symbols, else none; None if an imported tokenizer decides it."""
        if self.imported:
            return None
        return " " if isinstance(self.backend.pre_tokenizer, pre_tokenizers.WhitespaceSplit) else ""

    @property
    def alphabet(self) -> list[str]:
        """Every token of text, by id."""
        return self.tokens(token for token in range(self.vocab_size) if token not in self.special)

    def encode(self, text: str) -> list[int]:
        """Ids of a text; a ConfigError for a piece outside the vocabulary, unless accepts_unknown."""
        try:
            encoding = self.backend.encode(text, add_special_tokens=False)
        except TypeError:  # a lone surrogate, as Python reads a byte that it cannot decode
            must, hint = ("UTF-8", "") if isinstance(text, str) else ("a str", "; prompts of ids are a list of lists")
            raise ConfigError(f"a text must be {must}, got {text!r:.80}{hint}") from None
        for token, (start, end) in zip(encoding.ids, encoding.offsets, strict=True):
            if token in self.special and not self.accepts_unknown:
                piece = text[start:end]
                if self.separator and {*piece} <= {*self.alphabet}:
                    raise ConfigError(f"{piece!r} is no symbol: put spaces between symbols, as in {' '.join(piece)!r}")
                plain = (each if each.isprintable() and not each.isspace() else repr(each) for each in self.alphabet)
                listed = shorten(" ".join(plain), MAX_LISTED, placeholder=" ...")
                raise ConfigError(f"{piece!r} is not in the tokenizer's alphabet, which is: {listed}")
        return encoding.ids

    @cached_property
    def continuing(self) -> "Tokenizer":
        """The tokenizer of text that continues other text."""
        if not self.imported:
            return self
        from minitx.data.text.continuing import without_first_space  # an extra

        plain = without_first_space(json.loads(self.backend.to_str()))
        return Tokenizer(tokenizers.Tokenizer.from_str(json.dumps(plain)), self.special_tokens)

    def encode_question(self, text: str) -> list[int]:
        """Ids of an input text, with the special tokens that its model expects; errors as for encode."""
        return self.special_tokens.question(self.encode(text))

    def encode_answer(self, text: str, kind: str = "pairs") -> list[int]:
        """Ids of an answer without its <eos>, of a continuation, or of a text without masks; errors as for encode."""
        framing = {"pairs": self.special_tokens.answer, "masked": self.special_tokens.question}
        return framing[kind](self.encode(text)) if kind in framing else self.continuing.encode(text)

    def encode_masked(self, text: str) -> list[int]:
        """Ids of an input text in which <mask> stands for masked tokens; errors as for encode."""
        if self.imported:
            mask = self.tokens([self.special.mask])[0] if self.special.mask >= 0 else MASK
            return self.encode_question(text.replace(MASK, mask))
        first, *others = (self.encode(piece) if piece else [] for piece in text.split(MASK))
        return first + [token for piece in others for token in (self.special.mask, *piece)]

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Ids of many texts of a corpus; unknown pieces become <unk>."""
        return [encoding.ids for encoding in self.backend.encode_batch_fast(list(texts), add_special_tokens=False)]

    def decode(self, ids: Iterable[int]) -> str:
        """The text of ids, without special tokens; <unk> is kept, unless it is another of them too, as in GPT-2."""
        hidden = {*self.special._replace(unk=-1)}
        return self.backend.decode([token for token in ids if token not in hidden])

    def decode_after(self, before: Sequence[int], ids: Sequence[int]) -> str:
        """The text of ids that continue others: a token that begins a word keeps its space."""
        if self.imported and (whole := self.decode([*before, *ids])).startswith(start := self.decode(before)):
            return whole[len(start) :]
        return self.decode(ids)

    def tokens(self, ids: Iterable[int]) -> list[str]:
        """Labels: the vocabulary's spelling of each id, special ones included, bytes of a character as text."""
        tokens = [str(self.backend.id_to_token(token)) for token in ids]
        if not isinstance(decoder := self.backend.decoder, decoders.ByteLevel):
            return tokens
        return [CHARACTER.sub(lambda spelled: decoder.decode([spelled[0]]), token) for token in tokens]

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types: the library's own format, and the special tokens of an imported tokenizer."""
        backend: dict[str, Any] = json.loads(self.backend.to_str())
        return {"backend": backend, "conventions": self.special_tokens.to_dict()} if self.imported else backend

    @classmethod
    def from_dict(cls, plain: dict[str, Any]) -> Self:
        """The inverse of to_dict; raises ConfigError for anything else, and for a tokenizer that is not safe to use."""
        try:
            special_tokens = SpecialTokens.from_dict(plain["conventions"]) if "conventions" in plain else None
            # Padding and truncation to the lengths of a file are never used, and may be of any size.
            backend = (plain if special_tokens is None else plain["backend"]) | {"padding": None, "truncation": None}
            plain_rules = all(backend.get(part) == rules for part, rules in SYMBOLS.items())
            if not plain_rules or backend["model"].get("type") != "WordLevel":  # old files have no type
                from minitx.data.text.tokenizer_checks import check

                check(backend)
            return cls(tokenizers.Tokenizer.from_str(json.dumps(backend)), special_tokens)
        except Exception as error:  # the library raises bare Exception
            raise ConfigError(f"the tokenizer cannot be read: {error!s:.300}") from None


SYMBOLS: dict[str, Any] = {"added_tokens": [], "pre_tokenizer": {"type": "WhitespaceSplit"}}
SYMBOLS |= dict.fromkeys(("normalizer", "post_processor", "decoder"))
"""Rules of the tokenizers of toy tasks, in the library's format."""


def symbols(names: Iterable[object]) -> Tokenizer:
    """The tokenizer of a toy task: `names`, as str spells them, separated by white space."""
    backend = tokenizers.Tokenizer(models.WordLevel(numbered_words(map(str, names)), unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return Tokenizer(backend)


def numbered_words(words: Iterable[str]) -> dict[str, int]:
    """Ids of words, the special tokens first."""
    return {word: index for index, word in enumerate([*SPECIAL_TOKENS, *words])}
