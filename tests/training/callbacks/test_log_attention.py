"""Attention in the log of a run: the model's own weights, as often as requested."""

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
from PIL import Image
from tensorboard.backend.event_processing.event_file_loader import EventFileLoader
from tensorboard.summary.writer.record_writer import RecordWriter
from tensorboard.util import tensor_util

import minitx
from decoded_maps import decode
from minitx.cli.main import main
from minitx.config.schema import AttentionLogConfig
from minitx.data.example_texts import example_texts
from minitx.data.tokenizers import SpecialTokens
from minitx.inference.predictor import Generation, Predictor
from minitx.interpret.encoded_maps import encoded
from minitx.interpret.images import pictures
from minitx.tensorboard.writer import example_name
from minitx.training.api import train_config as train
from minitx.training.callbacks.log_attention import logged_examples, steps_between_maps
from predictors import KINDS_OF
from tests.training.interrupting import assert_equal, weights

KINDS = KINDS_OF["encoder_decoder"]
WATCHED = {"log": {"attention": {"every_n_steps": 3, "every_n_validations": 1}}}


def model(architecture: str = "encoder_decoder") -> dict[str, Any]:
    """The section of two layers with dropout, which maps and statistics are taken without."""
    return {"model": {"architecture": architecture, "n_layers": 2, "dropout": 0.3, "attention_dropout": 0.3}}


def logged(folder: Path) -> dict[str, dict[int, Any]]:
    """Everything in the one event file, beside which a second one would hide data: tag, step, value."""
    (file,) = folder.glob("events.*")
    found: dict[str, dict[int, Any]] = {}
    for event in EventFileLoader(str(file)).Load():
        for value in event.summary.value if event.HasField("summary") else ():
            found.setdefault(value.tag, {})[event.step] = value
    return found


def blobs(value: Any) -> list[bytes]:
    return list(tensor_util.make_ndarray(value.tensor).tolist())


def of_plugin(found: dict[str, dict[int, Any]], name: str = "minitx") -> dict[str, list[int]]:
    """Tags and steps of what one plugin shows; the first event of a tag has the metadata."""
    plugins = {tag: next(iter(steps.values())).metadata.plugin_data.plugin_name for tag, steps in found.items()}
    return {tag: list(steps) for tag, steps in found.items() if plugins[tag] == name}


@pytest.mark.parametrize("architecture", KINDS_OF)
def test_the_maps_of_the_last_step_are_those_of_the_last_checkpoint(trained: Any, architecture: str) -> None:
    folder = trained(**model(architecture), **WATCHED)
    found = logged(folder)
    tags = {f"{kind}/example_{number}" for kind in (*KINDS_OF[architecture], "lens") for number in (1, 2)}
    assert of_plugin(found) == {tag: [0, 3, 6] for tag in tags}

    predictor = minitx.load(folder / "last.ckpt", device="cpu")
    questions, answers = example_texts(logged_examples(predictor.task, 2), predictor.tokenizer, 0)
    maps = predictor.attend(questions, None if architecture == "encoder_only" else answers)
    for number, question, answer in zip((1, 2), questions, answers, strict=True):
        own = encoded(maps, number - 1)
        assert set(own) == set(KINDS_OF[architecture])
        for kind, items in own.items():
            header, shown = decode(blobs(found[f"{kind}/example_{number}"][6]))
            expected, weights = decode(items)
            assert {key: header[key] for key in ("queries", "keys", "separator")}.items() <= expected.items()
            for one, other in zip(shown, weights, strict=True):
                assert np.abs(one - other).max() <= 1.01 / 255, "as much as rounding may move a byte"
        lens = predictor.lens(question, answer)
        header, shares = decode(blobs(found[f"lens/example_{number}"][6]))
        assert (header["kind"], header["separator"], len(shares)) == ("lens", " ", len(lens.logits))
        for stack, share in zip(lens.logits, shares, strict=True):
            known = lens.answer_probabilities(stack).masked_fill(~lens.known, 0.0).T.numpy()
            assert np.abs(share[0] - known).max() <= 1.01 / 255


def test_heads_have_curves_and_a_table(trained: Any) -> None:
    """The statistics over the rows of both examples."""
    folder = trained(**model(), **WATCHED)
    found = logged(folder)
    table = json.loads((folder / "heads.json").read_text())
    places = [(head["kind"], head["layer"], head["head"]) for head in table]
    assert places == [(kind, layer, head) for kind in KINDS for layer in (1, 2) for head in (1, 2)]
    for (kind, layer, number), head in zip(places, table, strict=True):
        for name, value in head["figures"].items():
            curve = found[f"validation_heads_{kind}/{name}/layer_{layer}.head_{number}"]
            assert list(curve) in ([0, 3, 6], [3, 6], [6]), "it may be undefined at first"
            assert tensor_util.make_ndarray(curve[6].tensor).item() == pytest.approx(value, abs=1e-4)
            shown = [decode(blobs(found[f"{kind}/example_{n}"][6]))[0]["statistics"] for n in (1, 2)]
            of_rows = [each["values"][layer - 1][number - 1] for two in shown for each in two if each["name"] == name]
            finite = [each for each in of_rows if each is not None]
            assert min(finite) - 1e-4 <= value <= max(finite) + 1e-4
    assert "heads/text_summary" in found


