"""Hostile inputs, sampled at random: altered trees of values, damaged bytes, and attacks that chance would not find."""

import base64
import copy
import json
import random
import struct
from collections.abc import Callable
from functools import reduce
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from torch import Tensor

from minitx.data.tokenizers import SPECIAL_TOKENS

Chance = random.Random

ALIENS = [
    None, 3, -1, 1.5, True, "x", "", "é", "\0", "\ud800", [], {}, [1], [1, 2], {"a": 1}, {"name": "x"}, torch.zeros(2),
    float("nan"), 10**40,
]  # fmt: skip
TENSORS: list[Callable[[Tensor], Any]] = [
    lambda old: old[:1], lambda old: old.T, lambda old: old[None], lambda old: torch.zeros(5), lambda old: old.tolist(),
    lambda old: old.half(), lambda old: old.long(), lambda old: old > 0, lambda old: torch.full_like(old, torch.nan),
    lambda old: -torch.ones_like(old), lambda old: torch.zeros((), dtype=old.dtype).expand(old.shape),
]  # fmt: skip


def altered_tensor(chance: Chance, old: Tensor) -> Any:
    return chance.choice(TENSORS if old.dim() == 2 else TENSORS[2:])(old)


def places(tree: Any, path: tuple = ()) -> list[tuple]:
    """The paths of all values in nested dicts and lists."""
    inner = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    return [path] * bool(path) + [place for key, part in inner for place in places(part, (*path, key))]


def replace(tree: Any, path: tuple, new: Any) -> None:
    for key in path[:-1]:
        tree = tree[key]
    tree[path[-1]] = new


NEAR: dict[type, Callable[[Any], list[Any]]] = {
    bool: lambda old: [not old],
    int: lambda old: [0, 1, 2, 3, 8, -old - 1, old + 1, 2**31, 10**9, 2**62, 10**30],
    float: lambda old: [0.0, 0.1, 1.0, 2.0, -old, 1e-9, 1e30, float("inf")],
    str: lambda old: [old[:-1], old * 9, f"{old}é", "(a+)+$"],
    list: lambda old: [old[:-1], old[::-1], old * 2, old * 1000],
    dict: lambda old: [{key: part for key, part in old.items() if key != left_out} for left_out in old],
}
"""Values of the kind of another, but of another size."""


def other(chance: Chance, old: Any) -> Any:
    """A value in place of another: near it, or an alien."""
    near = next((values(old) for kind, values in NEAR.items() if isinstance(old, kind)), [])
    if isinstance(old, Tensor):
        near = [altered_tensor(chance, old)]
    return chance.choice(near if near and chance.random() < 0.6 else ALIENS)


def alter(chance: Chance, tree: Any) -> str:
    """Replace a value of a tree, as often a section as one of its values; returns its place and the new value."""
    path: list[Any] = []
    inner = tree
    while not path or (isinstance(inner, dict | list) and inner and chance.random() < 0.8):
        path.append(chance.choice([*inner] if isinstance(inner, dict) else range(len(inner))))
        inner = inner[path[-1]]
    new = copy.deepcopy(other(chance, inner))  # a later call may alter it
    replace(tree, tuple(path), new)
    return f"{'.'.join(map(str, path))} = {new!r:.200}"


def damaged(chance: Chance, content: bytes) -> bytes:
    """Bytes with flipped bits, cut off, or with a few inserted."""
    changed = bytearray(content)
    for _ in range(chance.choice((1, 1, 3, 20)) if content else 0):
        changed[chance.randrange(len(changed))] ^= 1 << chance.randrange(8)
    how, place = chance.randrange(4), chance.randrange(len(changed) + 1)
    if how == 0:
        del changed[place:]
    if how == 1:
        changed[place:place] = chance.choice((b"\0", b'"', b"\n", b"\xff", b"\\", b"\r", b"{", b"," * 20))
    return bytes(changed)


