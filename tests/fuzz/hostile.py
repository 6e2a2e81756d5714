"""Hostile training states, tokenizers and model folders, sampled at random, and command lines that read them."""

import base64
import itertools
import json
import random
import shutil
import struct
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


def one_of(*values: Any) -> Callable[[Chance], Any]:
    """A random one of these values."""
    return lambda chance: chance.choice(values)


# ---- training states -------------------------------------------------------------------------------------------------

RUN = {"name": "small", "folder": ""}
TRAINING = {
    "data": {"name": "reverse", "symbols": 4, "length": [1, 5], "batch_size": 8, "validation_size": 8, "test_size": 8},
    "model": {"d_model": 8, "n_heads": 2, "n_layers": 1},
    "trainer": {"max_steps": 2, "precision": "32-true", "accelerator": "cpu"},
}


def _moments(new: Callable[[Chance, torch.Tensor], Any]) -> Change:
    def change(chance: Chance, state: dict[str, Any]) -> None:
        states = state["optimizer_states"][0]["state"]
        entry, name = states[chance.choice([*states])], chance.choice(["exp_avg", "exp_avg_sq"])
        entry[name] = new(chance, entry[name])

    return change


def _step(new: Callable[[Chance], Any]) -> Change:
    return lambda chance, state: chance.choice([*state["optimizer_states"][0]["state"].values()]).update(
        step=new(chance)
    )


def _set(*path: Any, to: Callable[[Chance], Any]) -> Change:
    def change(chance: Chance, state: dict[str, Any]) -> None:
        *before, last = path
        for key in before:
            state = state[key]
        state[last] = to(chance)

    return change


def _optimizer(change: Change) -> Change:
    """Change the state of the optimizer."""
    return lambda chance, state: change(chance, state["optimizer_states"][0])


_alien = one_of(None, 3, "x", [], {}, [1, 2], {"a": 1}, torch.zeros(2), float("nan"), -1)

GROUPS = ("optimizer_states", 0, "param_groups")
STATES: dict[str, Change] = {
    "moments of another shape": _moments(lambda chance, old: torch.zeros(chance.randrange(1, 9))),
    "moments of a smaller matrix": _moments(lambda chance, old: old[:1]),
    "moments of another type": _moments(lambda chance, old: old.to(chance.choice([torch.long, torch.bool]))),
    "moments in half precision": _moments(lambda chance, old: old.to(chance.choice([torch.half, torch.bfloat16]))),
    "moments transposed": _moments(lambda chance, old: old.T if old.dim() > 1 else old[None]),
    "moments that are no tensor": _moments(lambda chance, old: chance.choice([None, 1.0, "x", [1.0]])),
    "moments that are not finite": _moments(lambda chance, old: torch.full_like(old, float("nan"))),
    "negative squares": _optimizer(lambda chance, state: [
        entry.update(exp_avg_sq=-torch.ones_like(entry["exp_avg_sq"])) for entry in state["state"].values()
    ]),
    "expanded moments": _moments(lambda chance, old: torch.zeros(1).expand(old.shape)),
    "a step of several": _step(lambda chance: torch.zeros(chance.randrange(2, 9))),
    "a step before the start": _step(lambda chance: torch.tensor(-float(chance.randrange(1, 9)))),
    "an alien step": _step(_alien),
    "no states": _set("optimizer_states", 0, "state", to=one_of({})),
    "no optimizer": _set("optimizer_states", to=one_of([])),
    "two optimizers": lambda chance, state: state["optimizer_states"].append(state["optimizer_states"][0]),
    "an alien optimizer": _set("optimizer_states", 0, to=_alien),
    "alien optimizers": _set("optimizer_states", to=_alien),
    "one state less": _optimizer(lambda chance, state: state["state"].pop(chance.choice([*state["state"]]))),
    "an alien state": _optimizer(
        lambda chance, state: state["state"].update({chance.choice(["x", 10**6, -1]): {"step": torch.tensor(1.0)}})
    ),
    "states in another order": _optimizer(lambda chance, state: chance.shuffle(state["param_groups"][0]["params"])),
    "the same parameter twice": _set(*GROUPS, 0, "params", to=one_of([0] * 8)),
    "alien parameters": _set(*GROUPS, 0, "params", to=_alien),
    "alien groups": _set(*GROUPS, to=_alien),
    "one group": _optimizer(lambda chance, state: state["param_groups"].pop()),
    "betas of a group": _set(*GROUPS, 0, "betas", to=_alien),
    "a negative step": _set("global_step", to=lambda chance: -chance.randrange(1, 100)),
    "a huge step": _set("global_step", to=lambda chance: 10 ** chance.randrange(10, 40)),
    "an alien step of the run": _set("global_step", to=_alien),
    "alien loops": _set("loops", to=_alien),
    "an alien loop": _set("loops", "fit_loop", to=_alien),
    "an alien progress": _set("loops", "fit_loop", "epoch_loop.scheduler_progress", to=_alien),
    "no loop": lambda chance, state: state["loops"].pop("fit_loop"),
    "an alien schedule": _set("lr_schedulers", to=_alien),
    "a schedule of an alien": _set("lr_schedulers", 0, to=_alien),
    "an alien step of the schedule": _set("lr_schedulers", 0, "last_epoch", to=_alien),
    "alien callbacks": _set("callbacks", to=_alien),
    "an alien callback": lambda chance, state: state["callbacks"].update(
        dict.fromkeys(state["callbacks"], _alien(chance))
    ),
    "an alien version": _set("pytorch-lightning_version", to=one_of("x", None, 3, "0.1.0", "")),
    "alien seconds": _set("seconds", to=_alien),
    "alien skipped steps": _set("skipped_steps", to=_alien),
    "an alien validation": _set("validated", to=_alien),
    "an alien scaler": _set("MixedPrecision", to=_alien),
    "an alien digest": _set("data_digest", to=_alien),
    "an alien data module": _set("datamodule", to=_alien),
    "an alien epoch": _set("epoch", to=_alien),
}  # fmt: skip


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
    for number in itertools.count():
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
    backend = library.Tokenizer(models.BPE({token: id for id, token in enumerate([*SPECIAL_TOKENS, *alphabet])}, []))
    backend.pre_tokenizer, backend.decoder = pre_tokenizers.Metaspace("_"), decoders.Fuse()
    return backend


