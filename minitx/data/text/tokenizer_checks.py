"""Checks of a tokenizer from a file: nothing in it may take more memory or time than a text of ordinary length needs.

The library does not check files. A few chained replacements multiply a text by a million, a regular expression may take
exponential time, and unexpected content ends the process. So rules are counted and measured, and a tokenizer with
regular expressions or rules that are not known here is tried out in a child process first.
"""

import base64
import json
import signal
import struct
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from minitx.config.errors import ConfigError

MAX_RULES = 100
MAX_TEXT_CHARACTERS = 2000  # of a text in a rule
MAX_GROWTH = 100  # times: the length of a text, by all replacements together
MAX_ADDED_CHARACTERS = 200_000  # of added tokens; their automaton takes a kilobyte for each
MAX_WORD_CHARACTERS = 1000  # of a word of WordPiece, whose time is quadratic in them
MAX_CPU_SECONDS = 5  # in the child process
MAX_MEMORY_BYTES = 2**31  # in the child process
PROBE_CHARACTERS = 2000
"""Length of the texts to try: exponential and cubic time show, quadratic time passes."""

KNOWN_RULES = {
    "BertNormalizer", "Lowercase", "NFC", "NFD", "NFKC", "NFKD", "Nmt", "Prepend", "Replace", "StripAccents",
    "BertPreTokenizer", "ByteLevel", "Digits", "Metaspace", "Punctuation", "Split", "Whitespace", "WhitespaceSplit",
    "BertProcessing", "RobertaProcessing", "TemplateProcessing", "ByteFallback", "Fuse", "Sequence", "Strip",
    "WordPiece", "BPE", "Unigram", "WordLevel",
}  # fmt: skip
KNOWN_PATTERNS = {
    r"[\s\S]", r"\s|\w+|[^\w\s]+",  # characters and words, tokenizer_training.py
    " {2,}",  # T5
    # Llama 3 and Qwen2
    *(
        rf"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|{digits}"
        r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
        for digits in (r"\p{N}{1,3}", r"\p{N}")
    ),
}  # fmt: skip
"""Rules and regular expressions of linear or quadratic time that accept any text."""
UNMEASURED = {"vocab", "merges", "added_tokens", "precompiled_charsmap"}
"""Keys whose values may be long."""
PARTS = ("normalizer", "pre_tokenizer", "post_processor", "decoder", "model")


def check(backend: dict[str, Any]) -> None:
    """Check a tokenizer in the library's format.

    Raises:
        ConfigError: too many or too large rules, or a regular expression that takes too long.
    """
    model, added = backend["model"], backend.get("added_tokens", [])
    _require(isinstance(model, dict), "a model of keys and values", type(model).__name__)
    _require(isinstance(added, list), "a list of added_tokens", type(added).__name__)
    patterns, types = set[str](), set[str]()
    for part in PARTS:
        growth = 1.0
        for number, rule in enumerate(_rules(backend.get(part))):
            _require(number < MAX_RULES, f"at most {MAX_RULES} rules in its {part}", "more")
            for key, text in rule.items():
                if key not in UNMEASURED and isinstance(text, str):
                    expected = f"at most {MAX_TEXT_CHARACTERS:,} characters for {part}.{key}"
                    _require(len(text) <= MAX_TEXT_CHARACTERS, expected, len(text))
            if "Regex" in rule:
                patterns.add(str(rule["Regex"]))
            if charsmap := rule.get("precompiled_charsmap"):
                longest = _longest_replacement(base64.b64decode(charsmap))
                _require(longest <= MAX_GROWTH, f"replacements of at most {MAX_GROWTH} bytes", longest)
            if {"single", "special_tokens"} <= rule.keys():  # a template; the library panics at another id
                ids = {part["id"] for piece in rule["single"] for part in piece.values()}
                _require(ids <= {"A", *rule["special_tokens"]}, "a template of A and its special_tokens", sorted(ids))
            if {"pattern", "content"} <= rule.keys():  # a Replace rule, which the library accepts without its type
                growth *= max(1.0, _growth(rule))
                _require(
                    growth <= MAX_GROWTH, f"replacements that make a text at most {MAX_GROWTH} times longer", "more"
                )
            types.add(str(rule.get("type", "Sequence")))
    if isinstance(model.get("vocab"), list):  # Unigram: an unknown character would be the library's own error
        _require(isinstance(model.get("unk_id"), int), "an unk_id", model.get("unk_id"))
    longest = model.get("max_input_chars_per_word", 0)
    _require(longest <= MAX_WORD_CHARACTERS, f"max_input_chars_per_word of at most {MAX_WORD_CHARACTERS:,}", longest)
    length = sum(len(token["content"]) for token in added)
    _require(length <= MAX_ADDED_CHARACTERS, f"at most {MAX_ADDED_CHARACTERS:,} characters of added tokens", length)
    if types - KNOWN_RULES or patterns - KNOWN_PATTERNS:
        _try_out(backend, sorted(patterns - KNOWN_PATTERNS))


