"""Hostile training states, tokenizers, model folders and YAML files, sampled at random, and a table of their outcomes.

python tests/fuzz/hostile.py --seed 7
"""

import argparse
import base64
import json
import random
import shutil
import struct
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import tokenizers as library
import torch
from limited import Outcome, run
from safetensors.torch import save_file
from tokenizers import decoders, models, pre_tokenizers

from minitx.checkpoints import format as checkpoint
from minitx.config.schema import Config, ModelConfig
from minitx.data.tokenizers import SPECIAL_TOKENS, SpecialIds, SpecialTokens
from minitx.models.builder import build_model

Chance = random.Random
Change = Callable[[Chance, dict[str, Any]], Any]
Case = tuple[str, list[str]]
"""What is hostile, and the command line that reads it."""

MAX_SECONDS = 10.0
MAX_MEMORY = 2**30  # bytes above the plain case

# ---- training states -------------------------------------------------------------------------------------------------

RUN = {"name": "small", "folder": ""}
TRAINING = {
    "data": {"name": "reverse", "symbols": 4, "length": [1, 5], "batch_size": 8, "validation_size": 8, "test_size": 8},
    "model": {"d_model": 8, "n_heads": 2, "n_layers": 1},
    "trainer": {"max_steps": 2, "precision": "32-true", "accelerator": "cpu"},
}


def _moment(chance: Chance, state: dict[str, Any]) -> tuple[dict[str, Any], str]:
    states = state["optimizer_states"][0]["state"]
    return states[chance.choice([*states])], chance.choice(["exp_avg", "exp_avg_sq"])


def _moments(new: Callable[[Chance, torch.Tensor], Any]) -> Change:
    def change(chance: Chance, state: dict[str, Any]) -> None:
        entry, name = _moment(chance, state)
        entry[name] = new(chance, entry[name])

    return change


def _step(new: Callable[[Chance], Any]) -> Change:
    return lambda chance, state: _moment(chance, state)[0].update(step=new(chance))


def _set(*path: Any, to: Callable[[Chance], Any]) -> Change:
    def change(chance: Chance, state: dict[str, Any]) -> None:
        *before, last = path
        for key in before:
            state = state[key]
        state[last] = to(chance)

    return change


def _without(*path: Any) -> Change:
    def change(chance: Chance, state: dict[str, Any]) -> None:
        *before, last = path
        for key in before:
            state = state[key]
        del state[last]

    return change


def _alien(chance: Chance) -> Any:
    return chance.choice([None, 3, "x", [], {}, [1, 2], {"a": 1}, torch.zeros(2), float("nan"), -1])