VOCAB = _vocabulary().get_vocab_size()


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


_catastrophe = one_of(
    "(a+)+$", "(a|a)*b$", "(a*)*c", "((a+)+)+x", "(?:a|aa)+$y", "(a+a+)+z", "(.*)*(.*)*(.*)*9", "(?=(a+)+b)a",
    r"(\w+\s?)*\d", "a{1,1000}{1,1000}{1,1000}b", "(?:(?:a{0,900}){0,900}){0,900}b", "(" * 5000 + "a" + ")" * 5000,
)  # fmt: skip


def _charsmap(chance: Chance) -> str:
    size = chance.choice([0, 4, 8, 2**31, 2**20])
    body = struct.pack("<I", size) + chance.randbytes(chance.choice([0, 7, 4096, 2**20]))
    return base64.b64encode(body).decode()


def _added(chance: Chance, count: int, length: int, first: int = 101) -> dict[str, Any]:
    options = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": chance.random() < 0.5}
    texts = enumerate(("".join(chance.choices("ab", k=length)) for _ in range(count)), first)
    return {"added_tokens": [{"id": id, "content": text, "special": False, **options} for id, text in texts]}


def _padding(chance: Chance, strategy: Any, multiple: int | None) -> dict[str, Any]:
    options = {"direction": "Right", "pad_id": 0, "pad_type_id": 0, "pad_token": "<pad>"}
    return {"padding": {"strategy": strategy, "pad_to_multiple_of": multiple, **options}}


