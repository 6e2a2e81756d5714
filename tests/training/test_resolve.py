"""A config before its training: what it costs, and what is refused in a sentence, before any work."""

import re
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest

from minitx.config.errors import ConfigError
from minitx.config.yaml_files import overridden
from minitx.data.batch import IGNORE
from minitx.nn import POSITION_IDS, POSITIONS
from minitx.training.api import train_config as train
from minitx.training.choices.numerics import first_batch
from minitx.training.describe import cost, describe
from minitx.training.resolve import resolve
from tests.training.conftest import small_values


def flops(config: Any) -> int:
    config, task, model, *_ = resolve(config)
    return cost(config, model, first_batch(config, task)).flops


@pytest.mark.parametrize(
    ("scheme", "ids", "precision"),
    [*zip(POSITIONS, cycle(reversed(POSITION_IDS)), cycle(("32-true", "bf16-mixed")), strict=False)],
)
def test_every_scheme_is_described(scheme: str, ids: str, precision: str, small: Any) -> None:
    model = {"position": scheme, "position_ids": ids, "tie_embeddings": False}
    run = small(model=model, trainer={"precision": precision, "accumulate_grad_batches": 3})
    text = describe(resolve(run))
    tokens = 3 * int((first_batch(run, resolve(run).task).labels != IGNORE).sum())
    assert f"a step of {3 * run.data['batch_size']} examples: about {tokens} predicted tokens" in text
    assert (", in fp32" in text) == (precision == "bf16-mixed"), "as a CPU attends in half precision"
    assert "GFLOP" in text
    assert "  embedding.table  " in text
    assert "  head  " in text
    assert re.search(r"step 1: \S+  +step 6: ", text)


def test_a_second_layer_doubles_what_layers_cost(small: Any) -> None:
    one, two, three = (flops(small(model={"n_layers": layers})) for layers in (1, 2, 3))
    assert two - one == three - two > 0
    assert flops(small(trainer={"accumulate_grad_batches": 3})) == 3 * one


def test_just_enough_ids_are_accepted(small: Any) -> None:
    """By each stack: the encoder of 2,048 ids reads the long question, and the decoder the answer of one token."""
    randomized, table = {"name": "randomized", "range": 40, "longest": 6}, {"name": "learned", "max_len": 40}
    for numbering in (randomized, {"name": "offset", "largest": 34}, {"name": "coupled"}):
        resolve(small(model={"position_ids": numbering, "position": table}))
    longer = randomized | {"range": 2048, "longest": 16}
    resolve({"data": {"name": "parity", "length": [1, 100]}, "model": {"position_ids": longer}})


