"""Supported model families, one file each."""

from minitx.huggingface.families.bart import Bart, Marian
from minitx.huggingface.families.bert import Bert
from minitx.huggingface.families.family import Family, resolved
from minitx.huggingface.families.gemma import Gemma, Gemma2, Gemma3
from minitx.huggingface.families.gpt2 import GPT2
from minitx.huggingface.families.gpt_neo import GPTNeo
from minitx.huggingface.families.gpt_neox import GPTNeoX, Phi
from minitx.huggingface.families.llama import Llama, Mistral
from minitx.huggingface.families.qwen import Qwen2, Qwen3
from minitx.huggingface.families.t5 import T5

__all__ = ["FAMILIES", "Family", "resolved"]

FAMILIES: dict[str, Family] = {
    family.model_type: family()
    for family in (
        Bart, Marian, Bert, GPT2, GPTNeo, GPTNeoX, Phi, Llama, Mistral, Qwen2, Qwen3, Gemma, Gemma2, Gemma3, T5,
    )
}  # fmt: skip
"""Every family by its model_type."""
