"""An intervention equals a model with other weights, or a hand-written forward; no hook stays."""

from contextlib import ExitStack
from itertools import permutations
from typing import Any

import numpy as np
import pytest
import torch

from minitx import at, intervene, mean_activations, record_attention, trace
from minitx.config.errors import ConfigError
from minitx.data.batch import Batch
from minitx.generation.beam import beam_search
from minitx.generation.decode import generate
from minitx.nn import cache as nn_cache
from predictors import built
from small_models import DECODERS, build_tiny, close, draw, every_architecture, every_scheme, ragged_inputs, untouched

pytestmark = pytest.mark.usefixtures("no_grad")


@every_architecture
@pytest.mark.parametrize("options", [{}, {"sandwich_norm": True, "norm": "rmsnorm"}])
def test_every_replacement_equals_weights_that_compute_it(options: dict[str, Any], architecture: str) -> None:
    """Heads, neurons and sublayers are changed in the weights that read or write them."""
    arguments, vector = ragged_inputs(architecture), torch.randn(4, 4)
    layer = f"{'encoder' if architecture == 'encoder_only' else 'decoder'}.layers.0"  # of the stack that the head reads
    path = f"{layer}.self_attn"

    def constant(attention: Any, _: Any) -> None:
        attention.o_proj.bias += attention.o_proj.weight[:, 8:12] @ vector[2]
        attention.o_proj.weight[:, 8:12] = 0

    def queries(attention: Any, _: Any) -> None:
        attention.q_proj.weight *= 3
        attention.q_proj.bias *= 3

    for change, by_hand in [
        ({f"{path}.z": at("zero", heads=1)}, lambda attention, _: attention.o_proj.weight[:, 4:8].zero_()),
        ({f"{path}.z": at(lambda z: 2 * z, heads=[0, 1])}, lambda attention, _: attention.o_proj.weight[:, :8].mul_(2)),
        ({f"{path}.result": at("zero", heads=[-2])}, lambda attention, _: attention.o_proj.weight[:, 8:12].zero_()),
        *(({f"{path}.{kind}": "zero"}, lambda part, _: part.o_proj.weight.zero_()) for kind in ("weights", "result")),
        *(({f"{path}.z": at(given, heads=2)}, constant) for given in (vector, vector.numpy())),
        ({f"{path}.z": at("mean", heads=2)}, constant),
        ({f"{layer}.ffn.hidden": at(0.0, neurons=7)}, lambda _, ffn: ffn.down_proj.weight[:, 7].zero_()),
        ({f"{layer}.ffn.out": "zero"}, lambda _, ffn: [part.zero_() for part in ffn.down_proj.parameters()]),
        ({f"{path}.q": lambda q: 3 * q}, queries),
        ({f"{path}.scores": lambda scores: 3 * scores}, queries),
    ]:
        model, changed = (build_tiny(architecture, **options) for _ in range(2))
        bias = changed.get_submodule(path).o_proj.bias.mul_(not options)
        model.get_submodule(path).o_proj.bias = None if options else torch.nn.Parameter(bias.clone())
        by_hand(changed.get_submodule(path), changed.get_submodule(layer).ffn)
        expected, before = changed(*arguments), model(*arguments)
        with intervene(model, change, means={f"{path}.z": vector}):
            close(model(*arguments), expected)
        assert not torch.allclose(expected, before, atol=1e-3)
        close(model(*arguments), before, 0.0)


@every_architecture
def test_means_are_those_of_each_real_token(architecture: str) -> None:
    predictor = built(architecture)
    special, examples = predictor.tokenizer.special, predictor.task.examples("test", 12)
    pad, batches = special.pad, [examples.slice(start, start + 5).frame(architecture, special) for start in (0, 5, 10)]
    names = ["*.z", "*.ffn.out", "*.resid_post", "*.k"]
    means = mean_activations(predictor.model, batches, pad, names)
    sums, counts = dict.fromkeys(means, 0.0), dict.fromkeys(means, 0)
    for batch in [part.slice(row, row + 1) for part in batches for row in range(len(part))]:  # no padding, no <eos>
        inputs = {key: ids for key, ids in batch.model_inputs().items() if key.endswith("ids")}
        tokens = {key: ids[:, (ids[0] != pad) & (ids[0] != special.eos)] for key, ids in inputs.items()}
        with trace(predictor.model, names) as t:
            predictor.model(**tokens)
        for name, value in t.items():
            sums[name] = sums[name] + value[0].sum(0)
            counts[name] += value.size(1)
    close(means, {name: total / counts[name] for name, total in sums.items()})