GROUPS = ("optimizer_states", 0, "param_groups")
STATES: dict[str, Change] = {
    "moments of another shape": _moments(lambda chance, old: torch.zeros(chance.randrange(1, 9))),
    "moments of a smaller matrix": _moments(lambda chance, old: old[:1]),
    "moments of another type": _moments(lambda chance, old: old.to(chance.choice([torch.long, torch.bool]))),
    "moments in half precision": _moments(lambda chance, old: old.to(chance.choice([torch.half, torch.bfloat16]))),
    "moments transposed": _moments(lambda chance, old: old.T if old.dim() > 1 else old[None]),
    "moments that are no tensor": _moments(lambda chance, old: chance.choice([None, 1.0, "x", [1.0]])),
    "moments that are not finite": _moments(lambda chance, old: torch.full_like(old, float("nan"))),
    "negative squares": lambda chance, state: [
        entry.update(exp_avg_sq=-torch.ones_like(entry["exp_avg_sq"]))
        for entry in state["optimizer_states"][0]["state"].values()
    ],
    "expanded moments": _moments(lambda chance, old: torch.zeros(1).expand(old.shape)),
    "a step of several": _step(lambda chance: torch.zeros(chance.randrange(2, 9))),
    "a step before the start": _step(lambda chance: torch.tensor(-float(chance.randrange(1, 9)))),
    "an alien step": _step(_alien),
    "no states": _set("optimizer_states", 0, "state", to=lambda chance: {}),
    "no optimizer": _set("optimizer_states", to=lambda chance: []),
    "two optimizers": lambda chance, state: state["optimizer_states"].append(state["optimizer_states"][0]),
    "an alien optimizer": _set("optimizer_states", 0, to=_alien),
    "alien optimizers": _set("optimizer_states", to=_alien),
    "one state less": lambda chance, state: state["optimizer_states"][0]["state"].pop(
        chance.choice([*state["optimizer_states"][0]["state"]])
    ),
    "an alien state": lambda chance, state: state["optimizer_states"][0]["state"].update(
        {chance.choice(["x", 10**6, -1]): {"step": torch.tensor(1.0)}}
    ),
    "states in another order": lambda chance, state: chance.shuffle(
        state["optimizer_states"][0]["param_groups"][0]["params"]
    ),
    "the same parameter twice": _set(*GROUPS, 0, "params", to=lambda chance: [0] * 8),
    "alien parameters": _set(*GROUPS, 0, "params", to=_alien),
    "alien groups": _set(*GROUPS, to=_alien),
    "one group": lambda chance, state: state["optimizer_states"][0]["param_groups"].pop(),
    "betas of a group": _set(*GROUPS, 0, "betas", to=_alien),
    "a negative step": _set("global_step", to=lambda chance: -chance.randrange(1, 100)),
    "a huge step": _set("global_step", to=lambda chance: 10 ** chance.randrange(10, 40)),
    "an alien step of the run": _set("global_step", to=_alien),
    "alien loops": _set("loops", to=_alien),
    "an alien loop": _set("loops", "fit_loop", to=_alien),
    "an alien progress": _set("loops", "fit_loop", "epoch_loop.scheduler_progress", to=_alien),
    "no loop": _without("loops", "fit_loop"),
    "an alien schedule": _set("lr_schedulers", to=_alien),
    "a schedule of an alien": _set("lr_schedulers", 0, to=_alien),
    "an alien step of the schedule": _set("lr_schedulers", 0, "last_epoch", to=_alien),
    "alien callbacks": _set("callbacks", to=_alien),
    "an alien callback": lambda chance, state: state.update(
        callbacks=dict.fromkeys(state["callbacks"], _alien(chance))
    ),
    "an alien version": _set("pytorch-lightning_version", to=lambda chance: chance.choice(["x", None, 3, "0.1.0", ""])),
    "alien seconds": _set("seconds", to=_alien),
    "alien skipped steps": _set("skipped_steps", to=_alien),
    "an alien validation": _set("validated", to=_alien),
    "an alien scaler": _set("MixedPrecision", to=_alien),
    "an alien digest": _set("data_digest", to=_alien),
    "an alien data module": _set("datamodule", to=_alien),
    "an alien epoch": _set("epoch", to=_alien),
}


def states(chance: Chance, folder: Path) -> Iterator[Case]:
    """Altered training states, resumed; the first is unchanged."""
    config = folder / "run.yaml"
    plain = folder / "plain"
    plain.mkdir(parents=True)

    def words(runs: Path, steps: int) -> list[str]:
        config.write_text(json.dumps(TRAINING))
        return ["train", "--config", str(config), "--run.folder", str(runs), "--trainer.max_steps", str(steps)]

    trained = run(words(plain, 2))
    assert trained.code == 0, trained.output
    for number in range(10**6):
        what = "nothing" if number == 0 else chance.choice([*STATES])
        runs = folder / str(number)
        shutil.copytree(plain, runs)
        (last,) = runs.glob("*/v0/last.ckpt")
        contents = checkpoint.read(last)
        STATES.get(what, lambda chance, state: None)(chance, contents)
        torch.save(contents, last)
        yield what, [*words(runs, 4), "--resume"]


# ---- tokenizers ------------------------------------------------------------------------------------------------------

WORDS = ["aaaaaaaaaa bbbb", "aaaa"]


def _vocabulary() -> library.Tokenizer:
    alphabet = [chr(code) for code in range(32, 127)]
    tokens = {token: index for index, token in enumerate([*SPECIAL_TOKENS, *alphabet])}
    backend = library.Tokenizer(models.BPE(tokens, []))
    backend.pre_tokenizer, backend.decoder = pre_tokenizers.Metaspace("_"), decoders.Fuse()
    return backend


def _replace(pattern: str, content: str, kind: str = "String") -> dict[str, Any]:
    return {"type": "Replace", "pattern": {kind: pattern}, "content": content}


def _split(pattern: str) -> dict[str, Any]:
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}


def _sequence(part: str, rules: list[Any]) -> dict[str, Any]:
    name = {"normalizer": "normalizers", "pre_tokenizer": "pretokenizers", "decoder": "decoders"}[part]
    return {part: {"type": "Sequence", name: rules}}


def _nested(chance: Chance) -> dict[str, Any]:
    inner: Any = {"type": "Lowercase"}
    for _ in range(chance.choice([20, 100, 1000])):
        inner = {"type": "Sequence", "normalizers": [inner]}
    return {"normalizer": inner}


