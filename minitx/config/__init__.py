"""Configuration: its schema, the YAML and the command line that fill it, and the errors that refuse it. No torch."""
