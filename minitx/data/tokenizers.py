"""Text to ids and back, on the `tokenizers` library. The special ids stand here and nowhere else.

A tokenizer turns into plain JSON and back, so a checkpoint carries it and needs no other file.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import tokenizers
from tokenizers import Regex, decoders, models, pre_tokenizers


class SpecialIds(NamedTuple):
    """The tokens that are not text, each with its id."""

    pad: int
    bos: int
    eos: int
    sep: int
    unk: int
    mask: int


SPECIAL_TOKENS = tuple(f"<{name}>" for name in SpecialIds._fields)
"""Their spelling: <pad>, <bos>, <eos>, <sep>, <unk>, <mask>; the first tokens of every vocabulary."""
MASK = "<mask>"


class Tokenizer:
    """A vocabulary with its way of cutting text into tokens.

    Args:
        backend: a tokenizer of the `tokenizers` library whose vocabulary holds every special token.
    """

    def __init__(self, backend: tokenizers.Tokenizer) -> None:
        ids = [backend.token_to_id(token) for token in SPECIAL_TOKENS]
        if any(index is None for index in ids):
            raise ValueError(f"a tokenizer needs the special tokens {' '.join(SPECIAL_TOKENS)}")
        self._backend = backend
        self.special = SpecialIds(*(int(index) for index in ids if index is not None))

    @property
    def vocab_size(self) -> int:
        """Number of tokens, special ones included."""
        return self._backend.get_vocab_size()

    @property
    def alphabet(self) -> list[str]:
        """Every token that text can turn into, by id."""
        ids = sorted(set(range(self.vocab_size)) - set(self.special))
        return self.tokens(ids)

    def encode(self, text: str) -> list[int]:
        """Ids of a text.

        Raises:
            ValueError: a piece of text that the vocabulary does not hold; the message lists what it holds.
        """
        encoding = self._backend.encode(text)
        for token, (start, end) in zip(encoding.ids, encoding.offsets, strict=True):
            if token in self.special:
                raise ValueError(f"{text[start:end]!r} is not in the tokenizer's alphabet, which is: {self._listing()}")
        return encoding.ids

    def encode_masked(self, text: str) -> list[int]:
        """Ids of a text in which <mask> may stand for tokens that are not told; errors as for encode."""
        first, *others = (self.encode(piece) if piece else [] for piece in text.split(MASK))
        return first + [token for piece in others for token in (self.special.mask, *piece)]

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Ids of many texts, for a corpus: unknown pieces become <unk>."""
        return [encoding.ids for encoding in self._backend.encode_batch(list(texts))]

    def decode(self, ids: Iterable[int]) -> str:
        """The text of ids, without the special tokens."""
        return self._backend.decode([token for token in ids if token not in self.special])

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

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types."""
        return json.loads(self._backend.to_str())

    @classmethod
    def from_dict(cls, plain: dict[str, Any]) -> Tokenizer:
        """The tokenizer of to_dict.

        Raises:
            ValueError: not a tokenizer's description.
        """
        try:
            return cls(tokenizers.Tokenizer.from_str(json.dumps(plain)))
        except Exception as error:  # the library raises bare Exception
            raise ValueError(f"the tokenizer cannot be read: {error}") from None

    def _listing(self) -> str:
        return " ".join(repr(token) if token.isspace() else token for token in self.alphabet)


class CharTokenizer:
    """One token for each character of the corpus; newlines and spaces are characters like any other."""

    def train(self, texts: Iterable[Sequence[str]]) -> Tokenizer:
        """Collect the characters of batches of texts."""
        characters: set[str] = set()
        for batch in texts:
            characters.update(*batch)
        backend = _word_level(sorted(characters))
        backend.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
        backend.decoder = decoders.Fuse()
        return Tokenizer(backend)


TOKENIZERS: dict[str, type[CharTokenizer]] = {"char": CharTokenizer}
"""Tokenizers that are trained on a corpus, by data.tokenizer.name."""


def symbols(names: Sequence[str]) -> Tokenizer:
    """The tokenizer of a toy task: symbols separated by white space."""
    backend = _word_level(names)
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return Tokenizer(backend)


def _word_level(words: Sequence[str]) -> tokenizers.Tokenizer:
    """A vocabulary of whole words, the special tokens first."""
    vocabulary = {word: index for index, word in enumerate([*SPECIAL_TOKENS, *words])}
    return tokenizers.Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
