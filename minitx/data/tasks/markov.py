"""Running text of known entropy, which is the minimum loss of a language model.

A context is the latest symbols, on which the next one depends.

Legend: N examples, V states, C contexts (V to the power of the order).
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, ClassVar

import torch
from annotated_types import Interval
from torch import Tensor

from minitx.config.errors import ConfigError
from minitx.config.validation import Positive, Size
from minitx.data.examples import Kind, Stream
from minitx.data.splits import Split
from minitx.data.tasks.base import FIRST_SYMBOL_ID, Task, generator, register

MAX_CONTEXTS = 1024  # maximum C; the stationary distribution is the solution of C linear equations
SPREAD_SHARE = 1e-3
"""Share of the probability that is spread evenly over all symbols: if every symbol can follow, the chain mixes."""


@register("markov")
@dataclass(kw_only=True)
class Markov(Task):
    """3 1 4 1 -> 5 with a fixed probability: text from a random Markov chain, whose entropy rate is known.

    Training text is sampled for each batch, held-out text with the seeds of its splits. The first symbols of a block
    have the stationary distribution, as in the middle of a long text.
    """

    kind: ClassVar[Kind] = "stream"
    separator: ClassVar[str] = " "
    symbol_option: ClassVar[str] = "states"

    states: Annotated[int, Interval(ge=2, le=MAX_CONTEXTS)] = 10
    """Number of different symbols: "0", "1", ..."""
    order: Size = 1
    """Number of earlier symbols on which the next one depends."""
    concentration: Positive = 0.5
    """Evenness of the transitions: near 0 almost deterministic, 1 uniform over distributions, large uniform over
    symbols."""
    chain: Annotated[int, Interval(ge=0, lt=2**63)] = 0
    """Seed of the transitions."""
    block: Size = 64
    """Number of tokens in the model's context."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.states**self.order > MAX_CONTEXTS:
            must, got = f"must be at most {MAX_CONTEXTS}", f"got {self.states} to the power of {self.order}"
            raise ConfigError(f"data.states to the power of data.order {must}, {got}")

    @property
    def longest(self) -> tuple[int, int]:
        return 0, self.block

    @cached_property
    def transitions(self) -> Tensor:
        """The probability of each next symbol after each context, [C, V].

        A context is a number in base V whose lowest digit is the latest symbol. Its row is a normalized sample of
        exponential numbers to the power of 1 / concentration: for 1 that is the flat Dirichlet distribution.
        """
        contexts = self.states**self.order
        uniform = torch.rand(contexts, self.states, dtype=torch.float64, generator=generator(self.chain))
        exponential = -(1 - uniform).log()  # torch's own exponential_() differs between machines
        return (1 - SPREAD_SHARE) * (exponential.log() / self.concentration).softmax(dim=1) + SPREAD_SHARE / self.states

    @cached_property
    def stationary(self) -> Tensor:
        """The share of each context in a long text, [C]: the distribution that one more symbol does not change."""
        contexts = torch.arange(len(self.transitions))
        matrix = torch.zeros(len(contexts), len(contexts), dtype=torch.float64)  # [from, to]
        matrix[contexts[:, None], self._after(contexts[:, None], torch.arange(self.states))] = self.transitions
        # One of the balance equations follows from the others; it is replaced by the sum of the probabilities, 1.
        equations = matrix.T - torch.eye(len(contexts), dtype=torch.float64)
        equations[-1] = 1.0
        right_side = torch.zeros_like(equations[0])
        right_side[-1] = 1.0
        return torch.linalg.solve(equations, right_side).clamp(min=0.0)

    @property
    def floor(self) -> float:
        """The entropy rate: the entropy of the next symbol given all earlier ones, in nats.

        Above order 1 the first tokens of a block have less context and a higher loss.
        """
        return float(self.stationary @ torch.special.entr(self.transitions).sum(dim=1))

    def batch(self, generator: torch.Generator, size: int) -> Stream:
        chance = torch.rand(size, self.block + 1, generator=generator, dtype=torch.float64)
        context = _choose(self.stationary.expand(size, -1), chance[:, 0])
        symbols = [context // self.states**back % self.states for back in reversed(range(self.order))]
        for index in range(self.order, self.block + 1):
            symbols.append(_choose(self.transitions[context], chance[:, index]))
            context = self._after(context, symbols[-1])
        return Stream(FIRST_SYMBOL_ID + torch.stack(symbols[: self.block + 1], dim=1))

    def examples(self, split: Split, limit: int | None = None) -> Stream:
        """The first blocks of the split's text."""
        whole = self.batch(generator(*split.encode(), self.chain), self.held_out(split))
        return whole.slice(0, self.held_out(split, limit))

    def _after(self, context: Tensor, symbol: Tensor) -> Tensor:
        return (context * self.states + symbol) % self.states**self.order


def _choose(probabilities: Tensor, chance: Tensor) -> Tensor:
    """An index of each row of probabilities [N, C or V], chosen by a number in [0, 1) for each row."""
    passed = probabilities.cumsum(dim=1) <= chance[:, None]
    return passed.sum(dim=1).clamp(max=probabilities.size(1) - 1)
