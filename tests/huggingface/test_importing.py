"""Imported models of every family: logits, maps, texts and scores equal those of transformers; and are fine-tuned."""

import json
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch
import torch.nn.functional as F
from huggingface_hub.utils import filter_repo_objects
from safetensors.torch import load_file, save_file
from safetensors.torch import save as tensor_bytes
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch import Tensor

import minitx
from huggingface import hf_models
from huggingface.hf_models import CASES, TEXT, HFModel, check_logits, check_text, hf_logits, save, saved
from minitx.checkpoints import format as checkpoint
from minitx.cli.main import main
from minitx.evaluation.bleu import corpus_scores
from minitx.huggingface.families import FAMILIES
from minitx.huggingface.importing import import_model
from minitx.inference.predictor import Predictor
from parallel_files import write_split
from predictors import KINDS_OF
from short_configs import short
from small_models import keep_of

transformers = pytest.importorskip("transformers")
every_case = pytest.mark.parametrize("both", CASES, indirect=True)
PROMPTS = ["The quick brown", "Ein Hund rennt über"]
SHORT = [*short(2), "--run.name", "tuned", "--init_from"]
DATA = {
    "decoder_only": ["--data.name=text", "--data.block=16", "--data.path=text.txt"],
    "encoder_only": ["--data.name=masked_text", "--data.block=16", "--data.path=text.txt"],
    "encoder_decoder": ["--data.name=translation", "--data.path=pairs", "--data.test=val", "--data.max_tokens=60"],
}
EVERYDAY_CASES = ("llama-3", "bert", "t5-1.1", "bart-forced")
"""Those fine-tuned in the fast suite: every architecture, and a family with scaled tables."""


