"""The three Transformers, put together from the parts in nn/: shapes only, no text, tasks or training.

Legend: B batch, T target tokens, S source tokens, D d_model, V vocabulary.
`keep` is True for a real token and False for padding; None says that all are real.
"""

from collections.abc import Sequence

from torch import Tensor, nn

from minitx.config.errors import ConfigError
from minitx.nn import Cache, DecoderStack, EncoderStack, Head, NoPositions, Stack, TokenEmbedding, masks


class _Decoding(nn.Module):
    """Base of models with a decoder."""

    embedding: TokenEmbedding
    decoder: DecoderStack

    def _decode(
        self,
        ids: Tensor,
        keep: Tensor | None,
        cache: Cache | None,
        memory: Tensor | None = None,
        memory_keep: Tensor | None = None,
        rules: Sequence[masks.Predicate] = (),
        causal: bool = True,
        documents: Tensor | None = None,
    ) -> Tensor:
        """Decode ids [B, T] to [B, T, D]; with a cache, ids are the new tokens."""
        if cache is None:
            pos = self.decoder.position_ids(ids, keep, documents)
        else:
            pos = cache.append(ids, keep, self.decoder.position_ids)
            keep = cache.keep
        x = self.decoder(self.embedding(ids), pos, keep, memory, memory_keep, cache, rules, causal)
        if cache is not None:
            cache.advance(ids.size(1))
        return x


class EncoderDecoder(_Decoding):
    """The Transformer of "Attention Is All You Need" (Vaswani et al. 2017); source and target share one embedding."""

    def __init__(self, embedding: TokenEmbedding, encoder: EncoderStack, decoder: DecoderStack, head: Head) -> None:
        super().__init__()
        self.embedding, self.encoder, self.decoder, self.head = embedding, encoder, decoder, head

    def forward(
        self,
        src_ids: Tensor,
        tgt_ids: Tensor,
        src_keep: Tensor | None = None,
        tgt_keep: Tensor | None = None,
        *,
        head: bool = True,
    ) -> Tensor:
        """Compute logits [B, T, V] of the token after each target token from src_ids [B, S] and tgt_ids [B, T].

        head=False returns the input [B, T, D] of the head, for a loss that never holds all logits.
        """
        return self.decode(tgt_ids, self.encode(src_ids, src_keep), src_keep, tgt_keep, head=head)

    def encode(self, src_ids: Tensor, src_keep: Tensor | None = None) -> Tensor:
        """Encode src_ids [B, S] to the memory [B, S, D]."""
        return self.encoder(self.embedding(src_ids), self.encoder.position_ids(src_ids, src_keep), src_keep)

    def decode(
        self,
        tgt_ids: Tensor,
        memory: Tensor,
        src_keep: Tensor | None = None,
        tgt_keep: Tensor | None = None,
        cache: Cache | None = None,
        *,
        head: bool = True,
    ) -> Tensor:
        """Decode tgt_ids [B, T], with a cache the new ones, and the memory [B, S, D] to logits [B, T, V]."""
        x = self._decode(tgt_ids, tgt_keep, cache, memory, src_keep)
        return self.head(x) if head else x

    def start(self, src_ids: Tensor, src_keep: Tensor | None = None) -> Cache:
        """Encode the source; returns the cache for `step`."""
        return Cache(self.encode(src_ids, src_keep), src_keep)

    def step(self, ids: Tensor, cache: Cache, keep: Tensor | None = None) -> Tensor:
        """Logits [B, T, V] after the new target tokens ids [B, T]."""
        assert cache.memory is not None, "the cache comes from start"
        return self.decode(ids, cache.memory, cache.memory_keep, keep, cache)


class DecoderOnly(_Decoding):
    """A causal language model (GPT; Radford et al. 2018)."""

    def __init__(self, embedding: TokenEmbedding, decoder: DecoderStack, head: Head, prefix_lm: bool = False) -> None:
        super().__init__()
        self.embedding, self.decoder, self.head = embedding, decoder, head
        self.prefix_lm = prefix_lm

    def forward(
        self,
        ids: Tensor,
        keep: Tensor | None = None,
        cache: Cache | None = None,
        prefix: Tensor | None = None,
        documents: Tensor | None = None,
        *,
        head: bool = True,
    ) -> Tensor:
        """Compute logits [B, T, V] of the token after each token ids [B, T]; with a cache, ids are the new tokens.

        Args:
            ids: tokens.
            keep: [B, T], True for a real token.
            cache: keys and values of earlier tokens.
            prefix: [B], length of each row's question, padding included. A model with prefix_lm attends to it in both
                directions; any other ignores it.
            documents: [B, T], document number of each token: packed documents do not attend to each other, and
                positions restart in each. Not together with a cache.
            head: False for the input [B, T, D] of the head.
        """
        rules = [masks.prefix(prefix)] if self.prefix_lm and prefix is not None else []
        causal = not rules
        if documents is not None:
            if cache is not None:
                raise ConfigError("packed documents cannot be read through a cache: it belongs to one document")
            rules.append(masks.same_document(documents))
        x = self._decode(ids, keep, cache, rules=rules, causal=causal, documents=documents)
        return self.head(x) if head else x

    def start(self) -> Cache:
        """Return an empty cache; the first `step` reads the prompt."""
        return Cache()

    def step(self, ids: Tensor, cache: Cache, keep: Tensor | None = None) -> Tensor:
        """Logits [B, T, V] after the new tokens ids [B, T]; keep [B, T] marks padding on the left of prompts.

        The first call reads the prompt; with prefix_lm all of it, since its tokens attend to one another.
        """
        first = self.prefix_lm and cache.length == 0
        return self(ids, keep, cache, ids.new_full((ids.size(0),), ids.size(1)) if first else None)


class EncoderOnly(nn.Module):
    """A bidirectional encoder with an output at each position (BERT; Devlin et al. 2019)."""

    def __init__(self, embedding: TokenEmbedding, encoder: EncoderStack, head: Head) -> None:
        super().__init__()
        self.embedding, self.encoder, self.head = embedding, encoder, head

    def forward(
        self, ids: Tensor, keep: Tensor | None = None, documents: Tensor | None = None, *, head: bool = True
    ) -> Tensor:
        """Compute logits [B, T, V] for each position of ids [B, T]; other arguments as for DecoderOnly."""
        rules = [] if documents is None else [masks.same_document(documents)]
        x = self.encoder(self.embedding(ids), self.encoder.position_ids(ids, keep, documents), keep, rules=rules)
        return self.head(x) if head else x


Transformer = EncoderDecoder | DecoderOnly | EncoderOnly


def max_positions(model: nn.Module) -> int | None:
    """The longest sequence whose positions the model can tell apart; None for any length."""
    limits = []
    for stack in (part for part in model.modules() if isinstance(part, Stack)):
        tables = [part.max_len for part in stack.modules() if isinstance(part, NoPositions)]
        limits += [stack.position_ids.max_len]
        limits += [stack.position_ids.max_tokens(size) for size in tables if size is not None]
    return min((limit for limit in limits if limit is not None), default=None)
