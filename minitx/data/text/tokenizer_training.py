"""Tokenizers that are trained on a corpus: by characters, bytes, words, byte pairs, a unigram language model."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

import numpy as np
import tokenizers
from tokenizers import Regex, decoders, models, pre_tokenizers, trainers

from minitx.config.errors import ConfigError
from minitx.data.characters import code_points, pieces
from minitx.data.tokenizers import ANY_CHARACTER, SPECIAL_TOKENS, Tokenizer, numbered_words, word_level

MOST = 2**20
"""The most tokens that are learned, and megabytes that they are learned from: trainers make room for all at once."""
SAMPLE = 100
"""Megabytes of text that a tokenizer is trained on, at most, unless told otherwise."""


class CharTokenizer:
    """One token for each character of the corpus; newlines and spaces are characters like any other."""

    sample: ClassVar[int | None] = None
    """Megabytes of text to be trained on, at most; None for all there are, so that no character is unknown."""

    def train(self, texts: Iterable[Sequence[str]]) -> Tokenizer:
        """Collect the characters of batches of texts."""
        seen = np.zeros(sys.maxunicode + 1, dtype=bool)
        for batch in texts:
            seen[code_points("".join(batch))] = True
        backend = word_level([chr(number) for number in seen.nonzero()[0]])
        backend.pre_tokenizer = pre_tokenizers.Split(Regex(ANY_CHARACTER), "isolated")
        backend.decoder = decoders.Fuse()
        return Tokenizer(backend)


class ByteTokenizer:
    """One token for each byte of the text in UTF-8: any text, 256 tokens."""

    sample: ClassVar[int | None] = None
    """Nothing is read at all."""

    def train(self, texts: Iterable[Sequence[str]]) -> Tokenizer:
        """Nothing has to be learned."""
        alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
        return Tokenizer(_byte_level(models.BPE(numbered_words(alphabet), []), split=False))


class WordTokenizer:
    """One token for each of the most frequent words, runs of punctuation and white spaces; others become <unk>.

    Args:
        size: the most words.
        sample: megabytes of text to be trained on, at most; of a longer text evenly spread.
    """

    def __init__(self, size: int = 10_000, sample: int = SAMPLE) -> None:
        self.size, self.sample = _at_least(1, size), _at_least(1, sample, "sample")

    def train(self, texts: Iterable[Sequence[str]]) -> Tokenizer:
        """Count the words."""
        backend = tokenizers.Tokenizer(models.WordLevel(unk_token="<unk>"))
        split = pre_tokenizers.Split(Regex(r"\s|\w+|[^\w\s]+"), "isolated")
        backend.pre_tokenizer = split
        learned = _learned(backend, trainers.WordLevelTrainer(vocab_size=self.size, show_progress=False), texts)
        words = sorted(learned["vocab"], key=learned["vocab"].get)
        backend = word_level([word for word in words if word not in SPECIAL_TOKENS])
        backend.pre_tokenizer = split
        backend.decoder = decoders.Fuse()
        return Tokenizer(backend)


class _Subwords:
    """Pieces of words, learned from the text.

    Args:
        size: number of tokens, the 256 bytes and the special ones included.
        sample: megabytes of text to be trained on, at most; of a longer text evenly spread.
    """

    def __init__(self, size: int = 4096, sample: int = SAMPLE) -> None:
        self.size = _at_least(256 + len(SPECIAL_TOKENS), size)
        self.sample = _at_least(1, sample, "sample")

    @property
    def _options(self) -> dict[str, Any]:
        """Of the library's trainer."""
        return {
            "vocab_size": self.size - len(SPECIAL_TOKENS),
            "initial_alphabet": pre_tokenizers.ByteLevel.alphabet(),
            "show_progress": False,
        }


