"""Models of every family, saved by transformers, imported: the same logits, maps, ids and text."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import minitx
from huggingface.theirs import CASES, TEXT, Theirs, saved
from minitx.checkpoints import format as checkpoint
from minitx.cli.main import main
from minitx.evaluation.bleu import corpus_scores
from minitx.generation.options import GenerationOptions
from minitx.inference.predictor import Predictor

every_case = pytest.mark.parametrize("both", CASES, indirect=True)
PROMPTS = ["The quick brown", "To be, or not", "Ein Hund rennt über"]
WRITTEN = 12


@pytest.fixture(scope="module")
def both(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Theirs, Predictor]:
    """Their model, and ours made of its folder by the command line."""
    folder = tmp_path_factory.mktemp(request.param)
    theirs = saved(request.param, folder / "theirs")
    main(["import", str(folder / "theirs"), "--out", str(folder / "ours.ckpt")])
    return theirs, minitx.load(folder / "ours.ckpt")


@every_case
def test_logits_are_equal(both: tuple[Theirs, Predictor]) -> None:
    theirs, ours = both
    for text in TEXT[:4]:
        read = theirs.tokenizer(text, return_tensors="pt")
        inputs = {"input_ids": read["input_ids"], "attention_mask": read["attention_mask"]}
        source = (inputs["input_ids"],)
        if ours.architecture == "encoder_decoder":
            inputs["decoder_input_ids"] = torch.arange(9)[None] * 5
            source = (inputs["input_ids"], inputs["decoder_input_ids"])
        with torch.no_grad():
            expected, found = theirs.model(**inputs), ours.model(*source)
        expected = expected.prediction_logits if "prediction_logits" in expected else expected.logits
        assert expected.std() > 0.1
        torch.testing.assert_close(found, expected, atol=1e-4, rtol=0)


@every_case
def test_maps_are_equal(both: tuple[Theirs, Predictor]) -> None:
    theirs, ours = both
    text = TEXT[2]
    read = theirs.tokenizer(text, return_tensors="pt")
    inputs = {"input_ids": read["input_ids"]}
    target = None
    if ours.architecture == "encoder_decoder":
        target = TEXT[0]
        ids = [ours.tokenizer.special.bos, *ours.tokenizer.encode_answer(target)]
        inputs["decoder_input_ids"] = torch.tensor([ids])
    with torch.no_grad():
        out = theirs.model(**inputs, output_attentions=True)
    maps = ours.attend(text, target)
    if ours.architecture == "encoder_decoder":
        pairs = [(maps.encoder, out.encoder_attentions), (maps.decoder, out.decoder_attentions)]
        pairs.append((maps.cross, out.cross_attentions))
        assert maps.tokens["source"] == [theirs.tokenizer.convert_ids_to_tokens(read["input_ids"][0])]
    else:
        kind, side = ("encoder", "source") if ours.architecture == "encoder_only" else ("decoder", "target")
        pairs = [(getattr(maps, kind), out.attentions)]
        assert maps.tokens[side] == [theirs.tokenizer.convert_ids_to_tokens(read["input_ids"][0])]
    for found, expected in pairs:
        assert len(found) == len(expected) > 0
        for one, other in zip(found, expected, strict=True):
            torch.testing.assert_close(one, other, atol=1e-5, rtol=0)


@every_case
def test_greedy_text_is_equal(both: tuple[Theirs, Predictor]) -> None:
    theirs, ours = both
    if ours.architecture == "encoder_only":
        pytest.skip("an encoder does not write")
    for prompt in PROMPTS:
        read = theirs.tokenizer(prompt, return_tensors="pt")
        written = theirs.model.generate(
            input_ids=read["input_ids"], attention_mask=read["attention_mask"],
            do_sample=False, num_beams=1, max_new_tokens=WRITTEN,
        )[0]  # fmt: skip
        new = written[1:] if ours.architecture == "encoder_decoder" else written[read["input_ids"].size(1) :]
        (found,) = ours.generations([prompt], GenerationOptions(max_new_tokens=WRITTEN))[0]
        assert found.ids == new.tolist()
        if ours.architecture == "decoder_only":  # as it goes on with the prompt, spaces between words included
            whole, start = (
                theirs.tokenizer.decode(ids, skip_special_tokens=True) for ids in (written, read["input_ids"][0])
            )
            assert start + found.text == whole
            assert "".join(ours.generate(prompt, stream=True, max_new_tokens=WRITTEN)) == found.text
        else:
            assert found.text == theirs.tokenizer.decode(new, skip_special_tokens=True)


# ---- what can be done with them --------------------------------------------------------------------------------------


@pytest.mark.parametrize("both", ["gpt2", "llama", "bert"], indirect=True)
def test_they_are_measured_on_a_text(
    both: tuple[Theirs, Predictor], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MINITX_CACHE", str(tmp_path / "cache"))
    file, text = str(both[0].folder.parent / "ours.ckpt"), tmp_path / "text.txt"
    text.write_text("\n".join(TEXT * 12))
    main(["evaluate", file, "--path", str(text), "--json", str(tmp_path / "out.json")])
    figures = json.loads((tmp_path / "out.json").read_text())
    assert 0.0 < figures["loss"] < 20.0
    main(["ablate", file, "--path", str(text), "--examples", "2"])
    assert "encoder.1.1" in (said := capsys.readouterr().out) or "decoder.1.1" in said
    with pytest.raises(SystemExit):
        main(["evaluate", file])
    assert "an imported model brings no data of its own: give a text" in capsys.readouterr().err


@pytest.mark.parametrize("both", ["t5", "bart", "marian"], indirect=True)
def test_they_are_measured_on_questions_and_answers(
    both: tuple[Theirs, Predictor], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, out, pairs = str(both[0].folder.parent / "ours.ckpt"), tmp_path / "out.json", tmp_path / "pairs.tsv"
    theirs, ours = both
    asked, answers = TEXT[:3], TEXT[3:6]
    pairs.write_text("source\ttarget\n" + "".join(f"{one}\t{two}\n" for one, two in zip(asked, answers, strict=True)))
    main(["evaluate", file, "--path", str(pairs), "--json", str(out)])
    figures = json.loads(out.read_text())
    assert figures["examples"] == 3
    judged = corpus_scores(ours.generate(asked), answers, ["chrf"])
    assert figures["chrf"] == pytest.approx(judged["chrf"])
    losses = []
    for text, answer in zip(asked, answers, strict=True):  # the loss of their own model, token by token
        source = theirs.tokenizer(text, return_tensors="pt")
        labels = torch.tensor([[*ours.tokenizer.encode_answer(answer), ours.tokenizer.special.eos]])
        with torch.no_grad():
            losses += theirs.model(**source, labels=labels).logits.log_softmax(-1).gather(2, labels[..., None])
    assert figures["loss"] == pytest.approx(-float(torch.cat(losses).mean()), abs=1e-4)
    main(["ablate", file, "--path", str(pairs), "--examples", "1"])
    assert "cross.1.1" in capsys.readouterr().out


@pytest.mark.parametrize("both", ["t5", "bart"], indirect=True)
def test_without_questions_nothing_is_measured(
    both: tuple[Theirs, Predictor], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, other = str(both[0].folder.parent / "ours.ckpt"), tmp_path / "other.tsv"
    other.write_text("de\ten\nHund\tdog\n")
    for words, told in (
        ([], "an imported model brings no data of its own: give questions and answers"),
        (["--path", "text.txt"], "--path must be one file of pairs, .csv, .tsv, .jsonl, with the columns source and"),
        (["--path", str(other)], "has no column source, only de, en"),
    ):
        with pytest.raises(SystemExit):
            main(["evaluate", file, *words])
        assert told in capsys.readouterr().err


@every_case
def test_scores_are_sums_of_their_log_probabilities(both: tuple[Theirs, Predictor]) -> None:
    theirs, ours = both
    text, target = "The quick brown fox", " jumps over"
    special = ours.tokenizer.special
    if ours.architecture == "encoder_only":
        hidden = theirs.tokenizer.mask_token
        found = ours.score(f"The {hidden} brown fox", text), ours.score("The <mask> brown fox", text)
        assert found[0] == found[1]
        ids = theirs.tokenizer(f"The {hidden} brown fox", return_tensors="pt")["input_ids"]
        labels = theirs.tokenizer(text, return_tensors="pt")["input_ids"]
        if ids.shape != labels.shape:
            pytest.fail("choose a text whose hidden word is one token")
        inputs, judged = {"input_ids": ids}, ids == special.mask
    elif ours.architecture == "encoder_decoder":
        found = (ours.score(text, target),)
        labels = theirs.tokenizer(target, return_tensors="pt")["input_ids"]
        start = torch.full((1, 1), theirs.model.config.decoder_start_token_id)
        inputs = {
            "input_ids": theirs.tokenizer(text, return_tensors="pt")["input_ids"],
            "decoder_input_ids": torch.cat((start, labels[:, :-1]), dim=1),
        }
        judged = torch.ones_like(labels, dtype=torch.bool)
    else:
        found = (ours.score(text, target),)
        first = theirs.tokenizer(text)["input_ids"]
        whole = torch.tensor([[*first, *theirs.tokenizer(target, add_special_tokens=False)["input_ids"]]])
        inputs, labels = {"input_ids": whole[:, :-1]}, whole[:, 1:]
        judged = (torch.arange(labels.size(1)) >= len(first) - 1)[None]
    with torch.no_grad():
        out = theirs.model(**inputs)
    logits = out.prediction_logits if "prediction_logits" in out else out.logits
    logs = logits.log_softmax(dim=-1).gather(-1, labels[..., None])[..., 0]
    assert found[0] == pytest.approx(float(logs[judged].sum()), abs=1e-3)


# ---- files -----------------------------------------------------------------------------------------------------------


def said_about(folder: Path, capsys: pytest.CaptureFixture[str]) -> str:
    with pytest.raises(SystemExit) as left:
        main(["import", str(folder), "--out", str(folder / "out.ckpt")])
    assert left.value.code == 2
    assert not (folder / "out.ckpt").exists()
    return capsys.readouterr().err


def changed(file: Path, **changes: Any) -> None:
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


def test_weights_in_several_files(tmp_path: Path) -> None:
    theirs = saved("gpt2", tmp_path / "one")
    theirs.model.save_pretrained(tmp_path / "several", max_shard_size="20KB")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (tmp_path / "several" / name).write_bytes((tmp_path / "one" / name).read_bytes())
    assert len([*(tmp_path / "several").glob("*.safetensors")]) > 2
    main(["import", str(tmp_path / "several"), "--out", str(tmp_path / "ours.ckpt")])
    ids = torch.arange(9)[None]
    with torch.no_grad():
        expected = theirs.model(ids).logits
        torch.testing.assert_close(minitx.load(tmp_path / "ours.ckpt").model(ids), expected, atol=1e-4, rtol=0)


def test_names_of_old_files(tmp_path: Path) -> None:
    """Without the beginning that a bare model's names lack, with gamma and beta, in half precision."""
    theirs = saved("bert", tmp_path)
    file = tmp_path / "model.safetensors"
    tensors = load_file(file)
    old = {}
    for name, part in tensors.items():
        name = name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta")
        old[name] = part.half()
    save_file(old, file)
    main(["import", str(tmp_path), "--out", str(tmp_path / "ours.ckpt")])
    ids = torch.arange(9)[None]
    with torch.no_grad():
        expected = theirs.model(ids).logits
        found = minitx.load(tmp_path / "ours.ckpt").model(ids)
    torch.testing.assert_close(found, expected, atol=2e-2, rtol=0)
    kept = checkpoint.read(tmp_path / "ours.ckpt")["state_dict"]  # sums and products were taken in fp32, too
    assert {part.dtype for part in kept.values()} == {torch.float32}


