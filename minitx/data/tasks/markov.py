"""Running text whose entropy is known: how near a language model comes to it is how much of the text it understands.

Legend: N examples, T tokens of a block, V states, C contexts: what the next symbol depends on, V to the order.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import torch
from torch import Tensor

from minitx.config.errors import ConfigError
from minitx.data.examples import Kind, Stream
from minitx.data.splits import Split
from minitx.data.tasks.base import FIRST, MOST, Task, check_at_least, generator, numbered, register
from minitx.data.tokenizers import Tokenizer

MOST_CONTEXTS = 1024
"""The stationary distribution is solved for exactly, with as many unknowns."""
LEAST = 1e-3
"""Share of each transition that is spread over all states: a chain whose every symbol can follow forgets its start."""


@register("markov")
@dataclass(kw_only=True)
class Markov(Task):
    """3 1 4 1 -> 5 with a fixed probability: text from a random Markov chain, whose entropy rate is known.

    Training text is drawn anew for each batch, held-out text under seeds of its own. Each block begins where a long
    text might, in the stationary distribution.
    """

    kind: ClassVar[Kind] = "stream"
    separator: ClassVar[str] = " "

    states: int = 10
    """Number of different symbols: "0", "1", ..."""
    order: int = 1
    """How many symbols back the next one depends on."""
    concentration: float = 0.5
    """How even the transitions are: near 0 hardly any choice, 1 all distributions alike, large all symbols alike."""
    chain: int = 0
    """Seed of the transitions."""
    block: int = 64
    """Tokens that the model sees at once."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_at_least("states", self.states, 2)
        check_at_least("order", self.order, 1)
        check_at_least("block", self.block, 1, MOST)
        check_at_least("chain", self.chain, 0, 2**63)
        if not 0.0 < self.concentration < math.inf:
            raise ConfigError(f"data.concentration must be larger than 0, got {self.concentration}")
        if self.states**self.order > MOST_CONTEXTS:
            raise ConfigError(
                f"data.states to the power of data.order must be at most {MOST_CONTEXTS}, "
                f"got {self.states} to the power of {self.order}"
            )

    @cached_property
    def vocabulary(self) -> Tokenizer:
        """Symbols separated by spaces."""
        return numbered(self.states)

    @property
    def longest(self) -> tuple[int, int]:
        """One block."""
        return 0, self.block

    @cached_property
    def transitions(self) -> Tensor:
        """The probability of each next symbol after each context, [C, V].

        A context is a number in base V whose lowest digit is the latest symbol. Its row is a normalised draw of
        exponential numbers to the power of 1 / concentration: for 1 that is the flat Dirichlet distribution.
        """
        contexts = self.states**self.order
        uniform = torch.rand(contexts, self.states, dtype=torch.float64, generator=generator(self.chain))
        draw = -(1 - uniform).log()  # torch's own exponential numbers differ between machines
        return (1 - LEAST) * (draw.log() / self.concentration).softmax(dim=1) + LEAST / self.states

    @cached_property
    def stationary(self) -> Tensor:
        """How often each context occurs in a long text, [C]: the distribution that one more symbol does not change."""
        contexts = torch.arange(len(self.transitions))
        matrix = torch.zeros(len(contexts), len(contexts), dtype=torch.float64)  # [from, to]
        matrix[contexts[:, None], self._after(contexts[:, None], torch.arange(self.states))] = self.transitions
        # One of the equations for balance follows from the others; that the probabilities sum to 1 takes its place.
        equations = matrix.T - torch.eye(len(contexts), dtype=torch.float64)
        equations[-1] = 1.0
        ends = torch.zeros_like(equations[0])
        ends[-1] = 1.0
        return torch.linalg.solve(equations, ends).clamp(min=0.0)

    @property
    def entropy_rate(self) -> float:
        """The entropy of the next symbol given all before it, in nats."""
        return float(self.stationary @ torch.special.entr(self.transitions).sum(dim=1))

    @property
    def floor(self) -> float | None:
        """The entropy rate. With more than order 1 the first tokens of a block have less before them, and cost more."""
        return self.entropy_rate

    def batch(self, generator: torch.Generator, size: int) -> Stream:
        """New text."""
        chance = torch.rand(size, self.block + 1, generator=generator, dtype=torch.float64)
        context = _pick(self.stationary.expand(size, -1), chance[:, 0])
        symbols = [context // self.states**back % self.states for back in reversed(range(self.order))]
        for place in range(self.order, self.block + 1):
            symbols.append(_pick(self.transitions[context], chance[:, place]))
            context = self._after(context, symbols[-1])
        return Stream(FIRST + torch.stack(symbols[: self.block + 1], dim=1))

    def examples(self, split: Split, limit: int | None = None) -> Stream:
        """The first blocks of the split's own text."""
        ids = self.batch(generator(*split.encode(), self.chain), self.held_out(split)).ids
        return Stream(ids[: self.held_out(split, limit)])

    def _after(self, context: Tensor, symbol: Tensor) -> Tensor:
        """The context behind one more symbol."""
        return (context * self.states + symbol) % self.states**self.order


def _pick(probabilities: Tensor, chance: Tensor) -> Tensor:
    """One of C or V for each row of probabilities [N, C or V], by a number in [0, 1) for each."""
    reached = probabilities.cumsum(dim=1) <= chance[:, None]
    return reached.sum(dim=1).clamp(max=probabilities.size(1) - 1)