SPECIAL = {token: index for index, token in enumerate(SPECIAL_TOKENS)}
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
    "padding": lambda chance: _padding(chance, {"Fixed": chance.choice([2 * 10**9, 2**40])}, None),
    "padding to a multiple": lambda chance: _padding(chance, "BatchLongest", chance.choice([0, 2**31])),
    "truncation": lambda chance: {"truncation": {
        "direction": "Right", "strategy": "LongestFirst",
        "max_length": chance.choice([0, 1, 5]), "stride": chance.choice([0, 1, 4]),
    }},
    "a catastrophic split": lambda chance: {"pre_tokenizer": _split(_catastrophe(chance))},
    "a catastrophic replacement": lambda chance: {"normalizer": _replace(_catastrophe(chance), "b", "Regex")},
    "several splits": lambda chance: _sequence("pre_tokenizer", [_split(_catastrophe(chance)) for _ in range(3)]),
    "a damaged map of characters": lambda chance: {
        "normalizer": {"type": "Precompiled", "precompiled_charsmap": _charsmap(chance)}
    },
    "many added tokens": lambda chance: _added(chance, chance.choice([2000, 10**5]), 30),
    "long added tokens": lambda chance: _added(chance, 10, chance.choice([10**5, 10**6])),
    "empty added tokens": lambda chance: _added(chance, 3, 0),
    "an added token of a huge id": lambda chance: _added(chance, 1, 2, chance.choice([2**32 - 1, 2**31])),
    "words of any length": lambda chance: {"pre_tokenizer": None, "model": {
        "type": "WordPiece", "unk_token": "<unk>", "continuing_subword_prefix": "#" * chance.choice([2, 10**6]),
        "max_input_chars_per_word": 2**60, "vocab": SPECIAL | {"b": 6},
    }},
    "ids with holes": lambda chance: {"model": {
        "type": "WordLevel", "unk_token": "<unk>", "vocab": SPECIAL | {"a": chance.choice([2**32 - 1, 10**9])},
    }},
    "merges of nothing": lambda chance: {
        "model": {**json.loads(_vocabulary().to_str())["model"], "merges": [["q", "zz"]] * 5}
    },
    "a unigram of nothing": lambda chance: {"model": {"type": "Unigram", "unk_id": 99, "vocab": [["<unk>", 0.0]]}},
    "a unigram without an unknown token": lambda chance: {
        "model": {"type": "Unigram", "unk_id": None, "vocab": [[token, 0.0] for token in SPECIAL]}
    },
    "a template of everything": lambda chance: {"post_processor": {
        "type": "TemplateProcessing", "pair": [], "special_tokens": {},
        "single": [{"Sequence": {"id": "A", "type_id": 0}}] * chance.choice([1, 10**6]),
    }},
    "an alien part": lambda chance: {chance.choice(
        ["normalizer", "pre_tokenizer", "decoder", "model", "post_processor", "added_tokens"]
    ): _alien(chance)},
    "fixed lengths": lambda chance: {"pre_tokenizer": {"type": "FixedLength", "length": chance.choice([0, 1, 2**60])}},
    "an alien rule": lambda chance: {"normalizer": {"type": chance.choice(["", "Bert", "x" * 10**6])}},
}  # fmt: skip


def hostile_tokenizer(chance: Chance) -> tuple[str, dict[str, Any]]:
    what = chance.choice([*TOKENIZERS])
    return what, {**json.loads(_vocabulary().to_str()), **TOKENIZERS[what](chance)}


def tokenizers(chance: Chance, folder: Path) -> Iterator[Case]:
    """Hostile tokenizers in checkpoints, native or imported; the first is harmless."""
    folder.mkdir(parents=True)
    config = Config(
        data={"name": "imported_text", "block": 64},
        model=ModelConfig(architecture="decoder_only", d_model=8, n_heads=2, n_layers=1, vocab_size=VOCAB),
    )
    weights = {f"model.{name}": tensor for name, tensor in build_model(config.model).state_dict().items()}
    special = SpecialTokens(SpecialIds(*range(6))).to_dict()
    for number in itertools.count():
        what, backend = ("nothing", json.loads(_vocabulary().to_str())) if number == 0 else hostile_tokenizer(chance)
        tokenizer = backend if chance.random() < 0.3 else {"backend": backend, "conventions": special}
        path = folder / f"{number}.ckpt"
        torch.save({"minitx": checkpoint.header(config.to_dict(), tokenizer), "state_dict": weights}, path)
        yield what, ["generate", str(path), *WORDS, "--max_new_tokens", "4"]


# ---- folders to import -----------------------------------------------------------------------------------------------