def test_names_of_a_bare_model(tmp_path: Path) -> None:
    theirs = saved("gpt2", tmp_path)
    theirs.model.transformer.save_pretrained(tmp_path)
    assert not any(name.startswith("transformer.") for name in load_file(tmp_path / "model.safetensors"))
    main(["import", str(tmp_path), "--out", str(tmp_path / "ours.ckpt")])
    ids = torch.arange(9)[None]
    with torch.no_grad():
        expected = theirs.model(ids).logits
        torch.testing.assert_close(minitx.load(tmp_path / "ours.ckpt").model(ids), expected, atol=1e-4, rtol=0)


@pytest.mark.parametrize(
    ("name", "changes", "expected"),
    [
        ("gpt2", {"model_type": "mamba"}, "model_type mamba is not known here"),
        ("gpt2", {"activation_function": "quick_gelu"}, "activation_function quick_gelu is not known here"),
        ("gpt2", {"scale_attn_by_inverse_layer_idx": True}, "scale_attn_by_inverse_layer_idx True is not known here"),
        ("gpt2", {"n_layer": 3}, "the weights have no transformer.h.2."),
        ("gpt2", {"n_layer": 1}, "the weights have transformer.h.1."),
        ("gpt2", {"n_inner": 57}, "expected [57, 32]"),
        ("llama", {"rope_parameters": {"rope_type": "yarn"}}, "rope_scaling of type yarn is not known here"),
        ("llama", {"rope_scaling": {"type": "dynamic"}, "rope_parameters": None}, "rope_scaling of type dynamic"),
        ("llama", {"attention_bias": True}, "attention_bias True is not known here"),
        ("llama", {"rope_parameters": {"partial_rotary_factor": 0.5}}, "partial_rotary_factor 0.5"),
        ("llama", {"hidden_act": "relu2"}, "hidden_act relu2 is not known here"),
        ("llama", {"num_attention_heads": 5}, "model.n_heads must be divisible by model.n_kv_heads"),
        (
            "qwen2-window", {"max_window_layers": 1, "layer_types": None},
            "layer_types: a window in some layers and none in others",
        ),
        ("bert", {"position_embedding_type": "relative_key"}, "position_embedding_type relative_key"),
        ("bert", {"is_decoder": True}, "is_decoder True"),
        ("t5", {"feed_forward_proj": "gated-quick_gelu"}, "feed_forward_proj gated-quick_gelu is not known here"),
        ("bart", {"decoder_ffn_dim": 60}, "encoder_ffn_dim 56 and decoder_ffn_dim 60 must be equal here"),
        ("bart", {"normalize_before": True}, "normalize_before True is not known here"),
        ("marian", {"share_encoder_decoder_embeddings": False}, "share_encoder_decoder_embeddings False"),
        ("gpt2", {"n_embd": "many"}, "model.d_model: expected int, got 'many'"),
        ("gpt2", {"vocab_size": 100}, "transformer.wte.weight: expected [100, 32]"),
    ],
)  # fmt: skip
def test_what_we_do_not_have_is_named(
    name: str, changes: dict[str, Any], expected: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    saved(name, tmp_path)
    changed(tmp_path / "config.json", **changes)
    assert expected in said_about(tmp_path, capsys)


def test_more_tokens_than_rows_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    theirs = saved("gpt2", tmp_path)
    theirs.tokenizer.add_tokens([f"<more-{number}>" for number in range(9)])
    theirs.tokenizer.save_pretrained(tmp_path)
    assert "tokens, more than its model" in said_about(tmp_path, capsys)


def test_weights_nobody_asked_for_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    saved("gpt2", tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    save_file(tensors | {"transformer.adapter.weight": torch.ones(2)}, tmp_path / "model.safetensors")
    assert "the weights have transformer.adapter.weight, which GPT2LMHeadModel has not" in said_about(tmp_path, capsys)


def test_embeddings_of_their_own_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    saved("bart", tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    other = {"model.decoder.embed_tokens.weight": tensors["model.shared.weight"] + 1.0}
    save_file(tensors | other, tmp_path / "model.safetensors")
    assert "model.decoder.embed_tokens.weight and model.shared.weight differ" in said_about(tmp_path, capsys)


@pytest.mark.parametrize(
    ("file", "contents", "expected"),
    [
        ("config.json", None, "has no config.json"),
        ("config.json", b"{", "config.json is damaged"),
        ("config.json", b"[]", "config.json is damaged"),
        ("tokenizer.json", None, "has no tokenizer.json"),
        ("tokenizer.json", b"{}", "tokenizer.json"),
        ("tokenizer.json", b'{"version": "1.0"}', "the tokenizer cannot be read"),
        ("model.safetensors", None, "has no model.safetensors; weights in other formats (*.bin) are not read"),
        ("model.safetensors", b"\x00" * 20, "model.safetensors is damaged"),
        ("model.safetensors.index.json", b'{"weight_map": {"a": "../other.safetensors"}}', "has no ../other"),
        ("model.safetensors.index.json", b'{"weight_map": {"a": "part-1.safetensors"}}', "has no part-1.safetensors"),
    ],
)
def test_damaged_folders(
    file: str, contents: bytes | None, expected: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    saved("gpt2", tmp_path)
    (tmp_path.parent / "other.safetensors").write_bytes((tmp_path / "model.safetensors").read_bytes())
    (tmp_path / file).unlink(missing_ok=True)
    if contents is not None:
        (tmp_path / file).write_bytes(contents)
    assert expected in said_about(tmp_path, capsys)


@pytest.mark.parametrize("source", ["nowhere/at/all", "nobody/nothing"])
def test_a_source_that_is_not_there(
    source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import huggingface_hub

    def refuse(*args: object, **kwargs: object) -> None:
        raise OSError("the network is down")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", refuse)
    with pytest.raises(SystemExit) as left:
        main(["import", source, "--out", str(tmp_path / "out.ckpt")])
    assert left.value.code == 2
    expected = "there is no folder" if source.count("/") > 1 else "fetched from the hub (OSError: the network is down)"
    assert expected in capsys.readouterr().err
