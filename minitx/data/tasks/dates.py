"""Dates in the formats of many languages.

Babel takes about 5 us for a date, half a millisecond for a batch of 128. So the parts of dates are computed once, and
batches are assembled from them without a loop.

Legend: N examples, F formats of all languages, P pieces of the longest format, W characters of the longest question.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date
from functools import cached_property
from typing import ClassVar, Literal

import torch
from torch import Tensor

from minitx.data.examples import Pairs
from minitx.data.tasks.base import check_range, register
from minitx.data.tasks.languages import LanguageTask, check_names

Format = Literal["short", "medium", "long", "full"]
ALWAYS, WEEKDAY, MONTH, DAY, YEAR = range(5)
"""Fields of a date; ALWAYS has the value 0, for the text between the others."""
FIELDS = {"E": WEEKDAY, "c": WEEKDAY, "M": MONTH, "L": MONTH, "d": DAY, "y": YEAR}  # the letters of locale patterns
EXAMPLES = {
    WEEKDAY: [date(2001, 1, day) for day in range(1, 8)],  # from a Monday
    MONTH: [date(2001, month, 1) for month in range(1, 13)],
    DAY: [date(2001, 1, day) for day in range(1, 32)],
}
"""A date for each value of a field, from the smallest."""
ISO = "y-MM-dd"


@register("dates")
@dataclass(kw_only=True)
class Dates(LanguageTask):
    """de: Montag, 3. Mai 2021 -> 2021-05-03, a date in a locale's format to ISO 8601.

    Formats and names are those of the Unicode locale data in Babel. A question has one answer: the language tag decides
    whether the day or the month is first (en is American, en_GB British), and the year has four digits even if the
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
        check_range("years", self.years, 1000, 9998)

    @cached_property
    def _layout(self) -> tuple[list[str], Tensor]:
        """The pieces of dates, and the slots of each format, [F + 1, P, 2], ISO 8601 last.

        A slot has the index of its first piece, and the field whose value is added to it.
        """
        from babel.dates import get_date_format

        formats = [
            [(ALWAYS, [f"{language}: "]), *_fields(str(get_date_format(form, language).pattern), language)]
            for language in self.languages
            for form in self.formats
        ]
        # The first piece pads shorter formats, and the years follow, which all formats share.
        texts, slots = ["", *map(str, range(self.years[0], self.years[1] + 1))], []
        for fields in [*formats, [*_fields(ISO, "en")]]:
            rows = []
            for field, values in fields:
                rows.append((1 if field == YEAR else len(texts), field))
                texts += [re.sub(r"\s", " ", value) for value in values]
            slots.append(torch.tensor(rows))
        return texts, torch.nn.utils.rnn.pad_sequence(slots, batch_first=True)

    @cached_property
    def texts(self) -> list[str]:
        """The values of all fields, and the texts between them."""
        return self._layout[0]

    @cached_property
    def longest(self) -> tuple[int, int]:
        """Maxima over all days, languages and formats; every answer is as long as 2021-05-03."""
        lengths = torch.tensor([*map(len, self.texts)])
        values = _values(torch.arange(*self._days)[:146_097], self.years[0])  # 400 years, after which dates repeat
        values[:, YEAR] = 0  # all years have four digits, so a few thousand days represent all
        values = values.unique(dim=0)
        *questions, answer = (
            int(lengths[self._pieces_of(values, torch.tensor([form]))].sum(dim=1).max())
            for form in range(len(self._layout[1]))
        )
        return max(questions), answer

    @property
    def _days(self) -> tuple[int, int]:
        """The first day and the day after the last, as ordinals of the proleptic Gregorian calendar."""
        return date(self.years[0], 1, 1).toordinal(), date(self.years[1] + 1, 1, 1).toordinal()

    def question(self, generator: torch.Generator, rows: int) -> tuple[Tensor, Tensor]:
        """Sample a day, and its text in a random language and format: [N, 1 + W].

        The text is part of the question, since two formats can give a day the same text (May 3, long and short).
        """
        day = torch.randint(*self._days, (rows, 1), generator=generator)
        form = torch.randint(len(self._layout[1]) - 1, (rows,), generator=generator)
        pieces = self._pieces_of(_values(day[:, 0], self.years[0]), form)
        ids, keep = self.pieces.joined(pieces, self.longest[0])
        return torch.cat((day, ids), dim=1), torch.cat((torch.ones_like(day, dtype=torch.bool), keep), dim=1)

    def answered(self, source: Tensor, keep: Tensor) -> Pairs:
        pieces = self._pieces_of(_values(source[:, 0], self.years[0]), torch.tensor([-1]))
        return Pairs(source[:, 1:], keep[:, 1:], *self.pieces.joined(pieces, self.longest[1]))

    def _pieces_of(self, values: Tensor, form: Tensor) -> Tensor:
        """The pieces of dates, given by the values [N, 5] of their fields, in formats given by number, [N] or [1]."""
        first, field = self._layout[1][form].expand(len(values), -1, -1).unbind(dim=2)
        return first + values.gather(1, field)  # [N, P]


def _values(day: Tensor, first_year: int) -> Tensor:
    """The values of all fields, [N, 5], of days given as ordinals, [N]."""
    days = (day.numpy() - date(1970, 1, 1).toordinal()).astype("datetime64[D]")
    months, years = days.astype("datetime64[M]"), days.astype("datetime64[Y]")
    month, of_month, year = (torch.from_numpy(part.astype("int64")) for part in (months - years, days - months, years))
    return torch.stack((torch.zeros_like(day), (day - 1) % 7, month, of_month, year + 1970 - first_year), dim=1)


def _fields(pattern: str, language: str) -> Iterator[tuple[int, list[str]]]:
    """The fields of a locale's pattern, each with its values as text, from the smallest; without those of years."""
    from babel.dates import DateTimeFormat, tokenize_pattern

    for _, part in tokenize_pattern(pattern):
        if isinstance(part, str):
            yield ALWAYS, [part]
        elif (field := FIELDS[part[0]]) == YEAR:
            yield YEAR, []
        else:
            letter, width = part
            yield field, [str(DateTimeFormat(day, language)[letter * width]) for day in EXAMPLES[field]]
