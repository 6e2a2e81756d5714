"""A user's own Python files, which register tasks, position schemes, tokenizers and corpora."""
