"""Dates as people write them in many languages.

Babel takes some 5 us for one date, a batch of 128 half a millisecond more than it must; from the parts of dates, asked
for once, a batch is put together without a loop.

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
"""A place of a format: the first of the pieces that may stand there, and the field that counts on from it."""

ALWAYS, WEEKDAY, MONTH, DAY, YEAR = range(5)
"""Fields of a date; ALWAYS is 0, for what stands between the others."""
FIELDS = {"E": WEEKDAY, "c": WEEKDAY, "M": MONTH, "L": MONTH, "d": DAY, "y": YEAR}
"""The letters of locale patterns."""
ISO = "y-MM-dd"


@register("dates")
@dataclass(kw_only=True)
class Dates(LanguageTask):
    """de: Montag, 3. Mai 2021 -> 2021-05-03, a date as people write it to ISO 8601.

    Formats and names are those of the Unicode locale data in Babel. The question determines the answer: the language in
    front tells whether the day or the month comes first (en is American, en_GB British), and the year is written in
    full also where the locale's short format has two digits. Spaces of every kind are written as plain ones.
    """

    known: ClassVar[tuple[str, ...]] = (
        "bg", "ca", "cs", "da", "de", "el", "en", "en_GB", "es", "et", "fi", "fr", "hr", "hu", "id", "is", "it",
        "ja", "ko", "lt", "lv", "nb", "nl", "pl", "pt", "ro", "ru", "sk", "sl", "sv", "tr", "uk", "vi", "zh",
    )  # fmt: skip
    enlarge: ClassVar[str] = "data.years"
    has_lengths: ClassVar[bool] = False

    languages: tuple[str, ...] = ("en", "de", "fr", "es", "it", "nl")
    """The languages, each equally likely; a question begins with its language."""
    formats: tuple[Format, ...] = ("short", "medium", "long", "full")
    """The locale's formats, each equally likely: 5/3/2021, May 3, 2021 with the month cut short and not, with the
    weekday in front."""
    years: tuple[int, int] = (1900, 2099)
    """First and last year, both included; every day is equally likely."""

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
        """The pieces, and how dates are made of them: the slots of each format, [F + 1, P, 2], ISO 8601 the last."""
        writing = _Writing(self.years)
        for language in self.languages:
            for form in self.formats:
                writing.add(f"{language}: ", _pattern(language, form), language)
        writing.add("", ISO, "en")
        return writing.texts, torch.nn.utils.rnn.pad_sequence([torch.tensor(s) for s in writing.ways], batch_first=True)

    @cached_property
    def texts(self) -> list[str]:
        """The values of all fields, and what stands between them."""
        return self._layout[0]

    @cached_property
    def longest(self) -> tuple[int, int]:
        """The longest question of any day in any language and format; every answer is as long as 2021-05-03."""
        length = torch.tensor([*map(len, self.texts)])
        fields = _fields(torch.arange(*self._days), self.years[0])
        fields[:, YEAR] = 0  # all years have four digits, so a few thousand days stand for all
        fields = fields.unique(dim=0)
        sums = [length[self._pieces_of(fields, torch.tensor([way]))].sum(dim=1) for way in range(len(self._layout[1]))]
        return int(torch.stack(sums[:-1]).max()), int(sums[-1].max())

    @property
    def _days(self) -> tuple[int, int]:
        """The first day, and the first behind the last, counted from the first of January of the year 1."""
        return datetime.date(self.years[0], 1, 1).toordinal(), datetime.date(self.years[1] + 1, 1, 1).toordinal()

    def question(self, generator: torch.Generator, rows: int) -> tuple[Tensor, Tensor]:
        """A day, then the question about it in some language and format: [N, 1 + W].

        The text stands here, because two formats can write a day alike (May 3 in full and cut short): one question.
        """
        day = torch.randint(*self._days, (rows, 1), generator=generator)
        way = torch.randint(len(self._layout[1]) - 1, (rows,), generator=generator)
        pieces = self._pieces_of(_fields(day[:, 0], self.years[0]), way)
        ids, keep = self.pieces.joined(pieces, self.longest[0])
        return torch.cat((day, ids), dim=1), torch.cat((torch.ones_like(day, dtype=torch.bool), keep), dim=1)

    def answered(self, source: Tensor, keep: Tensor) -> Pairs:
        """The question, and the day in ISO 8601."""
        pieces = self._pieces_of(_fields(source[:, 0], self.years[0]), torch.tensor([-1]))
        return Pairs(source[:, 1:], keep[:, 1:], *self.pieces.joined(pieces, self.longest[1]))

    def _pieces_of(self, fields: Tensor, way: Tensor) -> Tensor:
        """The pieces of dates [N, 5], each written in its way, [N] or [1]: [N, P]."""
        first, field = self._layout[1][way].expand(len(fields), -1, -1).unbind(dim=2)
        return first + fields.gather(1, field)


def _fields(day: Tensor, first_year: int) -> Tensor:
    """What the slots of dates count on by, [N, 5], from their days since the beginning of the year 1, [N]."""
    since_1970 = day.numpy() - datetime.date(1970, 1, 1).toordinal()
    days = since_1970.astype("datetime64[D]")
    months, years = days.astype("datetime64[M]"), days.astype("datetime64[Y]")
    columns = [torch.from_numpy(part.astype("int64")) for part in (months - years, days - months, years)]
    month, of_month, year = columns
    return torch.stack((torch.zeros_like(day), (day - 1) % 7, month, of_month, year + 1970 - first_year), dim=1)


def _pattern(language: str, form: Format) -> str:
    from babel.dates import get_date_format

    return str(get_date_format(form, locale=language).pattern)


class _Writing:
    """Collects pieces, and the ways to write dates with them.

    Args:
        years: first and last.
    """

    def __init__(self, years: tuple[int, int]) -> None:
        self.years = years
        self.texts: list[str] = [""]  # the first is for slots that a shorter format does not need
        self.ways: list[list[Slot]] = []
        self.places: dict[tuple[str, ...], int] = {}

    def add(self, front: str, pattern: str, language: str) -> None:
        """One more way: a locale's pattern, with something in front."""
        from babel.dates import tokenize_pattern

        way = [self._slot(ALWAYS, front)]
        for _, value in tokenize_pattern(pattern):
            if isinstance(value, str):  # what stands between fields
                way.append(self._slot(ALWAYS, value))
            else:
                letter, width = str(value[0]), int(value[1])
                way.append(self._slot(FIELDS[letter], *self._values(letter, width, language)))
        self.ways.append(way)

    def _values(self, letter: str, width: int, language: str) -> list[str]:
        """All that a field may be, from the smallest."""
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
        """Where the values of a field are; those that are there already are not added again."""
        plain = tuple(re.sub(r"\s", " ", value) for value in values)
        if plain not in self.places:
            self.places[plain] = len(self.texts)
            self.texts.extend(plain)
        return self.places[plain], field
