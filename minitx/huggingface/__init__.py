"""Import from and export to Hugging Face's formats, without `transformers`."""
