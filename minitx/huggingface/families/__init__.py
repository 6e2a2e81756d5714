"""Families of models: how each is told in Hugging Face's words and in ours. Adding one is one file, imported here."""

from minitx.huggingface.families.base import FAMILIES, Family
from minitx.huggingface.families.gpt2 import GPT2
from minitx.huggingface.families.llama import Llama, Mistral, Qwen2

__all__ = ["FAMILIES", "GPT2", "Family", "Llama", "Mistral", "Qwen2"]