def _rules(part: Any) -> Iterator[dict[str, Any]]:
    """Every object in a part of a tokenizer but its vocabulary."""
    pending = [part]
    while pending:
        value = pending.pop()
        if isinstance(value, dict):
            yield value
            pending += [inner for key, inner in value.items() if key not in UNMEASURED]
        elif isinstance(value, list):
            pending += value


def _growth(rule: dict[str, Any]) -> float:
    """How much longer a replacement can make a text: an expression may match nothing, everywhere."""
    added = len(rule["content"].encode())
    replaced = rule["pattern"].get("String")
    return added / len(replaced.encode()) if replaced else 1 + added


def _longest_replacement(charsmap: bytes) -> int:
    """The longest text that a character becomes, by a table of SentencePiece: a trie of given size, then the texts."""
    (size,) = struct.unpack_from("<I", charsmap)
    return max(map(len, charsmap[4 + size :].split(b"\0")))


def _require(fits: bool, expected: str, got: Any) -> None:
    if not fits:
        raise ConfigError(f"it must have {expected}, got {got}")


def _try_out(backend: dict[str, Any], patterns: list[str]) -> None:
    """Build a tokenizer in a child process, and encode texts with the characters of its patterns."""
    letters = list(dict.fromkeys("".join(patterns)[:200] + "a0 \n.\u00e9_"))
    runs = [letter * PROBE_CHARACTERS for letter in [*letters, "".join(letters)]]
    probes = [text[:PROBE_CHARACTERS] + end for text in runs for end in ("", f"\x01{''.join(letters)}")]
    # With the paths of this process: `python -m` would import from the current folder first.
    start = f"import sys; sys.path[:] = {[*map(str, sys.path)]}; from {__name__} import _child; _child()"
    reason = "took too long"
    try:
        child = subprocess.run(
            [sys.executable, "-c", start],
            input=json.dumps([backend, probes]).encode(),
            capture_output=True,
            timeout=10 * MAX_CPU_SECONDS,
        )
        if not child.returncode:
            return
        if child.returncode > 0:
            reason = child.stderr.decode(errors="replace").strip().split("\n")[-1][:150]
        elif child.returncode != -getattr(signal, "SIGXCPU", 0):
            reason = "took too much memory"
    except subprocess.TimeoutExpired:
        pass
    which = f"the regular expression {patterns[0]!r:.80}" if patterns else "its rules"
    raise ConfigError(f"on a text of {PROBE_CHARACTERS:,} characters, {which} failed ({reason})")


def _child() -> None:
    """Build the tokenizer on stdin and encode its texts, with limited memory and time."""
    import tokenizers

    with suppress(ImportError, ValueError, OSError):  # Windows; a macOS that limits no address space
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_CPU, (MAX_CPU_SECONDS, MAX_CPU_SECONDS))
        resource.setrlimit(resource.RLIMIT_AS, (MAX_MEMORY_BYTES, MAX_MEMORY_BYTES))
    backend, probes = json.load(sys.stdin)
    tokenizer = tokenizers.Tokenizer.from_str(json.dumps(backend))
    for text in probes:
        tokenizer.decode(tokenizer.encode(text).ids)
