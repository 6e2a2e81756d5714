"""Exported models in transformers: equal logits, tokens and text; settings that no family has are named."""

import dataclasses
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import minitx
from huggingface.hf_models import TEXT, check_logits, check_text
from minitx.checkpoints import format as checkpoint
from minitx.cli.main import main
from minitx.config.schema import Config, ModelConfig, RunConfig
from minitx.data.tasks import Reverse
from minitx.data.text.tokenizer_training import BPETokenizer, CharTokenizer
from minitx.generation.options import GenerationOptions
from minitx.huggingface.exporting import HF_USES
from minitx.huggingface.families import FAMILIES, resolved
from minitx.huggingface.families.family import ANY_VALUE
from minitx.inference.predictor import Predictor
from minitx.models.builder import build_model
from minitx.nn import ACTIVATIONS
from small_models import close, roughen_weights

transformers = pytest.importorskip("transformers")

SIZES: dict[str, Any] = {"d_model": 32, "n_heads": 4, "n_layers": 2, "d_ff": 56, "vocab_size": None}
GPT: dict[str, Any] = {"architecture": "decoder_only"}
LEARNED = {"position": {"name": "learned", "max_len": 40}}
OFFSET = {"position_ids": {"name": "offset", "largest": 8}}
LLAMA = GPT | {"norm": "rmsnorm", "activation": "swiglu", "bias": False, "position": {"name": "rope", "base": 500.0}}
GEMMA = LLAMA | {"activation": "geglu_tanh", "sandwich_norm": True, "n_kv_heads": 2, "d_head": 12}
STRETCHED = {"position": {"name": "rope", "scaling": "linear", "factor": 2.0}}
WINDOW_OF_NO_LAYER = {"window": (None, None, 4), "window_position": {"name": "alibi"}}
PARTIAL = {"position": {"name": "rope", "fraction": 0.5}}
T5: dict[str, Any] = {"norm": "rmsnorm", "activation": "relu", "bias": False,
                      "position": {"name": "t5", "buckets": 8, "max_distance": 9}}  # fmt: skip
BART: dict[str, Any] = {"norm_first": False, "embedding_norm": True}
BERT = BART | LEARNED | {"architecture": "encoder_only", "head_transform": True}

EXPORTED = {
    "uneven": (LLAMA | {"d_model": 30, "d_head": 6, "activation": "geglu_tanh", "window": (3, 3, 9)}, "mistral"),
    "sinusoids": (GPT, "gpt2"),
    "no-positions": (GPT | {"position": {"name": "none"}, "activation": "relu"}, "gpt2"),
    "no-bias": (GPT | LEARNED | {"bias": False, "tie_embeddings": False, "norm_eps": 1e-3}, "gpt2"),
    "some-bias": (GPT | LEARNED | {"bias": False, "qkv_bias": True}, "gpt2"),
    "offset": (GPT | LEARNED | OFFSET, "gpt2"),
    "llama-stretched": (LLAMA | STRETCHED | WINDOW_OF_NO_LAYER | {"activation": "geglu"}, "llama"),
    "qwen2-no-bias": (LLAMA | {"window": (4, None)}, "qwen2"),
    "qwen2-other-window-of-no-layer": (LLAMA | {"window": (4, None, 3)}, "qwen2"),
    "gpt_neo-no-bias": (GPT | {"bias": False, "window": (3, None), "scale_embeddings": False}, "gpt_neo"),
    "gpt_neox-serial": (GPT | PARTIAL | OFFSET | {"bias": False, "scale_embeddings": False}, "gpt_neox"),
    "gpt_neox-58-%": (GPT | {"d_model": 100, "n_heads": 1, "position": {"name": "rope", "fraction": 0.58}}, "gpt_neox"),
    "gemma2-no-window": (GEMMA | {"softcap": 1.5}, "gemma2"),
    "gemma3-stretched": (GEMMA | STRETCHED | {"qk_norm": True}, "gemma3_text"),
    "bert-own-head": (BERT | {"tie_embeddings": False, "head_bias": True, "activation": "relu"}, "bert"),
    "t5-uneven": (T5 | {"n_decoder_layers": 1, "d_head": 12}, "t5"),
    "t5-own-head": (T5 | {"activation": "swiglu", "tie_embeddings": False}, "t5"),
    "bart-sinusoids": (BART | {"head_bias": True, "n_decoder_layers": 1, "activation": "relu"}, "bart"),
    "bart-unscaled": (BART | LEARNED | {"scale_embeddings": False, "tie_embeddings": False}, "bart"),
    "vaswani": ({"norm_first": False, "activation": "relu", "tie_embeddings": False}, "marian")}  # fmt: skip
