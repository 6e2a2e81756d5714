"""Dates in the formats of many languages.

Babel takes about 5 us for a date, so a batch of 128 would take half a millisecond longer. The parts of dates are
computed once, and batches are assembled from them without a loop.

Legend: N examples, F formats of all languages, P pieces of the longest format, W characters of the longest question.
"""

from __future__ import annotations

import datetime
import re
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, Literal

import torch
from torch import Tensor

from minitx.config.errors import ConfigError
from minitx.data.examples import Pairs
from minitx.data.tasks.base import register
from minitx.data.tasks.languages import LanguageTask, check_names

Format = Literal["short", "medium", "long", "full"]
Slot = tuple[int, int]
"""A slot of a format: the index of its first piece, and the field whose value is added to it."""

ALWAYS, WEEKDAY, MONTH, DAY, YEAR = range(5)
"""Fields of a date; ALWAYS has the value 0, for the text between the others."""
FIELDS = {"E": WEEKDAY, "c": WEEKDAY, "M": MONTH, "L": MONTH, "d": DAY, "y": YEAR}
"""The letters of locale patterns."""
ISO = "y-MM-dd"


@register("dates")
@dataclass(kw_only=True)
class Dates(LanguageTask):
    """de: Montag, 3. Mai 2021 -> 2021-05-03, a date in a locale's format to ISO 8601.

    Formats and names are those of the Unicode locale data in Babel. A question has one answer: the language tag decides
    whether the day or the month is first (en is American, en_GB British), and the year has four digits also where the
    locale's short format has two. White space of every kind becomes a plain space.
    """

    known: ClassVar[tuple[str, ...]] = (
        "bg", "ca", "cs", "da", "de", "el", "en", "en_GB", "es", "et", "fi", "fr", "hr", "hu", "id", "is", "it",
        "ja", "ko", "lt", "lv", "nb", "nl", "pl", "pt", "ro", "ru", "sk", "sl", "sv", "tr", "uk", "vi", "zh",
    )  # fmt: skip
    enlarge: ClassVar[str] = "data.years"
    has_lengths: ClassVar[bool] = False

    languages: tuple[str, ...] = ("en", "de", "fr", "es", "it", "nl")
    """The languages, all equally likely; a question begins with its language."""
    formats: tuple[Format, ...] = ("short", "medium", "long", "full")
    """The locale's formats, all equally likely: 5/3/2021, then May 3, 2021 with a short month, with a long one, and
    with the weekday."""
    years: tuple[int, int] = (1900, 2099)
    """First and last year, both included; all days are equally likely."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_names("formats", self.formats)
        first, last = self.years
        if not 1000 <= first <= last <= 9998:
            raise ConfigError(
                f"data.years must be [first, last] with 1000 <= first <= last <= 9998, got {[*self.years]}"
            )

    @cached_property
    def _layout(self) -> tuple[list[str], Tensor]:
        """The pieces of dates, and the slots of each format, [F + 1, P, 2], ISO 8601 last."""
        formats = _Formats(self.years)
        for language in self.languages:
            for form in self.formats:
                formats.add(f"{language}: ", _pattern(language, form), language)
        formats.add("", ISO, "en")
        slots = [torch.tensor(several) for several in formats.slots]
        return formats.texts, torch.nn.utils.rnn.pad_sequence(slots, batch_first=True)

    @cached_property
    def texts(self) -> list[str]:
        """The values of all fields, and the texts between them."""
        return self._layout[0]

    @cached_property
    def longest(self) -> tuple[int, int]:
        """Maxima over all days, languages and formats; every answer is as long as 2021-05-03."""
        length = torch.tensor([*map(len, self.texts)])
        fields = _fields(torch.arange(*self._days), self.years[0])
        fields[:, YEAR] = 0  # all years have four digits, so a few thousand days represent all
        fields = fields.unique(dim=0)
        sums = [
            length[self._pieces_of(fields, torch.tensor([number]))].sum(dim=1) for number in range(len(self._layout[1]))
        ]
        return int(torch.stack(sums[:-1]).max()), int(sums[-1].max())

    @property
    def _days(self) -> tuple[int, int]:
        """The first day and the day after the last, as ordinals of the proleptic Gregorian calendar."""
        return datetime.date(self.years[0], 1, 1).toordinal(), datetime.date(self.years[1] + 1, 1, 1).toordinal()

    def question(self, generator: torch.Generator, rows: int) -> tuple[Tensor, Tensor]:
        """Sample a day, and its text in a random language and format: [N, 1 + W].

        The text is part of the question, since two formats can give a day the same text (May 3, long and short).
        """
        day = torch.randint(*self._days, (rows, 1), generator=generator)
        number = torch.randint(len(self._layout[1]) - 1, (rows,), generator=generator)
        pieces = self._pieces_of(_fields(day[:, 0], self.years[0]), number)
        ids, keep = self.pieces.joined(pieces, self.longest[0])
        return torch.cat((day, ids), dim=1), torch.cat((torch.ones_like(day, dtype=torch.bool), keep), dim=1)

    def answered(self, source: Tensor, keep: Tensor) -> Pairs:
        """Questions with their days in ISO 8601."""
        pieces = self._pieces_of(_fields(source[:, 0], self.years[0]), torch.tensor([-1]))
        return Pairs(source[:, 1:], keep[:, 1:], *self.pieces.joined(pieces, self.longest[1]))

    def _pieces_of(self, fields: Tensor, number: Tensor) -> Tensor:
        """The pieces of dates [N, 5] in formats given by number, [N] or [1]: [N, P]."""
        first, field = self._layout[1][number].expand(len(fields), -1, -1).unbind(dim=2)
        return first + fields.gather(1, field)


def _fields(day: Tensor, first_year: int) -> Tensor:
    """The values of all fields, [N, 5], of days given as ordinals, [N]."""
    since_1970 = day.numpy() - datetime.date(1970, 1, 1).toordinal()
    days = since_1970.astype("datetime64[D]")
    months, years = days.astype("datetime64[M]"), days.astype("datetime64[Y]")
    columns = [torch.from_numpy(part.astype("int64")) for part in (months - years, days - months, years)]
    month, of_month, year = columns
    return torch.stack((torch.zeros_like(day), (day - 1) % 7, month, of_month, year + 1970 - first_year), dim=1)


def _pattern(language: str, form: Format) -> str:
    from babel.dates import get_date_format

    return str(get_date_format(form, locale=language).pattern)


class _Formats:
    """Collects the pieces of dates and the slots of formats.

    Args:
        years: first and last.
    """

    def __init__(self, years: tuple[int, int]) -> None:
        self.years = years
        self.texts: list[str] = [""]  # the first piece pads shorter formats
        self.slots: list[list[Slot]] = []
        self._first: dict[tuple[str, ...], int] = {}

    def add(self, tag: str, pattern: str, language: str) -> None:
        """Add a format: a locale's pattern after a tag."""
        from babel.dates import tokenize_pattern

        slots = [self._slot(ALWAYS, tag)]
        for _, value in tokenize_pattern(pattern):
            if isinstance(value, str):  # text between fields
                slots.append(self._slot(ALWAYS, value))
            else:
                letter, width = str(value[0]), int(value[1])
                slots.append(self._slot(FIELDS[letter], *self._values(letter, width, language)))
        self.slots.append(slots)

    def _values(self, letter: str, width: int, language: str) -> list[str]:
        """All values of a field as text, from the smallest."""
        from babel.dates import DateTimeFormat

        if FIELDS[letter] == YEAR:
            return [str(year) for year in range(self.years[0], self.years[1] + 1)]
        days = {
            WEEKDAY: [datetime.date(2001, 1, day) for day in range(1, 8)],  # from a Monday
            MONTH: [datetime.date(2001, month, 1) for month in range(1, 13)],
            DAY: [datetime.date(2001, 1, day) for day in range(1, 32)],
        }[FIELDS[letter]]
        return [str(DateTimeFormat(day, language)[letter * width]) for day in days]

    def _slot(self, field: int, *values: str) -> Slot:
        """The slot of a field with these values, which are stored once."""
        plain = tuple(re.sub(r"\s", " ", value) for value in values)
        if plain not in self._first:
            self._first[plain] = len(self.texts)
            self.texts.extend(plain)
        return self._first[plain], field