STOP = "trainer.stop_when"
Changes = dict[str, Any]
TEXT = {"data": {"name": "text", "path": __file__, "block": 24}, "model.architecture": "decoder_only"}
MASKED = {"data": {"name": "masked_text", "path": __file__}, "model.architecture": "encoder_only"}
LEARNED = {"name": "learned", "max_len": 6}
RANDOMIZED = {"name": "randomized", "range": 40, "longest": 5}
OFFSET = {"name": "offset", "largest": 1}
ROWS = (("coupled", 7), (OFFSET, 7), ("randomized", 2048))  # of a table for six tokens
NTK = {"name": "rope", "scaling": "ntk", "factor": 1e300}
AUTOTUNE = {"trainer.compile": True, "trainer.compile_mode": "max-autotune", "trainer.accumulate_grad_batches": 4}
REFUSED: list[tuple[Changes, str]] = [
    ({"run.name": "../elsewhere"}, "run.name"),
    *(({"run.folder": each}, r"run\.folder: .* cannot be written") for each in (__file__, "zero\0byte")),
    ({"data.symbols": 3, "data.length": [1, 1]}, "too few different examples to hold any out for test"),
    ({"data.stages": [[2, 2]]}, r"data\.stages: expected a list of sections, got"),
    ({"model.position": {**LEARNED, "max_len": 4}}, r"model\.position\.max_len must be at least 6 .* got 4$"),
    *(({"model.position_ids": ids, "model.position": LEARNED}, f"at least {rows} with .* 6$") for ids, rows in ROWS),
    ({"model.position_ids": RANDOMIZED}, r"model\.position_ids\.name randomized.* 6 .* 5$"),
    ({"model.vocab_size": 5, "model.n_layers": 10**9}, r"vocab_size must be at least .* 12, got 5$"),  # not built
    ({"model.position": NTK}, r"model\.position\.factor must lie between"),
    *(({"model.position_ids": {"name": "coupled", "after": each}}, r"ids\.after must be") for each in ([2**63], [-2])),
    *(({"model.prefix_lm": True, "model.window": each}, "x_lm is for .* (3, )?None$") for each in (None, [3, None])),
    *(({"model.window": each}, r"model\.window must be odd .*, got 4$") for each in (4, [3, None, 4])),
    ({"model.architecture": "encoder_only", "data.add_eos": True}, r"6 and 5 tokens, with data\.add_eos true\)$"),
    ({**TEXT, "model.prefix_lm": True}, r"model\.prefix_lm needs questions and answers"),
    (MASKED | {"model.architecture": "encoder_decoder"}, "model.architecture: .*encoder_only; encoder_decoder reads"),
    ({**MASKED, "model.architecture": "decoder_only"}, r"model\.architecture: .*encoder_only; decoder_only reads"),
    ({"trainer.compile_mode": "reduce-overhead"}, r"mode reduce-overhead needs trainer\.compile true, got auto"),
    (AUTOTUNE, r"trainer\.accumulate_grad_batches must be 1 with trainer\.compile_mode max-autotune, got 4"),
    ({"trainer.strategy": "fsdp2", "optimizer.name": "muon"}, r"strategy fsdp2 .* optimizer\.name must be adamw, got"),
    ({"trainer.strategy": "fsdp2", "trainer.precision": "64-true"}, "one of auto, 32-true, bf16-mixed, bf16-true with"),
    ({"trainer.strategy": "fsdp"}, r"trainer\.strategy 'fsdp' is not supported; did you mean fsdp2\?"),
    ({"trainer.strategy": "deepspeed"}, r"supported; known are: auto, ddp, ddp_find\w+, ddp_find\w+_true, fsdp2$"),
    ({"trainer.strategy": "fsdp2", "model.position": "fire"}, r"fsdp2 cannot .*encoder\.position\.rate; set ddp"),
    ({STOP: {"metric": "perplexity"}}, r"stop_when\.metric.*exact_match.*token_accuracy.*bleu.*loss.*perplexity"),
    ({STOP: {"metric": "bleu"}}, r"stop_when\.metric must be exact_match, token_accuracy or loss.*got bleu"),
    *(({**each, STOP: {"metric": "exact_match"}}, "be token_accuracy or loss.*exact_match") for each in (TEXT, MASKED)),
    ({STOP: {"at_least": 0.9}}, r"trainer\.stop_when\.metric must be exact_match, .* for this task, got null"),
    ({STOP: {"metric": "exact_match", "at_least": 95}}, r"at_least must be at most 1 for exact_match, got 95"),
    ({STOP: {"at_most": 0.9}}, r"trainer\.stop_when\.metric must be .* got null: a limit needs one"),
    ({STOP: {"metric": "loss", "at_least": 1.0}}, r"stop_when\.at_most is for loss, got at_least 1\.0"),
    ({STOP: {"metric": "exact_match", "at_most": 1.0}}, r"stop_when\.at_least is for exact_match, got at_most"),
    (
        {"trainer.max_steps": 0, "data.symbls": 5, "model.position": "rop"},
        r"^trainer\.max_steps.*\nunknown key data\.symbls.*\nmodel\.position\.name: unknown name 'rop'; .*\?$",
    ),
    ({"model.bias": "off", "log.to": ["comet"]}, r"^model\.bias: expected true or false, got 'off'\nlog\.to"),
    *(({"trainer.devices": each}, r"trainer\.devices: expected auto, a number") for each in ("x", 0, -2, "0 1")),
]
BY_LIGHTNING: list[tuple[Changes, str]] = [({"trainer.devices": -1}, "trainer: .*devices.* should be an int > 0")]


@pytest.mark.parametrize(("changes", "sentence"), [*REFUSED, *BY_LIGHTNING], ids=str)
def test_a_config_is_refused_before_any_work(tmp_path: Path, changes: Changes, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        train(overridden(small_values(tmp_path), changes))
    assert (tmp_path / "runs").exists() == ((changes, sentence) in BY_LIGHTNING)
