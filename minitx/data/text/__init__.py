"""Running text and translation: corpora, readers, caches, parallel files, tokenizer training."""
