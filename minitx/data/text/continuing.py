"""Text that continues other text, for tokenizers that put a space before every text, as Llama's does."""

from typing import Any

WITHOUT_SPACE = {"prepend_scheme": "never", "add_prefix_space": False}
"""Options with which rules of the `tokenizers` library add no space."""
NOTHING = {"type": "Sequence", "normalizers": []}
"""A rule that changes nothing."""


def without_first_space(plain: dict[str, Any]) -> dict[str, Any]:
    """The same tokenizer, in the library's format, without the space before a text."""
    return plain | {part: _without_space(plain[part]) for part in ("normalizer", "pre_tokenizer")}


def _without_space(rule: Any) -> Any:
    if isinstance(rule, list):
        return [*map(_without_space, rule)]
    if not isinstance(rule, dict):
        return rule
    if rule.get("type") == "Prepend":
        return NOTHING
    return {key: WITHOUT_SPACE.get(key, _without_space(value)) for key, value in rule.items()}
