"""Tokenizers that are trained on a corpus: characters, bytes, words, byte pairs, unigram pieces.

Those of characters and bytes, each of which is always one token, also have a lookup table, a hundred times as fast.
"""

import json
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, NamedTuple

import numpy as np
import tokenizers
from annotated_types import Interval
from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers, trainers

from minitx.config.registry import LazyRegistry
from minitx.config.validation import MAX_SIZE, Size
from minitx.data.text.readers import pieces
from minitx.data.tokenizers import SPECIAL_TOKENS, Tokenizer, numbered_words

ALPHABET = sorted(pre_tokenizers.ByteLevel.alphabet())  # a printable character for each byte
ANY_CHARACTER = r"[\s\S]"
_LOWERCASE = normalizers.Lowercase()


class CharTokenizer:
    """One token for each character of the corpus, newlines and spaces included."""

    sample: ClassVar[int | None] = None
    """Megabytes of text to train on, at most; None for the whole corpus, so that no character is unknown."""

    def train(self, texts: Iterable[Sequence[str]]) -> Tokenizer:
        """Collect the characters of batches of texts."""
        seen = np.zeros(sys.maxunicode + 1, dtype=bool)
        for batch in texts:
            seen[code_points("".join(batch))] = True
        return _cut_by(ANY_CHARACTER, [chr(number) for number in seen.nonzero()[0]])


class ByteTokenizer:
    """One token for each byte of the text in UTF-8: any text, 256 tokens besides the special ones."""

    sample: ClassVar[int | None] = None
    """Unused: train reads no text."""

    def train(self, texts: Iterable[Sequence[str]]) -> Tokenizer:
        """Return the fixed vocabulary."""
        return Tokenizer(_byte_level(models.BPE(numbered_words(ALPHABET), []), split=False))


@dataclass
class WordTokenizer:
    """One token for each of the most frequent words, runs of punctuation and white spaces; others become <unk>."""

    size: Size = 10_000  # words at most
    sample: Size = 100  # megabytes at most, evenly spread over a longer text

    def train(self, texts: Iterable[Sequence[str]]) -> Tokenizer:
        """Count the words."""
        pattern = r"\s|\w+|[^\w\s]+"
        trainer = trainers.WordLevelTrainer(vocab_size=self.size, show_progress=False)
        learned = _learned(_cut_by(pattern, []).backend, trainer, texts)
        return _cut_by(pattern, sorted(learned["vocab"], key=learned["vocab"].get))


@dataclass
class _Subwords:
    """Pieces of words, learned from a sample of the text."""

    size: Annotated[int, Interval(ge=256 + len(SPECIAL_TOKENS), le=MAX_SIZE)] = 4096  # bytes, special tokens included
    sample: Size = 100  # megabytes at most

    def _train(self, trainer: Callable[..., Any], model: Any, texts: Iterable[Sequence[str]]) -> dict[str, Any]:
        options = {"vocab_size": self.size - len(SPECIAL_TOKENS), "initial_alphabet": ALPHABET, "show_progress": False}
        return _learned(_byte_level(model), trainer(**options), texts)


@dataclass
class BPETokenizer(_Subwords):
    """Bytes, with the most frequent pairs merged (byte pair encoding; Sennrich et al. 2016, GPT-2)."""

    def train(self, texts: Iterable[Sequence[str]]) -> Tokenizer:
        """Find the merges."""
        learned = self._train(trainers.BpeTrainer, models.BPE(), texts)
        words = sorted(learned["vocab"], key=learned["vocab"].get)
        return Tokenizer(_byte_level(models.BPE(numbered_words(words), [*map(tuple, learned["merges"])])))


@dataclass
class UnigramTokenizer(_Subwords):
    """The pieces under which the text is most probable (unigram language model; Kudo 2018, T5), on bytes."""

    def train(self, texts: Iterable[Sequence[str]]) -> Tokenizer:
        """Find the pieces."""
        learned = self._train(trainers.UnigramTrainer, models.Unigram(), texts)
        # The trainer sums in an order that varies from run to run, so the last digits of the scores vary, and so do the
        # scores of unused bytes, which lie slightly above the lowest score.
        pairs = [pair for pair in learned["vocab"] if None not in pair]  # of a text without pieces no score is finite
        scores = {piece: round(score, 4) for piece, score in pairs}
        lowest = min(scores.values(), default=0.0)
        specials = [(token, lowest) for token in SPECIAL_TOKENS]  # never in a word, see _learned
        single = [(byte, score if (score := scores.get(byte, lowest)) > lowest + 0.1 else lowest) for byte in ALPHABET]
        longer = [(piece, score) for piece, score in scores.items() if len(piece) > 1]
        longer.sort(key=lambda pair: (-pair[1], pair[0]))
        words = [*specials, *single, *longer[: self.size - len(specials) - len(single)]]
        return Tokenizer(_byte_level(models.Unigram(words, SPECIAL_TOKENS.index("<unk>"))))