"""Settings that differ from those of imported models, which test_importing.py exports."""

TEXTS = {"name": "imported_text", "block": 24, "tokenizer": {"name": "unigram"}}
PAIRS = {"name": "reverse", "length": [1, 9]}
BPE = BPETokenizer(300).train([TEXT])
DATA = {"decoder_only": TEXTS, "encoder_only": TEXTS | {"name": "imported_masked_text"}, "encoder_decoder": PAIRS}


def trained(path: Path, changes: dict[str, Any], data: Any = None, tokenizer: Any = None) -> Predictor:
    """A checkpoint with random weights."""
    data = data or DATA[changes.get("architecture", "encoder_decoder")]
    tokenizer = tokenizer or (Reverse().vocabulary if data["name"] == "reverse" else BPE)
    config = Config(run=RunConfig(name="one", init_from="zero.ckpt"), data=data, model=ModelConfig(**SIZES | changes))
    with torch.random.fork_rng():
        torch.manual_seed(1)
        model = roughen_weights(build_model(config.model, tokenizer.vocab_size))
    checkpoint.write(checkpoint.contents_of(config.to_dict(), tokenizer.to_dict(), model.state_dict()), path)
    return minitx.load(path, device="cpu")


@pytest.mark.parametrize("name", EXPORTED)
def test_logits_are_equal(name: str, tmp_path: Path) -> None:
    changes, family = EXPORTED[name]
    ours = trained(tmp_path / "one.ckpt", changes)
    main(["export", str(tmp_path / "one.ckpt"), "--to", "hf", str(tmp_path / "hf")])
    assert json.loads((tmp_path / "hf/config.json").read_text())["model_type"] == family
    kind = getattr(transformers, HF_USES[ours.architecture][1])
    hf, loading = kind.from_pretrained(tmp_path / "hf", output_loading_info=True)
    assert not any(loading.values()), loading  # no missing and no unexpected weights
    check_logits(hf.eval(), ours)
    main(["import", str(tmp_path / "hf"), "--out", str(tmp_path / "two.ckpt")])
    assert minitx.load(tmp_path / "two.ckpt", device="cpu").tokenizer.special == ours.tokenizer.special


