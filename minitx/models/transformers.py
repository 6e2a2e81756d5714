"""The three Transformers, put together from the parts in nn/: shapes only, no text, tasks or training.

Legend: B batch, T target tokens, S source tokens, D d_model, V vocabulary.
`keep` is True for a real token and False for padding; None if all are real.
"""

import functools
from collections.abc import Callable
from importlib import import_module, util
from typing import Any

import torch
from torch import Tensor, nn

from minitx.config.errors import ConfigError
from minitx.nn import Cache, DecoderStack, EncoderStack, Head, NoPositions, Stack, TokenEmbedding, masks


class _Model(nn.Module):
    """Base of the models: how a stack reads tokens."""

    embedding: TokenEmbedding
    head: Head

    def named_modules(self, memo: Any = None, prefix: str = "", remove_duplicate: bool = True) -> Any:
        """All modules, each under its first name alone: torch.func.functional_call would not restore its others."""
        return super().named_modules(memo, prefix)

    def _read(
        self,
        stack: Stack,
        ids: Tensor,
        keep: Tensor | None,
        documents: Tensor | None = None,
        cache: Cache | None = None,
        rules: tuple[masks.Predicate, ...] = (),
        **options: Any,
    ) -> Tensor:
        """Run a stack on ids [B, T], only new ones if there is a cache; returns [B, T, D]. options are the stack's."""
        if ids.dim() != 2:
            raise ConfigError(f"ids: expected the shape [B, T], got {[*ids.shape]}")
        if documents is not None:
            rules = (*rules, masks.same_document(documents))
        x = self.embedding(ids)  # refuses an unknown id before the cache has it
        if cache is None:
            return stack(x, stack.position_ids(ids, keep, documents), keep, rules=rules, **options)
        before = {} if torch.compiler.is_compiling() else vars(cache).copy()  # vars would break a graph of torch 2.9
        try:
            pos = cache.append(ids, keep, stack.position_ids)
            x = stack(x, pos, cache.keep, cache=cache, rules=rules, **options)
        except Exception:  # such as that of a position past a table: the next step continues without these tokens
            vars(cache).update(before)
            raise
        cache.advance(ids.size(1))
        return x


class _Decoder(_Model):
    """A model that generates: `start` returns a cache, `step` reads new tokens into it."""

    compute_step: Callable[..., Tensor]

    def step(self, ids: Tensor, cache: Cache, keep: Tensor | None = None) -> Tensor:
        """Logits [B, T, V] after the new tokens ids [B, T]; keep [B, T] marks padding on the left of prompts."""
        replay = _replay()  # replays compute_step: the same logits in less time
        return replay.step(self, ids, cache, keep) if replay else self.compute_step(ids, cache, keep)


@functools.cache
def _replay() -> Any:
    extra = util.find_spec("minitx.compilation")  # an empty folder is found too
    return import_module("minitx.compilation.replay") if extra and extra.origin else None


class EncoderDecoder(_Decoder):
    """The Transformer of "Attention Is All You Need" (Vaswani et al. 2017); source and target share one embedding."""

    def __init__(self, embedding: TokenEmbedding, encoder: EncoderStack, decoder: DecoderStack, head: Head) -> None:
        super().__init__()
        self.embedding, self.encoder, self.decoder, self.head = embedding, encoder, decoder, head

    def forward(
        self, src_ids: Tensor, tgt_ids: Tensor, src_keep: Tensor | None = None, tgt_keep: Tensor | None = None, *,
        head: bool = True,
    ) -> Tensor:  # fmt: skip
        """Compute logits [B, T, V] of the token after each target token from src_ids [B, S] and tgt_ids [B, T].

        head=False returns the input [B, T, D] of the head, for a loss that never holds all logits.
        """
        return self.decode(tgt_ids, self.encode(src_ids, src_keep), src_keep, tgt_keep, head=head)

    def encode(self, src_ids: Tensor, src_keep: Tensor | None = None) -> Tensor:
        """Encode src_ids [B, S] to the memory [B, S, D]."""
        return self._read(self.encoder, src_ids, src_keep)

    def decode(
        self, tgt_ids: Tensor, memory: Tensor, src_keep: Tensor | None = None, tgt_keep: Tensor | None = None,
        cache: Cache | None = None, *, head: bool = True,
    ) -> Tensor:  # fmt: skip
        """Decode tgt_ids [B, T], only new ones if there is a cache, with the memory [B, S, D] to logits [B, T, V]."""
        x = self._read(self.decoder, tgt_ids, tgt_keep, cache=cache, memory=memory, memory_keep=src_keep)
        return self.head(x) if head else x

    def start(self, src_ids: Tensor, src_keep: Tensor | None = None) -> Cache:
        """Encode the source; returns the cache for `step`."""
        return Cache(self.encode(src_ids, src_keep), src_keep)

    def compute_step(self, ids: Tensor, cache: Cache, keep: Tensor | None = None) -> Tensor:
        """Compute `step` with the modules: ids [B, T] are new target tokens."""
        assert cache.memory is not None, "the cache comes from start"
        return self.decode(ids, cache.memory, cache.memory_keep, keep, cache)


