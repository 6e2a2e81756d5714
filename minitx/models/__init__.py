"""The three Transformers: their modules, how a config builds them, their first weights."""