@pytest.mark.parametrize(("changes", "data", "prompts"), [
    (GPT | LEARNED, TEXTS, ["The quick brown", "To be"]),
    *[(changes, PAIRS, ["3 1 4", "2"]) for changes in (GPT | LEARNED, BART | LEARNED, T5 | {"n_decoder_layers": 3})],
    *[(changes, PAIRS | {"add_bos": True, "add_eos": True}, ["3 1 4", "2"]) for changes in (GPT | LEARNED, T5)],
])  # fmt: skip
def test_texts_are_equal_with_exported_defaults(changes: Any, data: Any, prompts: list[str], tmp_path: Path) -> None:
    ours = trained(tmp_path / "one.ckpt", changes, data)
    main(["export", str(tmp_path / "one.ckpt"), str(tmp_path / "hf")])
    hf = getattr(transformers, HF_USES[ours.architecture][1]).from_pretrained(tmp_path / "hf").eval()
    check_text(hf, transformers.AutoTokenizer.from_pretrained(tmp_path / "hf"), ours, prompts)
    limit = ours.text_generator().limit(ours.encode(prompts[0]), GenerationOptions())
    limit = limit if data is PAIRS else min(limit, ours.config.model.position.get("max_len", 2 * limit) // 2)
    assert hf.generation_config.max_new_tokens == limit, "the longest answer and its end, or half of the positions"


@pytest.mark.parametrize(("changes", "names"), [
    (GPT | {"softcap": 5.0}, ["gpt2 has no model.softcap 5.0", "llama has no", "model.norm layernorm"]),
    (GPT | {"d_ff": 0}, ["gpt2 has no model.d_ff 0"]),
    (GPT | {"d_model": 30, "d_head": 7}, ["gpt2 has no model.d_head 7"]),
    (LLAMA | PARTIAL, ["llama has no model.position.fraction 0.5"]),
    (LLAMA | {"window": (3, 4)}, ["mistral has no model.window [3, 4]", "qwen2 has no model.window [3, 4] with"]),
    (GEMMA | {"qk_norm": True, "window": 3, "window_position": {"name": "alibi"}},
     ["gemma2 has no", "model.qk_norm true", "gemma3_text has no model.window_position.name alibi"]),
    ({}, ["t5 has no model.norm layernorm", "bart has no model.norm_first true", "marian has no"]),
])  # fmt: skip
def test_settings_of_no_family_are_named(changes: Any, names: list[str], tmp_path: Path, refused: Callable) -> None:
    trained(tmp_path / "one.ckpt", changes)
    message = refused("export", str(tmp_path / "one.ckpt"), str(tmp_path / "hf"))
    assert [name for name in names if name not in message] == []
    assert not (tmp_path / "hf").exists()


def test_the_code_of_the_card_reads_texts_as_the_model_does(tmp_path: Path, monkeypatch: Any) -> None:
    """AutoTokenizer would lose the spaces: it takes Qwen2's own rules for any tokenizer of a model of this family."""
    ours = trained(tmp_path / "one.ckpt", LLAMA | {"window": (4, None)}, TEXTS, CharTokenizer().train([["a b"]]))
    main(["export", str(tmp_path / "one.ckpt"), str(tmp_path / "hf")])
    monkeypatch.chdir(tmp_path / "hf")
    loaded: dict[str, Any] = {}
    assert "unigram" in Path("README.md").read_text(), "the name in zero.ckpt"
    exec(Path("README.md").read_text().partition("```python")[2].partition("```")[0], loaded)
    assert loaded["model"].config.model_type == "qwen2"
    assert loaded["tokenizer"]("ab ba").input_ids == ours.tokenizer.encode("ab ba")


OTHERS: dict[str, tuple[Any, ...]] = {
    "qkv_bias": (True, False), "softcap": (7.0,), "logit_softcap": (7.0,), "norm": ("rmsnorm", "layernorm"),
    "norm_eps": (0.1,), "window": (3,), "n_kv_heads": (1,), "d_head": (6,), "d_ff": (0, 30),
    "activation": tuple(ACTIVATIONS), "position_ids": ({"name": "coupled"},), "window_position": ({"name": "alibi"},),
    "position": (
        {"name": "alibi"}, {"name": "sinusoidal", "halves": True, "base": 500.0}, {"name": "t5", "bidirectional": True},
        *({"name": "rope"} | option for option in ({"base": 5.0}, {"fraction": 0.75}, {"scaling": "ntk"})),
    )}  # fmt: skip


@pytest.mark.parametrize("name", FAMILIES)
def test_a_setting_is_refused_or_written(name: str) -> None:
    """No other value of any setting is exported as if it were the family's."""
    family = FAMILIES[name]
    base = resolved(replace(family.from_hf({"vocab_size": 11}), dropout=0.0))
    written, fields = family.to_hf(base, 20), {field.name for field in dataclasses.fields(ModelConfig)}
    flags = {key: (not getattr(base, key),) for key in fields if isinstance(getattr(base, key), bool)}
    tried = set()
    for key, values in {**flags, **OTHERS}.items():
        for value in (each for each in values if each != getattr(base, key) and key not in ANY_VALUE):
            try:
                config = replace(base, **{key: value})
            except ValueError:  # contradicts other settings
                continue
            tried.add(key)
            if lacking := [sentence.split()[0] for sentence in family._unsupported(config)]:
                assert any(f"{name}.".startswith(f"model.{key}.") for name in lacking)
            else:
                assert family.to_hf(config, 20) != written, key
    assert tried >= {"bias", "qk_norm", "head_bias", "softcap", "norm_eps"}


def test_settings_for_older_versions_of_transformers() -> None:
    for name, changes, key, value in (
        ("gemma2", {"softcap": 5.0}, "attn_implementation", "eager"),
        ("gemma2", {"softcap": None}, "attn_implementation", None),
        ("gpt_neox", PARTIAL, "rotary_pct", 0.5),
        ("gpt_neox", {"position": LLAMA["position"]}, "rotary_emb_base", 500.0),
        ("llama", {"position": LLAMA["position"]}, "rope_scaling", None),
        ("llama", STRETCHED, "rope_scaling", {"rope_type": "linear", "rope_theta": 10000.0, "factor": 2.0}),
        ("gemma3_text", {"window_position": LLAMA["position"]}, "rope_local_base_freq", 500.0),
    ):
        config = replace(FAMILIES[name].from_hf({"vocab_size": 11}), **changes)
        assert FAMILIES[name].to_hf(resolved(config), 20).get(key) == value


@pytest.mark.parametrize("name", FAMILIES)
def test_settings_that_a_file_omits_are_those_of_transformers(name: str) -> None:
    heads = ("num_attention_heads", "decoder_attention_heads")  # whatever the family's own name
    for given in ({}, dict.fromkeys(heads, 64), {"use_sliding_window": True, "max_window_layers": -(10**12)}):
        theirs = transformers.AutoConfig.for_model(name, **given).to_dict()
        short = {"vocab_size": theirs["vocab_size"], **given}
        assert resolved(FAMILIES[name].from_hf(short)) == resolved(FAMILIES[name].from_hf(theirs))
    key, default = FAMILIES[name].length
    assert theirs.get(key, default) == default


def test_plain_safetensors(tmp_path: Path, refused: Callable) -> None:
    ours, plain = trained(tmp_path / "one.ckpt", {"softcap": 5.0}), tmp_path / "plain"
    main(["export", str(tmp_path / "one.ckpt"), "--to", "safetensors", str(plain)])
    close(load_file(plain / "model.safetensors"), dict(ours.model.named_parameters()), 0.0)
    config = json.loads((plain / "config.json").read_text())
    assert {name: value for name, value in config.items() if name != "minitx"} == ours.config.to_dict()
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_file=str(plain / "tokenizer.json"))
    assert tokenizer.encode("3 1 4") == ours.tokenizer.encode("3 1 4")
    assert "holds bare weights" in refused("import", str(plain), "--out", str(tmp_path / "two.ckpt"))


def test_the_card_has_task_data_and_metrics(tmp_path: Path, refused: Callable, monkeypatch: Any) -> None:
    for name in ("best", "step_000001"):
        trained(tmp_path / f"{name}.ckpt", GPT, PAIRS)
    results = {"split": "test", "examples": 1234, "exact_match": 0.987, "loss": 0.1}
    (tmp_path / "results.json").write_text(json.dumps(results))
    (tmp_path / "link").symlink_to("hf")
    main(["export", str(tmp_path / "best.ckpt"), str(tmp_path / "link")])
    card = (tmp_path / "hf/README.md").read_text()
    for words in ("# one", "`reverse`", "length [1, 9]", "exact match 0.987", "1,234 examples", "text-generation"):
        assert words in card
    for name in ("step_000001", "best"):  # of which only best is measured, and only with its results
        main(["export", str(tmp_path / f"{name}.ckpt"), str(tmp_path / name)])
        assert "not measured" in (tmp_path / name / "README.md").read_text()
        (tmp_path / "results.json").unlink(missing_ok=True)
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path / "empty")
    for folder in ("../hf", "../link", "../best.ckpt", "."):
        assert f"empty folder, and not the current one, got {folder}" in refused("export", "../best.ckpt", folder)
