"""Every position scheme with every numbering: what holds for any of either kind."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from minitx.models.transformers import ARCHITECTURES
from minitx.nn import POSITION_IDS, POSITIONS, ConsecutiveIds, Stack

VOCAB = 11
every_architecture = pytest.mark.parametrize("architecture", ARCHITECTURES)
every_policy = pytest.mark.parametrize("numbering", POSITION_IDS)
every_scheme = pytest.mark.parametrize("name", [*POSITIONS, "all_hooks"])


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


def close(one: Tensor, other: Tensor) -> None:
    torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)


def draw(*shape: int) -> Tensor:
    return torch.randint(0, VOCAB, shape)


def run(model, source: Tensor, target: Tensor, source_keep: Tensor | None = None, keep: Tensor | None = None):
    """Logits; the source is for those that read one."""
    return model(source, target, source_keep, keep) if hasattr(model, "encode") else model(target, keep)


@every_architecture
@every_policy
@every_scheme
@pytest.mark.parametrize("left", [False, True], ids=["right", "left"])
def test_a_ragged_batch_equals_one_by_one(left: bool, name: str, numbering: str, architecture: str, tiny) -> None:
    model = tiny(architecture, name, numbering)
    lengths, source_lengths, width = (2, 5, 7), (6, 1, 4), 9
    kept = []
    for sizes in (lengths, source_lengths):
        real = torch.arange(width)[None] < torch.tensor(sizes)[:, None]
        kept.append(real.flip(1) if left else real)
    (keep, source_keep), ids, source = kept, draw(3, width), draw(3, width)
    whole = run(model, source, ids, source_keep, keep)
    assert whole.isfinite().all()
    for row in range(3):
        alone = run(model, source[row, source_keep[row]][None], ids[row, keep[row]][None])
        close(whole[row, keep[row]], alone[0])


@pytest.mark.parametrize("architecture", ["decoder_only", "encoder_decoder"])
@every_policy
@every_scheme
@pytest.mark.parametrize("training", [False, True], ids=["", "training"])
def test_no_logit_feels_the_future(training: bool, name: str, numbering: str, architecture: str, tiny) -> None:
    """By gradient, and by the tokens themselves, which a way to number may look at."""
    model, source, ids = tiny(architecture, name, numbering).train(training), draw(2, 4), draw(2, 6)
    seen: list[Tensor] = []
    handle = model.embedding.register_forward_hook(lambda _module, _ids, out: seen.append(out))
    torch.manual_seed(1)
    logits = run(model, source, ids)
    handle.remove()
    for t in range(6):
        (into,) = torch.autograd.grad(logits[:, t].square().sum(), [seen[-1]], retain_graph=True)
        assert (into[:, t + 1 :] == 0).all()
        assert (into[:, t].abs().sum(-1) > 0).all()
        other = torch.cat((ids[:, : t + 1], (ids[:, t + 1 :] + 1 + draw(2, 5 - t) % 9) % VOCAB), dim=1)
        torch.manual_seed(1)
        close(run(model, source, other)[:, : t + 1], logits[:, : t + 1])


class Shifted(ConsecutiveIds):
    """The same ids, all of them larger."""

    def __init__(self, inner: ConsecutiveIds, by: int) -> None:
        super().__init__(inner.causal)
        self.inner, self.by = inner, by

    def forward(self, *args, **kwargs) -> Tensor:
        return self.inner(*args, **kwargs) + self.by


@every_architecture
@every_policy
@every_scheme
def test_absolute_says_whether_a_shift_of_all_ids_matters(
    name: str, numbering: str, architecture: str, tiny, all_hooks
) -> None:
    model, source, ids = tiny(architecture, name, numbering), draw(2, 5), draw(2, 7)
    before = run(model, source, ids)
    for stack in (part for part in model.modules() if isinstance(part, Stack)):
        stack.position_ids = Shifted(stack.position_ids, 13)
    absolute = {**POSITIONS, "all_hooks": all_hooks}[name].absolute
    assert torch.allclose(run(model, source, ids), before, atol=1e-4) == (not absolute)


@every_architecture
@pytest.mark.parametrize("name", ["learned", "rope", "alibi"])
@pytest.mark.parametrize("numbering", [name for name in POSITION_IDS if name != "consecutive"])
def test_another_numbering_is_another_model(numbering: str, name: str, architecture: str, tiny) -> None:
    """In training for all; offset counts as usual after it, which is the point of it."""
    source, ids = torch.full((2, 4), 3), torch.tensor([[1, 2, 3, 4, 5, 6, 7], [3, 3, 1, 2, 8, 9, 1]])
    usual, other = tiny(architecture, name), tiny(architecture, name, numbering)
    same = torch.allclose(run(usual, source, ids), run(other, source, ids), atol=1e-4)
    assert same == (numbering == "offset")
    if POSITIONS[name].absolute or numbering != "offset":
        other.train()
        assert not torch.allclose(run(usual, source, ids), run(other, source, ids), atol=1e-4)


@every_architecture
@every_scheme
def test_a_model_without_memory_has_shapes(name: str, architecture: str, tiny) -> None:
    """On torch's meta device, where minitx describe counts FLOPs."""
    model, ids = tiny(architecture, name).to("meta"), torch.empty(2, 5, dtype=torch.long, device="meta")
    keep = torch.ones(2, 5, dtype=torch.bool, device="meta")
    assert run(model, ids, ids, keep, keep).shape == (2, 5, VOCAB)


@every_architecture
def test_each_stack_is_told_its_direction(architecture: str, tiny) -> None:
    model = tiny(architecture, "none", "randomized")
    told = {name: stack.position_ids.causal for name, stack in model.named_modules() if isinstance(stack, Stack)}
    expected = {"encoder": False, "decoder": True}
    assert told == {name: causal for name, causal in expected.items() if hasattr(model, name)}
