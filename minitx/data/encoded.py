"""A corpus as one flat file of token ids, memory-mapped: made once, then any block of it is one indexing away."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

import numpy as np

from minitx.data.tokenizers import Tokenizer
from minitx.files import written_whole

ROWS_AT_ONCE = 10_000


def cache_folder() -> Path:
    """Where encoded corpora are kept: $MINITX_CACHE, or ~/.cache/minitx."""
    return Path(os.environ.get("MINITX_CACHE", "~/.cache/minitx")).expanduser()


def encode(table: Any, tokenizer: Tokenizer) -> np.ndarray:
    """All tokens of a `datasets` table's `text` column in a row: uint16 or uint32, memory-mapped, read only.

    The file is kept under a key of the text and the tokenizer, so a second run finds it.
    """
    kind = np.dtype(np.uint16 if tokenizer.vocab_size <= 2**16 else np.uint32)
    vocabulary = json.dumps(tokenizer.to_dict(), sort_keys=True)
    key = hashlib.sha256(f"{table._fingerprint}\n{vocabulary}".encode()).hexdigest()[:32]
    path = cache_folder() / f"{key}.{kind.name}"
    if not path.exists():
        with written_whole(path) as file:
            for rows in table.iter(batch_size=ROWS_AT_ONCE):
                for ids in tokenizer.encode_batch(rows["text"]):
                    file.write(np.asarray(ids, dtype=kind).tobytes())
    if not path.stat().st_size:
        return np.empty(0, dtype=kind)
    return np.memmap(path, dtype=kind, mode="r")