def test_means_count_tokens_with_the_id_of_padding() -> None:
    """T5's answers start with it, and GPT-2's texts have it between documents."""
    model, pad, name = build_tiny("decoder_only", "rope"), 0, "decoder.layers.0.resid_pre"
    ids = torch.tensor([[0, 5, 0, 6], [0, 0, 0, 0]])  # five real tokens
    mean = mean_activations(model, [Batch(None, None, ids, None, ids)], pad, name)[name]
    close(mean, model.embedding(torch.tensor([0, 5, 0, 6, 0])).mean(0))
    with pytest.raises(ConfigError, match="batches must be a list of batches, got a single one"):
        mean_activations(model, Batch(None, None, ids, None, ids), pad, name)


@every_architecture
def test_changed_scores_hide_the_same_keys(architecture: str) -> None:
    """The future, a window and padding: what had no weight has none."""
    model, arguments = build_tiny(architecture, "alibi", window=3), ragged_inputs(architecture)
    with record_attention(model) as maps:
        model(*arguments)
    with intervene(model, {"*.scores": "zero"}), record_attention(model) as changed:
        model(*arguments)
    for path, weights in maps.items():
        visible = (weights > 0).float()
        close(changed[path], visible / visible.sum(dim=-1, keepdim=True).clamp(min=1))


@pytest.mark.parametrize("architecture", DECODERS)
@pytest.mark.parametrize("window", [None, (None, 3)])
def test_positions_of_beams_are_those_of_their_texts(architecture: str, window: Any) -> None:
    """Two prompts, one padded, with tokens dropped; and steps with a cache: as a forward under the intervention."""
    model, ids = build_tiny(architecture, "rope", window=window), draw(2, 3)
    keep, most = torch.ones(2, 3).triu().bool(), {"num_beams": 4, "max_new_tokens": 12}
    source = (draw(1, 4).expand(4, -1),) if architecture == "encoder_decoder" else ()
    with trace(model, "decoder.*") as t:
        model(*(part[:1] for part in source), draw(1, 15))
    changes = {
        "decoder.layers.0.resid_mid": at(t["decoder.layers.0.resid_mid"], positions=[1, 4, 6]),
        "decoder.layers.0.ffn.out": t["decoder.layers.0.ffn.out"],
        "decoder.layers.1.self_attn.k": at(t["decoder.layers.1.self_attn.k"], positions=[2, 5, 7]),
        "decoder.layers.1.self_attn.v": at(lambda v: 2 * v, positions=6),
        **{f"decoder.layers.{layer}.cross_attn.k": at("zero", positions=2) for layer in (0, 1) if source},
        **{name: at(value, positions=4) for name, value in t.items() if name.endswith("1.cross_attn.weights")},
        "decoder.layers.1.self_attn.weights": at(lambda weights: weights / 2, positions=5, heads=3),
    }
    with pytest.MonkeyPatch.context() as patch, intervene(model, changes):
        patch.setattr(nn_cache, "MAX_DEAD_TOKENS", 4)
        found = beam_search(model, ids, *(part[:2] for part in source), keep=keep, eos=-1, pad=0, **most)
        for prompt in range(2):
            texts = torch.cat((ids[prompt].expand(4, -1), found.ids[prompt]), dim=1)
            real = torch.cat((keep[prompt], torch.ones(12, dtype=torch.bool))).expand(4, -1)
            whole, cache = (model.start(*source) for _ in range(2))
            logits = model.step(texts, whole, real)
            steps = [model.step(texts[:, t : t + 1], cache, real[:, t : t + 1]) for t in range(texts.size(1))]
            close(torch.cat(steps, dim=1)[real], logits[real])
            close(model(*source, texts, *[None for _ in source], real)[real], logits[real])
            logs = logits.log_softmax(dim=-1)[:, 2:-1].gather(2, found.ids[prompt][..., None])
            close(found.log_probabilities[prompt], logs.sum(dim=(1, 2)), 1e-4)


