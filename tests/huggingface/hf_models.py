"""Small transformers models of every family with random weights and tokenizers, and ours with the same weights."""

import math
from collections import Counter
from collections.abc import Callable, Mapping
from copy import deepcopy
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import pytest
import torch
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from torch import Tensor, nn

from minitx.generation.options import GenerationOptions
from minitx.huggingface import importing
from minitx.huggingface.families import FAMILIES, Family
from minitx.huggingface.families.family import NAMES
from minitx.inference.predictor import Predictor
from minitx.models.builder import build_model

TEXT = [
    "The quick brown fox jumps over the lazy dog, and the dog sleeps on.",
    "To be, or not to be: that is the question.",
    "Ein Hund rennt über die grüne Wiese; niemand weiß, wohin.",
    "It was the best of times, it was the worst of times.",
] * 5


def byte_level(specials: list[str], texts: list[str], size: int) -> Tokenizer:
    """GPT-2, Llama 3, Qwen2, BART."""
    backend, split = Tokenizer(models.BPE()), pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.pre_tokenizer, backend.decoder = split, decoders.ByteLevel()
    options = {"vocab_size": size, "special_tokens": specials, "show_progress": False}
    backend.train_from_iterator(texts, trainers.BpeTrainer(initial_alphabet=split.alphabet(), **options))
    return backend


def word_piece(specials: list[str], texts: list[str], size: int) -> Tokenizer:
    """BERT."""
    backend = Tokenizer(models.WordPiece(unk_token="[UNK]", max_input_chars_per_word=1000))  # the largest
    backend.normalizer = normalizers.BertNormalizer(lowercase=True)
    backend.pre_tokenizer, backend.decoder = pre_tokenizers.BertPreTokenizer(), decoders.WordPiece()
    options = {"vocab_size": size, "special_tokens": specials, "show_progress": False}
    backend.train_from_iterator(texts, trainers.WordPieceTrainer(**options))
    return backend


def unigram(specials: list[str], texts: list[str], size: int) -> Tokenizer:
    """T5, Marian, Llama 2, Gemma: a character replaces the spaces. The library's own trainer is not deterministic."""
    words = [f"▁{word}" for text in texts for word in text.split()]
    counts = Counter(word[i:j] for word in words for i in range(len(word)) for j in range(i + 1, len(word) + 1))
    pieces = sorted(counts, key=lambda piece: (len(piece) > 1, -counts[piece], piece))[: size - len(specials)]
    scores = [(piece, math.log(counts[piece] / counts.total())) for piece in pieces]
    backend = Tokenizer(models.Unigram([*((token, 0.0) for token in specials), *scores], specials.index("<unk>")))
    backend.normalizer = normalizers.Replace(Regex(" {2,}"), " ")
    backend.pre_tokenizer, backend.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    backend.add_special_tokens(specials)
    return backend


class Tokens(NamedTuple):
    train: Callable[[list[str], list[str], int], Tokenizer]  # of special tokens, texts and a vocabulary size
    named: str  # "name=token" of each special token
    template: str = "$A"  # special tokens around each text

    @property
    def special(self) -> dict[str, str]:
        return {f"{name}_token": token for name, token in (part.split("=") for part in self.named.split())}

    def trained(self, texts: list[str], size: int) -> Any:
        """The tokenizer as transformers has it."""
        backend = self.train([*dict.fromkeys(self.special.values())], texts, size)
        around = [(token, backend.token_to_id(token)) for token in self.template.split() if token != "$A"]
        if around:
            backend.post_processor = processors.TemplateProcessing(single=self.template, special_tokens=around)
        return pytest.importorskip("transformers").PreTrainedTokenizerFast(tokenizer_object=backend, **self.special)


GPT2_TOKENS = Tokens(byte_level, "bos=<|endoftext|> eos=<|endoftext|> unk=<|endoftext|>")
LLAMA_TOKENS = Tokens(unigram, "unk=<unk> bos=<s> eos=</s>", "<s> $A")
LLAMA3_TOKENS = Tokens(byte_level, "bos=<|begin_of_text|> eos=<|end_of_text|>", "<|begin_of_text|> $A")
GEMMA_TOKENS = Tokens(unigram, "pad=<pad> eos=<eos> bos=<bos> unk=<unk>", "<bos> $A")
BERT_TOKENS = Tokens(word_piece, "pad=[PAD] unk=[UNK] cls=[CLS] sep=[SEP] mask=[MASK]", "[CLS] $A [SEP]")
T5_TOKENS = Tokens(unigram, "pad=<pad> eos=</s> unk=<unk>", "$A </s>")
BART_TOKENS = Tokens(byte_level, "bos=<s> pad=<pad> eos=</s> unk=<unk> mask=<mask> cls=<s> sep=</s>", "<s> $A </s>")
MARIAN_TOKENS = Tokens(unigram, "eos=</s> unk=<unk> pad=<pad>", "$A </s>")

