"""Text to ids and back, on the `tokenizers` library. The special ids stand here and nowhere else.

A tokenizer turns into plain JSON and back, so a checkpoint carries it and needs no other file.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar, Literal

import numpy as np
import tokenizers
from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers, trainers

from minitx.data.special_tokens import SpecialIds, SpecialTokens
from minitx.data.characters import code_points, pieces

SPECIAL_TOKENS = tuple(f"<{name}>" for name in SpecialIds._fields)
"""Their spelling: <pad>, <bos>, <eos>, <sep>, <unk>, <mask>; the first tokens of every vocabulary."""
MASK, SEPARATOR = "<mask>", "<sep>"
_ANY_CHARACTER = r"[\s\S]"


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
                raise ValueError(f"a tokenizer needs the special tokens {' '.join(SPECIAL_TOKENS)}")
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
        if model["type"] == "WordLevel" and cut.get("pattern") == {"Regex": _ANY_CHARACTER}:
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
            ValueError: a piece of text that the vocabulary does not hold; the message lists what it holds.
        """
        encoding = self._backend.encode(text, add_special_tokens=False)
        if self.imported:
            return encoding.ids
        for token, (start, end) in zip(encoding.ids, encoding.offsets, strict=True):
            if token in self.special:
                raise ValueError(f"{text[start:end]!r} is not in the tokenizer's alphabet, which is: {self._listing()}")
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
            ValueError: not a tokenizer's description.
        """
        try:
            conventions = SpecialTokens.from_dict(plain["conventions"]) if "conventions" in plain else None
            backend = plain if conventions is None else plain["backend"]
            return cls(tokenizers.Tokenizer.from_str(json.dumps(backend)), conventions)
        except Exception as error:  # the library raises bare Exception
            raise ValueError(f"the tokenizer cannot be read: {error}") from None

    def _listing(self) -> str:
        return " ".join(
            token if token.isprintable() and not token.isspace() else repr(token) for token in self.alphabet
        )


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
        backend = _word_level([chr(number) for number in seen.nonzero()[0]])
        backend.pre_tokenizer = pre_tokenizers.Split(Regex(_ANY_CHARACTER), "isolated")
        backend.decoder = decoders.Fuse()
        return Tokenizer(backend)


class ByteTokenizer:
    """One token for each byte of the text in UTF-8: any text, 256 tokens."""

    sample: ClassVar[int | None] = None
    """Nothing is read at all."""

    def train(self, texts: Iterable[Sequence[str]]) -> Tokenizer:
        """Nothing has to be learned."""
        alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
        return Tokenizer(_byte_level(models.BPE(_numbered(alphabet), []), split=False))


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
        backend = _word_level([word for word in words if word not in SPECIAL_TOKENS])
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
        return Tokenizer(_byte_level(models.BPE(_numbered(words), merges)))


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


def symbols(names: Sequence[str]) -> Tokenizer:
    """The tokenizer of a toy task: symbols separated by white space."""
    backend = _word_level(names)
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return Tokenizer(backend)


def _at_least(least: int, value: int, name: str = "size") -> int:
    if value < least:
        raise ValueError(f"data.tokenizer.{name} must be at least {least}, got {value}")
    if value > MOST:
        raise ValueError(f"data.tokenizer.{name} must be at most {MOST:,}, got {value}")
    return value


def _numbered(words: Sequence[str]) -> dict[str, int]:
    """Ids of words, the special tokens first."""
    return {word: index for index, word in enumerate([*SPECIAL_TOKENS, *words])}


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


def _word_level(words: Sequence[str]) -> tokenizers.Tokenizer:
    """A vocabulary of whole words, the special tokens first."""
    return tokenizers.Tokenizer(models.WordLevel(_numbered(words), unk_token="<unk>"))
