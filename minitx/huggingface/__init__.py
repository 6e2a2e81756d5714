"""Models in Hugging Face's formats, to ours and back; without `transformers`."""
