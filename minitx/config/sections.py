"""Types of numbers in a config, and the decorator that makes a class a section of it."""

from collections.abc import Callable
from typing import Annotated, Any, TypeVar, dataclass_transform

from pydantic import ConfigDict, Field
from pydantic.dataclasses import dataclass as pydantic_dataclass

from minitx.config.validation import errors_as_sentences

MAX_COUNT = 2**40  # more steps than any run takes

MAX_SIZE = 2**20
"""More symbols, tokens or examples than any task needs at once; a slip of the keyboard would fill the memory."""

Count = Annotated[int, Field(ge=1, le=MAX_COUNT)]
Size = Annotated[int, Field(ge=1, le=MAX_SIZE)]
Natural = Annotated[int, Field(ge=0, le=MAX_COUNT)]
Positive = Annotated[float, Field(gt=0.0, allow_inf_nan=False)]
NonNegative = Annotated[float, Field(ge=0.0, allow_inf_nan=False)]
Fraction = Annotated[float, Field(ge=0.0, lt=1.0)]
Share = Annotated[float, Field(ge=0.0, le=1.0)]

Section = TypeVar("Section")


@dataclass_transform(frozen_default=True)
def section(name: str) -> Callable[[type[Section]], type[Section]]:
    """Make a class a frozen, validated dataclass whose errors name keys of the section `name`."""

    def decorate(plain: type[Section]) -> type[Section]:
        kind: Any = pydantic_dataclass(frozen=True, config=ConfigDict(extra="forbid"))(plain)
        validated = kind.__init__

        def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
            with errors_as_sentences(kind, kwargs, name):
                validated(self, *args, **kwargs)

        kind.__init__ = __init__
        return kind

    return decorate