TOKENIZERS = LazyRegistry(
    char=CharTokenizer, byte=ByteTokenizer, word=WordTokenizer, bpe=BPETokenizer, unigram=UnigramTokenizer
)
"""Tokenizers by data.tokenizer.name."""
register = TOKENIZERS.register
"""Decorator that adds a class with `sample` and `train`, as those above, under a name for data.tokenizer."""


def _learned(backend: tokenizers.Tokenizer, trainer: Any, texts: Iterable[Sequence[str]]) -> dict[str, Any]:
    # Special tokens are added later: the library would find them in text that spells them. No word is one of them,
    # since the patterns cut their brackets off.
    backend.train_from_iterator(([piece for text in batch for piece in pieces(text)] for batch in texts), trainer)
    learned: dict[str, Any] = json.loads(backend.to_str())["model"]
    return learned


def _cut_by(pattern: str, words: list[str]) -> Tokenizer:
    """A tokenizer with one token for each of these words, which are the matches of a pattern."""
    backend = tokenizers.Tokenizer(models.WordLevel(numbered_words(words), unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.Split(Regex(pattern), "isolated")
    backend.decoder = decoders.Fuse()
    return Tokenizer(backend)


def _byte_level(model: Any, split: bool = True) -> tokenizers.Tokenizer:
    """A library tokenizer on the bytes of the text, cut into words first if `split`.

    No word spans a line break, so wherever a text is cut at line breaks, its tokens are the same.
    """
    backend = tokenizers.Tokenizer(model)
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=split)
    if split:
        lines = pre_tokenizers.Split("\n", "merged_with_previous")
        backend.pre_tokenizer = pre_tokenizers.Sequence([lines, backend.pre_tokenizer])
    backend.decoder = decoders.ByteLevel()
    return backend


def code_points(text: str) -> np.ndarray:
    """The code point of each character."""
    if text.isascii():
        return np.frombuffer(text.encode("ascii"), np.uint8)
    return np.frombuffer(text.encode("utf-32-le"), np.uint32)


class Lookup(NamedTuple):
    """The ids of a tokenizer that has one token for each character, or one for each byte."""

    table: np.ndarray  # by code point, or by byte; the last entry is for all larger code points
    by_byte: bool

    def __call__(self, texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        """The concatenated ids of texts, and the number of ids of each text."""
        if self.by_byte:
            parts = [text.encode() for text in texts]
            return self.table[np.frombuffer(b"".join(parts), np.uint8)], np.array([*map(len, parts)], dtype=np.int64)
        indices = code_points("".join(texts))
        if indices.itemsize > 1:
            indices = np.minimum(indices, len(self.table) - 1)
        return self.table[indices], np.array([*map(len, texts)], dtype=np.int64)


def lower(text: str) -> str:
    """Lowercase each character alone, as `lowercased` tokenizers do; str.lower writes a final Greek sigma as ς."""
    return _LOWERCASE.normalize_str(text)


def lowercased(tokenizer: Tokenizer) -> Tokenizer:
    """The same tokenizer with lowercasing before its own normalizers."""
    rules = [tokenizer.backend.normalizer] if tokenizer.backend.normalizer else []
    if rules and "A" not in rules[0].normalize_str("A"):
        return tokenizer
    backend = tokenizers.Tokenizer.from_str(tokenizer.backend.to_str())
    backend.normalizer = normalizers.Sequence([_LOWERCASE, *rules]) if rules else _LOWERCASE
    return Tokenizer(backend, tokenizer.special_tokens if tokenizer.imported else None)


def lookup(tokenizer: Tokenizer) -> Lookup | None:
    """The table of a tokenizer for characters or bytes; None if a token's extent depends on its context."""
    plain = tokenizer.to_dict()
    if tokenizer.imported or plain["normalizer"]:  # lowercase turns some characters into two
        return None
    rule, model = plain["pre_tokenizer"] or {}, plain["model"]
    if model["type"] == "WordLevel" and rule.get("pattern") == {"Regex": ANY_CHARACTER}:
        known = {ord(token): index for token, index in tokenizer.backend.get_vocab().items() if len(token) == 1}
        table = np.full(max([*known, 255]) + 2, tokenizer.special.unk, dtype=np.uint32)
        table[list(known)] = list(known.values())
        return Lookup(table, by_byte=False)
    if model["type"] == "BPE" and not model["merges"] and rule.get("type") == "ByteLevel":
        # A text with every byte that occurs in UTF-8: all continuation bytes, and all lead bytes of 2, 3 and 4.
        points = [*range(0x800), *range(0x800, 0xD800, 0x400), *range(0xE000, 0x110000, 0x1000)]
        text = "".join(map(chr, points))
        table = np.full(256, tokenizer.special.unk, dtype=np.uint32)
        table[np.frombuffer(text.encode(), np.uint8)] = tokenizer.encode(text)
        return Lookup(table, by_byte=True)
    return None
