"""The parts of a Transformer, from our own hands: torch only, no config, no data, no training."""

from minitx.nn import masks
from minitx.nn.attention import MultiHeadAttention, scaled_dot_product_attention
from minitx.nn.cache import Cache
from minitx.nn.embedding import Head, TokenEmbedding
from minitx.nn.feedforward import ACTIVATIONS, FeedForward
from minitx.nn.layers import DecoderLayer, EncoderLayer
from minitx.nn.norms import NORMS, AddNorm, build_norm
from minitx.nn.positions import POSITIONS, NoPositions
from minitx.nn.stacks import DecoderStack, EncoderStack

__all__ = [
    "ACTIVATIONS",
    "NORMS",
    "POSITIONS",
    "AddNorm",
    "Cache",
    "DecoderLayer",
    "DecoderStack",
    "EncoderLayer",
    "EncoderStack",
    "FeedForward",
    "Head",
    "MultiHeadAttention",
    "NoPositions",
    "TokenEmbedding",
    "build_norm",
    "masks",
    "scaled_dot_product_attention",
]
