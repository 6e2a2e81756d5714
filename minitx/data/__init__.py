"""Tasks, text and tokenizers, and the batches that models read. Nothing here imports a model."""