GPT2 = {
    "model_type": "gpt2", "vocab_size": VOCAB, "n_embd": 8, "n_head": 2, "n_layer": 1, "n_inner": 16, "n_positions": 64,
    "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
LLAMA = {"model_type": "llama", "hidden_size": 8, "num_attention_heads": 2, "num_hidden_layers": 1}
FolderChange = Callable[[Chance, Path], Any]


def _gpt2_weights() -> dict[str, torch.Tensor]:
    linear = {"attn.c_attn": (8, 24), "attn.c_proj": (8, 8), "mlp.c_fc": (8, 16), "mlp.c_proj": (16, 8)}
    shapes: dict[str, tuple[int, ...]] = {
        "wte.weight": (VOCAB, 8), "wpe.weight": (64, 8),
        **{f"h.0.{name}.weight": shape for name, shape in linear.items()},
        **{f"h.0.{name}.bias": shape[1:] for name, shape in linear.items()},
        **{f"{norm}.{kind}": (8,) for norm in ("h.0.ln_1", "h.0.ln_2", "ln_f") for kind in ("weight", "bias")},
    }  # fmt: skip
    return {f"transformer.{name}": torch.randn(shape) for name, shape in shapes.items()}


def _file(name: str, content: Callable[[Chance], bytes]) -> FolderChange:
    return lambda chance, folder: (folder / name).write_bytes(content(chance))


def _json(name: str, base: dict[str, Any], **values: Callable[[Chance], Any]) -> FolderChange:
    """A JSON file with these values instead of some of its own."""
    return _file(name, lambda chance: json.dumps(base | {key: value(chance) for key, value in values.items()}).encode())


def _config(**values: Callable[[Chance], Any]) -> FolderChange:
    return _json("config.json", GPT2, **values)


def _llama(**values: Callable[[Chance], Any]) -> FolderChange:
    return _json("config.json", LLAMA, **values)


def _header(header: bytes, body: bytes = b"", claimed: int | None = None) -> bytes:
    return struct.pack("<Q", len(header) if claimed is None else claimed) + header + body


def _tensor_header(dtype: str, shape: list[int], end: int) -> bytes:
    return _header(
        json.dumps({"a": {"dtype": dtype, "shape": shape, "data_offsets": [0, end]}}).encode(), bytes(min(end, 8))
    )


def _many_tensors(chance: Chance) -> bytes:
    entry = '"{}":{{"dtype":"F32","shape":[0],"data_offsets":[0,0]}}'
    return _header(f"{{{','.join(entry.format(number) for number in range(10 ** chance.choice([5, 6])))}}}".encode())


def _weights(change: Callable[[Chance, torch.Tensor], torch.Tensor]) -> FolderChange:
    """Change one of the weights."""

    def altered(chance: Chance, folder: Path) -> None:
        weights = _gpt2_weights()
        name = chance.choice([*weights])
        save_file(weights | {name: change(chance, weights[name])}, folder / "model.safetensors")

    return altered


def _folder_for_file(chance: Chance, folder: Path) -> None:
    path = folder / chance.choice(["config.json", "tokenizer.json", "model.safetensors"])
    path.unlink()
    path.mkdir()


_tokenizer = _file("tokenizer.json", lambda chance: json.dumps(hostile_tokenizer(chance)[1]).encode())
_huge = one_of(10**5, 10**6, 10**9, 10**12, 2**62, 10**30)

FOLDERS: dict[str, FolderChange] = {
    "a huge depth": _config(n_layer=one_of(10**5, 10**6, 10**9, 10**15)),
    "a huge width": _config(n_embd=_huge),
    "many heads": _config(n_head=_huge),
    "a huge feed-forward": _config(n_inner=_huge),
    "many positions": _config(n_positions=_huge),
    "a huge vocabulary": _config(vocab_size=_huge),
    "a huge depth of layers with windows": _llama(
        model_type=one_of("qwen2"), num_hidden_layers=_huge, use_sliding_window=one_of(True)
    ),
    "negative sizes": _config(n_layer=one_of(-1), n_embd=one_of(-8)),
    "an alien size": _config(n_embd=one_of(None, "x", [], {}, 1.5, True)),
    "an alien model_type": _config(model_type=one_of(None, 3, [], {}, ["gpt2"], True)),
    "an alien activation": _config(activation_function=one_of(None, 3, [], {}, ["gelu"])),
    "an alien length": _config(n_positions=one_of("x", [], {}, 1.5, None)),
    "alien special tokens": _config(
        pad_token_id=one_of("x", [], {}, 1.5, -7, 10**9, 10**30),
        eos_token_id=one_of("x", [], {}, 1.5, -7, 10**9, [10**30]),
    ),
    "alien rope": _llama(rope_scaling=one_of(3, "x", [1], {"rope_type": []}, {"rope_theta": "x"})),
    "an alien theta": _llama(rope_theta=one_of("x", [], {}, None)),
    "alien layer types": _llama(model_type=one_of("qwen2"), layer_types=one_of(3, "x", [[]], [{}], {"a": 1})),
    "a deep config": _file("config.json", lambda chance: b"[" * 10**5),
    "a deep tokenizer": _file("tokenizer.json", lambda chance: b'{"a":' * 10**5),
    "a large config": _file("config.json", lambda chance: b'{"a": [' + b"[]," * 10**7 + b"[]]}"),
    "a large tokenizer": _file("tokenizer.json", lambda chance: b'{"a": [' + b"[]," * 10**7 + b"[]]}"),
    "a config of numbers": _file("config.json", lambda chance: b'{"model_type": "gpt2", "a": ' + b"9" * 10**5 + b"}"),
    "a config that is none": _file("config.json", one_of(b"", b"3", b"[]", b"\xff\xfe", b"{")),
    "a byte order mark": _file("config.json", lambda chance: b"\xef\xbb\xbf" + json.dumps(GPT2).encode()),
    "an index": _json("model.safetensors.index.json", {}, weight_map=one_of(
        3, [], "x", {"a": "../../etc/passwd"}, {"a": []}, {"a": None}, {"a": "/dev/zero"}, {"a": "tokenizer.json"}
    )),
    "a header without end": _file(
        "model.safetensors", lambda chance: _header(b"{", claimed=chance.choice([2**62, 10**8]))
    ),
    "a header of spaces": _file("model.safetensors", lambda chance: _header(b" " * 5 * 10**7)),
    "a header of many tensors": _file("model.safetensors", _many_tensors),
    "a header of a huge tensor": _file("model.safetensors", lambda chance: _tensor_header(
        chance.choice(["F32", "F8_E8M0", "F4", "X"]), [chance.choice([2**62, 10**10])], chance.choice([4, 2**40, 2**62])
    )),
    "a header of empty tensors": _file("model.safetensors", lambda chance: _tensor_header("F32", [0, 2**62], 0)),
    "a deep header": _file("model.safetensors", lambda chance: _header(b'{"a":' * 10**5)),
    "weights that are none": _file("model.safetensors", one_of(b"", b"x", bytes(8), bytes(100))),
    "weights that are not finite": _weights(
        lambda chance, old: torch.full_like(old, chance.choice([float("nan"), float("inf"), -float("inf")]))
    ),
    "weights of other types": _weights(
        lambda chance, old: torch.zeros(3, dtype=chance.choice([torch.int8, torch.bool, torch.complex64]))
    ),
    "weights of other shapes": _weights(
        lambda chance, old: torch.zeros(chance.choice([(), (0,), (1,), (8, 8, 8), (3, 5)]))
    ),
    "a hostile tokenizer": _tokenizer,
    "another hostile tokenizer": _tokenizer,
    "settings of the tokenizer": _json(
        "tokenizer_config.json", {"add_bos_token": "x"}, bos_token=one_of(3, [], {}, None),
        eos_token=one_of(3, [], {"content": 3}, {"content": []}, "nosuch"),
    ),
    "settings of generation": _json(
        "generation_config.json", {}, eos_token_id=one_of("x", [], {}, [[]], 10**30, 1.5),
        forced_bos_token_id=one_of("x", [], 1.5), bad_words_ids=one_of(3, "x", [3], [[[]]], [["x"]], [[10**30]]),
    ),
    "folders for files": _folder_for_file,
}  # fmt: skip


def write_folder(folder: Path) -> None:
    """A harmless folder of a Hugging Face model."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(GPT2))
    (folder / "tokenizer.json").write_text(_vocabulary().to_str())
    save_file(_gpt2_weights(), folder / "model.safetensors")


def folders(chance: Chance, folder: Path) -> Iterator[Case]:
    """Hostile folders of Hugging Face models, imported; the first is harmless."""
    for number in itertools.count():
        what = "nothing" if number == 0 else chance.choice([*FOLDERS])
        own = folder / str(number)
        write_folder(own)
        FOLDERS.get(what, lambda chance, folder: None)(chance, own)
        yield what, ["import", str(own), "--out", str(own / "out.ckpt")]


KINDS: dict[str, tuple[Callable[[Chance, Path], Iterator[Case]], int]] = {
    "states": (states, 18),
    "tokenizers": (tokenizers, 40),
    "folders": (folders, 40),
}
"""Generators of cases, the first of which is harmless, and how many of each."""


def attempt(kind: str, seed: int, folder: Path) -> tuple[list[Outcome], list[str]]:
    """Run the cases of one kind: their outcomes, and a line for each that should not have ended as it did."""
    cases, count = KINDS[kind]
    torch.manual_seed(seed)
    each = cases(random.Random(f"{kind} {seed}"), folder)
    plain = run(next(each)[1])
    assert plain.code == 0, plain.output
    outcomes, faults = [], []
    for (what, words), _ in zip(each, range(count), strict=False):
        outcome = run(words)
        outcomes.append(outcome)
        fault = outcome.fault
        if outcome.seconds - plain.seconds > MAX_SECONDS:
            fault = f"{fault or ''} {outcome.seconds:.1f} s"
        if outcome.peak - plain.peak > MAX_MEMORY:
            fault = f"{fault or ''} {outcome.peak / 2**30:.1f} GiB"
        if fault:
            faults.append(f"{kind} {what}: {fault}: {outcome.output[-300:]!r}")
    return outcomes, faults
