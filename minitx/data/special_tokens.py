"""Special tokens: their ids, and where a model expects them around a text.

A tokenizer trained here has the special ids alone. An imported one also has the prefix, suffix and forced tokens that
its model was trained with.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple


class SpecialIds(NamedTuple):
    """Ids of the tokens that are not text; -1 where an imported tokenizer has none."""

    pad: int
    bos: int
    eos: int
    sep: int
    unk: int
    mask: int


@dataclass(frozen=True)
class SpecialTokens:
    """The special tokens of a model's inputs and outputs, as ids."""

    special: SpecialIds
    """bos is the token from which a decoder beside an encoder starts, whatever its name elsewhere."""
    prefix: tuple[int, ...] = ()
    """Before every input text: <s> of Llama, [CLS] of BERT."""
    suffix: tuple[int, ...] = ()
    """After every input text: [SEP] of BERT, </s> of T5."""
    other_ends: tuple[int, ...] = ()
    """Further tokens that end an output."""
    forced_first: int | None = None
    """First token of every answer (forced_bos_token_id)."""
    forced_last: int | None = None
    """Last token of an answer that reaches the maximum length (forced_eos_token_id)."""
    never: tuple[int, ...] = ()
    """Tokens that are never generated (bad_words_ids of one token)."""

    def question(self, ids: Iterable[int]) -> list[int]:
        """An input text with its prefix and suffix."""
        return [*self.prefix, *ids, *self.suffix]

    def answer(self, ids: Iterable[int]) -> list[int]:
        """An output of a decoder beside an encoder, with its prefix and without the final <eos>."""
        return [*self.prefix, *ids]

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types."""
        plain = {name: [*value] if isinstance(value, tuple) else value for name, value in asdict(self).items()}
        return plain | {"special": self.special._asdict()}

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any]) -> SpecialTokens:
        """The inverse of to_dict."""
        values: dict[str, Any] = {k: tuple(value) if isinstance(value, list) else value for k, value in plain.items()}
        values["special"] = SpecialIds(**plain["special"])
        return cls(**values)
