"""Text to ids and back, on the `tokenizers` library. The special ids stand here and nowhere else.

A tokenizer turns into plain JSON and back, so a checkpoint carries it and needs no other file.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any, Literal

import tokenizers
from tokenizers import models, normalizers, pre_tokenizers

from minitx.config.errors import ConfigError
from minitx.data.special_tokens import SpecialIds, SpecialTokens

SPECIAL_TOKENS = tuple(f"<{name}>" for name in SpecialIds._fields)
"""Their spelling: <pad>, <bos>, <eos>, <sep>, <unk>, <mask>; the first tokens of every vocabulary."""
MASK, SEPARATOR = "<mask>", "<sep>"
ANY_CHARACTER = r"[\s\S]"


class Tokenizer:
    """A vocabulary with its way of cutting text into tokens.

    Args:
        backend: a tokenizer of the `tokenizers` library whose vocabulary holds every special token.
        conventions: of an imported tokenizer, whose special tokens are spelt otherwise; text may hold them.
    """

    def __init__(self, backend: tokenizers.Tokenizer, conventions: SpecialTokens | None = None) -> None:
        self.imported = conventions is not None
        if conventions is None:
            ids = [backend.token_to_id(token) for token in SPECIAL_TOKENS]
            if any(index is None for index in ids):
                raise ConfigError(f"a tokenizer needs the special tokens {' '.join(SPECIAL_TOKENS)}")
            conventions = SpecialTokens(SpecialIds(*(int(index) for index in ids if index is not None)))
        self._backend, self.conventions = backend, conventions

    @property
    def special(self) -> SpecialIds:
        """The tokens that are not text."""
        return self.conventions.special

    @property
    def vocab_size(self) -> int:
        """Number of tokens, special ones included."""
        return self._backend.get_vocab_size()

    @property
    def unit(self) -> Literal["character", "byte"] | None:
        """What is one token each, whatever stands beside it; None where tokens are found by cutting text."""
        if self.imported:
            return None
        plain = self.to_dict()
        cut, model = plain["pre_tokenizer"] or {}, plain["model"]
        if model["type"] == "WordLevel" and cut.get("pattern") == {"Regex": ANY_CHARACTER}:
            return "character"
        return "byte" if model["type"] == "BPE" and not model["merges"] and cut.get("type") == "ByteLevel" else None

    @property
    def alphabet(self) -> list[str]:
        """Every token that text can turn into, by id."""
        ids = sorted(set(range(self.vocab_size)) - set(self.special))
        return self.tokens(ids)

    def encode(self, text: str) -> list[int]:
        """Ids of a text.

        Raises:
            ConfigError: a piece of text that the vocabulary does not hold; the message lists what it holds.
        """
        encoding = self._backend.encode(text, add_special_tokens=False)
        if self.imported:
            return encoding.ids
        for token, (start, end) in zip(encoding.ids, encoding.offsets, strict=True):
            if token in self.special:
                raise ConfigError(
                    f"{text[start:end]!r} is not in the tokenizer's alphabet, which is: {self._listing()}"
                )
        return encoding.ids

    def encode_question(self, text: str) -> list[int]:
        """Ids of a text that a model shall read, with what it is used to finding around it; errors as for encode."""
        return self.conventions.question(self.encode(text))

    def encode_answer(self, text: str) -> list[int]:
        """Ids of what a decoder beside an encoder shall write, without the <eos> behind; errors as for encode."""
        return self.conventions.answer(self.encode(text))

    def encode_masked(self, text: str) -> list[int]:
        """Ids of a text in which <mask> may stand for tokens that are not told; errors as for encode."""
        if self.imported:
            mask = self.tokens([self.special.mask])[0] if self.special.mask >= 0 else MASK
            return self.encode_question(text.replace(MASK, mask))
        first, *others = (self.encode(piece) if piece else [] for piece in text.split(MASK))
        return first + [token for piece in others for token in (self.special.mask, *piece)]

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Ids of many texts, for a corpus: unknown pieces become <unk>."""
        return [encoding.ids for encoding in self._backend.encode_batch_fast(list(texts), add_special_tokens=False)]

    def decode(self, ids: Iterable[int]) -> str:
        """The text of ids, without the special tokens."""
        return self._backend.decode([token for token in ids if token not in self.special])

    def decode_after(self, before: Sequence[int], ids: Sequence[int]) -> str:
        """The text of ids where they go on with others: a piece that begins a word begins with its space."""
        if self.imported:
            start, whole = self.decode(before), self.decode([*before, *ids])
            if whole.startswith(start):
                return whole[len(start) :]
        return self.decode(ids)

    def decode_masked(self, ids: Iterable[int]) -> str:
        """The text of ids, without the special tokens but for <mask>."""
        pieces: list[list[int]] = [[]]
        for token in ids:
            if token == self.special.mask:
                pieces.append([])
            else:
                pieces[-1].append(token)
        return MASK.join(map(self.decode, pieces))

    def tokens(self, ids: Iterable[int]) -> list[str]:
        """Each token as it is spelt in the vocabulary, special ones too: labels for pictures."""
        return [str(self._backend.id_to_token(token)) for token in ids]

    def id_of(self, token: str) -> int | None:
        """The id of a token as it is spelt in the vocabulary; None where there is none."""
        found: int | None = self._backend.token_to_id(token)
        return found

    def template(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """What the library itself, as it was set up elsewhere, puts before and behind a text."""
        plain, whole = (self._backend.encode("a", add_special_tokens=special).ids for special in (False, True))
        places = range(len(whole) - len(plain) + 1)
        start = next((place for place in places if whole[place : place + len(plain)] == plain), 0)
        return tuple(whole[:start]), tuple(whole[start + len(plain) :])

    def lowercased(self) -> Tokenizer:
        """The same vocabulary, for text that is turned into lower case first."""
        backend = tokenizers.Tokenizer.from_str(self._backend.to_str())
        backend.normalizer = normalizers.Lowercase()
        return Tokenizer(backend)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types: the library's own, and beside them the conventions where there are any."""
        backend: dict[str, Any] = json.loads(self._backend.to_str())
        return {"backend": backend, "conventions": self.conventions.to_dict()} if self.imported else backend

    @classmethod
    def from_dict(cls, plain: dict[str, Any]) -> Tokenizer:
        """The tokenizer of to_dict.

        Raises:
            ConfigError: not a tokenizer's description.
        """
        try:
            conventions = SpecialTokens.from_dict(plain["conventions"]) if "conventions" in plain else None
            backend = plain if conventions is None else plain["backend"]
            return cls(tokenizers.Tokenizer.from_str(json.dumps(backend)), conventions)
        except Exception as error:  # the library raises bare Exception
            raise ConfigError(f"the tokenizer cannot be read: {error}") from None

    def _listing(self) -> str:
        return " ".join(
            token if token.isprintable() and not token.isspace() else repr(token) for token in self.alphabet
        )


def symbols(names: Sequence[str]) -> Tokenizer:
    """The tokenizer of a toy task: symbols separated by white space."""
    backend = word_level(names)
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return Tokenizer(backend)


def numbered_words(words: Sequence[str]) -> dict[str, int]:
    """Ids of words, the special tokens first."""
    return {word: index for index, word in enumerate([*SPECIAL_TOKENS, *words])}


def word_level(words: Sequence[str]) -> tokenizers.Tokenizer:
    """A vocabulary of whole words, the special tokens first."""
    return tokenizers.Tokenizer(models.WordLevel(numbered_words(words), unk_token="<unk>"))
