"""Supported model families, one file each, imported here."""

from minitx.huggingface.families import bart, bert, gpt2, llama, t5
from minitx.huggingface.families.family import FAMILIES, Family

__all__ = ["FAMILIES", "Family", "bart", "bert", "gpt2", "llama", "t5"]
