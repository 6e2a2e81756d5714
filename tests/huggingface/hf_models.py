"""Small transformers models of every family, with random weights and their own tokenizer, and comparisons with them."""

import math
from collections import Counter
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from torch import Tensor, nn

from minitx.generation.options import GenerationOptions
from minitx.inference.predictor import Predictor

D, H, FF, LAYERS, LONGEST = 32, 4, 56, 2, 64
TEXT = [
    "The quick brown fox jumps over the lazy dog, and the dog sleeps on.",
    "To be, or not to be: that is the question.",
    "Ein Hund rennt über die grüne Wiese; niemand weiß, wohin.",
    "It was the best of times, it was the worst of times.",
] * 5


# ---- tokenizers ------------------------------------------------------------------------------------------------------


def trained(backend: Tokenizer, texts: list[str], pre_tokenizer: Any, decoder: Any, trainer: Any) -> Tokenizer:
    backend.pre_tokenizer, backend.decoder = pre_tokenizer, decoder
    backend.train_from_iterator(texts, trainer)
    return backend


def byte_level(specials: list[str], texts: list[str], size: int) -> Tokenizer:
    """GPT-2, Llama 3, Qwen2, BART."""
    split = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=size, special_tokens=specials, show_progress=False, initial_alphabet=split.alphabet()
    )
    return trained(Tokenizer(models.BPE()), texts, split, decoders.ByteLevel(), trainer)


def metaspace(specials: list[str], texts: list[str], size: int) -> Tokenizer:
    """Llama 2 and Mistral: a character replaces the spaces."""
    trainer = trainers.BpeTrainer(vocab_size=size, special_tokens=specials, show_progress=False)
    backend = Tokenizer(models.BPE(unk_token="<unk>"))
    return trained(backend, texts, pre_tokenizers.Metaspace(), decoders.Metaspace(), trainer)


def word_piece(specials: list[str], texts: list[str], size: int) -> Tokenizer:
    """BERT."""
    backend = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    backend.normalizer = normalizers.BertNormalizer(lowercase=True)
    trainer = trainers.WordPieceTrainer(vocab_size=size, special_tokens=specials, show_progress=False)
    return trained(backend, texts, pre_tokenizers.BertPreTokenizer(), decoders.WordPiece(), trainer)


Trainer = Callable[[list[str], list[str], int], Tokenizer]
"""Of special tokens, texts and a vocabulary size."""


def unigram(specials: list[str], texts: list[str], size: int) -> Tokenizer:
    """T5 and Marian. The pieces are counted here, as the library's trainer is not deterministic."""
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


def tokenizer_of(train: Trainer, specials: str, template: str = "$A") -> Callable[[list[str], int], Tokenizer]:
    """A function of texts and vocabulary size that trains a tokenizer with special tokens around each text."""

    def tokenizer(texts: list[str], size: int) -> Tokenizer:
        backend = train(specials.split(), texts, size)
        around = [(token, backend.token_to_id(token)) for token in template.split() if token != "$A"]
        if around:
            backend.post_processor = processors.TemplateProcessing(single=template, special_tokens=around)
        return backend

    return tokenizer


# ---- families --------------------------------------------------------------------------------------------------------


class Case(NamedTuple):
    model: str  # name of the class, with a space after the prefix of its config's class
    options: dict[str, Any]
    tokenizer: Callable[[list[str], int], Tokenizer]
    special: dict[str, str]  # special tokens by name
    ids: dict[str, str]  # keys of the config, and the name of the token whose id they have
    untied: bool = False  # a separate head in the file, as of T5 1.1; the constructor of transformers ties it