def _catastrophe(chance: Chance) -> str:
    return chance.choice(
        [
            "(a+)+$",
            "(a|a)*b$",
            "(a*)*c",
            "((a+)+)+x",
            "(?:a|aa)+$y",
            "(a+a+)+z",
            "(.*)*(.*)*(.*)*9",
            "(?=(a+)+b)a",
            r"(\w+\s?)*\d",
            "a{1,1000}{1,1000}{1,1000}b",
            "(?:(?:a{0,900}){0,900}){0,900}b",
            "(" * 5000 + "a" + ")" * 5000,
        ]
    )


def _charsmap(chance: Chance) -> str:
    size = chance.choice([0, 4, 8, 2**31, 2**20])
    body = struct.pack("<I", size) + chance.randbytes(chance.choice([0, 7, 4096, 2**20]))
    return base64.b64encode(body).decode()


def _added(chance: Chance, count: int, length: int) -> dict[str, Any]:
    options = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": chance.random() < 0.5}
    letters = "ab"
    return {
        "added_tokens": [
            {"id": 101 + number, "content": "".join(chance.choices(letters, k=length)), "special": False, **options}
            for number in range(count)
        ]
    }


TOKENIZERS: dict[str, Callable[[Chance], dict[str, Any]]] = {
    "a chain of replacements": lambda chance: _sequence(
        "normalizer", [_replace("a", "a" * chance.choice([5, 8, 30]))] * chance.choice([9, 11, 20])
    ),
    "a chain of alternating replacements": lambda chance: _sequence(
        "normalizer", [_replace("a", "b" * 9), _replace("b", "a" * 9)] * chance.choice([5, 9])
    ),
    "a long replacement": lambda chance: {"normalizer": _replace("a", "a" * 10 ** chance.choice([6, 7]))},
    "empty matches": lambda chance: _sequence(
        "normalizer", [_replace(chance.choice(["", "x*", "(?=.)"]), "a" * 50, "Regex")] * 5
    ),
    "an empty string replaced": lambda chance: _sequence("normalizer", [_replace("", "a" * 9)] * 9),
    "long prefixes": lambda chance: _sequence(
        "normalizer", [{"type": "Prepend", "prepend": "a" * 10**6}] * chance.randrange(5, 30)
    ),
    "replacements after it": lambda chance: _sequence("decoder", [_replace("a", "a" * 9)] * chance.choice([9, 12])),
    "many rules": lambda chance: _sequence("normalizer", [{"type": "NFKC"}] * chance.choice([10**4, 10**5])),
    "nested rules": _nested,
    "padding": lambda chance: {
        "padding": {
            "strategy": {"Fixed": chance.choice([2 * 10**9, 2**40])},
            "direction": "Right",
            "pad_to_multiple_of": None,
            "pad_id": 0,
            "pad_type_id": 0,
            "pad_token": "<pad>",
        }
    },
    "padding to a multiple": lambda chance: {
        "padding": {
            "strategy": "BatchLongest",
            "direction": "Left",
            "pad_to_multiple_of": chance.choice([0, 2**31]),
            "pad_id": 0,
            "pad_type_id": 0,
            "pad_token": "<pad>",
        }
    },
    "truncation": lambda chance: {
        "truncation": {
            "direction": "Right",
            "max_length": chance.choice([0, 1, 5]),
            "strategy": "LongestFirst",
            "stride": chance.choice([0, 1, 4]),
        }
    },
    "a catastrophic split": lambda chance: {"pre_tokenizer": _split(_catastrophe(chance))},
    "a catastrophic replacement": lambda chance: {"normalizer": _replace(_catastrophe(chance), "b", "Regex")},
    "several splits": lambda chance: _sequence("pre_tokenizer", [_split(_catastrophe(chance)) for _ in range(3)]),
    "a damaged map of characters": lambda chance: {
        "normalizer": {"type": "Precompiled", "precompiled_charsmap": _charsmap(chance)}
    },
    "many added tokens": lambda chance: _added(chance, chance.choice([2000, 10**5]), 30),
    "long added tokens": lambda chance: _added(chance, 10, chance.choice([10**5, 10**6])),
    "empty added tokens": lambda chance: _added(chance, 3, 0),
    "an added token of a huge id": lambda chance: {
        "added_tokens": [{**_added(chance, 1, 2)["added_tokens"][0], "id": chance.choice([2**32 - 1, 2**31])}]
    },
    "words of any length": lambda chance: {
        "pre_tokenizer": None,
        "model": {
            "type": "WordPiece",
            "unk_token": "<unk>",
            "continuing_subword_prefix": "#" * chance.choice([2, 10**6]),
            "max_input_chars_per_word": 2**60,
            "vocab": {**dict(zip(SPECIAL_TOKENS, range(6), strict=True)), "b": 6},
        },
    },
    "ids with holes": lambda chance: {
        "model": {
            "type": "WordLevel",
            "unk_token": "<unk>",
            "vocab": {**dict(zip(SPECIAL_TOKENS, range(6), strict=True)), "a": chance.choice([2**32 - 1, 10**9])},
        }
    },
    "merges of nothing": lambda chance: {
        "model": {**json.loads(_vocabulary().to_str())["model"], "merges": [["q", "zz"]] * 5}
    },
    "a unigram of nothing": lambda chance: {
        "model": {"type": "Unigram", "unk_id": chance.choice([None, 99]), "vocab": [["<unk>", 0.0]]}
    },
    "a template of everything": lambda chance: {
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [{"Sequence": {"id": "A", "type_id": 0}}] * chance.choice([1, 10**6]),
            "pair": [],
            "special_tokens": {},
        }
    },
    "an alien part": lambda chance: {
        chance.choice(["normalizer", "pre_tokenizer", "decoder", "model", "post_processor", "added_tokens"]): _alien(
            chance
        )
    },
    "fixed lengths": lambda chance: {"pre_tokenizer": {"type": "FixedLength", "length": chance.choice([0, 1, 2**60])}},
    "an alien rule": lambda chance: {"normalizer": {"type": chance.choice(["", "Bert", "x" * 10**6])}},
}


