"""Contents expressed in several languages: numbers in words, a translation task with unlimited data.

num2words takes up to 120 us for a number, so a batch would take as long as a training step. The parts of numbers are
computed once, in 0.1 s for each language, and batches are assembled from them.

Legend: N examples, P pieces of each.
"""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import ClassVar, Literal, Self

import torch
from torch import Tensor

from minitx.config.errors import ConfigError, did_you_mean
from minitx.data.examples import Pairs
from minitx.data.tasks.base import check_range, register
from minitx.data.tasks.question_tasks import QuestionTask
from minitx.data.text.flat_rows import FlatRows
from minitx.data.text.tokenizer_training import CharTokenizer, lookup
from minitx.data.tokenizers import Tokenizer


@dataclass(kw_only=True)
class LanguageTask(QuestionTask):
    """The same content in several languages; its split depends on the content, not on the words.

    A sampled question begins with the number of its content, which alone decides the split: content held out in one
    language is held out in every language, direction and format. Languages are equally likely.
    """

    known: ClassVar[tuple[str, ...]]
    """The supported languages."""
    aligned: ClassVar[bool] = False

    languages: tuple[str, ...] = ("en", "de", "fr", "es")
    """The languages, all equally likely; a question begins with its language."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_names("languages", self.languages)
        for name in self.languages:
            if name not in self.known:
                raise ConfigError(f"data.languages: unknown language {name!r}; {did_you_mean(name, self.known)}")

    @cached_property
    def texts(self) -> list[str]:
        """All pieces of questions and answers."""
        raise NotImplementedError

    @cached_property
    def vocabulary(self) -> Tokenizer:
        return CharTokenizer().train([self.texts])

    def adopted(self, tokenizer: Tokenizer) -> Tokenizer | None:
        """Only a tokenizer for characters: lengths are computed in characters."""
        table = lookup(tokenizer)
        return tokenizer if table is not None and not table.by_byte else None

    @cached_property
    def pieces(self) -> FlatRows:
        """The pieces as ids."""
        table, special = lookup(self.vocabulary), self.vocabulary.special
        assert table is not None, "not a tokenizer for characters"
        ids, lengths = table(self.texts)
        if (ids == special.unk).any():
            try:
                for text in self.texts:
                    self.vocabulary.encode(text)  # its error names the character
            except ConfigError as error:
                choose = "choose data of its characters (data.name, data.languages)"
                raise ConfigError(f"{error}; with --init_from it is the checkpoint's: {choose}") from None
        return FlatRows(torch.from_numpy(ids), torch.from_numpy(lengths), special.pad)

    def deciding(self, source: Tensor, keep: Tensor) -> tuple[Tensor, Tensor]:
        return source[:, :1], keep[:, :1]


@register("number_words")
@dataclass(kw_only=True)
class NumberWords(LanguageTask):
    """en: 342 -> three hundred and forty-two, and back: en: three hundred and forty-two -> 342.

    The words are those of num2words. In the supported languages, the words of a number below a million are those of its
    thousands followed by those of its remainder, and no two numbers have the same words.
    """

    known: ClassVar[tuple[str, ...]] = (
        "be", "ca", "cs", "cy", "de", "en", "en_IN", "eo", "es", "fi", "fr", "fr_BE", "fr_CH", "id", "is", "it",
        "ja", "lt", "lv", "nl", "no", "pl", "pt", "pt_BR", "ro", "ru", "sk", "sl", "sv", "uk", "vi",
    )  # fmt: skip
    enlarge: ClassVar[str] = "data.numbers"
    MAX_NUMBER: ClassVar[int] = 999_999

    direction: Literal["both", "to_words", "to_digits"] = "both"
    """Direction of translation; `both` samples either with equal probability."""
    numbers: tuple[int, int] = (0, MAX_NUMBER)
    """Smallest and largest number, both included; all numbers of digits are equally likely."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_range("numbers", self.numbers, 0, self.MAX_NUMBER)

    @cached_property
    def texts(self) -> list[str]:
        """The parts of numbers in each language, then in digits, then the language tags of questions."""
        parts = [part for language in (*self.languages, "") for part in number_parts(language)]
        return parts + [f"{language}: " for language in self.languages]

    @cached_property
    def longest(self) -> tuple[int, int]:
        """Maxima over all numbers and languages."""
        number, lengths = torch.arange(self.numbers[0], self.numbers[1] + 1), torch.tensor([*map(len, self.texts)])
        tags = [len(f"{language}: ") for language in self.languages]
        *words, digits = (int(lengths[self._number(number, i)].sum(dim=1).max()) for i in range(len(tags) + 1))
        ways = {
            "to_words": (max(tags) + digits, max(words)),
            "to_digits": (max(tag + word for tag, word in zip(tags, words, strict=True)), digits),
        }
        questions, answers = zip(*(ways.values() if self.direction == "both" else [ways[self.direction]]), strict=True)
        return max(questions), max(answers)

    def of_length(self, length: int) -> Self:
        """The same task with numbers of that many digits."""
        if not 1 <= length <= len(str(self.MAX_NUMBER)):
            raise ConfigError(f"data.numbers: a number has 1 to {len(str(self.MAX_NUMBER))} digits, got {length}")
        return dataclasses.replace(self, numbers=(10 ** (length - 1) if length > 1 else 0, 10**length - 1))

    def question(self, generator: torch.Generator, rows: int) -> tuple[Tensor, Tensor]:
        """Sample the number, the language and whether the answer is in words, [N, 3]."""
        smallest, largest = self.numbers
        digits = torch.arange(len(str(smallest)), len(str(largest)) + 1)
        low = torch.where(digits > 1, 10 ** (digits - 1), 0).clamp(min=smallest)
        count = (10**digits - 1).clamp(max=largest) - low + 1
        chosen = torch.randint(len(digits), (rows,), generator=generator)
        share = torch.rand(rows, generator=generator, dtype=torch.float64)
        number = low[chosen] + (share * count[chosen]).long()
        if self.direction == "both":
            to_words = torch.randint(2, (rows,), generator=generator)
        else:
            to_words = torch.full((rows,), int(self.direction == "to_words"))
        language = torch.randint(len(self.languages), (rows,), generator=generator)
        content = torch.stack((number, language, to_words), dim=1)
        return content, torch.ones_like(content, dtype=torch.bool)

    def strata(self, source: Tensor, keep: Tensor) -> Tensor:
        """The number of digits."""
        powers = 10 ** torch.arange(1, len(str(self.MAX_NUMBER)))
        return 1 + torch.searchsorted(powers, source[:, 0].contiguous(), right=True)

    def answered(self, source: Tensor, keep: Tensor) -> Pairs:
        """Language and number, one of the two in words, the other in digits."""
        number, language, to_words = source.unbind(dim=1)
        words, digits = self._number(number, language), self._number(number, len(self.languages))
        tag = len(self.texts) - len(self.languages) + language
        question = torch.cat((tag[:, None], torch.where(to_words[:, None] == 1, digits, words)), dim=1)
        answer = torch.where(to_words[:, None] == 1, words, digits)
        return Pairs(*self.pieces.joined(question, self.longest[0]), *self.pieces.joined(answer, self.longest[1]))

    def _number(self, number: Tensor, language: Tensor | int) -> Tensor:
        """The pieces of numbers [N] in a language given by its index, or in digits (the last index): [N, 2]."""
        thousands, rest = number // 1000, number % 1000
        return (3000 * language + torch.stack((thousands, 1000 + 1000 * (thousands > 0) + rest))).T


def check_names(option: str, names: Sequence[str]) -> None:
    """Refuse an empty list of names, and duplicates, with a ConfigError."""
    if not names or len({*names}) < len(names):
        raise ConfigError(f"data.{option} must name at least one, and none twice, got {[*names]}")


@cache
def number_parts(language: str) -> tuple[str, ...]:
    """3 x 1000 parts of numbers: thousands, remainders alone, remainders after thousands; for "" in digits."""
    from num2words import num2words

    if not language:
        rests = [str(number) for number in range(1000)]
        return ("", *rests[1:], *rests, *(rest.zfill(3) for rest in rests))
    alone, thousands, above_2000 = (
        [str(num2words(number, lang=language)) for number in numbers]
        for numbers in (range(1000), range(1000, 10**6, 1000), range(2000, 3000))
    )
    return ("", *thousands, *alone, *(words.removeprefix(above_2000[0]) for words in above_2000))
