"""Our models in transformers: the same logits, tokens and text; and what cannot be said there is named."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import minitx
from conftest import roughen_weights
from huggingface.theirs import CASES, TEXT, saved
from minitx.checkpoints import format as checkpoint
from minitx.cli.main import main
from minitx.config.schema import Config, ModelConfig, RunConfig
from minitx.data.tasks import Reverse
from minitx.data.text.tokenizer_training import BPETokenizer
from minitx.data.tokenizers import Tokenizer
from minitx.generation.options import GenerationOptions
from minitx.inference.predictor import Predictor
from minitx.models.builder import build_model

transformers = pytest.importorskip("transformers")

SIZES: dict[str, Any] = {"d_model": 32, "n_heads": 4, "n_layers": 2, "d_ff": 56, "vocab_size": None}
GPT: dict[str, Any] = {"architecture": "decoder_only"}
LEARNED = {"position": {"name": "learned", "max_len": 40}}
LLAMA = GPT | {"norm": "rmsnorm", "activation": "swiglu", "bias": False, "position": {"name": "rope", "base": 500.0}}
BERT = LEARNED | {
    "architecture": "encoder_only", "norm_first": False, "embedding_norm": True, "head_transform": True,
}  # fmt: skip
T5: dict[str, Any] = {
    "norm": "rmsnorm", "activation": "relu", "bias": False, "position": {"name": "t5", "buckets": 8, "max_distance": 9},
}  # fmt: skip
BART: dict[str, Any] = {"norm_first": False, "embedding_norm": True}

WRITTEN = {
    "sinusoids": (GPT, "gpt2"),
    "no-positions": (GPT | {"position": {"name": "none"}, "activation": "relu"}, "gpt2"),
    "learned": (GPT | LEARNED | {"activation": "gelu_tanh", "scale_embeddings": False}, "gpt2"),
    "no-bias": (GPT | LEARNED | {"bias": False, "tie_embeddings": False, "norm_eps": 1e-3}, "gpt2"),
    "some-bias": (GPT | LEARNED | {"bias": False, "qkv_bias": True}, "gpt2"),
    "llama": (LLAMA, "llama"),
    "llama-grouped": (LLAMA | {"n_kv_heads": 2, "d_head": 12, "scale_embeddings": False, "norm_eps": 1e-3}, "llama"),
    "llama-stretched": (
        LLAMA | {"activation": "geglu", "position": {"name": "rope", "scaling": "linear", "factor": 2.0}}, "llama",
    ),
    "llama-3": (
        LLAMA | {"activation": "geglu_tanh", "position": {
            "name": "rope", "scaling": "llama3", "factor": 4.0, "original_max_len": 64, "low_freq_factor": 1.5,
        }}, "llama",
    ),
    "mistral": (LLAMA | {"window": 5}, "mistral"),
    "qwen2": (LLAMA | {"qkv_bias": True}, "qwen2"),
    "qwen2-window": (LLAMA | {"qkv_bias": True, "window": 4}, "qwen2"),
    "bert": (BERT, "bert"),
    "bert-own-head": (BERT | {"tie_embeddings": False, "head_bias": True, "activation": "relu"}, "bert"),
    "t5": (T5, "t5"),
    "t5-uneven": (T5 | {"n_decoder_layers": 1, "d_head": 12}, "t5"),
    "t5-1.1": (T5 | {"activation": "geglu_tanh", "tie_embeddings": False, "scale_embeddings": False}, "t5"),
    "t5-own-head": (T5 | {"activation": "swiglu", "tie_embeddings": False}, "t5"),
    "bart": (BART | LEARNED, "bart"),
    "bart-sinusoids": (BART | {"head_bias": True, "n_decoder_layers": 1, "activation": "relu"}, "bart"),
    "bart-unscaled": (BART | LEARNED | {"scale_embeddings": False, "tie_embeddings": False}, "bart"),
    "vaswani": ({"norm_first": False, "activation": "relu", "tie_embeddings": False}, "marian"),
    "marian": (
        {"norm_first": False, "position": {"name": "sinusoidal", "halves": True}, "activation": "silu"}, "marian",
    ),
}  # fmt: skip
AUTO = {
    "decoder_only": "AutoModelForCausalLM", "encoder_only": "AutoModelForMaskedLM",
    "encoder_decoder": "AutoModelForSeq2SeqLM",
}  # fmt: skip


def running_text() -> tuple[dict[str, Any], Tokenizer]:
    return {"name": "imported_text", "block": 24}, BPETokenizer(300).train([TEXT])


def masked_text() -> tuple[dict[str, Any], Tokenizer]:
    return {"name": "imported_masked_text", "block": 24}, BPETokenizer(300).train([TEXT])


def questions() -> tuple[dict[str, Any], Tokenizer]:
    return {"name": "reverse", "length": [1, 9]}, Reverse().vocabulary


def trained(path: Path, changes: dict[str, Any], task: Any = None) -> Predictor:
    """A checkpoint of ours, as training leaves it but for the training."""
    architecture = changes.get("architecture", "encoder_decoder")
    usual = {"decoder_only": running_text, "encoder_only": masked_text, "encoder_decoder": questions}
    data, tokenizer = (task or usual[architecture])()
    config = Config(run=RunConfig(name="one"), data=data, model=ModelConfig(**SIZES | changes))
    with torch.random.fork_rng():
        torch.manual_seed(1)
        model = roughen_weights(build_model(config.model, tokenizer.vocab_size))
    state = {f"model.{name}": part for name, part in model.state_dict().items()}
    header = checkpoint.header(config.to_dict(), tokenizer.to_dict())
    checkpoint.write({"minitx": header, "state_dict": state}, path)
    return minitx.load(path)


def logits(theirs: Any, ids: Tensor, target: Tensor | None) -> Tensor:
    with torch.no_grad():
        return theirs(input_ids=ids, **({} if target is None else {"decoder_input_ids": target})).logits


def own_logits(ours: Predictor, ids: Tensor, target: Tensor | None) -> Tensor:
    with torch.no_grad():
        return ours.model(ids) if target is None else ours.model(ids, target)


def check_logits(theirs: Any, ours: Predictor) -> None:
    size = min(ours.tokenizer.vocab_size, ours.model.head.out_features)
    ids, target = torch.arange(20)[None] * 7 % size, torch.arange(9)[None] * 5 % size
    given = target if ours.architecture == "encoder_decoder" else None
    expected = own_logits(ours, ids, given)
    assert expected.std() > 0.1
    torch.testing.assert_close(logits(theirs, ids, given), expected, atol=1e-4, rtol=0)


@pytest.mark.parametrize("name", WRITTEN)
def test_our_models_load_there(name: str, tmp_path: Path) -> None:
    changes, family = WRITTEN[name]
    ours = trained(tmp_path / "one.ckpt", changes)
    main(["export", str(tmp_path / "one.ckpt"), "--to", "hf", str(tmp_path / "theirs")])
    assert json.loads((tmp_path / "theirs/config.json").read_text())["model_type"] == family
    kind = getattr(transformers, AUTO[ours.architecture])
    theirs, loading = kind.from_pretrained(tmp_path / "theirs", output_loading_info=True)
    assert not any(loading.values()), loading  # nothing missing, nothing left over
    check_logits(theirs.eval(), ours)


@pytest.mark.parametrize("name", CASES)
def test_there_and_back_and_there_again(name: str, tmp_path: Path) -> None:
    theirs = saved(name, tmp_path / "first")
    main(["import", str(tmp_path / "first"), "--out", str(tmp_path / "ours.ckpt")])
    main(["export", str(tmp_path / "ours.ckpt"), str(tmp_path / "second")])
    ours = minitx.load(tmp_path / "ours.ckpt")
    again = getattr(transformers, AUTO[ours.architecture]).from_pretrained(tmp_path / "second").eval()
    assert again.config.model_type == theirs.model.config.model_type
    check_logits(again, ours)
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "second")
    for text in TEXT[:4]:
        assert tokenizer(text)["input_ids"] == theirs.tokenizer(text)["input_ids"]
    assert tokenizer.mask_token == theirs.tokenizer.mask_token
    if ours.architecture == "encoder_decoder":
        assert again.generation_config.decoder_start_token_id == theirs.model.generation_config.decoder_start_token_id


@pytest.mark.parametrize(
    ("changes", "task", "prompts"),
    [
        (GPT | LEARNED, running_text, ["The quick brown", "To be"]),
        (GPT | LEARNED, questions, ["3 1 4", "2"]),
        (BART | LEARNED, questions, ["3 1 4", "2"]),
        (T5, questions, ["3 1 4", "2"]),
    ],
)
def test_the_same_text_is_written(changes: Any, task: Any, prompts: list[str], tmp_path: Path) -> None:
    """From the tokenizer to the end, with nothing told but the prompt."""
    ours = trained(tmp_path / "one.ckpt", changes, task)
    main(["export", str(tmp_path / "one.ckpt"), str(tmp_path / "theirs")])
    theirs = getattr(transformers, AUTO[ours.architecture]).from_pretrained(tmp_path / "theirs").eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "theirs")
    for prompt in prompts:
        read = tokenizer(prompt, return_tensors="pt")
        written = theirs.generate(
            input_ids=read["input_ids"], attention_mask=read["attention_mask"], max_new_tokens=10
        )[0]  # fmt: skip
        new = written[1:] if ours.architecture == "encoder_decoder" else written[read["input_ids"].size(1) :]
        (found,) = ours.generations([prompt], GenerationOptions(max_new_tokens=10))[0]
        assert found.ids == new.tolist()
        assert found.text == tokenizer.decode(new, skip_special_tokens=True)


@pytest.mark.parametrize(
    ("changes", "names"),
    [
        (GPT | {"softcap": 5.0}, ["gpt2 has no model.softcap 5.0", "llama has no", "model.norm layernorm"]),
        (GPT | {"position": {"name": "alibi"}}, ["model.position.name alibi"]),
        (GPT | {"position_ids": {"name": "coupled"}}, ["model.position_ids coupled"]),
        (GPT | {"norm_first": False}, ["gpt2 has no model.norm_first false"]),
        (GPT | {"qk_norm": True}, ["gpt2 has no model.qk_norm true"]),
        (GPT | {"n_kv_heads": 2}, ["gpt2 has no model.n_kv_heads 2"]),
        (GPT | {"prefix_lm": True}, ["gpt2 has no model.prefix_lm true"]),
        (GPT | {"d_ff": 0}, ["gpt2 has no model.d_ff 0"]),
        (GPT | {"activation": "relu2"}, ["gpt2 has no model.activation relu2"]),
        (LLAMA | {"position": {"name": "rope", "fraction": 0.5}}, ["llama has no model.position.fraction 0.5"]),
        (LLAMA | {"position": {"name": "rope", "scaling": "ntk"}}, ["llama has no model.position.scaling ntk"]),
        (BERT | {"embedding_norm": False}, ["bert has no model.embedding_norm false"]),
        ({}, ["t5 has no model.norm layernorm", "bart has no model.norm_first true", "marian has no"]),
        (T5 | {"activation": "geglu"}, ["t5 has no model.activation geglu"]),
        (BART | {"norm_eps": 1e-3}, ["bart has no model.norm_eps 0.001"]),
        (
            {"norm_first": False, "position": {"name": "sinusoidal", "halves": True, "base": 500.0}},
            ["marian has no model.position.base 500.0"],
        ),
    ],
)  # fmt: skip
def test_what_cannot_be_said_there_is_named(
    changes: Any, names: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trained(tmp_path / "one.ckpt", changes)
    with pytest.raises(SystemExit) as left:
        main(["export", str(tmp_path / "one.ckpt"), str(tmp_path / "theirs")])
    said = capsys.readouterr().err
    assert left.value.code == 2
    for name in names:
        assert name in said
    assert not (tmp_path / "theirs").exists()


def test_plain_safetensors(tmp_path: Path) -> None:
    from safetensors.torch import load_file

    ours = trained(tmp_path / "one.ckpt", {"softcap": 5.0})  # of any kind
    main(["export", str(tmp_path / "one.ckpt"), "--to", "safetensors", str(tmp_path / "plain")])
    weights = load_file(tmp_path / "plain/model.safetensors")
    assert {*weights} == {name for name, _ in ours.model.named_parameters()}
    for name, part in ours.model.named_parameters():
        assert torch.equal(weights[name], part)
    told = json.loads((tmp_path / "plain/config.json").read_text())
    assert {name: value for name, value in told.items() if name != "minitx"} == ours.config.to_dict()
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_file=str(tmp_path / "plain/tokenizer.json"))
    assert tokenizer.encode("3 1 4") == ours.tokenizer.encode("3 1 4")


def test_the_card_says_what_it_is(tmp_path: Path) -> None:
    trained(tmp_path / "one.ckpt", GPT, questions)
    results = {"split": "test", "examples": 1234, "exact_match": 0.987, "loss": 0.1}
    (tmp_path / "results.json").write_text(json.dumps(results))
    main(["export", str(tmp_path / "one.ckpt"), str(tmp_path / "theirs")])
    card = (tmp_path / "theirs/README.md").read_text()
    for words in ("# one", "`reverse`", "length [1, 9]", "exact match 0.987", "1,234 examples", "text-generation"):
        assert words in card
    (tmp_path / "results.json").unlink()
    main(["export", str(tmp_path / "one.ckpt"), str(tmp_path / "again")])
    assert "not measured" in (tmp_path / "again/README.md").read_text()


def test_nothing_is_written_over(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trained(tmp_path / "one.ckpt", GPT)
    with pytest.raises(SystemExit):
        main(["export", str(tmp_path / "one.ckpt"), str(tmp_path)])
    assert "is not an empty folder" in capsys.readouterr().err