def hostile_tokenizer(chance: Chance) -> tuple[str, dict[str, Any]]:
    what = chance.choice([*TOKENIZERS])
    return what, {**json.loads(_vocabulary().to_str()), **TOKENIZERS[what](chance)}


def tokenizers(chance: Chance, folder: Path) -> Iterator[Case]:
    """Hostile tokenizers in checkpoints, native or imported; the first is harmless."""
    folder.mkdir(parents=True)
    vocab = _vocabulary().get_vocab_size()
    config = Config(
        data={"name": "imported_text", "block": 64},
        model=ModelConfig(architecture="decoder_only", d_model=8, n_heads=2, n_layers=1, vocab_size=vocab),
    )
    weights = {f"model.{name}": tensor for name, tensor in build_model(config.model).state_dict().items()}
    special = SpecialTokens(SpecialIds(*range(6))).to_dict()
    for number in range(10**6):
        what, backend = ("nothing", json.loads(_vocabulary().to_str())) if number == 0 else hostile_tokenizer(chance)
        tokenizer = backend if chance.random() < 0.3 else {"backend": backend, "conventions": special}
        path = folder / f"{number}.ckpt"
        torch.save({"minitx": checkpoint.header(config.to_dict(), tokenizer), "state_dict": weights}, path)
        yield what, ["generate", str(path), *WORDS, "--max_new_tokens", "4"]


# ---- folders to import -----------------------------------------------------------------------------------------------

