"""The parts of a Transformer, from our own hands: torch only, no config, no data, no training."""

from minitx.nn import masks
from minitx.nn.attention import scaled_dot_product_attention
from minitx.nn.cache import Cache, StaticCache
from minitx.nn.embedding import Head, HeadTransform, TokenEmbedding
from minitx.nn.feed_forward import ACTIVATIONS, FeedForward
from minitx.nn.layers import DecoderLayer, EncoderLayer
from minitx.nn.multi_head import MultiHeadAttention
from minitx.nn.norms import AddNorm, NORMS, build_norm
from minitx.nn.position_ids import ConsecutiveIds, POSITION_IDS
from minitx.nn.positions import NoPositions, POSITIONS
from minitx.nn.stacks import DecoderStack, EncoderStack, Stack

__all__ = [
    "ACTIVATIONS",
    "NORMS",
    "POSITIONS",
    "POSITION_IDS",
    "AddNorm",
    "Cache",
    "ConsecutiveIds",
    "DecoderLayer",
    "DecoderStack",
    "EncoderLayer",
    "EncoderStack",
    "FeedForward",
    "StaticCache",
    "Head",
    "HeadTransform",
    "MultiHeadAttention",
    "NoPositions",
    "Stack",
    "TokenEmbedding",
    "build_norm",
    "masks",
    "scaled_dot_product_attention",
]