GPT2 = {
    "n_embd": D, "n_head": H, "n_layer": LAYERS, "n_inner": FF, "n_positions": LONGEST,
    "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0,
}  # fmt: skip
SIZES = {
    "hidden_size": D, "num_attention_heads": H, "num_hidden_layers": LAYERS, "intermediate_size": FF,
    "max_position_embeddings": LONGEST,
}  # fmt: skip
LLAMA = SIZES | {
    "num_key_value_heads": 2, "rms_norm_eps": 1e-4,
    "rope_parameters": {"rope_type": "default", "rope_theta": 300.0},
}  # fmt: skip
LLAMA3 = {
    "rope_type": "llama3", "rope_theta": 300.0, "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}  # fmt: skip
GPT_NEO = {
    "hidden_size": D, "num_heads": H, "num_layers": 3, "intermediate_size": FF, "window_size": 5,
    "attention_types": [[["global", "local"], 1], [["global"], 1]], "max_position_embeddings": LONGEST,
}  # fmt: skip
GEMMA = {"head_dim": 12, "num_attention_heads": H}
GEMMA2 = LLAMA | GEMMA | {
    "sliding_window": 5, "num_hidden_layers": 4, "query_pre_attn_scalar": 20, "attn_logit_softcapping": 2.0,
    "final_logit_softcapping": 3.0,
}  # fmt: skip
GEMMA3 = GEMMA2 | {
    "layer_types": [*2 * ["sliding_attention"], "full_attention", "sliding_attention"], "attn_logit_softcapping": None,
    "rope_parameters": {
        "sliding_attention": {"rope_type": "default", "rope_theta": 50.0},
        "full_attention": {"rope_type": "linear", "factor": 4.0, "rope_theta": 300.0},
    }
}  # fmt: skip
T5 = {
    "d_model": D, "num_heads": H, "d_kv": 12, "d_ff": FF, "num_layers": LAYERS, "num_decoder_layers": LAYERS,
    "relative_attention_num_buckets": 8, "relative_attention_max_distance": 10,
}  # fmt: skip
BART = {
    "d_model": D, "encoder_layers": LAYERS, "decoder_layers": LAYERS, "encoder_attention_heads": H,
    "decoder_attention_heads": H, "encoder_ffn_dim": FF, "decoder_ffn_dim": FF, "max_position_embeddings": LONGEST,
}  # fmt: skip
GPT2_TOKENS = tokenizer_of(byte_level, "<|endoftext|>")
LLAMA_TOKENS = tokenizer_of(metaspace, "<unk> <s> </s>", "<s> $A")
LLAMA3_TOKENS = tokenizer_of(byte_level, "<|begin_of_text|> <|end_of_text|> <|eot_id|>", "<|begin_of_text|> $A")
BERT_TOKENS = tokenizer_of(word_piece, "[PAD] [UNK] [CLS] [SEP] [MASK]", "[CLS] $A [SEP]")
T5_TOKENS = tokenizer_of(unigram, "<pad> </s> <unk>", "$A </s>")
BART_TOKENS = tokenizer_of(byte_level, "<s> <pad> </s> <unk> <mask>", "<s> $A </s>")
MARIAN_TOKENS = tokenizer_of(unigram, "</s> <unk> <pad>", "$A </s>")

GEMMA_TOKENS = tokenizer_of(metaspace, "<pad> <eos> <bos> <unk>", "<bos> $A")

GEMMA_SPECIAL = {"pad_token": "<pad>", "eos_token": "<eos>", "bos_token": "<bos>", "unk_token": "<unk>"}
GPT2_SPECIAL = {"bos_token": "<|endoftext|>", "eos_token": "<|endoftext|>", "unk_token": "<|endoftext|>"}
LLAMA_SPECIAL = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
LLAMA3_SPECIAL = {"bos_token": "<|begin_of_text|>", "eos_token": "<|end_of_text|>"}
BERT_SPECIAL = {
    "pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]", "mask_token": "[MASK]",
}  # fmt: skip
T5_SPECIAL = {"pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>"}
BART_SPECIAL = {**T5_SPECIAL, "bos_token": "<s>", "cls_token": "<s>", "sep_token": "</s>", "mask_token": "<mask>"}

IDS = {"bos_token_id": "bos_token", "eos_token_id": "eos_token"}
PAD = {"pad_token_id": "pad_token"}
PAD_START = PAD | {"eos_token_id": "eos_token", "decoder_start_token_id": "pad_token"}
FORCED = {"forced_eos_token_id": "eos_token"}
BART_IDS = PAD | IDS | FORCED | {"decoder_start_token_id": "eos_token"}


CASES = {
    "gpt2": Case("GPT2 LMHeadModel", GPT2, GPT2_TOKENS, GPT2_SPECIAL, IDS),
    "gpt2-untied": Case(
        "GPT2 LMHeadModel", GPT2 | {"tie_word_embeddings": False, "activation_function": "relu"},
        GPT2_TOKENS, GPT2_SPECIAL, IDS,
    ),
    "llama": Case("Llama ForCausalLM", LLAMA, LLAMA_TOKENS, LLAMA_SPECIAL, IDS),
    "llama3": Case(
        "Llama ForCausalLM", LLAMA | {"rope_parameters": LLAMA3, "tie_word_embeddings": True, "head_dim": 12},
        LLAMA3_TOKENS, LLAMA3_SPECIAL, IDS,
    ),
    "mistral": Case("Mistral ForCausalLM", LLAMA | {"sliding_window": 5}, LLAMA_TOKENS, LLAMA_SPECIAL, IDS),
    "qwen2": Case("Qwen2 ForCausalLM", LLAMA, GPT2_TOKENS, GPT2_SPECIAL, IDS),
    "qwen2-window": Case(
        "Qwen2 ForCausalLM", LLAMA | {"use_sliding_window": True, "sliding_window": 5, "max_window_layers": 0},
        GPT2_TOKENS, GPT2_SPECIAL, IDS,
    ),
    "qwen2-mixed": Case(
        "Qwen2 ForCausalLM", LLAMA | {
            "use_sliding_window": True, "sliding_window": 5, "max_window_layers": 1, "num_hidden_layers": 3,
        }, GPT2_TOKENS, GPT2_SPECIAL, IDS,
    ),
    "qwen3": Case("Qwen3 ForCausalLM", LLAMA | {"head_dim": 12}, GPT2_TOKENS, GPT2_SPECIAL, IDS),
    "gpt_neox": Case("GPTNeoX ForCausalLM", SIZES, GPT2_TOKENS, GPT2_SPECIAL, IDS),
    "gpt_neox-serial": Case(
        "GPTNeoX ForCausalLM", SIZES | {
            "use_parallel_residual": False, "tie_word_embeddings": True,
            "rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 50.0, "partial_rotary_factor": 0.5},
        }, GPT2_TOKENS, GPT2_SPECIAL, IDS,
    ),
    "gpt_neo": Case("GPTNeo ForCausalLM", GPT_NEO, GPT2_TOKENS, GPT2_SPECIAL, IDS),
    "phi": Case("Phi ForCausalLM", SIZES | {"num_key_value_heads": 2}, GPT2_TOKENS, GPT2_SPECIAL, IDS),
    "gemma": Case("Gemma ForCausalLM", LLAMA | GEMMA, GEMMA_TOKENS, GEMMA_SPECIAL, PAD | IDS),
    "gemma2": Case("Gemma2 ForCausalLM", GEMMA2, GEMMA_TOKENS, GEMMA_SPECIAL, PAD | IDS),
    "gemma3_text": Case("Gemma3 ForCausalLM", GEMMA3, GEMMA_TOKENS, GEMMA_SPECIAL, PAD | IDS),
    "bert": Case("Bert ForMaskedLM", SIZES, BERT_TOKENS, BERT_SPECIAL, PAD),
    "bert-pretraining": Case("Bert ForPreTraining", SIZES | {"hidden_act": "relu"}, BERT_TOKENS, BERT_SPECIAL, PAD),
    "t5": Case("T5 ForConditionalGeneration", T5, T5_TOKENS, T5_SPECIAL, PAD_START),
    "t5-1.1": Case(
        "T5 ForConditionalGeneration", T5 | {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False},
        T5_TOKENS, T5_SPECIAL, PAD_START, untied=True,
    ),
    "bart": Case("Bart ForConditionalGeneration", BART, BART_TOKENS, BART_SPECIAL, BART_IDS),
    "bart-forced": Case(
        "Bart ForConditionalGeneration", BART | {"scale_embedding": True}, BART_TOKENS, BART_SPECIAL,
        BART_IDS | {"forced_bos_token_id": "bos_token"},
    ),
    "marian": Case(
        "Marian MTModel", BART | {"activation_function": "swish", "scale_embedding": True},
        MARIAN_TOKENS, T5_SPECIAL, PAD_START | FORCED,
    ),
}  # fmt: skip


class HFModel(NamedTuple):
    """A model of transformers, its folder, and its tokenizer as transformers loads it."""

    model: Any
    folder: Path
    tokenizer: Any


def hf_class(name: str) -> Any:
    return getattr(pytest.importorskip("transformers"), CASES[name].model.replace(" ", ""))


@cache
def _built(name: str) -> tuple[Any, Any]:
    transformers = pytest.importorskip("transformers")
    case = CASES[name]
    backend = case.tokenizer(TEXT, 300)
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=backend, **case.special)
    ids = {key: backend.token_to_id(case.special[token]) for key, token in case.ids.items()}
    # More rows than tokens, as in many models whose table is padded for the GPU.
    kind = case.model.split()[0]
    config = getattr(transformers, f"{kind}TextConfig" if kind == "Gemma3" else f"{kind}Config")(
        vocab_size=len(fast) + 3, **{**ids, **case.options}
    )
    config._attn_implementation = "eager"
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = hf_class(name)(config).eval()
        _roughen(model)
        if case.untied:
            model.lm_head.weight = nn.Parameter(torch.randn_like(model.lm_head.weight))
    for key in {*ids} - {"bos_token_id"} if model.can_generate() else ():
        setattr(model.generation_config, key, ids[key])  # which constructors do not always copy
    return model, fast


