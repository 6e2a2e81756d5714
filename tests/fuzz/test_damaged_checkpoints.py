"""Damaged and hostile checkpoints: each loads or is refused with a sentence, and none runs code."""

import builtins
import itertools
import os
import pickle
import random
import zipfile
from collections.abc import Callable
from functools import reduce
from pathlib import Path
from typing import Any

import pytest
import torch
from asking import Asked, few_and_many, limited
from hostile import alter, damaged, replace

import minitx
from minitx.checkpoints import format as checkpoint
from minitx.config.errors import ConfigError
from predictors import CHARACTERS, trained

NAME = "model.embedding.table.weight"


@pytest.fixture
def good(tmp_path: Path) -> Path:
    path = tmp_path / "good.ckpt"
    checkpoint.write(trained("decoder_only", n_layers=1), path)
    return path


def use(path: Path) -> Any:
    """Load it and generate: damage may show late."""
    return minitx.load(path, device="cpu").generate("3 1 4", max_new_tokens=3)


@few_and_many(30, 1000, 5)
def test_damaged_bytes(good: Path, count: int, seed: int) -> None:
    whole, asked, chance = good.read_bytes(), Asked(), random.Random(seed)
    for number in range(count):
        # Half of the damage with checksums that fit, in a tensor and in the pickle, which describes all the rest.
        places = ("data.pkl", f"data/{chance.randrange(9)}") if number % 2 else ()
        good.write_bytes(whole if places else damaged(chance, whole))
        change = lambda name, content: damaged(chance, content) if name.endswith(places) else content  # noqa: B023, E731
        asked.call(lambda: use(rewritten(good, change) if places else good), f"{number} of seed {seed}")  # noqa: B023
    asked.check()


@few_and_many(25, 1000, 3)
def test_values_of_another_kind(good: Path, count: int, seed: int) -> None:
    chance, asked = random.Random(seed), Asked()
    for _ in range(count):
        contents = trained("decoder_only", n_layers=1)
        what = alter(chance, contents if chance.random() < 0.5 else contents["minitx"])
        torch.save(contents, good)
        asked.call(lambda: use(good), what)
    asked.check()


def changed(**values: Any) -> Callable[[dict], None]:
    return lambda contents: contents["minitx"]["config"]["model"].update(values)


def weights(change: Callable[[dict], None]) -> Callable[[dict], None]:
    return lambda contents: change(contents["state_dict"])


def claimed(contents: dict) -> None:
    contents["minitx"]["config"]["model"]["vocab_size"] = 10**9
    contents["state_dict"][NAME] = torch.zeros(1).as_strided((10**9, 16), (0, 0))


def shared(contents: dict) -> None:
    """Ten layers on the memory of one."""
    contents["minitx"]["config"]["model"]["n_layers"] = 10
    one = {name: tensor for name, tensor in contents["state_dict"].items() if ".layers.0." in name}
    for layer in range(1, 10):
        contents["state_dict"].update({name.replace(".0.", f".{layer}."): tensor for name, tensor in one.items()})


def views(contents: dict) -> None:
    """A hundred views of one table: each has its size, but copies of all would exceed the file."""
    table = torch.zeros(10_000)
    contents["state_dict"].update({f"view {start}": table[start:] for start in range(100)})


PARTS, OWN = "is damaged, of a newer minitx, or its parts do not fit together: ", ", which is not minitx's own; if"
OWN_IDS = f"model.position_ids.name: unknown name 'b'{OWN}"
UNFIT: dict[str, tuple[Callable[[dict], None], str]] = {
    "an unknown key": (changed(d_modle=32), PARTS),
    "an unknown task": (lambda all: all["minitx"]["config"]["data"].update(name="revers"), OWN),
    "own names": (changed(position={"name": "a"}, position_ids={"name": "b"}), f"'a', {OWN_IDS}"),
    "an own name after a mistake": (changed(position={}, position_ids={"name": "b"}), f": {OWN_IDS}"),
    "no task": (lambda all: all["minitx"]["config"].update(data={}), PARTS),
    "a config that is no mapping": (lambda all: all["minitx"].update(config=[1]), PARTS),
    "a tokenizer that is none": (lambda all: all["minitx"].update(tokenizer={"model": {}}), PARTS),
    "a larger tokenizer": (lambda all: all["minitx"].update(tokenizer=CHARACTERS.to_dict()), PARTS),
    "width": (changed(d_model=10**6), "model.d_model 1000000"),
    "depth": (changed(n_layers=10**6), "model.n_layers 1000000"),
    "vocabulary": (changed(vocab_size=10**9), "model.vocab_size 1000000000"),
    "heads": (changed(n_heads=10**9, d_head=1), "model.n_heads 1000000000"),
    "inner width": (changed(d_ff=10**12), "model.d_ff"),
    "positions": (changed(position={"name": "learned", "max_len": 10**10}), "model.position.max_len"),
    "ids": (changed(position_ids={"name": "randomized", "range": 10**12}), "model.position_ids.range"),
    "a table that has one number": (claimed, "declares the shape [1000000000, 16]"),
    "layers on the same memory": (shared, "model.n_layers 10) than the"),
    "views of the same memory": (views, "its tensors declare more than the file has bytes"),
    "a weight less": (weights(lambda all: all.pop(NAME)), f"lack '{NAME.removeprefix('model.')}'"),
    "a weight more": (weights(lambda all: all.update(more=torch.zeros(1))), "have an unknown 'more'"),
    "whole numbers": (weights(lambda all: all.update({NAME: all[NAME].long()})), "floating point, got torch.int64"),
    "not a number": (weights(lambda all: all[NAME].fill_(torch.nan)), "must be finite, got 208 of 208"),
    "transposed": (weights(lambda all: all.update({NAME: all[NAME].T})), "must have the shape [13, 16]"),
    "a list": (weights(lambda all: all.update({NAME: all[NAME].tolist()})), "must be tensors by name, got list"),
    "sparse": (weights(lambda all: all.update({NAME: all[NAME].to_sparse()})), "it names 'torch Size'"),
}