GPT2 = {
    "model_type": "gpt2",
    "n_embd": 8,
    "n_head": 2,
    "n_layer": 1,
    "n_inner": 16,
    "n_positions": 64,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
LLAMA = {"model_type": "llama", "hidden_size": 8, "num_attention_heads": 2, "num_hidden_layers": 1}


def _gpt2_weights(vocab: int) -> dict[str, torch.Tensor]:
    shapes: dict[str, tuple[int, ...]] = {
        "wte.weight": (vocab, 8),
        "wpe.weight": (64, 8),
        "h.0.attn.c_attn.weight": (8, 24),
        "h.0.attn.c_attn.bias": (24,),
        "h.0.attn.c_proj.weight": (8, 8),
        "h.0.attn.c_proj.bias": (8,),
        "h.0.mlp.c_fc.weight": (8, 16),
        "h.0.mlp.c_fc.bias": (16,),
        "h.0.mlp.c_proj.weight": (16, 8),
        "h.0.mlp.c_proj.bias": (8,),
        **{f"{norm}.{kind}": (8,) for norm in ("h.0.ln_1", "h.0.ln_2", "ln_f") for kind in ("weight", "bias")},
    }
    return {f"transformer.{name}": torch.randn(shape) for name, shape in shapes.items()}


def _config(**values: Callable[[Chance], Any]) -> Callable[[Chance, Path], None]:
    def change(chance: Chance, folder: Path) -> None:
        config = json.loads((folder / "config.json").read_text())
        config |= {name: value(chance) for name, value in values.items()}
        (folder / "config.json").write_text(json.dumps(config))

    return change


def _file(name: str, content: Callable[[Chance], bytes]) -> Callable[[Chance, Path], None]:
    return lambda chance, folder: (folder / name).write_bytes(content(chance)) and None


def _header(header: bytes, body: bytes = b"", claimed: int | None = None) -> bytes:
    return struct.pack("<Q", len(header) if claimed is None else claimed) + header + body


def _many_tensors(chance: Chance) -> bytes:
    entry = '"{}":{{"dtype":"F32","shape":[0],"data_offsets":[0,0]}}'
    return _header(f"{{{','.join(entry.format(number) for number in range(10 ** chance.choice([5, 6])))}}}".encode())


def _weights(change: Callable[[Chance, dict[str, torch.Tensor]], Any]) -> Callable[[Chance, Path], None]:
    def altered(chance: Chance, folder: Path) -> None:
        weights = _gpt2_weights(_vocabulary().get_vocab_size())
        change(chance, weights)
        save_file(weights, folder / "model.safetensors")

    return altered


def _tokenizer(chance: Chance, folder: Path) -> None:
    (folder / "tokenizer.json").write_text(json.dumps(hostile_tokenizer(chance)[1]))


def _llama(**values: Callable[[Chance], Any]) -> Callable[[Chance, Path], None]:
    def change(chance: Chance, folder: Path) -> None:
        config = LLAMA | {name: value(chance) for name, value in values.items()}
        (folder / "config.json").write_text(json.dumps(config))

    return change


def _huge(chance: Chance) -> int:
    return chance.choice([10**5, 10**6, 10**9, 10**12, 2**62, 10**30])


FOLDERS: dict[str, Callable[[Chance, Path], None]] = {
    "a huge depth": _config(n_layer=lambda chance: chance.choice([10**5, 10**6, 10**9, 10**15])),
    "a huge width": _config(n_embd=_huge),
    "many heads": _config(n_head=_huge),
    "a huge feed-forward": _config(n_inner=_huge),
    "many positions": _config(n_positions=_huge),
    "a huge vocabulary": _config(vocab_size=_huge),
    "a huge depth of layers with windows": lambda chance, folder: (
        (folder / "config.json").write_text(
            json.dumps(LLAMA | {"model_type": "qwen2", "num_hidden_layers": _huge(chance), "use_sliding_window": True})
        )
        and None
    ),
    "negative sizes": _config(n_layer=lambda chance: -1, n_embd=lambda chance: -8),
    "an alien size": _config(n_embd=lambda chance: chance.choice([None, "x", [], {}, 1.5, True])),
    "an alien model_type": _config(model_type=lambda chance: chance.choice([None, 3, [], {}, ["gpt2"], True])),
    "an alien activation": _config(activation_function=lambda chance: chance.choice([None, 3, [], {}, ["gelu"]])),
    "an alien length": _config(n_positions=lambda chance: chance.choice(["x", [], {}, 1.5, None])),
    "alien special tokens": _config(
        pad_token_id=lambda chance: chance.choice(["x", [], {}, 1.5, -7, 10**9, 10**30]),
        eos_token_id=lambda chance: chance.choice(["x", [], {}, 1.5, -7, 10**9, [10**30]]),
    ),
    "alien rope": _llama(
        rope_scaling=lambda chance: chance.choice([3, "x", [1], {"rope_type": []}, {"rope_theta": "x"}])
    ),
    "an alien theta": _llama(rope_theta=lambda chance: chance.choice(["x", [], {}, None])),
    "alien layer types": lambda chance, folder: (
        (folder / "config.json").write_text(
            json.dumps(LLAMA | {"model_type": "qwen2", "layer_types": chance.choice([3, "x", [[]], [{}], {"a": 1}])})
        )
        and None
    ),
    "a deep config": _file("config.json", lambda chance: b"[" * 10**5),
    "a deep tokenizer": _file("tokenizer.json", lambda chance: b'{"a":' * 10**5),
    "a large config": _file("config.json", lambda chance: b'{"a": [' + b"[]," * 10**7 + b"[]]}"),
    "a large tokenizer": _file("tokenizer.json", lambda chance: b'{"a": [' + b"[]," * 10**7 + b"[]]}"),
    "a config of numbers": _file("config.json", lambda chance: b'{"model_type": "gpt2", "a": ' + b"9" * 10**5 + b"}"),
    "a config that is none": _file("config.json", lambda chance: chance.choice([b"", b"3", b"[]", b"\xff\xfe", b"{"])),
    "a byte order mark": lambda chance, folder: (
        (folder / "config.json").write_bytes(b"\xef\xbb\xbf" + (folder / "config.json").read_bytes()) and None
    ),
    "an index": _file(
        "model.safetensors.index.json",
        lambda chance: json.dumps(
            {
                "weight_map": chance.choice(
                    [
                        3,
                        [],
                        "x",
                        {"a": "../../etc/passwd"},
                        {"a": []},
                        {"a": None},
                        {"a": "/dev/zero"},
                        {"a": "tokenizer.json"},
                    ]
                )
            }
        ).encode(),
    ),
    "a header without end": _file(
        "model.safetensors", lambda chance: _header(b"{", claimed=chance.choice([2**62, 10**8]))
    ),
    "a header of spaces": _file("model.safetensors", lambda chance: _header(b" " * 5 * 10**7)),
    "a header of many tensors": _file("model.safetensors", _many_tensors),
    "a header of a huge tensor": _file(
        "model.safetensors",
        lambda chance: _header(
            json.dumps(
                {
                    "a": {
                        "dtype": chance.choice(["F32", "F8_E8M0", "F4", "X"]),
                        "shape": [chance.choice([2**62, 10**10])],
                        "data_offsets": [0, chance.choice([4, 2**40, 2**62])],
                    },
                }
            ).encode(),
            bytes(8),
        ),
    ),
    "a header of empty tensors": _file(
        "model.safetensors",
        lambda chance: _header(
            json.dumps({"a": {"dtype": "F32", "shape": [0, 2**62], "data_offsets": [0, 0]}}).encode()
        ),
    ),
    "a deep header": _file("model.safetensors", lambda chance: _header(b'{"a":' * 10**5)),
    "weights that are none": _file(
        "model.safetensors", lambda chance: chance.choice([b"", b"x", bytes(8), bytes(100)])
    ),
    "weights that are not finite": _weights(
        lambda chance, weights: (
            weights[chance.choice([*weights])]
            .view(-1)[:1]
            .fill_(chance.choice([float("nan"), float("inf"), -float("inf")]))
        )
    ),
    "weights of other types": _weights(
        lambda chance, weights: weights.update(
            {chance.choice([*weights]): torch.zeros(3, dtype=chance.choice([torch.int8, torch.bool, torch.complex64]))}
        )
    ),
    "weights of other shapes": _weights(
        lambda chance, weights: weights.update(
            {chance.choice([*weights]): torch.zeros(chance.choice([(), (0,), (1,), (8, 8, 8), (3, 5)]))}
        )
    ),
    "a hostile tokenizer": _tokenizer,
    "another hostile tokenizer": _tokenizer,
    "settings of the tokenizer": lambda chance, folder: (
        (folder / "tokenizer_config.json").write_text(
            json.dumps(
                {
                    "eos_token": chance.choice([3, [], {"content": 3}, {"content": []}, "nosuch"]),
                    "add_bos_token": "x",
                    "bos_token": chance.choice([3, [], {}, None]),
                }
            )
        )
        and None
    ),
    "settings of generation": lambda chance, folder: (
        (folder / "generation_config.json").write_text(
            json.dumps(
                {
                    "eos_token_id": chance.choice(["x", [], {}, [[]], 10**30, 1.5]),
                    "forced_bos_token_id": chance.choice(["x", [], 1.5]),
                    "bad_words_ids": chance.choice([3, "x", [3], [[[]]], [["x"]], [[10**30]]]),
                }
            )
        )
        and None
    ),
    "folders for files": lambda chance, folder: (
        [
            (folder / name).unlink() or (folder / name).mkdir()
            for name in chance.sample(["config.json", "tokenizer.json", "model.safetensors"], 1)
        ]
        and None
    ),
}


def folders(chance: Chance, folder: Path) -> Iterator[Case]:
    """Hostile folders of Hugging Face models, imported; the first is harmless."""
    vocab = _vocabulary().get_vocab_size()
    for number in range(10**6):
        what = "nothing" if number == 0 else chance.choice([*FOLDERS])
        own = folder / str(number)
        own.mkdir(parents=True)
        (own / "config.json").write_text(json.dumps(GPT2 | {"vocab_size": vocab}))
        (own / "tokenizer.json").write_text(_vocabulary().to_str())
        save_file(_gpt2_weights(vocab), own / "model.safetensors")
        FOLDERS.get(what, lambda chance, folder: None)(chance, own)
        yield what, ["import", str(own), "--out", str(own / "out.ckpt")]


# ---- YAML ------------------------------------------------------------------------------------------------------------

PLAIN = "run: {name: y}\ndata: {name: reverse}\nmodel: {d_model: 8, n_heads: 2, n_layers: 1}\n"


def _merges(chance: Chance) -> str:
    """Merge keys that double at each level."""
    levels = chance.randrange(15, 40)
    lines = ["a0: &a0 {x: 1, y: 2}"]
    for level in range(1, levels):
        lines.append(f"a{level}: &a{level} {{<<: [{', '.join([f'*a{level - 1}'] * chance.choice([2, 3]))}]}}")
    return "\n".join(lines)


def _laughs(chance: Chance, key: str = "{}") -> str:
    width, levels = chance.choice([2, 10]), chance.randrange(8, 40)
    lines = ["a0: &a0 [x]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * width)}]" for i in range(1, levels)]
    return "\n".join([*lines, key.format(f"*a{levels - 1}")])


YAMLS: dict[str, Callable[[Chance], str | bytes]] = {
    "merge keys": _merges,
    "a wide merge": lambda chance: (
        "a: &a {"
        + ",".join(f"k{i}: 1" for i in range(2000))
        + "}\nb: {<<: ["
        + ",".join(["*a"] * chance.choice([1000, 10**5]))
        + "]}"
    ),
    "a merge of itself": lambda chance: "data: &a {name: reverse, <<: *a}",
    "aliases": _laughs,
    "aliases as a key": lambda chance: _laughs(chance, "? {}\n: 1"),
    "a sexagesimal integer": lambda chance: (
        "data: {name: reverse, symbols: 1" + ":01" * 10 ** chance.choice([4, 5]) + "}"
    ),
    "a sexagesimal number": lambda chance: "data: {name: reverse, symbols: 1" + ":01" * 10**5 + ".5}",
    "a long integer": lambda chance: (
        f"data: {{name: reverse, symbols: {chance.choice(['0x', '', '0b', '0'])}" + "1" * 10**5 + "}"
    ),
    "a long integer where text is": lambda chance: (
        f"run: {{name: {chance.choice(['0x', '0b', '0'])}" + "1" * 10**5 + "}"
    ),
    "underscores": lambda chance: "data: {name: reverse, symbols: 1" + "_" * 5 * 10**5 + "}",
    "a long number": lambda chance: "optimizer: {lr: 1" + "0" * 10**5 + chance.choice([".5", "e5", ""]) + "}",
    "a long exponent": lambda chance: "optimizer: {lr: 1e" + "9" * chance.choice([3, 10**5]) + "}",
    "not a number": lambda chance: (
        f"optimizer: {{{chance.choice(['lr', 'weight_decay'])}: {chance.choice(['.nan', '.inf', '-.inf'])}}}"
    ),
    "not a number elsewhere": lambda chance: (
        f"data: {{name: reverse, symbols: {chance.choice(['.nan', '.inf', '-.inf'])}}}"
    ),
    "a key twice": lambda chance: f"data: {{name: reverse}}\n{chance.choice(['data', 'trainer'])}: {{}}\ntrainer: {{}}",
    "a number and a text as keys": lambda chance: 'data: {name: reverse, 1: 2, "1": 3}',
    "a byte order mark": lambda chance: b"\xef\xbb\xbf" + PLAIN.encode(),
    "a byte order mark within": lambda chance: PLAIN.encode() + b"\xef\xbb\xbfdata: {}",
    "other encodings": lambda chance: PLAIN.encode(chance.choice(["utf-16", "utf-16-le", "utf-32", "cp037"])),
    "a tag": lambda chance: (
        "data: "
        + chance.choice(
            [
                "!!bool x",
                "!!int x",
                "!!int ''",
                "!!float ''",
                "!!float x",
                "!!timestamp x",
                "!!null x",
                "!!omap [1]",
                "!!pairs x",
                "!!set [a]",
                "!!map []",
                "!!str {}",
                "!!seq {a: b}",
                "!!binary é",
                "!!int 1:2:99",
                "!x y",
                "!!merge x",
                "!!bool {a: b}",
                "!!int [1]",
                "!!timestamp 2001-99-99",
                "! x",
                "!!value x",
                "{=: 3}",
                "!!float {=: 3}",
            ]
        )
    ),
    "a date": lambda chance: (
        f"run: {{name: {chance.choice(['2001-01-01', '2001-99-99', '2001-12-14t21:59:43.10-05:00'])}}}"
    ),
    "keys that are none": lambda chance: (
        "data: "
        + chance.choice(["{[1, 2]: 3}", "{{a: b}: c}", "{? [a] : b, ? [a] : c}", "{2001-01-01: 1}", "{.nan: 1}"])
    ),
    "deep lists": lambda chance: "data: " + "[" * 10 ** chance.choice([3, 5]),
    "deep sections": lambda chance: "\n".join(" " * level + "a:" for level in range(chance.choice([300, 1400]))),
    "deep dashes": lambda chance: "data:\n" + "- " * 10 ** chance.choice([3, 5]) + "x",
    "many values": lambda chance: "data: [" + "1," * 10 ** chance.choice([4, 5]) + "]",
    "many sections": lambda chance: "\n".join(f"k{i}: {i}" for i in range(10**5))[: 10**6],
    "many anchors": lambda chance: "data: [" + ",".join(f"&a{i} x, *a{i}" for i in range(3 * 10**4)) + "]",
    "a long text": lambda chance: "run: {name: " + chance.choice(["x", "x ", '"' + "\\n" * 3, "é"]) * 2 * 10**5,
    "a folded text": lambda chance: "run:\n  name: >\n" + "    x\n" * 10**5,
    "comments": lambda chance: "# x\n" * 10**5 + PLAIN,
    "directives": lambda chance: (
        chance.choice(["%YAML 9.9\n---\n", "%TAG ! x\n---\n!a b", "%x\n---\n", "%YAML 1.1\n"]) + PLAIN
    ),
    "characters that do not print": lambda chance: (
        "run: {name: 'a" + chance.choice(["\0", "\x07", "\x85", "\u2028", "\x7f"]) + "b'}"
    ),
    "a surrogate": lambda chance: 'run: {name: "\\ud800\\udc00"}\n' + PLAIN.split("\n", 1)[1],
    "random bytes": lambda chance: chance.randbytes(chance.choice([10, 1000, 10**5])),
    "random characters": lambda chance: "".join(
        chance.choices("ab: -[]{}&*!|>'\"%@`#\n?,.0<~=", k=chance.choice([20, 200]))
    ),
}


def yamls(chance: Chance, folder: Path) -> Iterator[Case]:
    """Hostile YAML files, described; the first is harmless."""
    folder.mkdir(parents=True)
    for number in range(10**6):
        what = "nothing" if number == 0 else chance.choice([*YAMLS])
        content = PLAIN if number == 0 else YAMLS[what](chance)
        path = folder / f"{number}.yaml"
        path.write_bytes(content if isinstance(content, bytes) else content.encode("utf-8", "surrogatepass"))
        yield what, ["describe", "--config", str(path)]


KINDS: dict[str, tuple[Callable[[Chance, Path], Iterator[Case]], int]] = {
    "states": (states, 18),
    "tokenizers": (tokenizers, 40),
    "folders": (folders, 40),
    "yamls": (yamls, 40),
}
"""Generators of cases, the first of which is harmless, and how many of each."""


def attempt(kind: str, seed: int, folder: Path, count: int | None = None) -> tuple[dict[str, Any], list[str]]:
    """Run the cases of one kind: figures, and a line for each that should not have ended as it did."""
    cases, usual = KINDS[kind]
    chance = random.Random(f"{kind} {seed}")
    torch.manual_seed(seed)
    each = cases(chance, folder)
    plain = run(next(each)[1])
    assert plain.code == 0, plain.output
    outcomes: list[tuple[str, Outcome]] = []
    for (what, words), _ in zip(each, range(count or usual), strict=False):
        outcomes.append((what, run(words)))
    faults = []
    for number, (what, outcome) in enumerate(outcomes, 1):
        fault = outcome.fault
        if outcome.seconds - plain.seconds > MAX_SECONDS:
            fault = f"{fault or ''} {outcome.seconds:.1f} s"
        if outcome.peak - plain.peak > MAX_MEMORY:
            fault = f"{fault or ''} {outcome.peak / 2**30:.1f} GiB"
        if fault:
            faults.append(f"{kind} {number} {what}: {fault}: {outcome.output[-300:]!r}")
    return {
        "kind": kind,
        "seed": seed,
        "tried": len(outcomes),
        "kinds": len({what for what, _ in outcomes}),
        **Counter({0: "fine", 2: "refused"}.get(outcome.code, "other") for _, outcome in outcomes),
        "tracebacks": sum(outcome.fault == "traceback" for _, outcome in outcomes),
        "signals": sum(outcome.code < 0 for _, outcome in outcomes),
        "MB over plain": max(outcome.peak - plain.peak for _, outcome in outcomes) // 10**6,
        "seconds": round(max(outcome.seconds for _, outcome in outcomes), 1),
        "plain seconds": round(plain.seconds, 1),
    }, faults


if __name__ == "__main__":
    import tempfile

    import minitx.huggingface.importing
    import minitx.training.api  # noqa: F401 (imported before the forks)

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--kinds", nargs="*", default=[*KINDS])
    parser.add_argument("--count", type=int)
    parsed = parser.parse_args()
    torch.set_num_threads(1)
    bad = 0
    for kind in parsed.kinds:
        with tempfile.TemporaryDirectory() as temporary:
            figures, faults = attempt(kind, parsed.seed, Path(temporary) / "cases", parsed.count)
        print(figures, *faults, sep="\n", flush=True)
        bad += len(faults)
    sys.exit(bad > 0)