SIZES = {"d_model": 32, "n_heads": 4, "n_kv_heads": 2, "n_layers": 2, "n_decoder_layers": 2, "d_ff": 56,
         "norm_eps": 1e-4, "window": 5}  # fmt: skip
"""Of every family, where the key of ModelConfig is its own."""
LLAMA3 = {"rope_type": "llama3", "rope_theta": 300.0, "factor": 4.0, "low_freq_factor": 1.5, "high_freq_factor": 3.0,
          "original_max_position_embeddings": 32}  # fmt: skip
QWEN_WINDOW = {"use_sliding_window": True, "sliding_window": 5}
GEMMA2 = {"head_dim": 12, "sliding_window": 5, "num_hidden_layers": 4, "query_pre_attn_scalar": 20,
          "attn_logit_softcapping": 2.0, "final_logit_softcapping": 3.0}  # fmt: skip
T5 = {"d_kv": 12, "relative_attention_num_buckets": 8, "relative_attention_max_distance": 10}
BART = {"decoder_attention_heads": 4, "decoder_ffn_dim": 56}
START = {"decoder_start_token_id": "pad_token"}
FORCED = {"forced_eos_token_id": "eos_token"}
BART_IDS = FORCED | {"decoder_start_token_id": "eos_token"}


class Case(NamedTuple):
    tokens: Tokens
    options: Mapping[str, Any] = MappingProxyType({})  # settings beside SIZES
    further: Mapping[str, str] = MappingProxyType({})  # settings that are ids, and the name of their special token
    model: str | None = None  # name of the class, if not the one that is exported
    untied: bool = False  # a separate head in the file, as of T5 1.1; the constructor of transformers ties it

    def ids(self, tokenizer: Any) -> dict[str, int]:
        """The ids of special tokens in the config."""
        special = self.tokens.special
        keys = {f"{name}_id": name for name in ("pad_token", "bos_token", "eos_token") if name in special}
        return {key: tokenizer.convert_tokens_to_ids(special[name]) for key, name in {**keys, **self.further}.items()}