def tokenizer() -> dict[str, Any]:
    """A tokenizer with a rule of each kind."""
    alphabet = [chr(code) for code in range(32, 127)]
    vocabulary = {token: index for index, token in enumerate([*SPECIAL_TOKENS, *alphabet, "ab"])}
    backend = Tokenizer(models.BPE(vocabulary, [("a", "b")]))
    rules = [normalizers.NFKC(), normalizers.Replace("q", "r"), normalizers.Replace(Regex("z{2,}"), "z")]
    backend.normalizer = normalizers.Sequence(rules)
    splits = [pre_tokenizers.Split(Regex(r"\d{1,3}"), "isolated"), pre_tokenizers.Metaspace("_")]
    backend.pre_tokenizer = pre_tokenizers.Sequence(splits)
    backend.decoder = decoders.Sequence([decoders.Replace("_", " "), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    backend.post_processor = processors.TemplateProcessing(single="<bos> $A", special_tokens=[("<bos>", 1)])
    backend.add_tokens([AddedToken("abba", lstrip=True)])
    backend.enable_padding(pad_id=0, pad_token="<pad>", length=2)
    backend.enable_truncation(50)
    return json.loads(backend.to_str())


VOCAB = len(SPECIAL_TOKENS) + 97
WORDS = ["aaaaaaaaaa bbbb", "aaaa"]


def replacement(pattern: str, content: str, kind: str = "String") -> dict[str, Any]:
    return {"pattern": {kind: pattern}, "content": content}  # the type may be left out


def split(pattern: str) -> dict[str, Any]:
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}


def normalizing(*rules: Any) -> dict[str, Any]:
    return {"normalizer": {"type": "Sequence", "normalizers": [*rules]}}


CATASTROPHES = ("(a|a)*b$", "((a+)+)+x", "(?:a|aa)+$y", "(?=(a+)+b)a", r"(\w+\s?)*\d", "a{1,1000}{1,1000}{1,1000}b")
TOKENIZERS: dict[str, dict[str, Any]] = {
    "alternating replacements": normalizing(*[replacement("a", "b" * 9), replacement("b", "a" * 9)] * 9),
    "empty matches": normalizing(*[replacement("(?=.)", "a" * 50, "Regex")] * 5),
    "long prefixes": normalizing(*[{"type": "Prepend", "prepend": "a" * 10**6}] * 20),
    "replacements after it": {"decoder": {"type": "Sequence", "decoders": [replacement("a", "a" * 9)] * 12}},
    "many rules": normalizing(*[{"type": "NFKC"}] * 10**5),
    "nested rules": reduce(lambda inner, _: normalizing(*inner.values()), range(200), {"normalizer": {"type": "NFC"}}),
    "a map of characters that is too short": {"normalizer": {
        "type": "Precompiled", "precompiled_charsmap": base64.b64encode(struct.pack("<I", 2**31) + b"x" * 7).decode(),
    }},
    "long added tokens": {"added_tokens": [
        *(tokenizer()["added_tokens"][-1] | {"id": VOCAB + n, "content": "a" * 10**6 + str(n)} for n in range(10))
    ]},
    "an object that replaces the list of added tokens": {"added_tokens": {}},
    "a unigram of nothing": {"model": {"type": "Unigram", "unk_id": 99, "vocab": [["<unk>", 0.0]]}},
    "long words": {"model": {"type": "WordPiece", "unk_token": "a", "vocab": {}, "max_input_chars_per_word": 10**6}},
    "a deep expression": {"pre_tokenizer": split("(" * 5000 + "a" + ")" * 5000)},
}  # fmt: skip
"""Rules that take memory or time without end, instead of those of a tokenizer."""

GPT2 = {
    "model_type": "gpt2", "vocab_size": VOCAB, "n_embd": 8, "n_head": 2, "n_layer": 1, "n_inner": 16, "n_positions": 64,
    "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0, "activation_function": "gelu_new",
}  # fmt: skip
QWEN2 = {
    "model_type": "qwen2", "hidden_size": 8, "num_attention_heads": 2, "num_hidden_layers": 1, "rope_theta": 1e4,
    "use_sliding_window": True, "layer_types": ["sliding_attention"], "vocab_size": VOCAB,
    "rope_parameters": {"rope_type": "llama3", "factor": 2.0, "rope_theta": 1e4},
}  # fmt: skip
SETTINGS = {
    "tokenizer_config.json": {"bos_token": "<bos>", "eos_token": {"content": "<eos>"}, "add_bos_token": True},
    "generation_config.json": {"eos_token_id": [2], "forced_bos_token_id": 1, "bad_words_ids": [[3]]},
    "model.safetensors.index.json": {"weight_map": {"a": "model.safetensors"}},
}


def gpt2_weights() -> dict[str, Tensor]:
    linear = {"attn.c_attn": (8, 24), "attn.c_proj": (8, 8), "mlp.c_fc": (8, 16), "mlp.c_proj": (16, 8)}
    shapes: dict[str, tuple[int, ...]] = {
        "wte.weight": (VOCAB, 8), "wpe.weight": (64, 8),
        **{f"h.0.{name}.weight": shape for name, shape in linear.items()},
        **{f"h.0.{name}.bias": shape[1:] for name, shape in linear.items()},
        **{f"{norm}.{kind}": (8,) for norm in ("h.0.ln_1", "h.0.ln_2", "ln_f") for kind in ("weight", "bias")},
    }  # fmt: skip
    return {f"transformer.{name}": torch.randn(shape) for name, shape in shapes.items()}


def _header(header: bytes, length: int | None = None, body: bytes = b"") -> bytes:
    return struct.pack("<Q", len(header) if length is None else length) + header + body


FOLDERS: dict[str, tuple[str, bytes]] = {
    "a deep config": ("config.json", b"[" * 10**5),
    "a deep tokenizer": ("tokenizer.json", b'{"a":' * 10**5),
    "rules without end": ("tokenizer.json", json.dumps(tokenizer() | TOKENIZERS["many rules"]).encode()),
    "a large config": ("config.json", b'{"a": [' + b"[]," * 10**7 + b"[]]}"),
    "a config of digits": ("config.json", b'{"model_type": "gpt2", "a": ' + b"9" * 10**5 + b"}"),
    "a path out of the folder": ("model.safetensors.index.json", b'{"weight_map": {"a": "/dev/zero"}}'),
    "a header without end": ("model.safetensors", _header(b"{", 2**62)),
    "a header of spaces": ("model.safetensors", _header(b" " * 5 * 10**7)),
    "a header of many tensors": ("model.safetensors", _header(b"{%s}" % b",".join(
        b'"%d":{"dtype":"F32","shape":[0],"data_offsets":[0,0]}' % number for number in range(10**5)
    ))),
    "weights that are not finite": ("model.safetensors", save(
        {name: torch.full_like(weight, torch.nan) for name, weight in gpt2_weights().items()}
    )),
    "a deep header": ("model.safetensors", _header(b'{"a":' * 10**5)),
}  # fmt: skip


def write_folder(folder: Path, files: dict[str, Any]) -> None:
    """A model folder of Hugging Face with these files, as trees or bytes, beside or instead of the usual ones."""
    folder.mkdir(parents=True)
    usual = {"config.json": GPT2, "tokenizer.json": tokenizer(), "model.safetensors": save(gpt2_weights())}
    if "model.safetensors.index.json" in files:  # which is not read beside whole weights
        del usual["model.safetensors"]
    for name, content in {**usual, **files}.items():
        written = content if isinstance(content, bytes) else json.dumps(content, default=str).encode()
        (folder / name).write_bytes(written)


def hostile_folder(chance: Chance, folder: Path) -> str:
    """Write a folder with one file that is altered or damaged; returns which."""
    kind = chance.randrange(3)
    if kind == 0:
        weights = gpt2_weights()
        name = chance.choice([*weights])
        weights[name] = torch.as_tensor(altered_tensor(chance, weights[name]))
        what, files = name, {"model.safetensors": save({key: part.contiguous() for key, part in weights.items()})}
    elif kind == 1:
        content = save(gpt2_weights())
        end = 8 + int.from_bytes(content[:8], "little")
        header = json.loads(content[8:end])
        what = alter(chance, header)
        files = {"model.safetensors": _header(json.dumps(header, default=str).encode(), body=content[end:])}
    else:
        trees = {"config.json": chance.choice([GPT2, QWEN2]), "tokenizer.json": tokenizer(), **SETTINGS}
        name = chance.choice([*trees])
        tree = json.loads(json.dumps(trees[name]))
        what = f"{name}: {alter(chance, tree)}"
        content = json.dumps(tree, default=str).encode()
        files = {name: damaged(chance, content) if chance.random() < 0.2 else content}
    write_folder(folder, files)
    return what
