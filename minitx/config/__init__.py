"""Configuration: its schema, the YAML that fills it, and the errors that refuse it. No torch."""
