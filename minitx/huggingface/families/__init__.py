"""Families of models: how each is told in Hugging Face's words and in ours. Adding one is one file, imported here."""

from minitx.huggingface.families.bart import Bart, Marian
from minitx.huggingface.families.bert import Bert
from minitx.huggingface.families.family import FAMILIES, Family
from minitx.huggingface.families.gpt2 import GPT2
from minitx.huggingface.families.llama import Llama, Mistral, Qwen2
from minitx.huggingface.families.t5 import T5

__all__ = ["FAMILIES", "GPT2", "T5", "Bart", "Bert", "Family", "Llama", "Marian", "Mistral", "Qwen2"]