@pytest.fixture(scope="module")
def both(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[HFModel, Predictor]:
    """A model of transformers, and its import."""
    folder = tmp_path_factory.mktemp(request.param)
    return saved(request.param, folder), imported(folder)


def imported(folder: Path) -> Predictor:
    main(["import", str(folder), "--out", str(folder / "ours.ckpt")])
    return minitx.load(folder / "ours.ckpt", device="cpu")


@every_case
def test_logits_and_maps_are_equal(both: tuple[HFModel, Predictor]) -> None:
    hf, ours = both
    for text in TEXT[:4]:
        ids = hf.tokenizer(text, return_tensors="pt")["input_ids"]
        check_logits(hf.model, ours, ids)
    inputs, target = {"input_ids": ids}, None
    if ours.architecture == "encoder_decoder":
        target = TEXT[0]
        answer = [ours.tokenizer.special.bos, *ours.tokenizer.encode_answer(target)]
        inputs["decoder_input_ids"] = torch.tensor([answer])
    with torch.no_grad(), minitx.trace(ours.model, ["*.resid_pre", "*.out"]) as t:
        out = hf.model(**inputs, output_attentions=True, output_hidden_states=True)
        ours.model(*inputs.values())
    maps = ours.attend(text, target)
    read = "target" if ours.architecture == "decoder_only" else "source"
    assert maps.tokens[read] == [hf.tokenizer.convert_ids_to_tokens(ids[0])]
    for kind in KINDS_OF[ours.architecture]:
        prefix = f"{kind}_" if target else ""
        torch.testing.assert_close(tuple(getattr(maps, kind)), out[f"{prefix}attentions"], atol=1e-5, rtol=0)
        if kind != "cross":
            hidden = [part for name, part in t.items() if name.startswith(kind) and "resid_pre" in name]
            torch.testing.assert_close((*hidden, t[f"{kind}.out"]), out[f"{prefix}hidden_states"], atol=1e-4, rtol=0)


@pytest.mark.parametrize("both", [name for name in CASES if "bert" not in name], indirect=True)
def test_greedy_texts_are_equal(both: tuple[HFModel, Predictor]) -> None:
    check_text(both[0].model, both[0].tokenizer, both[1], PROMPTS)


@every_case
def test_scores_are_sums_of_log_probabilities(both: tuple[HFModel, Predictor]) -> None:
    hf, ours = both
    text, target = "The quick brown fox", " jumps over"
    encoded = partial(hf.tokenizer.encode, return_tensors="pt")
    first = encoded(text)
    if ours.architecture == "encoder_only":
        text, target = f"The {hf.tokenizer.mask_token} brown fox", text
        assert ours.score("The <mask> brown fox", target) == ours.score(text, target)
        inputs, labels = {"input_ids": encoded(text)}, first
        scored = inputs["input_ids"] == ours.tokenizer.special.mask
    elif ours.architecture == "encoder_decoder":
        labels = encoded(target)
        inputs, scored = {"input_ids": first, "labels": labels}, torch.ones_like(labels, dtype=torch.bool)
    else:
        whole = torch.cat((first, encoded(target, add_special_tokens=False)), dim=1).long()
        inputs, labels = {"input_ids": whole[:, :-1]}, whole[:, 1:]
        scored = (torch.arange(labels.size(1)) >= first.size(1) - 1)[None]
    logs = hf_logits(hf.model, **inputs).log_softmax(dim=-1).gather(-1, labels[..., None])[..., 0]
    assert ours.score(text, target) == pytest.approx(float(logs[scored].sum()), abs=1e-3)


@pytest.mark.parametrize("both", [name for name in CASES if name != "gemma"], indirect=True)  # exported as llama
def test_exported_again_it_is_the_model_that_was_imported(both: tuple[HFModel, Predictor], tmp_path: Path) -> None:
    (hf, ours), back = both, tmp_path / "back"
    main(["export", str(hf.folder / "ours.ckpt"), str(back)])
    kind = getattr(transformers, FAMILIES[hf.model.config.model_type].model)
    exported, loading = kind.from_pretrained(back, output_loading_info=True)
    assert not any(loading.values()), loading
    check_logits(exported.eval(), ours, hf.tokenizer(TEXT[2], return_tensors="pt")["input_ids"])
    assert exported.config.model_type == hf.model.config.model_type
    tokenizer = transformers.AutoTokenizer.from_pretrained(back)
    assert tokenizer.mask_token == hf.tokenizer.mask_token
    assert tokenizer(TEXT[:4])["input_ids"] == hf.tokenizer(TEXT[:4])["input_ids"]
    assert imported(back).config.data == ours.config.data
    if ours.architecture == "encoder_decoder":
        for key in ("decoder_start_token_id", "forced_bos_token_id", "forced_eos_token_id", "eos_token_id"):
            assert getattr(exported.generation_config, key) == getattr(hf.model.generation_config, key)
        assert exported.config.bos_token_id is exported.generation_config.bos_token_id is tokenizer.bos_token is None
        assert ours.config.data == {"name": "imported_pairs", "max_tokens": 29}
        assert ours.text_generator().limit([5] * 40, hf_models.GenerationOptions()) == 30, "of any question"


@pytest.mark.parametrize("both", ["gpt2", "bert", "t5", "bart", "marian"], indirect=True)
def test_evaluation_on_files_of_ones_own(both: Any, tmp_path: Path, capsys: Any, refused: Callable) -> None:
    ours, file, out = both[1], str(both[0].folder / "ours.ckpt"), tmp_path / "out.json"
    questions, answers = [TEXT[1] * 2, *TEXT[:2]], TEXT[3:6]  # one longer than the longest answer
    data, lines, needed = tmp_path / "text.txt", TEXT * 12, "a text"
    if pairs := ours.architecture == "encoder_decoder":
        data, needed = tmp_path / "pairs.tsv", "questions and answers"
        lines = ["source\ttarget", *map("\t".join, zip(questions, answers, strict=True)), "\t"]
    data.write_text("\n".join(lines))
    main(["evaluate", file, "--path", str(data), "--json", str(out)])
    for command in ("ablate", "circuit")[: 1 + (ours.architecture == "decoder_only")]:
        main([command, file, "--path", str(data), "--examples", "1"])
    shown = capsys.readouterr()
    assert ("cross.1.1" if pairs else "coder.1.1") in shown.out
    assert shown.out.count(f"on 1 example of {data}") == 1 + (ours.architecture == "decoder_only")
    assert (f"{data}: left out: 1 with an empty side" in shown.err) == pairs
    assert f"an imported model brings no data of its own: give {needed}" in refused("evaluate", file)
    assert 0.0 < (figures := json.loads(out.read_text()))["loss"] < 20.0
    if not pairs:
        return
    assert figures["examples"] == 3
    assert figures["chrf"] == pytest.approx(corpus_scores(ours.generate(questions), answers, ["chrf"])["chrf"])
    tokens = sum(len(ours.tokenizer.encode_answer(answer)) + 1 for answer in answers)
    assert figures["loss"] == pytest.approx(-sum(ours.score(questions, answers)) / tokens, abs=1e-4)
    data.write_text("de\ten\nHund\tdog\n")
    assert f"--path: {data} has no column source; known are: de, en" in refused("evaluate", file, "--path", str(data))
    columns = "--path must be one file of pairs, .csv, .tsv, .jsonl, with the columns source and"
    assert columns in refused("evaluate", file, "--path", "text.txt")


@pytest.fixture
def away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A working directory with a text and with pairs of sentences."""
    monkeypatch.chdir(tmp_path)
    Path("text.txt").write_text("\n".join(TEXT * 12))
    Path("pairs").mkdir()
    for split in ("train", "val"):
        write_split(Path("pairs"), split, [(f"{text} {split}", f"{text} {split}, in English") for text in TEXT])


@pytest.mark.parametrize("both", [
    name if name in EVERYDAY_CASES else pytest.param(name, marks=pytest.mark.slow) for name in CASES
], indirect=True)  # fmt: skip
def test_it_is_fine_tuned(both: tuple[HFModel, Predictor], away: None, capsys: pytest.CaptureFixture[str]) -> None:
    ours = both[1]
    main(["train", *DATA[ours.architecture], *SHORT, str(both[0].folder / "ours.ckpt")])
    tuned = minitx.load("runs/tuned/v0/last.ckpt", device="cpu")
    assert tuned.tokenizer.to_dict() == ours.tokenizer.to_dict()
    pairs = zip(tuned.model.state_dict().values(), ours.model.state_dict().values(), strict=True)
    assert 0.0 < max(float((after - before).abs().max()) for after, before in pairs) < 0.1
    options = {} if ours.architecture == "encoder_only" else {"max_new_tokens": 5}
    assert isinstance(minitx.load("runs/tuned", device="cpu").generate("or <mask> to be", **options), str)
    assert "nan" not in capsys.readouterr().out
    main(["export", "runs/tuned", "out", "--to", "safetensors"])
    assert "tokenizer" not in Path("out/README.md").read_text(), "an imported one has no name"


@pytest.mark.parametrize("both", ["gpt2"], indirect=True)
def test_pairs_for_a_decoder_need_a_separator(both: tuple[HFModel, Predictor], away: None, refused: Callable) -> None:
    for file in Path("pairs").iterdir():
        file.write_text(f"{file.stem}\n" * 9)
    words = [*DATA["encoder_decoder"], "--data.max_tokens", "20", *SHORT, str(both[0].folder / "ours.ckpt")]
    assert "<sep>" in refused("train", *words)


def test_weights_in_several_files_with_progress_and_without_head(tmp_path: Path, impatient: None, capsys: Any) -> None:
    hf = saved("gpt2", tmp_path)
    (tmp_path / "model.safetensors").unlink()
    hf.model.save_pretrained(tmp_path, max_shard_size="20KB")
    assert len(files := sorted(tmp_path.glob("*.safetensors"))) > 2
    capsys.readouterr()
    assert import_model(str(tmp_path), tmp_path / "ours.ckpt")[2] == hf.model.num_parameters()
    done = re.findall(r"(.+): (\S+) of \2, 00:00 left\n", capsys.readouterr().err)
    assert [*dict(done)] == [*(f"reading {file.name}" for file in files), "converting", "writing ours.ckpt"]
    check_logits(hf.model, imported(tmp_path))
    hf.model.transformer.wte.weight.data.mul_(-1)
    hf.model.save_pretrained(tmp_path)  # beside the old shards or their index alone
    check_logits(hf.model, imported(tmp_path))
    (tmp_path / "model.safetensors").unlink()  # the model of transformers may still read its weights from it
    hf.model.transformer.save_pretrained(tmp_path)
    assert not any(name.startswith("transformer.") for name in load_file(tmp_path / "model.safetensors"))
    check_logits(hf.model, imported(tmp_path))


def test_an_older_name_of_rotary_settings_has_precedence(tmp_path: Path) -> None:
    """As in transformers: model cards advise to add it for long texts."""
    for name in ("llama", "gemma3_text"):
        saved(name, tmp_path)
        settings = json.loads((tmp_path / "config.json").read_text())
        scaling = {"rope_type": "llama3", "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
        settings["rope_parameters"]["sliding_attention"] = scaling
        (tmp_path / "config.json").write_text(json.dumps(settings | {"rope_scaling": scaling}))
        check_logits(transformers.AutoModelForCausalLM.from_pretrained(tmp_path), imported(tmp_path))


def test_names_and_precision_of_old_files(tmp_path: Path) -> None:
    hf, file = saved("bert", tmp_path), tmp_path / "model.safetensors"
    old = {"weight": "gamma", "bias": "beta"}
    names = {name: re.sub(r"(?<=LayerNorm\.)\w+$", lambda end: old[end[0]], name) for name in load_file(file)}
    halves = {names[name]: part.half() for name, part in load_file(file).items()}
    file.unlink()  # the model of transformers may still read its weights from it
    save_file(halves, file)
    check_logits(hf.model, imported(tmp_path), atol=2e-2)
    assert {part.dtype for part in checkpoint.read(tmp_path / "ours.ckpt")["state_dict"].values()} == {torch.float32}


@pytest.mark.parametrize("name", ["bart", "t5", "gpt2", "llama-3"])
def test_a_tied_table_has_any_of_its_names(name: str, tmp_path: Path, refused: Callable) -> None:
    """And the bias of BART's head may be missing, as in files of the model without its head."""
    save(name, tmp_path)
    weights, family = load_file(file := tmp_path / "model.safetensors"), hf_models.family_of(name)
    table = weights.pop(first := f"{family.modules['embedding.table']}.weight")
    weights.pop("final_logits_bias", None)
    file.unlink()  # the tensors may still be read from it
    save_file(weights, file)
    assert f"no {first}, which" in refused("import", str(tmp_path), "--out", str(tmp_path / "out.ckpt"))
    for other in (*family.copies, "lm_head.weight"):
        save_file(weights | {other: table}, file)
        hf, loading = hf_models.hf_class(name).from_pretrained(tmp_path, output_loading_info=True)
        assert not any(loading.values()), loading
        check_logits(hf.eval(), imported(tmp_path))


def test_an_added_token_without_a_row_is_ordinary_text(tmp_path: Path) -> None:
    """As that for images of Gemma 3, and a <pad> that the tokenizer alone has."""
    model, _, tokenizer = saved("gpt2", tmp_path)
    plain = tokenizer.encode("<3>")
    tokenizer.add_tokens(["<0>", "<1>", "<2>", "<3>"])  # three rows are free
    tokenizer.add_special_tokens({"pad_token": "<pad>"})
    tokenizer.save_pretrained(tmp_path)
    ours = imported(tmp_path)
    assert (ours.encode("<2><3>"), ours.tokenizer.special.pad) == ([302, *plain], ours.tokenizer.special.eos)
    check_text(model, tokenizer, ours, PROMPTS)


def test_revisions_are_steps_of_the_attention_tab(tmp_path: Path, refused: Callable) -> None:
    pythia, log, file, steps = tmp_path / "pythia", tmp_path / "log", tmp_path / "ours.ckpt", (0, 1000, 143000)
    for step in steps:
        hf = saved("gpt_neox", pythia / f"step{step}")
        hf.model.gpt_neox.layers[0].attention.query_key_value.weight.data.mul_(1 + step)
        hf.model.save_pretrained(hf.folder)
        main(["import", str(pythia), "--revision", f"step{step}", "--out", str(file)])
        maps = str(tmp_path / "maps.html")
        main(["attend", str(file), PROMPTS[0], "--logdir", str(log), "--step", str(step), "--out", maps])
        check_logits(hf.model, minitx.load(file, device="cpu"), atol=1e-3)
    assert minitx.load(file).config.run.name == "pythia@step143000"
    events = EventAccumulator(str(log), size_guidance={"tensors": 0}).Reload()
    (tag,) = events.Tags()["tensors"]
    assert tuple(event.step for event in events.Tensors(tag)) == steps
    assert len({event.tensor_proto.SerializeToString() for event in events.Tensors(tag)}) > 1
    assert "has no folder step7" in refused("import", str(pythia), "--revision", "step7", "--out", str(file))


REFUSED_CONFIGS = [
    ("gpt2", {"model_type": "mamba"}, "model_type mamba is not supported"),
    *((name, {key: "another"}, f"{key} another is not supported")
      for name in FAMILIES for key in [*FAMILIES[name].required, FAMILIES[name].activation[0]]),
    ("gpt2", {"vocab_size": None}, "config.json has no vocab_size"),
    ("gpt2", {"n_layer": 3}, "the weights have no transformer.h.2."),
    ("gpt2", {"n_inner": 57}, "expected [57, 32]"),
    ("llama", {"rope_scaling": {"type": "linear"}}, "rope_scaling of type linear needs factor"),
    ("llama", {"rope_parameters": {"full_attention": {}}}, "rope_parameters for each type of layer are not supported"),
    ("llama", {"rope_parameters": {"partial_rotary_factor": 0.5}}, "partial_rotary_factor 0.5"),
    ("llama", {"num_attention_heads": 5}, "model.n_heads must be divisible by model.n_kv_heads"),
    ("qwen2-window", {"layer_types": ["chunked_attention"] * 2}, "layers of type chunked_attention are not supported"),
    *(("qwen2-window", {"num_hidden_layers": n}, f"layers must lie between 1 and 4,096, got {n}") for n in (0, 10**9)),
    ("qwen2-window", {"layer_types": ["full_attention"] * 3}, "the kind of each of 2 layers, got 3"),
    *(("gemma2", {"query_pre_attn_scalar": each}, "query_pre_attn_scalar must") for each in (torch.nan, 1e-300, None)),
    ("gemma2", {"final_logit_softcapping": 1e39}, "logit_softcap: expected a number above 0 or null, below 3.4e+38"),
    *(("gpt_neo", {"attention_types": types}, "attention_types must have the kind of each of 3 layers")
      for types in ([[["local"], 4]], [[["local"], 10**12], [["global"], 3 - 10**12]])),
    ("gpt_neo", {"attention_types": [[["local", "sparse", "local"], 1]]}, "layers of type sparse are not supported"),
    ("gemma3_text", {"rope_parameters": {"sliding_attention": {"rope_type": "yarn"}}}, "of type yarn is not supported"),
    ("llama", {"max_position_embeddings": 2**21}, "an integer of at least 1 and at most 1,048,576, got 2097152"),
    ("bart", {"decoder_ffn_dim": 60}, "encoder_ffn_dim 56 and decoder_ffn_dim 60 must be equal"),
    ("gpt2", {"n_embd": "many"}, "model.d_model: expected an integer of at least 1, got 'many'")]  # fmt: skip
REFUSED_FILES: list[tuple[str, str, Any, str]] = [
    *((name, "config.json", change, expected) for name, change, expected in REFUSED_CONFIGS),
    ("gpt2", "tokenizer.json", {"model": {"type": "Unigram", "unk_id": 0, "vocab": [[f"{n}", 0] for n in range(304)]}},
     "has 304 tokens, more than its model: 303"),
    ("gpt2", "generation_config.json", {"eos_token_id": [0, 303]}, "has the id 303, and its model the ids 0 to 302"),
    ("t5", "generation_config.json", {"eos_token_id": 0.0}, "has the id 0.0, and its model the ids 0 to"),
    ("t5", "generation_config.json", {"decoder_start_token_id": [0]}, "has [0] as its decoder_start_token_id"),
    ("gpt2", "model.safetensors", {"transformer.adapter.weight": torch.ones(2)},
     "have transformer.adapter.weight, which GPT2LMHeadModel"),
    ("bart", "model.safetensors", {"model.decoder.embed_tokens.weight": torch.ones(2)},
     "embed_tokens.weight and model.shared.weight differ"),
    *(("gpt2", "config.json", text, "config.json is damaged") for text in (b"{", b"[]")),
    *(("gpt2", "tokenizer.json", each, "has no tokenizer.json") for each in (None, b"{}")),
    ("gpt2", "tokenizer.json", b'{"version": "1.0"}', "the tokenizer cannot be read"),
    *(("gpt2", "tokenizer.json", {"post_processor": {"single": [each], "pair": [], "special_tokens": {}}}, "a template")
      for each in ({"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 0}})),
    ("gpt2", "model.safetensors", None, "has no model.safetensors; weights in other formats (*.bin) are not read"),
    ("gpt2", "model.safetensors", b"\x00" * 20, "model.safetensors is damaged"),
    ("gpt2", "model.safetensors", b"version https://git-lfs.github.com/spec/v1\n", "is a Git LFS pointer"),
    ("gpt2", "model.safetensors", tensor_bytes({"lm_head.weight": torch.ones(30000), "transformer.h": torch.ones(1)}),
     "the weights have no transformer."),
    ("gpt2", "model.safetensors.index.json", b'{"weight_map": {"a": "../other.safetensors"}}', "has no ../other"),
    ("gpt2", "model.safetensors.index.json", b'{"weight_map": {"a": "part-1.safetensors"}}', "has no part-1.safe"),
    ("gpt2", "config.json", None, "has no config.json")]  # fmt: skip


@pytest.mark.parametrize(("name", "file", "change", "expected"), REFUSED_FILES)
def test_refused_imports(name: str, file: str, change: Any, expected: str, tmp_path: Path, refused: Callable) -> None:
    """A change of values or tensors, other bytes, or a missing file."""
    save(name, tmp_path)
    path = tmp_path / file
    (tmp_path.parent / "other.safetensors").write_bytes((tmp_path / "model.safetensors").read_bytes())
    if file == "model.safetensors.index.json":  # which is not read beside whole weights
        (tmp_path / "model.safetensors").unlink()
    if change is None:
        path.unlink()
    elif isinstance(change, bytes):
        path.write_bytes(change)
    elif file.endswith(".json"):
        path.write_text(json.dumps(json.loads(path.read_text()) | change))
    else:
        save_file(load_file(path) | change, path)
    assert expected in refused("import", str(tmp_path), "--out", str(tmp_path / "out.ckpt"))
    assert not (tmp_path / "out.ckpt").exists()


def test_a_missing_source_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused: Callable) -> None:
    for source, error, expected in (
        ("nowhere/at/all", OSError(), "there is no folder"),
        ("nobody/nothing", OSError("the network is down"), "from the hub (OSError: the network is down)"),
        ("nobody/nothing", TimeoutError(), "from the hub (TimeoutError)"),
    ):
        monkeypatch.setattr("huggingface_hub.snapshot_download", download := Mock(side_effect=error))
        assert expected in refused("import", source, "--out", str(tmp_path / "out.ckpt"))
    files = ["config.json", "part-1.safetensors", "consolidated.safetensors", "onnx/config.json", "model.bin"]
    patterns = {key: value for key, value in download.call_args.kwargs.items() if key.endswith("patterns")}
    assert [*filter_repo_objects(files, **patterns)] == files[:2]


def batch(ours: Any) -> tuple[dict[str, Tensor], tuple[Tensor, ...], Tensor]:
    """A padded batch in their words and in ours, and which outputs count; the padding holds random tokens too."""
    keep, tgt_keep = keep_of(45, 4, 21), keep_of(8, 12, 11)
    ids, tgt = (torch.randint(0, ours.head.out_features, part.shape) for part in (keep, tgt_keep))
    theirs = {"input_ids": ids, "attention_mask": keep.long()}
    if not hasattr(ours, "decode"):
        return theirs, (ids, keep), keep
    theirs |= {"decoder_input_ids": tgt, "decoder_attention_mask": tgt_keep.long()}
    return theirs, (ids, tgt, keep, tgt_keep), tgt_keep


@pytest.mark.parametrize("name", ["qwen3", "bert", "t5"])
def test_logits_and_gradients_equal_and_bf16_is_as_exact_as_theirs(name: str) -> None:
    """Of a loss for their weights, through ours too. In fp32: in float64 theirs go through it here and there."""
    theirs, ours = hf_models.pair(name)
    inputs, arguments, keep = batch(ours)
    exact = theirs(**inputs)[0][keep]
    assert 0.1 < exact.std() < 10.0  # 1e-5 is little beside it
    torch.testing.assert_close(ours(*arguments)[keep], exact, atol=1e-5, rtol=1e-5)
    parameters = dict(theirs.named_parameters())
    labels = torch.randint(0, 48, keep.shape)[keep]

    def gradients(logits: Tensor) -> tuple[Tensor, ...]:
        return torch.autograd.grad(F.cross_entropy(logits[keep], labels), list(parameters.values()))

    expected = gradients(theirs(**inputs)[0])
    found = gradients(torch.func.functional_call(ours, hf_models.converted(name, parameters), arguments))
    largest = max(part.abs().max() for part in expected)  # the unit below: BERT's biases of keys have none but noise
    found, expected = (dict(zip(parameters, parts, strict=True)) for parts in (found, expected))
    torch.testing.assert_close(found, expected, atol=1e-5 * float(largest), rtol=0)

    theirs, ours = hf_models.pair(name)
    for part in theirs.parameters():  # its frequencies stay in fp32, as they do when they load a checkpoint in bf16
        part.data = part.data.bfloat16()
    outputs = (theirs(**inputs)[0], ours.bfloat16()(*arguments))
    error_of_theirs, error = ((logits[keep].float() - exact).square().mean().sqrt() for logits in outputs)
    assert 0 < error < 1.5 * error_of_theirs
