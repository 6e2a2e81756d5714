"""Which ids mean what to a model, and what it is used to finding around a text.

A tokenizer of ours has the special tokens alone. An imported one brings what its model was trained with besides.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple


class SpecialIds(NamedTuple):
    """The tokens that are not text, each with its id; -1 where an imported tokenizer has none."""

    pad: int
    bos: int
    eos: int
    sep: int
    unk: int
    mask: int


@dataclass(frozen=True)
class SpecialTokens:
    """What a model was trained to read and to write besides text, as token ids."""

    special: SpecialIds
    """The special tokens. bos is what a decoder beside an encoder starts from, whatever it is called elsewhere."""
    prefix: tuple[int, ...] = ()
    """Stand before every text that is read: <s> of Llama, [CLS] of BERT."""
    suffix: tuple[int, ...] = ()
    """Stand behind it: [SEP] of BERT, </s> of T5."""
    other_ends: tuple[int, ...] = ()
    """Further tokens that end what is written."""
    forced_first: int | None = None
    """The token that every answer is made to begin with (forced_bos_token_id)."""
    forced_last: int | None = None
    """The token that an answer is made to end with where there is no room for more (forced_eos_token_id)."""
    never: tuple[int, ...] = ()
    """Tokens that are never written (bad_words_ids of one token)."""

    def question(self, ids: Iterable[int]) -> list[int]:
        """A text that a model shall read, with what it is used to finding around it."""
        return [*self.prefix, *ids, *self.suffix]

    def answer(self, ids: Iterable[int]) -> list[int]:
        """A text that a decoder beside an encoder shall write, without the <eos> behind."""
        return [*self.prefix, *ids]

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types."""
        plain = {name: [*value] if isinstance(value, tuple) else value for name, value in asdict(self).items()}
        return plain | {"special": self.special._asdict()}

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any]) -> SpecialTokens:
        """The conventions of to_dict."""
        values: dict[str, Any] = {k: tuple(value) if isinstance(value, list) else value for k, value in plain.items()}
        values["special"] = SpecialIds(**plain["special"])
        return cls(**values)