@pytest.mark.parametrize("what", UNFIT)
def test_parts_that_do_not_fit_are_refused_before_memory_is_taken(tmp_path: Path, what: str) -> None:
    change, sentence = UNFIT[what]
    contents, path = trained("decoder_only", n_layers=1, tie_embeddings=True), tmp_path / "swollen.ckpt"
    change(contents)
    torch.save(contents, path)
    assert path.stat().st_size < 2**22
    with pytest.raises(ConfigError) as caught, limited(kilobytes=200_000):
        minitx.load(path, device="cpu")
    assert sentence in str(caught.value)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)
    assert what != "no task" or caught.value.__cause__, "an error of an own class has its traceback"


def rewritten(good: Path, change: Callable[[str, bytes], bytes] = lambda name, content: content, **how: Any) -> Path:
    path = good.parent / "rewritten.ckpt"
    with zipfile.ZipFile(good) as old, zipfile.ZipFile(path, "w", **how) as new:
        for entry in old.infolist():
            new.writestr(entry.filename, change(entry.filename, old.read(entry)))
    return path


def test_archives_that_hold_less_than_they_claim_are_refused(good: Path) -> None:
    """Compressed ones unread; torch trusts the pickle's count of bytes, and would read memory after a short storage."""
    with pytest.raises(ValueError, match="is compressed, and could unpack to any size"):
        checkpoint.read(rewritten(good, compression=zipfile.ZIP_DEFLATED))
    with pytest.raises(ValueError, match="is damaged"):
        use(rewritten(good, lambda name, content: content[:4] if "/data/" in name else content))


class Calls:
    """Unpickled, it calls."""

    def __init__(self, function: Any, *arguments: Any) -> None:
        self.call = function, arguments

    def __reduce__(self) -> Any:
        return self.call


def hostile(canary: Path) -> dict[str, Any]:
    return {
        "os.system": Calls(os.system, f"touch '{canary}'"),
        "exec": Calls(builtins.exec, f"open({str(canary)!r}, 'w').close()"),
        "getattr": Calls(getattr, Calls(__import__, "os"), "system"),
        "pathlib": Calls(Path.touch, canary),
        "torch.save": Calls(torch.save, 1, str(canary)),
        "torch.load": Calls(torch.load, str(canary)),
        "pickle.loads": Calls(pickle.loads, pickle.dumps(Calls(os.system, f"touch '{canary}'"))),
        "a large bytearray": Calls(bytearray, 10**13),
    }


@pytest.mark.parametrize("section", [(), ("minitx", "config"), ("state_dict",)], ids=str)
@pytest.mark.parametrize("how", ["torch", "legacy", "pickle"])
def test_hostile_pickles_run_nothing(tmp_path: Path, section: tuple[str, ...], how: str) -> None:
    canary, path, asked = tmp_path / "canary", tmp_path / "hostile.ckpt", Asked()
    for what, thing in hostile(canary).items():
        contents = trained("decoder_only", n_layers=1)
        replace(contents, (*section, "hostile"), thing)
        if how == "pickle":
            path.write_bytes(pickle.dumps(contents))
        else:
            torch.save(contents, path, _use_new_zipfile_serialization=how == "torch")
        asked.call(lambda: use(path), what)
        assert not canary.exists(), what
    asked.check(fine=False)
    assert asked.came.total() == len(hostile(canary))
    pickle.loads(pickle.dumps(hostile(canary)["os.system"]))
    assert canary.exists(), "trusted, it would have run"


def test_lists_that_hold_themselves_or_unfold_without_end(tmp_path: Path) -> None:
    path, asked = tmp_path / "endless.ckpt", Asked()
    itself: list[Any] = []
    itself.append(itself)
    unfolding = reduce(lambda inner, _: [inner] * 10, range(30), ["x"] * 10)
    deep = reduce(lambda inner, _: [inner], range(400), [])
    for what, part in itertools.product((itself, unfolding, deep), ("config", "tokenizer")):
        contents = trained("decoder_only", n_layers=1)
        contents["minitx"][part]["more"] = what
        torch.save(contents, path)
        asked.call(lambda: use(path), part)
    asked.check(fine=False)