class DecoderOnly(_Decoder):
    """A causal language model (GPT; Radford et al. 2018)."""

    def __init__(self, embedding: TokenEmbedding, decoder: DecoderStack, head: Head, prefix_lm: bool = False) -> None:
        super().__init__()
        self.embedding, self.decoder, self.head = embedding, decoder, head
        self.prefix_lm = prefix_lm

    def forward(
        self, ids: Tensor, keep: Tensor | None = None, cache: Cache | None = None, prefix: Tensor | None = None,
        documents: Tensor | None = None, *, head: bool = True,
    ) -> Tensor:  # fmt: skip
        """Compute logits [B, T, V] of the token after each token ids [B, T]; with a cache, ids are the new tokens.

        Args:
            prefix: [B], length of each row's question, padding included. A model with prefix_lm attends to it in both
                directions; any other ignores it.
            documents: [B, T], document number of each token: packed documents do not attend to each other, and
                positions restart in each. Not together with a cache.
            head: False for the input [B, T, D] of the head.
        """
        if documents is not None and cache is not None:
            raise ConfigError("packed documents cannot be read through a cache: it belongs to one document")
        rules = (masks.prefix(prefix),) if self.prefix_lm and prefix is not None else ()
        x = self._read(self.decoder, ids, keep, documents, cache, rules, causal=len(rules) == 0)
        return self.head(x) if head else x

    def start(self) -> Cache:
        """Return an empty cache; the first `step` reads the prompt."""
        return Cache()

    def compute_step(self, ids: Tensor, cache: Cache, keep: Tensor | None = None) -> Tensor:
        """Compute `step` with the modules; with prefix_lm the first one reads the whole prompt, in both directions."""
        first = self.prefix_lm and cache.length == 0
        return self(ids, keep, cache, ids.new_full((ids.size(0),), ids.size(1)) if first else None)


class EncoderOnly(_Model):
    """A bidirectional encoder with an output at each position (BERT; Devlin et al. 2019)."""

    def __init__(self, embedding: TokenEmbedding, encoder: EncoderStack, head: Head) -> None:
        super().__init__()
        self.embedding, self.encoder, self.head = embedding, encoder, head

    def forward(
        self, ids: Tensor, keep: Tensor | None = None, cache: None = None, documents: Tensor | None = None, *,
        head: bool = True,
    ) -> Tensor:  # fmt: skip
        """Compute logits [B, T, V] for each position of ids [B, T]; arguments as for DecoderOnly, but never a cache."""
        x = self._read(self.encoder, ids, keep, documents)
        return self.head(x) if head else x


Transformer = EncoderDecoder | DecoderOnly | EncoderOnly


def max_positions(model: nn.Module) -> int | None:
    """The longest sequence whose positions the model can distinguish; None for any length."""
    limits = []
    for stack in (part for part in model.modules() if isinstance(part, Stack)):
        tables = [part.max_len for part in stack.modules() if isinstance(part, NoPositions) and part.max_len]
        limits += [stack.position_ids.max_len, *map(stack.position_ids.max_tokens, tables)]
    return min((limit for limit in limits if limit is not None), default=None)