def test_one_tensor_for_texts_of_several_lengths_counts_no_padding(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("minitx.generation.decode.COMPACT_FROM_ROWS", 1)
    predictor, prompts = built("decoder_only"), ["3 2 6 4 2", "3 2 3", "1"]
    for value in 3 * torch.randn(8, 1, 40, 16):
        with intervene(predictor.model, {RESID: value}):
            alone = [predictor.generate(prompt) for prompt in prompts]
            assert predictor.generate(prompts) == alone  # the last text, padded, is alone once the others have ended
    assert alone != predictor.generate(prompts)


def test_positions_count_tokens_that_left_a_full_context() -> None:
    """As forwards of the same tokens without a cache; some texts are padded, some end and leave the batch."""
    model, ids, index = build_tiny("decoder_only", "alibi"), draw(9, 4), torch.arange(30) - torch.arange(9)[:, None] % 4
    values = {RESID: 2 * torch.randn(1, 30, 16), "decoder.layers.1.self_attn.k": 2 * torch.randn(1, 30, 4, 4)}
    wanted, options = [2, *range(8, 14), 20, 23], {"max_new_tokens": 24, "pad": 0, "context": 7, "scores": True}
    with intervene(model, {name: at(value[:, :24], positions=wanted) for name, value in values.items()}):
        found, endless = (generate(model, ids, keep=index[:, :4] >= 0, eos=eos, **options) for eos in (7, -1))
    with intervene(model, {name: at(value[0, index], positions=wanted) for name, value in values.items()}):
        close(generate(model, ids, keep=index[:, :4] >= 0, eos=-1, **options), endless)  # padding in the tensors
    for row, first in enumerate((-index[:, 0]).tolist()):
        text, total = ids[row, first:].tolist(), 0.0
        for step, token in enumerate(found.ids[row, : (found.ids[row] != 7).cumprod(dim=0).sum() + 1].tolist()):
            start = max(5 * ((step + 1) // 5) - first, 0)  # of seven tokens, a new cache has the last three
            there = [index - start for index in wanted if start <= index < len(text)]
            parts = {name: at(value[:, start : len(text)], positions=there) for name, value in values.items()}
            with intervene(model, parts):
                total += float(model(torch.tensor([text[start:]])).log_softmax(dim=-1)[0, -1, token])
            text.append(token)
        assert float(found.log_probabilities[row]) == pytest.approx(total, abs=1e-4)
    assert 0 < (found.ids == 7).any(dim=1).sum() < 9


def test_indices_are_whole_numbers_of_any_kind() -> None:
    for index in (3, np.int64(3), one := torch.tensor(3), [one], np.array([3]), one[None], range(3, 4), {3}):
        assert at("zero", positions=index, heads=index)[1:3] == ([3], [3])
    for wrong in (1.0, [1.0], "1", [True, False], np.array([True]), torch.ones(2), torch.tensor([[0, 1], [2, 3]])):
        with pytest.raises(ConfigError, match=r"^at: neurons must be whole numbers, got [^\n]+$"):
            at("zero", neurons=wrong)  # type: ignore[arg-type]


@every_scheme
def test_replaced_queries_keys_and_values_decide_about_the_result(name: str) -> None:
    """Also where they decide about the bias of a scheme."""
    model, path = build_tiny("decoder_only", name), "decoder.layers.0.self_attn"
    with trace(model, f"{path}.*") as other:
        model(draw(2, 6))
    with intervene(model, {f"{path}.{kind}": other[f"{path}.{kind}"] for kind in "qkv"}), trace(model, "*.z") as t:
        model(draw(2, 6))
    close(t[f"{path}.z"], other[f"{path}.z"])


def test_blocks_nest() -> None:
    """An inner block continues with the values of the outer one, whatever it replaces and traces."""
    model, ids = build_tiny("decoder_only", "rope"), draw(2, 5)
    for last in ("q", "k", "v", "scores", "weights", "z", "result", "out"):
        name = f"decoder.layers.0.self_attn.{last}"
        with trace(model, name) as plain:
            before = model(ids)
        added, doubled = {name: lambda value: value + 1}, {name: lambda value: 2 * value}
        with (
            trace(model, name) as outer, intervene(model, added), trace(model, name) as middle,
            intervene(model, doubled), trace(model, name) as inner,
        ):  # fmt: skip
            changed = model(ids)
        assert torch.equal(outer[name], plain[name])
        assert torch.equal(middle[name], plain[name] + 1)
        assert torch.equal(inner[name], 2 * (plain[name] + 1))
        added, doubled = {name: lambda value: value.add_(1)}, {name: lambda value: value.mul_(2)}
        with intervene(model, added), intervene(model, doubled):
            assert torch.equal(model(ids), changed)
        assert torch.equal(model(ids), before)
    path, uniform = "decoder.layers.0.self_attn", torch.ones(5, 5).tril() / torch.arange(1, 6)[:, None]
    scores, weights = {f"{path}.scores": "zero"}, {f"{path}.weights": lambda value: value / 2}
    blocks = [record_attention, trace, *(lambda model, c=c: intervene(model, c) for c in (scores, weights, scores))]
    for order in permutations(blocks):
        with ExitStack() as stack:
            maps, t = map({block: stack.enter_context(block(model)) for block in order}.get, blocks[:2])
            model(ids)
        close(maps[path], (uniform / 2).expand(2, 4, -1, -1))
        close(t[f"{path}.weights"] / t[f"{path}.weights"].sum(-1, keepdim=True), uniform.expand(2, 4, -1, -1))
        close(t[f"{path}.z"], torch.einsum("ts,bshk->bthk", uniform / 2, t[f"{path}.v"]))


RESID, Z = "decoder.layers.0.resid_pre", "decoder.layers.0.self_attn.z"


@pytest.mark.parametrize(("change", "sentence"), [
    ({"decoder.layers.0.attn.z": "zero"}, f"no activation decoder.layers.0.attn.z: did you mean {Z}"),
    ({RESID: "null"}, 'resid_pre: expected a tensor, a function, "zero" or "mean", got \'null\''),
    ({Z: "mean"}, "means= is missing"), ({RESID: at("zero", heads=1)}, r"resid_pre \[B, T, D\] has no heads"),
    ({Z: at("zero", neurons=1)}, r"z \[B, T, H, K\] has no neurons"),
    ({Z: at("zero", heads=4)}, r"z has heads 0 to 3, got \[4\]"),
    ({"*.0.ffn.hidden": at("zero", neurons=-25)}, r"hidden has neurons 0 to 23, got \[-25\]"),
    ({RESID: at("zero", positions=[1, 5])}, r"resid_pre has positions 0 to 4, got \[1, 5\]"),
    ({RESID: torch.zeros(2, 6, 16)}, r"expected \[B, T, D\] = \[2, 5, 16\], got \[2, 6, 16\]"),
    ({Z: lambda z: z[:, :, 0]}, r"z does not fit: expected \[B, T, H, K\] = \[2, 5, 4, 4\], got \[2, 5, 4\]"),
    ({Z: None}, 'z: expected a tensor, a function, "zero" or "mean", got None'),
    ({Z: lambda z: None}, "function for .*z returns NoneType, expected a tensor"),
])  # fmt: skip
def test_what_does_not_fit_is_refused(change: dict[str, Any], sentence: str) -> None:
    model = build_tiny("decoder_only")
    with pytest.raises(ConfigError, match=sentence), intervene(model, change):
        model(draw(2, 5))
    assert untouched(model)
    with pytest.raises(ConfigError, match=f"means has no {Z}: it has none"), intervene(model, {Z: "mean"}, means={}):
        pass
