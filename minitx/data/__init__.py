"""Tasks, text and tokenizers, and the layout of their examples; no model in here."""
