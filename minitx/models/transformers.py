"""The three Transformers, built from the parts in nn/. Knows shapes and configs; nothing of text, tasks or training.

Legend: B batch, T target tokens, S source tokens, D d_model, V vocabulary.
`keep` marks real tokens (True) among padding; None says that all are real.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from minitx.nn import Cache, DecoderStack, EncoderStack, Head, NoPositions, Stack, StaticCache, TokenEmbedding, masks


class EncoderDecoder(nn.Module):
    """The Transformer of "Attention Is All You Need" (Vaswani et al. 2017); source and target share one embedding."""

    def __init__(
        self,
        embedding: TokenEmbedding,
        encoder: EncoderStack,
        decoder: DecoderStack,
        head: Head,
        window: int | None = None,
    ) -> None:
        super().__init__()
        self.embedding, self.encoder, self.decoder, self.head = embedding, encoder, decoder, head
        self.window = window

    def forward(
        self,
        src_ids: Tensor,
        tgt_ids: Tensor,
        src_keep: Tensor | None = None,
        tgt_keep: Tensor | None = None,
        *,
        head: bool = True,
    ) -> Tensor:
        """Scores of the token after each target token: src_ids [B, S], tgt_ids [B, T] to logits [B, T, V].

        head=False returns the vectors [B, T, D] that the head would read, for a loss that never holds all logits.
        """
        return self.decode(tgt_ids, self.encode(src_ids, src_keep), src_keep, tgt_keep, head=head)

    def encode(self, src_ids: Tensor, src_keep: Tensor | None = None) -> Tensor:
        """src_ids [B, S] to the memory [B, S, D]."""
        return _encode(self, src_ids, src_keep)

    def decode(
        self,
        tgt_ids: Tensor,
        memory: Tensor,
        src_keep: Tensor | None = None,
        tgt_keep: Tensor | None = None,
        cache: Cache | StaticCache | None = None,
        *,
        head: bool = True,
    ) -> Tensor:
        """tgt_ids [B, T] and the memory [B, S, D] to logits [B, T, V]; with a cache, tgt_ids are the new tokens."""
        x = _decode(self, tgt_ids, tgt_keep, cache, memory, src_keep)
        return self.head(x) if head else x

    def start(self, src_ids: Tensor, src_keep: Tensor | None = None) -> Cache:
        """Read the source once; the cache is then handed to step."""
        return Cache(self.encode(src_ids, src_keep), src_keep)

    def fix(self, cache: Cache, room: int) -> StaticCache:
        """The cache, once a prompt is in it, in tensors that never change their shape; see DecoderOnly.fix."""
        return _fixed(self, cache, room)

    def step(self, ids: Tensor, cache: Cache | StaticCache, keep: Tensor | None = None) -> Tensor:
        """Logits [B, T, V] after the new target tokens ids [B, T]."""
        assert cache.memory is not None  # start put it there
        return self.decode(ids, cache.memory, cache.memory_keep, keep, cache)


class DecoderOnly(nn.Module):
    """A causal language model (GPT; Radford et al. 2018)."""

    def __init__(
        self,
        embedding: TokenEmbedding,
        decoder: DecoderStack,
        head: Head,
        window: int | None = None,
        prefix_lm: bool = False,
    ) -> None:
        super().__init__()
        self.embedding, self.decoder, self.head = embedding, decoder, head
        self.prefix_lm, self.window = prefix_lm, window

    def forward(
        self,
        ids: Tensor,
        keep: Tensor | None = None,
        cache: Cache | StaticCache | None = None,
        prefix: Tensor | None = None,
        documents: Tensor | None = None,
        *,
        head: bool = True,
    ) -> Tensor:
        """Scores of the token after each token.

        Args:
            ids: tokens [B, T]; with a cache, the new ones.
            keep: [B, T], True for a real token.
            cache: what earlier calls have read.
            prefix: [B], how many tokens at the beginning of each row form its question, padding among them included.
                A model with prefix_lm reads them in both directions; any other takes no notice.
            documents: [B, T], a number for the document of each token: packed documents do not see each other, and
                positions begin anew in each. Not together with a cache.
            head: False for the vectors below the head.

        Returns:
            logits [B, T, V], or [B, T, D] without the head.
        """
        rules = [masks.prefix(prefix)] if self.prefix_lm and prefix is not None else []
        x = _decode(self, ids, keep, cache, rules=rules, documents=documents)
        return self.head(x) if head else x

    def start(self) -> Cache:
        """An empty cache; the prompt is the first thing handed to step."""
        return Cache()

    def fix(self, cache: Cache, room: int) -> StaticCache:
        """The cache, once a prompt is in it, in tensors that never change their shape, for a compiled step.

        Args:
            cache: what has read the prompt.
            room: tokens that there will ever be.

        Raises:
            ValueError: a model with a window, whose cache lets go of tokens.
        """
        return _fixed(self, cache, room)

    def step(self, ids: Tensor, cache: Cache | StaticCache, keep: Tensor | None = None) -> Tensor:
        """Logits [B, T, V] after the new tokens ids [B, T]; keep [B, T] marks padding on the left of prompts.

        The first call reads the prompt; with prefix_lm all of it, since its tokens see one another.
        """
        begins = self.prefix_lm and cache.length == 0
        return self(ids, keep, cache, ids.new_full((ids.size(0),), ids.size(1)) if begins else None)


class EncoderOnly(nn.Module):
    """A bidirectional encoder with an output at each position (BERT; Devlin et al. 2019)."""

    def __init__(self, embedding: TokenEmbedding, encoder: EncoderStack, head: Head) -> None:
        super().__init__()
        self.embedding, self.encoder, self.head = embedding, encoder, head

    def forward(
        self, ids: Tensor, keep: Tensor | None = None, documents: Tensor | None = None, *, head: bool = True
    ) -> Tensor:
        """Scores for each position: ids [B, T] to logits [B, T, V]; keep, documents and head as for DecoderOnly."""
        x = _encode(self, ids, keep, documents)
        return self.head(x) if head else x


Transformer = EncoderDecoder | DecoderOnly | EncoderOnly
ARCHITECTURES: dict[str, type[EncoderDecoder] | type[DecoderOnly] | type[EncoderOnly]] = {
    "encoder_decoder": EncoderDecoder,
    "decoder_only": DecoderOnly,
    "encoder_only": EncoderOnly,
}
"""Models by model.architecture."""


def max_positions(model: nn.Module) -> int | None:
    """The longest sequence that the model's positions can tell apart; None for any length."""
    limits = []
    for stack in (part for part in model.modules() if isinstance(part, Stack)):
        limits.append(stack.position_ids.max_len)
        limits += [
            stack.position_ids.room(part.max_len)
            for part in stack.modules()
            if isinstance(part, NoPositions) and part.max_len is not None
        ]
    return min((limit for limit in limits if limit is not None), default=None)


