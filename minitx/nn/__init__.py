"""The parts of a Transformer, on torch alone: no config, no data, no training."""

from minitx.nn import bias_positions as bias_positions
from minitx.nn import masks
from minitx.nn.cache import Cache
from minitx.nn.embedding import Head, HeadTransform, TokenEmbedding
from minitx.nn.errors import OptionError
from minitx.nn.feed_forward import ACTIVATIONS, FeedForward
from minitx.nn.kernels import scaled_dot_product_attention
from minitx.nn.layers import DecoderLayer, EncoderLayer
from minitx.nn.multi_head import MultiHeadAttention
from minitx.nn.norms import NORMS, AddNorm, build_norm
from minitx.nn.position_ids import POSITION_IDS, ConsecutiveIds
from minitx.nn.positions import POSITIONS, NoPositions
from minitx.nn.stacks import DecoderStack, EncoderStack, Stack

__all__ = [
    "ACTIVATIONS", "NORMS", "POSITIONS", "POSITION_IDS", "AddNorm", "Cache", "ConsecutiveIds", "DecoderLayer",
    "DecoderStack", "EncoderLayer", "EncoderStack", "FeedForward", "Head", "HeadTransform", "MultiHeadAttention",
    "NoPositions", "OptionError", "Stack", "TokenEmbedding", "build_norm", "masks",
    "scaled_dot_product_attention",
]  # fmt: skip