@torch.no_grad()
def _roughen(model: nn.Module) -> None:
    """Move biases from zero, norms from the identity, and attention from uniform."""
    biases = [part for name, part in model.named_buffers() if name == "final_logits_bias"]
    for part in [*model.parameters(), *biases]:
        if part.requires_grad or part.size(0) == 1:  # not Marian's sinusoids
            part.add_(torch.randn_like(part), alpha=0.1)


def save(name: str, folder: Path) -> None:
    """Write the model and the tokenizer of a case."""
    model, fast = _built(name)
    model.save_pretrained(folder)
    fast.save_pretrained(folder)


def saved(name: str, folder: Path) -> HFModel:
    """The model of a case, saved in a folder with its tokenizer and loaded again."""
    import transformers

    save(name, folder)
    model = hf_class(name).from_pretrained(folder, attn_implementation="eager").eval()
    return HFModel(model, folder, transformers.AutoTokenizer.from_pretrained(folder))


# ---- comparisons -----------------------------------------------------------------------------------------------------


@torch.no_grad()
def hf_logits(hf: Any, **inputs: Tensor) -> Tensor:
    """Logits of a model of transformers."""
    out = hf(**inputs)
    return out.prediction_logits if "prediction_logits" in out else out.logits


@torch.no_grad()
def check_logits(hf: Any, ours: Predictor, ids: Tensor | None = None, atol: float = 1e-4) -> None:
    """Compare the logits of inputs, and of a fixed target for an encoder-decoder."""
    size = min(ours.tokenizer.vocab_size, ours.model.head.out_features)
    inputs = {"input_ids": torch.arange(20)[None] * 7 % size if ids is None else ids}
    if ours.architecture == "encoder_decoder":
        inputs["decoder_input_ids"] = torch.arange(9)[None] * 5 % size
    expected = hf_logits(hf, **inputs)
    assert expected.std() > 0.1
    torch.testing.assert_close(ours.model(*inputs.values()), expected, atol=atol, rtol=0)


def check_text(hf: Any, tokenizer: Any, ours: Predictor, prompts: list[str]) -> None:
    """Compare greedy outputs from the tokenizer to the text."""
    for prompt in prompts:
        inputs = tokenizer(prompt, return_tensors="pt")
        ids = {key: inputs[key] for key in ("input_ids", "attention_mask")}
        out = hf.generate(**ids, do_sample=False, num_beams=1, max_new_tokens=12)[0]
        start = 1 if ours.architecture == "encoder_decoder" else inputs["input_ids"].size(1)
        (found,) = ours.generations([prompt], GenerationOptions(max_new_tokens=12))[0]
        assert found.ids == out[start:].tolist()
        if ours.architecture == "decoder_only" and ours.tokenizer.imported:  # with the space after the prompt
            whole, before = (tokenizer.decode(part, skip_special_tokens=True) for part in (out, out[:start]))
            assert before + found.text == whole
            assert "".join(ours.generate(prompt, stream=True, max_new_tokens=12)) == found.text
        else:
            assert found.text == tokenizer.decode(out[start:], skip_special_tokens=True)
