"""The lens of a layer is the model without the layers above it; attributions add up to the logit."""

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from torch import Tensor, nn

from minitx.config.errors import ConfigError
from minitx.interpret.attribution import attribute, last_stack
from minitx.interpret.intervene import at, intervene
from minitx.interpret.lens import decoder_lens, lens
from predictors import KINDS_OF, built, every_kind, prompts
from small_models import SCHEMES, build_tiny, close, draw, every_architecture, ragged_inputs
from web_pages import page_data

CASES: list[tuple[str, dict[str, Any]]] = [
    *((name, {"norm_first": index % 2 == 0}) for index, name in enumerate(SCHEMES)),
    ("rope", {"norm_first": False, "norm": "rmsnorm", "n_kv_heads": 2}), ("t5", {"d_ff": 0, "bias": False}),
    ("rope", {"sandwich_norm": True}), ("learned", {"embedding_norm": True, "head_transform": True}),
    ("rope", {"parallel_residual": True, "shared_norm": True, "logit_softcap": 2.0}),
    ("t5", {"sandwich_norm": True, "norm": "rmsnorm", "parallel_residual": True}),
]  # fmt: skip


def ragged(architecture: str) -> dict[str, Tensor]:
    names = ("src_ids", "tgt_ids", "src_keep", "tgt_keep") if architecture == "encoder_decoder" else ("ids", "keep")
    return dict(zip(names, ragged_inputs(architecture), strict=True))


@torch.no_grad()
@every_architecture
@pytest.mark.parametrize(("name", "options"), CASES, ids=str)
def test_each_layer_is_the_model_without_those_above(architecture: str, name: str, options: dict[str, Any]) -> None:
    model, inputs = build_tiny(architecture, name, head_bias=True, **options), ragged(architecture)
    for changes in ({}, {"*coder.out": at(lambda out: 1 - 2 * out, positions=[0, 3])}):
        with intervene(model, changes):
            lenses, whole = {last_stack(model)[0]: lens(model, inputs)}, model(**inputs)
            if architecture == "encoder_decoder":
                lenses["encoder"] = decoder_lens(model, inputs)
        for stack, logits in lenses.items():
            assert logits.size(0) == 3
            close(logits[-1], whole)
            for kept in (0, 1):
                lower = copy.deepcopy(model)
                for layer in lower.get_submodule(stack).layers[kept:]:
                    layer.forward = lambda x, *_, **__: x
                with intervene(lower, changes):
                    close(logits[kept], lower(**inputs))
    if model.head.transform is None:
        check_attributions(architecture, model, inputs, options)
        places = [f"{last_stack(model)[0]}.{part}" for part in ("out", "layers.*.resid_*", "layers.0.*_attn.out")]
        with intervene(model, {name: at(lambda x: x - x.roll(1, -1) / 3, positions=[0, 3]) for name in places}):
            check_attributions(architecture, model, inputs, options, "intervention")


def test_compiled_layers_have_the_same_attributions() -> None:
    model, tokens = build_tiny("encoder_only"), draw(1, 5)
    expected = attribute(model, {"ids": tokens}, tokens)
    model.encoder.layers[0] = torch.compile(model.encoder.layers[0], backend="eager")
    found = attribute(model, {"ids": tokens}, tokens)
    assert all(torch.equal(found[name], value) for name, value in expected.items())


def check_attributions(architecture: str, model: Any, inputs: Any, options: dict[str, Any], *further: str) -> None:
    """They add up to the logit, and those of two tokens to the difference."""
    logits, softcap = model(**inputs), model.head.softcap
    logits = logits if softcap is None else softcap * torch.atanh(logits / softcap)
    tokens, others = draw(*logits.shape[:2]), draw(*logits.shape[:2])
    expected, found = logits.gather(-1, tokens[..., None])[..., 0], attribute(model, inputs, tokens)
    close(sum(found.values(), torch.zeros(())), expected, 1e-4)
    difference = attribute(model, inputs, tokens, others)
    close(sum(difference.values(), torch.zeros(())), expected - logits.gather(-1, others[..., None])[..., 0], 1e-4)
    kinds = {"encoder_decoder": ["decoder", "cross"]}.get(architecture, KINDS_OF[architecture])
    heads = {f"{kind}.{layer}.{head}" for kind in kinds for layer in (1, 2) for head in range(1, 5)}
    networks = {f"{kinds[0]}.{layer}.ffn" for layer in (1, 2) if options.get("d_ff") != 0}
    assert found.keys() == heads | networks | {"embeddings", "biases"} | {*further}


@torch.no_grad()
@every_architecture
def test_an_attribution_is_what_is_missing_without_the_part(architecture: str) -> None:
    """Exactly so for the last sublayer of a model without a final norm."""
    model: Any = build_tiny(architecture, "rope", d_ff=0)
    name, stack = last_stack(model)
    stack.norm, inputs = nn.Identity(), ragged(architecture)
    logits = model(**inputs)
    tokens, part = draw(*logits.shape[:2]), "cross_attn" if architecture == "encoder_decoder" else "self_attn"
    found = attribute(model, inputs, tokens)[f"{'cross' if part == 'cross_attn' else name}.2.3"]
    with intervene(model, {f"{name}.layers.1.{part}.z": at("zero", heads=2)}):
        close(found, (logits - model(**inputs)).gather(-1, tokens[..., None])[..., 0])


