"""Tokenizers that are trained on a corpus: characters, bytes, words, byte pairs, unigram pieces."""

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

MAX_VOCAB_SIZE = MAX_SAMPLE_MEGABYTES = 2**20
"""Limits of the options: the library's trainers allocate for the whole vocabulary and the whole sample at once."""
SAMPLE_MEGABYTES = 100
"""Default amount of text that a tokenizer is trained on."""


class CharTokenizer:
    """One token for each character of the corpus, newlines and spaces included."""

    sample: ClassVar[int | None] = None
    """Megabytes of text to train on, at most; None for the whole corpus, so that no character is unknown."""

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
    """No text is read."""

    def train(self, texts: Iterable[Sequence[str]]) -> Tokenizer:
        """Return the fixed vocabulary."""
        alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
        return Tokenizer(_byte_level(models.BPE(numbered_words(alphabet), []), split=False))


class WordTokenizer:
    """One token for each of the most frequent words, runs of punctuation and white spaces; others become <unk>.

    Args:
        size: maximum number of words.
        sample: megabytes of text to train on, at most; of a longer text evenly spread.
    """

    def __init__(self, size: int = 10_000, sample: int = SAMPLE_MEGABYTES) -> None:
        self.size, self.sample = _checked(size, 1), _checked(sample, 1, "sample")

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
        sample: megabytes of text to train on, at most; of a longer text evenly spread.
    """

    def __init__(self, size: int = 4096, sample: int = SAMPLE_MEGABYTES) -> None:
        self.size = _checked(size, 256 + len(SPECIAL_TOKENS))
        self.sample = _checked(sample, 1, "sample")

    @property
    def _options(self) -> dict[str, Any]:
        """Options of the library's trainer."""
        return {
            "vocab_size": self.size - len(SPECIAL_TOKENS),
            "initial_alphabet": pre_tokenizers.ByteLevel.alphabet(),
            "show_progress": False,
        }


class BPETokenizer(_Subwords):
    """Bytes, merged into the pairs that occur most often (byte pair encoding; Sennrich et al. 2016, GPT-2)."""

    def train(self, texts: Iterable[Sequence[str]]) -> Tokenizer:
        """Find the merges."""
        trainer = trainers.BpeTrainer(**self._options)
        learned = _learned(_byte_level(models.BPE()), trainer, texts)
        merges: list[tuple[str, str]] = []
        known = set(pre_tokenizers.ByteLevel.alphabet())
        for left, right in learned["merges"]:
            # Text that spells a special token must not become one. Merges that need the dropped one are dropped too.
            if left in known and right in known and left + right not in SPECIAL_TOKENS:
                merges.append((left, right))
                known.add(left + right)
        words = [word for word in sorted(learned["vocab"], key=learned["vocab"].get) if word in known]
        return Tokenizer(_byte_level(models.BPE(numbered_words(words), merges)))


class UnigramTokenizer(_Subwords):
    """The pieces under which the text is most probable (unigram language model; Kudo 2018, T5), on bytes."""

    def train(self, texts: Iterable[Sequence[str]]) -> Tokenizer:
        """Find the pieces."""
        trainer = trainers.UnigramTrainer(**self._options)
        learned = _learned(_byte_level(models.Unigram()), trainer, texts)
        # The trainer sums in an order that varies from run to run, so the last digits of the scores vary, and so do the
        # scores of unused bytes, which lie slightly above the lowest score.
        scores = {piece: round(score, 4) for piece, score in learned["vocab"] if piece not in SPECIAL_TOKENS}
        lowest = min(scores.values(), default=0.0)
        specials = [(token, lowest - 1000.0) for token in SPECIAL_TOKENS]  # never part of the best segmentation
        alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
        single = [(byte, score if (score := scores.get(byte, lowest)) > lowest + 0.1 else lowest) for byte in alphabet]
        longer = [(piece, score) for piece, score in scores.items() if len(piece) > 1]
        longer.sort(key=lambda pair: (-pair[1], pair[0]))
        words = [*specials, *single, *longer[: self.size - len(specials) - len(single)]]
        return Tokenizer(_byte_level(models.Unigram(words, SPECIAL_TOKENS.index("<unk>"))))


Trainer = CharTokenizer | ByteTokenizer | WordTokenizer | BPETokenizer | UnigramTokenizer
TOKENIZERS: dict[str, type[Trainer]] = {
    "char": CharTokenizer,
    "byte": ByteTokenizer,
    "word": WordTokenizer,
    "bpe": BPETokenizer,
    "unigram": UnigramTokenizer,
}
"""Tokenizers by data.tokenizer.name."""


def _checked(value: int, least: int, name: str = "size") -> int:
    if value < least:
        raise ConfigError(f"data.tokenizer.{name} must be at least {least}, got {value}")
    if value > MAX_VOCAB_SIZE:
        raise ConfigError(f"data.tokenizer.{name} must be at most {MAX_VOCAB_SIZE:,}, got {value}")
    return value


def _learned(backend: tokenizers.Tokenizer, trainer: Any, texts: Iterable[Sequence[str]]) -> dict[str, Any]:
    """The model that a trainer learns from texts.

    Special tokens are left out: the library would find them in text that spells them.
    """
    backend.train_from_iterator(([piece for text in batch for piece in pieces(text)] for batch in texts), trainer)
    learned: dict[str, Any] = json.loads(backend.to_str())["model"]
    return learned


def _byte_level(model: Any, split: bool = True) -> tokenizers.Tokenizer:
    """A library tokenizer on the bytes of the text, which decodes to the same text.

    Text is cut into words first if `split`. No word spans a line break, so wherever a text is cut at line breaks, its
    tokens are the same.
    """
    backend = tokenizers.Tokenizer(model)
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=split)
    if split:
        lines = pre_tokenizers.Split("\n", "merged_with_previous")
        backend.pre_tokenizer = pre_tokenizers.Sequence([lines, backend.pre_tokenizer])
    backend.decoder = decoders.ByteLevel()
    return backend