def test_maps_and_answers_have_intervals_of_their_own(small: Any, tmp_path: Path, monkeypatch: Any) -> None:
    """Generated texts are shown as they are, after questions with a first token such as <s> once."""
    answered = Mock(side_effect=lambda prompts, options: [[Generation("not a symbol", [], 0.0, "end")]] * len(prompts))
    monkeypatch.setattr(SpecialTokens, "question", lambda self, ids: [6, *ids])
    monkeypatch.setattr(Predictor, "generations", answered)
    trainer = {"max_steps": 7, "val_every_n_steps": 2, "accumulate_grad_batches": 2}
    train(small(trainer=trainer, log={"attention": {"every_n_steps": 3, "every_n_validations": 2, "examples": 1}}))
    found = logged(tmp_path / "runs/small/v0")
    assert of_plugin(found) == {f"{kind}/example_1": [0, 3, 6, 7] for kind in (*KINDS, "lens")}
    assert list(found["answers/text_summary"]) == [2, 6, 7]
    assert [prompts[0].count(6) for (prompts, _), _ in answered.call_args_list] == [1, 1, 1]
    table = tensor_util.make_ndarray(found["answers/text_summary"][7].tensor).item().decode()
    assert "<code>not a symbol</code>" in table
    assert not [tag for tag in found if tag.startswith("attention_")], "no pictures by default"


def test_the_slider_has_some_fifty_steps_by_default() -> None:
    for steps in (200, 500, 1000, 12_345, 10**6):
        assert 20 <= steps // steps_between_maps(AttentionLogConfig(), steps) <= 51
    assert steps_between_maps(AttentionLogConfig(every_n_steps=7), 10**6) == 7
    assert steps_between_maps(AttentionLogConfig(every_n_validations=0), 5) == 0, "as in earlier versions"


def test_logging_changes_no_bit_of_training_and_is_off_unless_requested(trained: Any) -> None:
    plain, watched = trained(**model()), trained(**model(), **WATCHED)
    assert len(of_plugin(logged(watched))) == 8
    assert_equal(weights(plain), weights(watched))
    found = logged(plain)
    assert of_plugin(found) == of_plugin(found, "images") == {}
    assert not [tag for tag in found if "heads" in tag or "answers" in tag], "nothing that was not requested"
    assert not (plain / "heads.json").exists()


def test_running_text_is_shown_up_to_max_tokens(small: Any, cat: Path, tmp_path: Path) -> None:
    cat.write_text("the cat sat on the mat <script>alert(1)</script>\n" * 200)
    train(small(data={"path": str(cat)}, log={"attention": {"max_tokens": 9}}, trainer={"max_steps": 2}))
    found = logged(tmp_path / "runs/small/v0")
    for number in (1, 2):
        header, (weights, rollout) = decode(blobs(found[f"decoder/example_{number}"][2]))
        assert (header["extras"], rollout.shape, weights.shape) == (["rollout"], (1, 9, 9), (2, 9, 9))
        assert header["separator"] == ""
        assert len([label for label in header["queries"] if label is not None]) == 9


def test_attend_writes_for_the_tab(trained: Any, tmp_path: Path, capsys: Any, refused: Callable[..., str]) -> None:
    run, board = str(trained()), tmp_path / "board"
    words = ["attend", run, "3 1 4", "--out", str(tmp_path / "x.png"), "--logdir", str(board)]
    main([*words, "--target", "4 1"])
    assert f"tensorboard --logdir {board}" in capsys.readouterr().out
    assert Image.open(tmp_path / "x.png").width > 50
    found = logged(board)
    assert of_plugin(found) == {f"{kind}/3 1 4": [0] for kind in KINDS}
    maps = minitx.load(run, device="cpu").attend("3 1 4", "4 1")
    header, (shown,) = decode(blobs(found["cross/3 1 4"][0]))
    assert header["keys"] == ["3", "1", "4"]
    assert np.abs(shown - maps.layers("cross")[0].weights.numpy()).max() <= 1 / 255
    for kind, layer, image in pictures(maps):
        *size, png = blobs(found[f"attention_{kind}/layer_{layer}/3 1 4"][0])
        with Image.open(io.BytesIO(png)) as written:
            assert ((*map(int, size),), written.format) == (image.size, "PNG")
            assert written.convert("RGB") == image.convert("RGB")
    main(words)  # at step 1
    for step in (1, 2**63):
        assert "--step must be at least 2, after the maps of '3 1 4'" in refused(*words, "--step", str(step))
    with (board / "events.out.tfevents.1.x").open("wb") as file:
        RecordWriter(file).write(b"\xff\xff\xff")
    assert "holds a damaged event file: name another folder" in refused(*words)
    long, page = " ".join(["1", "2", "3", "4"] * 30), tmp_path / "x.HTML"
    assert example_name(long) != example_name(f"{long} 1")
    main(["attend", run, long, "--target", "1", "--out", str(page), "--logdir", str(tmp_path / "long")])
    assert f"{page}: 1 encoder layer, 1 decoder layer, 1 cross layer\n" in capsys.readouterr().out
    assert all(f'"{kind}/example_1"' in page.read_text() for kind in KINDS)
    assert all(len(tag) < 100 for tag in logged(tmp_path / "long")), "the name of a curve is not a text"