@every_kind
def test_the_lens_of_a_text(architecture: str, text: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    predictor = built(architecture, text)
    monkeypatch.setattr("minitx.interpret.lens.RANKED_AT_ONCE", 2)
    found, own = predictor.lens(prompts(predictor)[2]), last_stack(predictor.model)[0]
    assert set(found.logits) == ({"decoder", "encoder"} if predictor.architecture == "encoder_decoder" else {own})
    for stack, logits in found.logits.items():
        assert logits.shape[:2] == (3, len(found.tokens))
        shares = logits.softmax(dim=-1)
        for position, answer in enumerate(found.answers.tolist()):
            order = logits[-1, position].argsort(descending=True).tolist()
            assert order.index(answer) + 1 == found.ranks(stack)[-1, position]
            close(shares[-1, position, answer], found.answer_probabilities(stack)[-1, position])
            top = [(*predictor.tokenizer.tokens([token]), shares[-1, position, token].item()) for token in order[:4]]
            assert found.top(stack)[-1][position][:4] == top
    if predictor.task.kind == "pairs" and predictor.architecture != "encoder_only":
        assert not found.known.any(), "the answers are the model's own"
    figures = json.loads(json.dumps(found.to_dict()))
    assert figures["stacks"][own]["rank"] == found.ranks(own).tolist()
    assert figures["attribution"].keys() == found.attribution.keys()
    answers = found.logits[own][-1].gather(-1, found.answers[:, None])[:, 0]
    close(sum(found.attribution.values(), torch.zeros(())), answers, 1e-4)
    found.save_png(tmp_path / "lens.png")
    assert Image.open(tmp_path / "lens.png").width > 500
    for table, (stack, logits) in zip(page_data(found.page())["tables"], found.logits.items(), strict=True):
        assert ("the final norm" if stack == own else "the whole decoder") in table["note"]
        assert [len(row) for row in table["cells"]] == [len(found.tokens)] * len(logits)
        assert table["cells"][-1][0]["shown"] == [[*found.top(stack, 1)[-1][0][0]], [
            f"#{found.ranks(stack)[-1, 0]}", found.answer_probabilities(stack)[-1, 0].item(),
        ]]  # fmt: skip
    assert found._repr_html_().startswith("<iframe srcdoc=")


def test_white_space_and_small_probabilities_are_shown() -> None:
    found = built("decoder_only", text=True).lens("a b")
    first, second, _ = page_data(found.page())["tables"][0]["cells"][-1]
    assert first["note"].startswith("answer: ␣, rank ")
    assert (first["lists"][1][0], second["title"]) == ("added to the final logit of ␣", "layer 2, position 2: ␣")
    capped = page_data(built("decoder_only", text=True, logit_softcap=2.0).lens("a b").page())["tables"][0]
    assert capped["cells"][-1][0]["lists"][1][0].endswith(", before logit_softcap"), "the parts add up to this logit"
    found.tokens[1] = "x" * 300
    table = page_data(found.page())["tables"][0]
    assert [text[197:] for text in (table["columns"][1], table["cells"][-1][1]["title"])] == ["xx…"] * 2
    found.logits["decoder"][-1, 0, found.answers[0]] = -20.0
    assert " 0.000" not in page_data(found.page())["tables"][0]["cells"][-1][0]["note"]


def test_a_target_is_the_answer() -> None:
    predictor = built("encoder_decoder")
    found = predictor.lens("3 1 4", "4 4")
    assert predictor.tokenizer.tokens(found.answers.tolist()) == ["4", "4", "<eos>"]
    assert found.known.all()
    close(found.answer_probabilities("decoder")[-1].log().sum(), torch.tensor(predictor.score("3 1 4", "4 4")))
    assert predictor.lens("3 1 4", "").tokens == ["<bos>"]


def test_bad_input_is_one_sentence() -> None:
    with pytest.raises(ConfigError, match="linear head"):
        attribute(build_tiny("encoder_only", head_transform=True), {"ids": draw(1, 3)}, draw(1, 3))
    assert built("encoder_only", head_transform=True).lens("3 1 4").attribution == {}
    for architecture in ("encoder_only", "decoder_only"):
        with pytest.raises(ConfigError, match="DecoderLens needs"):
            decoder_lens(build_tiny(architecture), {"ids": draw(1, 3)})
    with pytest.raises(ConfigError, match=r"lens takes one text, got \['3 1'\]"):
        built("decoder_only").lens(["3 1"])  # type: ignore[arg-type]
    broken = copy.deepcopy(built("decoder_only"))
    with torch.no_grad():
        broken.model.head.weight.fill_(torch.nan)
    with pytest.raises(ConfigError, match="NaN"):
        broken.lens("3 1 4", "4")
