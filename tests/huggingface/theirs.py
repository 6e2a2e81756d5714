"""Small models of transformers with random weights and a tokenizer of their own, saved as their users save them."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from torch import nn

D, H, FF, LAYERS, LONGEST = 32, 4, 56, 2, 64
TEXT = [
    "The quick brown fox jumps over the lazy dog, and the dog sleeps on.",
    "To be, or not to be: that is the question.",
    "Ein Hund rennt über die grüne Wiese; niemand weiß, wohin.",
    "It was the best of times, it was the worst of times.",
] * 5


# ---- tokenizers, each of the kind that the family has ----------------------------------------------------------------


def byte_level(texts: list[str], specials: list[str], size: int = 300) -> Tokenizer:
    """GPT-2, Llama 3, Qwen2, BART."""
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=size, special_tokens=specials, initial_alphabet=alphabet, show_progress=False
    )
    backend.train_from_iterator(texts, trainer)
    return backend


def metaspace(texts: list[str], specials: list[str], size: int = 300) -> Tokenizer:
    """Llama 2 and Mistral: pieces of text whose spaces are written as a sign."""
    backend = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=False))
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    backend.decoder = decoders.Metaspace()
    backend.train_from_iterator(
        texts, trainers.BpeTrainer(vocab_size=size, special_tokens=specials, show_progress=False)
    )
    return backend


def word_piece(texts: list[str], specials: list[str], size: int = 300) -> Tokenizer:
    """BERT."""
    backend = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    backend.normalizer = normalizers.BertNormalizer(lowercase=True)
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece()
    backend.train_from_iterator(
        texts, trainers.WordPieceTrainer(vocab_size=size, special_tokens=specials, show_progress=False)
    )
    return backend


def unigram(texts: list[str], specials: list[str], size: int = 300) -> Tokenizer:
    """T5 and Marian. Pieces are counted here: their trainer finds others from one run to the next."""
    words = [f"▁{word}" for text in texts for word in text.split()]
    counts = Counter(
        word[start:end] for word in words for start in range(len(word)) for end in range(start + 1, len(word) + 1)
    )
    pieces = sorted(counts, key=lambda piece: (len(piece) > 1, -counts[piece], piece))[: size - len(specials)]
    scores = [(piece, math.log(counts[piece] / counts.total())) for piece in pieces]
    backend = Tokenizer(models.Unigram([*((token, 0.0) for token in specials), *scores], specials.index("<unk>")))
    backend.normalizer = normalizers.Replace(Regex(" {2,}"), " ")
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    backend.decoder = decoders.Metaspace()
    backend.add_special_tokens(specials)
    return backend


def around(backend: Tokenizer, single: str) -> Tokenizer:
    """With a template that puts special tokens around a text."""
    words = [word for word in single.split() if word != "$A"]
    backend.post_processor = processors.TemplateProcessing(
        single=single, special_tokens=[(word, backend.token_to_id(word)) for word in words]
    )
    return backend


# ---- families --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    """One model."""

    model: str
    """Their class of model."""
    config: str
    """Their class of configuration."""
    options: dict[str, Any]
    """What is said in it, without the vocabulary."""
    tokenizer: Callable[[list[str], int], Tokenizer]
    special: dict[str, str]
    """Special tokens by their name."""
    ids: dict[str, str] = field(default_factory=dict)
    """Keys of the configuration, and the token whose id they are."""
    own_head: bool = False
    """Whether the file holds a head of its own, as those of T5 1.1 do; their constructor ties it all the same."""


GPT2 = {
    "n_embd": D, "n_head": H, "n_layer": LAYERS, "n_inner": FF, "n_positions": LONGEST,
    "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0,
}  # fmt: skip
LLAMA = {
    "hidden_size": D, "num_attention_heads": H, "num_hidden_layers": LAYERS, "intermediate_size": FF,
    "num_key_value_heads": 2, "max_position_embeddings": LONGEST, "rms_norm_eps": 1e-4,
    "rope_parameters": {"rope_type": "default", "rope_theta": 300.0},
}  # fmt: skip
LLAMA3 = {
    "rope_type": "llama3", "rope_theta": 300.0, "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}  # fmt: skip


def gpt2_tokenizer(texts: list[str], size: int) -> Tokenizer:
    return byte_level(texts, ["<|endoftext|>"], size)


def llama3_tokenizer(texts: list[str], size: int) -> Tokenizer:
    return around(
        byte_level(texts, ["<|begin_of_text|>", "<|end_of_text|>", "<|eot_id|>"], size), "<|begin_of_text|> $A"
    )


def llama2_tokenizer(texts: list[str], size: int) -> Tokenizer:
    return around(metaspace(texts, ["<unk>", "<s>", "</s>"], size), "<s> $A")


def bert_tokenizer(texts: list[str], size: int) -> Tokenizer:
    return around(word_piece(texts, ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"], size), "[CLS] $A [SEP]")


def t5_tokenizer(texts: list[str], size: int) -> Tokenizer:
    return around(unigram(texts, ["<pad>", "</s>", "<unk>"], size), "$A </s>")


def bart_tokenizer(texts: list[str], size: int) -> Tokenizer:
    return around(byte_level(texts, ["<s>", "<pad>", "</s>", "<unk>", "<mask>"], size), "<s> $A </s>")


def marian_tokenizer(texts: list[str], size: int) -> Tokenizer:
    return around(unigram(texts, ["</s>", "<unk>", "<pad>"], size), "$A </s>")


BERT = {
    "hidden_size": D, "num_attention_heads": H, "num_hidden_layers": LAYERS, "intermediate_size": FF,
    "max_position_embeddings": LONGEST,
}  # fmt: skip
T5 = {
    "d_model": D, "num_heads": H, "d_kv": 12, "d_ff": FF, "num_layers": LAYERS, "num_decoder_layers": LAYERS,
    "relative_attention_num_buckets": 8, "relative_attention_max_distance": 10,
}  # fmt: skip
BART = {
    "d_model": D, "encoder_layers": LAYERS, "decoder_layers": LAYERS, "encoder_attention_heads": H,
    "decoder_attention_heads": H, "encoder_ffn_dim": FF, "decoder_ffn_dim": FF, "max_position_embeddings": LONGEST,
}  # fmt: skip
OF_BERT = {
    "pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]", "mask_token": "[MASK]",
}  # fmt: skip
OF_T5 = {"pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>"}
OF_BART = {**OF_T5, "bos_token": "<s>", "cls_token": "<s>", "sep_token": "</s>", "mask_token": "<mask>"}
FROM_PAD = {"pad_token_id": "pad_token", "eos_token_id": "eos_token", "decoder_start_token_id": "pad_token"}
FROM_END = FROM_PAD | {"bos_token_id": "bos_token", "decoder_start_token_id": "eos_token"}
FORCED = {"forced_eos_token_id": "eos_token"}

SPECIAL2 = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
SPECIAL3 = {"bos_token": "<|begin_of_text|>", "eos_token": "<|end_of_text|>"}
IDS = {"bos_token_id": "bos_token", "eos_token_id": "eos_token"}
END = {"bos_token": "<|endoftext|>", "eos_token": "<|endoftext|>", "unk_token": "<|endoftext|>"}

CASES = {
    "gpt2": Case("GPT2LMHeadModel", "GPT2Config", GPT2, gpt2_tokenizer, END, IDS),
    "gpt2-untied": Case(
        "GPT2LMHeadModel", "GPT2Config", GPT2 | {"tie_word_embeddings": False, "activation_function": "relu"},
        gpt2_tokenizer, END, IDS,
    ),
    "llama": Case("LlamaForCausalLM", "LlamaConfig", LLAMA, llama2_tokenizer, SPECIAL2, IDS),
    "llama3": Case(
        "LlamaForCausalLM", "LlamaConfig",
        LLAMA | {"rope_parameters": LLAMA3, "tie_word_embeddings": True, "head_dim": 12},
        llama3_tokenizer, SPECIAL3, IDS,
    ),
    "mistral": Case(
        "MistralForCausalLM", "MistralConfig", LLAMA | {"sliding_window": 5}, llama2_tokenizer, SPECIAL2, IDS
    ),
    "qwen2": Case("Qwen2ForCausalLM", "Qwen2Config", LLAMA, gpt2_tokenizer, END, IDS),
    "qwen2-window": Case(
        "Qwen2ForCausalLM", "Qwen2Config",
        LLAMA | {"use_sliding_window": True, "sliding_window": 5, "max_window_layers": 0}, gpt2_tokenizer, END, IDS,
    ),
    "bert": Case("BertForMaskedLM", "BertConfig", BERT, bert_tokenizer, OF_BERT, {"pad_token_id": "pad_token"}),
    "bert-pretraining": Case(
        "BertForPreTraining", "BertConfig", BERT | {"hidden_act": "relu"}, bert_tokenizer, OF_BERT,
        {"pad_token_id": "pad_token"},
    ),
    "t5": Case("T5ForConditionalGeneration", "T5Config", T5, t5_tokenizer, OF_T5, FROM_PAD),
    "t5-1.1": Case(
        "T5ForConditionalGeneration", "T5Config",
        T5 | {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}, t5_tokenizer, OF_T5, FROM_PAD,
        own_head=True,
    ),
    "bart": Case(
        "BartForConditionalGeneration", "BartConfig", BART, bart_tokenizer, OF_BART, FROM_END | FORCED,
    ),
    "bart-forced": Case(
        "BartForConditionalGeneration", "BartConfig", BART | {"scale_embedding": True}, bart_tokenizer, OF_BART,
        FROM_END | FORCED | {"forced_bos_token_id": "bos_token"},
    ),
    "marian": Case(
        "MarianMTModel", "MarianConfig", BART | {"activation_function": "swish", "scale_embedding": True},
        marian_tokenizer, OF_T5, FROM_PAD | FORCED,
    ),
}  # fmt: skip


@dataclass(frozen=True)
class Theirs:
    """A model of transformers, where it is saved, and its tokenizer as they load it."""

    model: Any
    folder: Path
    tokenizer: Any


@cache
def _built(name: str) -> tuple[Any, Any]:
    transformers = pytest.importorskip("transformers")
    case = CASES[name]
    backend = case.tokenizer(TEXT, 300)
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=backend, **case.special)
    ids = {key: backend.token_to_id(case.special[token]) for key, token in case.ids.items()}
    # More rows than tokens, as many models have for the sake of a GPU.
    config = getattr(transformers, case.config)(vocab_size=len(fast) + 3, **{**ids, **case.options})
    config._attn_implementation = "eager"
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = getattr(transformers, case.model)(config).eval()
        roughen(model)
        if case.own_head:
            model.lm_head.weight = nn.Parameter(torch.randn_like(model.lm_head.weight))
    for key in (
        {*ids} - {"bos_token_id"} if model.can_generate() else ()
    ):  # what a constructor does not hand on, generation is told
        setattr(model.generation_config, key, ids[key])
    return model, fast


@torch.no_grad()
def roughen(model: nn.Module) -> None:
    """No bias zero, no norm the identity, and attention that is not all but uniform."""
    biases = [part for name, part in model.named_buffers() if name == "final_logits_bias"]
    for part in [*model.parameters(), *biases]:
        if part.requires_grad or part.size(0) == 1:  # sinusoids stay what they are
            part.add_(torch.randn_like(part), alpha=0.1)


def saved(name: str, folder: Path) -> Theirs:
    """The model of a case, saved in a folder with its tokenizer."""
    import transformers

    model, fast = _built(name)
    model.save_pretrained(folder)
    fast.save_pretrained(folder)
    model = getattr(transformers, CASES[name].model).from_pretrained(folder, attn_implementation="eager").eval()
    return Theirs(model, folder, transformers.AutoTokenizer.from_pretrained(folder))
