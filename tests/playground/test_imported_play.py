"""Imported models on the page of minitx play."""

from pathlib import Path

import pytest

import minitx
from huggingface.hf_models import CASES, TEXT, save
from minitx.cli.main import main
from minitx.playground.inspection import Explain, Look
from minitx.playground.play_requests import Session, Write

FORCED = ("bart-forced", "marian")
"""Cases whose generation config forces or forbids tokens, so that a written one need not be the model's likeliest."""


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_the_text_is_that_of_generate_and_each_step_can_be_looked_into(name: str, tmp_path: Path) -> None:
    save(name, tmp_path / "hf")
    main(["import", str(tmp_path / "hf"), "--out", str(tmp_path / "ours.ckpt")])
    predictor = minitx.load(tmp_path / "ours.ckpt", device="cpu")
    session = Session(predictor)
    assert session.description()["parts"]
    assert session.examples == []
    prompt = TEXT[0].replace(TEXT[0].split()[0], "<mask>") if predictor.task.kind == "masked" else TEXT[0]
    first, *steps, end, answer = Write(prompt=prompt).answer(session)
    assert answer == {"answer": None}
    assert end["text"] == predictor.generate(prompt)
    number = len(steps) - 1
    places, start = first.get("places"), steps[number]["start"]
    read = [] if places else [*first["target"], *(step["id"] for step in steps[:number])]
    common = {"prompt": prompt, "source": first["source"], "prompt_tokens": len(first["target"])}
    [maps] = Look(**common, target=read, start=start).answer(session)
    assert maps["runs"]["model"]
    index = places[number] if places else -1
    [found] = Explain(**common, target=read[start:], index=index, token=steps[number]["id"]).answer(session)
    if not places and name not in FORCED:
        assert found["lens"][-1]["rank"] == 1