def _encode(
    model: EncoderDecoder | EncoderOnly, ids: Tensor, keep: Tensor | None, documents: Tensor | None = None
) -> Tensor:
    """The encoder's way from ids to its output [B, T, D]."""
    pos = model.encoder.position_ids(ids, keep, documents)
    return model.encoder(model.embedding(ids), pos, keep, _mask(ids, [], documents))


def _decode(
    model: EncoderDecoder | DecoderOnly,
    ids: Tensor,
    keep: Tensor | None,
    cache: Cache | StaticCache | None,
    memory: Tensor | None = None,
    memory_keep: Tensor | None = None,
    rules: Sequence[masks.Predicate] = (),
    documents: Tensor | None = None,
) -> Tensor:
    """The decoder's way from ids to what the head reads [B, T, D], with or without a memory, with or without a cache.

    rules, when there are any, say all about the future: they take the place of the causal one.
    """
    if cache is None:
        pos = model.decoder.position_ids(ids, keep, documents)
    else:
        if documents is not None:
            raise ValueError("packed documents cannot be read through a cache: it belongs to one document")
        pos = cache.admit(ids, keep, model.decoder.position_ids)
        keep = cache.keep
    mask = _mask(ids, rules, documents)
    x = model.decoder(model.embedding(ids), pos, keep, memory, memory_keep, cache, mask, causal=not rules)
    if cache is not None:
        cache.advance(ids.size(1))
    return x


def _mask(ids: Tensor, rules: Sequence[masks.Predicate], documents: Tensor | None) -> Tensor | None:
    """What rules and packed documents hide, [B, 1, T, T]; None when that is nothing."""
    if documents is not None:
        rules = [*rules, masks.same_document(documents)]
    return masks.build(*rules, queries=ids.size(1), keys=ids.size(1), device=ids.device) if rules else None


def _fixed(model: EncoderDecoder | DecoderOnly, cache: Cache, room: int) -> StaticCache:
    if model.window is not None:
        told = f"model.window {model.window} lets go of old tokens"
        raise ValueError(f"a model with {told}: it cannot be compiled for writing")
    return StaticCache(cache, room)
