"""The three Transformers: their modules, their construction from a config, their initial weights."""
