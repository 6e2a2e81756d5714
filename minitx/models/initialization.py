"""Initial weights of a model."""

from __future__ import annotations

from torch import nn

from minitx.config.schema import ModelConfig
from minitx.nn import Head, NoPositions, TokenEmbedding


def init_weights(model: nn.Module, config: ModelConfig) -> None:
    """Initialise all weights.

    | what                       | how                         | why                                                |
    |----------------------------|-----------------------------|----------------------------------------------------|
    | token embedding, tied head | normal, std 1 / sqrt(D)     | unit variance once scaled; logits of size one      |
    | head with its own table    | normal, std 1 / sqrt(D)     | logits of size one                                 |
    | position tables            | normal, std 0.02            | small compared with tokens until trained           |
    | linear maps                | Xavier uniform              | variance kept (Glorot and Bengio 2010)             |
    | o_proj, down_proj          | the same / sqrt(2 n_layers) | the residual sum keeps its size with depth (GPT-2) |
    |                            | unless scale_residual: false|                                                    |
    | biases                     | 0                           |                                                    |
    | norms                      | weight 1, bias 0            | the identity                                       |
    """
    for name, part in model.named_modules():
        if isinstance(part, Head):
            nn.init.normal_(part.weight, std=part.in_features**-0.5)
            if part.bias is not None:
                nn.init.zeros_(part.bias)
        elif isinstance(part, nn.Linear):
            into_residual = config.scale_residual and name.endswith(("o_proj", "down_proj"))
            layers = config.decoder_layers if name.startswith("decoder.") else config.n_layers
            nn.init.xavier_uniform_(part.weight, gain=(2 * layers) ** -0.5 if into_residual else 1.0)
            if part.bias is not None:
                nn.init.zeros_(part.bias)
        elif isinstance(part, TokenEmbedding):
            nn.init.normal_(part.table.weight, std=part.table.embedding_dim**-0.5)
        elif isinstance(part, NoPositions):
            for table in part.parameters():
                nn.init.normal_(table, std=0.02)  # its linear maps come later in this loop