class BPETokenizer(_Subwords):
    """Bytes, joined to the pairs that occur most often (byte pair encoding; Sennrich et al. 2016, GPT-2)."""

    def train(self, texts: Iterable[Sequence[str]]) -> Tokenizer:
        """Find the pairs."""
        trainer = trainers.BpeTrainer(**self._options)
        learned = _learned(_byte_level(models.BPE()), trainer, texts)
        merges: list[tuple[str, str]] = []
        known = set(pre_tokenizers.ByteLevel.alphabet())
        for left, right in learned["merges"]:
            # Text that spells a special token must not become one; nor can what was to be built on it be built.
            if left in known and right in known and left + right not in SPECIAL_TOKENS:
                merges.append((left, right))
                known.add(left + right)
        words = [word for word in sorted(learned["vocab"], key=learned["vocab"].get) if word in known]
        return Tokenizer(_byte_level(models.BPE(numbered_words(words), merges)))


class UnigramTokenizer(_Subwords):
    """The pieces with which the text is most probable (unigram language model; Kudo 2018, T5), on bytes."""

    def train(self, texts: Iterable[Sequence[str]]) -> Tokenizer:
        """Find the pieces."""
        trainer = trainers.UnigramTrainer(**self._options)
        learned = _learned(_byte_level(models.Unigram()), trainer, texts)
        # The trainer adds up in an order that differs from run to run, which shows far behind the decimal point, and so
        # do the scores of bytes that it found no use for, a hair above the lowest.
        scores = {piece: round(score, 4) for piece, score in learned["vocab"] if piece not in SPECIAL_TOKENS}
        lowest = min(scores.values(), default=0.0)
        specials = [(token, lowest - 1000.0) for token in SPECIAL_TOKENS]  # never the best way to cut text
        alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
        single = [(byte, score if (score := scores.get(byte, lowest)) > lowest + 0.1 else lowest) for byte in alphabet]
        longer = [(piece, score) for piece, score in scores.items() if len(piece) > 1]
        longer.sort(key=lambda pair: (-pair[1], pair[0]))
        vocabulary = [*specials, *single, *longer[: self.size - len(specials) - len(single)]]
        return Tokenizer(_byte_level(models.Unigram(vocabulary, SPECIAL_TOKENS.index("<unk>"))))


Trainer = CharTokenizer | ByteTokenizer | WordTokenizer | BPETokenizer | UnigramTokenizer
TOKENIZERS: dict[str, type[Trainer]] = {
    "char": CharTokenizer,
    "byte": ByteTokenizer,
    "word": WordTokenizer,
    "bpe": BPETokenizer,
    "unigram": UnigramTokenizer,
}
"""Tokenizers that are trained on a corpus, by data.tokenizer.name."""


def _at_least(least: int, value: int, name: str = "size") -> int:
    if value < least:
        raise ConfigError(f"data.tokenizer.{name} must be at least {least}, got {value}")
    if value > MOST:
        raise ConfigError(f"data.tokenizer.{name} must be at most {MOST:,}, got {value}")
    return value


def _learned(backend: tokenizers.Tokenizer, trainer: Any, texts: Iterable[Sequence[str]]) -> dict[str, Any]:
    """What a trainer makes of texts. Without special tokens: the library would find them in text that spells them."""
    backend.train_from_iterator(([piece for text in batch for piece in pieces(text)] for batch in texts), trainer)
    learned: dict[str, Any] = json.loads(backend.to_str())["model"]
    return learned


def _byte_level(model: Any, split: bool = True) -> tokenizers.Tokenizer:
    """A tokenizer that works on the bytes of the text, cut into words first or not; nothing is lost on the way back.

    No word goes on behind a line break: wherever a text is cut at one, its tokens are the same.
    """
    backend = tokenizers.Tokenizer(model)
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=split)
    if split:
        lines = pre_tokenizers.Split("\n", "merged_with_previous")
        backend.pre_tokenizer = pre_tokenizers.Sequence([lines, backend.pre_tokenizer])
    backend.decoder = decoders.ByteLevel()
    return backend