CASES = {
    "gpt2": Case(GPT2_TOKENS),
    "gpt2-untied": Case(GPT2_TOKENS, {"tie_word_embeddings": False, "activation_function": "relu"}),
    "llama": Case(LLAMA_TOKENS, {"rope_parameters": {"rope_type": "default", "rope_theta": 300.0}}),
    "llama-3": Case(LLAMA3_TOKENS, {"rope_parameters": LLAMA3, "tie_word_embeddings": True, "head_dim": 12}),
    "mistral": Case(LLAMA_TOKENS),
    "qwen2": Case(GPT2_TOKENS),
    "qwen2-window": Case(GPT2_TOKENS, QWEN_WINDOW | {"max_window_layers": 0}),
    "qwen2-mixed": Case(GPT2_TOKENS, QWEN_WINDOW | {"max_window_layers": 1, "num_hidden_layers": 3}),
    "qwen3": Case(GPT2_TOKENS, {"head_dim": 12}),
    "gpt_neox": Case(GPT2_TOKENS),
    "gpt_neox-serial": Case(GPT2_TOKENS, {"use_parallel_residual": False, "tie_word_embeddings": True,
        "rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 50.0, "partial_rotary_factor": 0.5}}),
    "gpt_neo": Case(GPT2_TOKENS, {"num_layers": 3, "window_size": 5, "activation_function": "gelu_pytorch_tanh",
        "attention_types": [[["global", "local"], 1], [["global"], 1]]}),
    "phi": Case(GPT2_TOKENS),
    "gemma": Case(GEMMA_TOKENS, {"head_dim": 12}),
    "gemma2": Case(GEMMA_TOKENS, GEMMA2),
    "gemma3_text": Case(GEMMA_TOKENS, GEMMA2 | {"attn_logit_softcapping": None,
        "layer_types": [*2 * ["sliding_attention"], "full_attention", "sliding_attention"],
        "rope_parameters": {"sliding_attention": {"rope_type": "default", "rope_theta": 50.0},
            "full_attention": {"rope_type": "linear", "factor": 4.0, "rope_theta": 300.0}}}),
    "bert": Case(BERT_TOKENS),
    "bert-own": Case(BERT_TOKENS, {"hidden_act": "relu", "tie_word_embeddings": False}, model="BertForPreTraining"),
    "t5": Case(T5_TOKENS, T5, START),
    "t5-1.1": Case(T5_TOKENS, T5 | {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}, START,
                   untied=True),
    "bart": Case(BART_TOKENS, BART | {"activation_function": "gelu_fast"}, BART_IDS),
    "bart-forced": Case(BART_TOKENS, BART | {"scale_embedding": True}, BART_IDS | {"forced_bos_token_id": "bos_token"}),
    "marian": Case(MARIAN_TOKENS, BART | {"activation_function": "swish", "scale_embedding": True}, START | FORCED),
}  # fmt: skip
"""By the model_type, and a variant of it after a hyphen."""


class HFModel(NamedTuple):
    """A model of transformers, its folder, and its tokenizer as transformers loads it."""

    model: Any
    folder: Path
    tokenizer: Any


def family_of(name: str) -> Family:
    return FAMILIES[name.partition("-")[0]]


def hf_class(name: str) -> Any:
    return getattr(pytest.importorskip("transformers"), CASES[name].model or family_of(name).model)


@cache
def _built(name: str) -> tuple[Any, Any]:
    case, kind, family = CASES[name], hf_class(name), family_of(name)
    tokenizer = case.tokens.trained(TEXT, 300)
    ids = case.ids(tokenizer)
    # More rows than tokens, as in many models whose table is padded for the GPU.
    sizes = {family.length[0]: 64, "vocab_size": len(tokenizer) + 3}
    sizes |= {key: SIZES[NAMES[key]] for key in family.defaults if NAMES[key] in SIZES}
    config = kind.config_class(**{**sizes, **ids, **case.options})
    config._attn_implementation = "eager"
    with torch.random.fork_rng(), torch.device("cpu"):  # the same weights for every --device
        torch.manual_seed(0)
        model = kind(config).eval()
        _roughen(model)
        if case.untied:
            model.lm_head.weight = nn.Parameter(torch.randn_like(model.lm_head.weight))
    for key in {*ids, "max_length"} - {"bos_token_id"} if model.can_generate() else ():
        setattr(model.generation_config, key, ids.get(key, 31))  # which constructors do not always copy
    return model, tokenizer


@torch.no_grad()
def _roughen(model: nn.Module) -> None:
    """Move biases from zero, norms from the identity, and attention from uniform."""
    biases = [part for name, part in model.named_buffers() if name == "final_logits_bias"]
    for part in [*model.parameters(), *biases]:
        if part.requires_grad or part.size(0) == 1:  # not Marian's sinusoids
            part.add_(torch.randn_like(part), alpha=0.1)


def converted(name: str, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Our weights by name, made of those of transformers; gradients pass through."""
    config = family_of(name).from_hf(_built(name)[0].config.to_dict())
    return importing._convert(family_of(name), config, dict(weights))[1]


def pair(name: str) -> tuple[Any, Any]:
    """The model of a case, and ours with the same weights, to be changed at will."""
    theirs = deepcopy(_built(name)[0]).to(torch.empty(0).device)
    ours = build_model(family_of(name).from_hf(theirs.config.to_dict())).eval()
    ours.load_state_dict(converted(name, dict(theirs.named_parameters())))
    return theirs, ours


def save(name: str, folder: Path) -> None:
    for part in _built(name):
        part.save_pretrained(folder)


def saved(name: str, folder: Path) -> HFModel:
    """The model of a case, saved in a folder with its tokenizer and loaded again."""
    import transformers

    save(name, folder)
    model = hf_class(name).from_pretrained(folder, attn_implementation="eager").eval()
    return HFModel(model, folder, transformers.AutoTokenizer.from_pretrained(folder))


@torch.no_grad()
def hf_logits(hf: Any, **inputs: Tensor) -> Tensor:
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
        out = hf.generate(**ids, do_sample=False, num_beams=1, max_new_tokens=8)[0]
        start = 1 if ours.architecture == "encoder_decoder" else inputs["input_ids"].size(1)
        (found,) = ours.generations([prompt], GenerationOptions(max_new_tokens=8))[0]
        assert found.ids == out[start:].tolist()
        if ours.architecture == "decoder_only" and ours.tokenizer.imported:  # with the space after the prompt
            whole, before = (tokenizer.decode(part, skip_special_tokens=True) for part in (out, out[:start]))
            assert before + found.text == whole
            assert "".join(ours.generate(prompt, stream=True, max_new_tokens=8)) == found.text
        else:
            assert found.text == tokenizer.decode(out[start:], skip_special_tokens=True)
