"""Every toy task with every architecture that can express it: it trains and is measured; others are refused."""

import dataclasses
import math

import pytest

from minitx.config.schema import Config, ModelConfig, TrainerConfig
from minitx.data.tasks import Markov, Reverse, generator
from minitx.evaluation.report import evaluation_report, table
from minitx.generation.options import GenerationOptions
from minitx.inference.predictor import Predictor
from minitx.training.losses import cross_entropy
from minitx.training.resilience import memory_checks
from minitx.training.resolve import resolve
from predictors import untrained
from small_models import every_architecture
from toy import PAIR_TASKS, SMALL_OPTIONS

OPTIONS = {**SMALL_OPTIONS, "markov": {"states": 4, "block": 12}}
ALIGNED = {"copy", "reverse", "sort"}
REFUSED = {"decoder_only": set(), "encoder_decoder": {"markov"}, "encoder_only": {*OPTIONS} - ALIGNED}


def config(name: str, architecture: str, position_ids: str = "consecutive", **options: object) -> Config:
    data = {"name": name, **OPTIONS[name], "batch_size": 8, "validation_size": 6, "test_size": 6, **options}
    sizes = {"d_model": 16, "n_heads": 2, "n_layers": 1, "d_ff": 16}
    model = ModelConfig(architecture=architecture, position_ids={"name": position_ids}, **sizes)  # type: ignore[arg-type]
    return Config(data=data, model=model)


@every_architecture
@pytest.mark.parametrize("name", [*PAIR_TASKS, "markov"])
def test_a_batch_has_gradients_and_the_task_is_measured(name: str, architecture: str) -> None:
    requested = config(name, architecture, "coupled" if name in ("addition", "reverse") else "consecutive")
    if name in REFUSED[architecture]:
        with pytest.raises(ValueError, match=rf"model\.architecture: .*{architecture}"):
            resolve(requested)
        return
    resolved, task, model, *_ = resolve(requested)
    batch = task.batch(generator(1), task.batch_size).frame(architecture, task.vocabulary.special)
    cross_entropy(model(**batch.model_inputs()), batch.labels).backward()
    assert all(weight.grad.isfinite().all() and weight.grad.any() for weight in model.parameters())
    report = evaluation_report(Predictor(model.eval(), task.vocabulary, resolved))
    assert math.isfinite(report["loss"])
    assert ("exact_match" in report, "floor" in report) == (name != "markov", name == "markov")


def test_a_chain_has_a_floor_and_is_continued_past_its_block() -> None:
    predictor = untrained(config("markov", "decoder_only"))
    report = evaluation_report(predictor)
    assert report["loss"] > report["floor"] == predictor.task.floor
    assert f"{report['floor']:.4f}" in table(report)
    options = GenerationOptions(min_new_tokens=30, max_new_tokens=30)
    assert len(predictor.generations(["3 1 2"], options)[0][0].ids) == 30
    assert predictor.text_generator().context == 12


def test_figures_by_length_are_of_lengths_that_a_task_has() -> None:
    report = evaluation_report(untrained(config("induction", "decoder_only")), lengths="1:5")
    assert [*report["by_length"]] == [3, 4, 5]
    for name in ("modular_addition", "markov", "dates"):
        with pytest.raises(ValueError, match=f"--lengths .* trained on {name}"):
            evaluation_report(untrained(config(name, "decoder_only")), lengths="1:3")


@pytest.mark.parametrize(("recompute", "kept"), [(False, 6), (True, 1)])
def test_a_batch_and_held_out_examples_may_take_all_memory_and_no_more(
    monkeypatch: pytest.MonkeyPatch, recompute: bool, kept: int
) -> None:
    trainer = TrainerConfig(recompute_activations=recompute)
    plain = config("markov", "decoder_only")
    whole = dataclasses.replace(plain, trainer=trainer, model=dataclasses.replace(plain.model, n_kv_heads=1))
    needed = 8 * 12 * kept * 16 * memory_checks.ACTIVATION_BYTES  # examples, tokens, tensors of one layer, width
    memory_checks.check_batch(Markov(**OPTIONS["markov"], batch_size=8), whole, 1000, needed + 1000)
    with pytest.raises(ValueError, match=r"data\.batch_size 8 examples of up to 12 tokens, .* model\.n_heads 2,"):
        memory_checks.check_batch(Markov(**OPTIONS["markov"], batch_size=8), whole, 1000, needed + 999)
    built = untrained(dataclasses.replace(plain, model=dataclasses.replace(plain.model, n_layers=3)))
    weights = sum(parameter.numel() for parameter in built.model.parameters())
    assert memory_checks.check_weights(built.config, 10**9) == 2 * 4 * weights, "in fp32, with their gradients"
    task = Reverse(length=(1, 5), validation_size=4, test_size=6)
    needed = 6 * (2 * 5 + 5) * memory_checks.EXAMPLE_BYTES  # questions twice, answers once
    memory_checks.check_held_out(task, needed)
    monkeypatch.setattr(memory_checks, "memory_bytes", lambda: needed - 1)
    with pytest.raises(ValueError, match=r"data\.test_size 6 examples of up to 5 symbols"):
        memory_checks.check_sizes(plain, task)
