"""Documents packed into one row are read as if each stood alone."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from minitx.nn import POSITION_IDS, POSITIONS

VOCAB = 11
DOCUMENTS = torch.tensor([[0, 0, 0, 1, 1, 2, 2, 2, 2], [4, 3, 3, 3, 3, 3, 0, 0, 5]])
every_architecture = pytest.mark.parametrize("architecture", ["decoder_only", "encoder_only"])
every_scheme = pytest.mark.parametrize("name", [*POSITIONS, "all_hooks"])


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


def close(one: Tensor, other: Tensor) -> None:
    torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)


def draw(*shape: int) -> Tensor:
    return torch.randint(0, VOCAB, shape)


def spans(documents: Tensor) -> list[tuple[int, slice]]:
    """(row, columns) of each document."""
    found = []
    for row, numbers in enumerate(documents.tolist()):
        starts = [i for i, number in enumerate(numbers) if not i or numbers[i - 1] != number]
        found += [(row, slice(a, b)) for a, b in zip(starts, [*starts[1:], len(numbers)], strict=True)]
    return found


@every_architecture
@every_scheme
@pytest.mark.parametrize("options", [{}, {"window": 3}, {"n_kv_heads": 1, "softcap": 2.0}], ids=str)
def test_each_document_as_if_alone(options: dict, name: str, architecture: str, tiny) -> None:
    model, ids = tiny(architecture, name, **options), draw(2, 9)
    packed = model(ids, documents=DOCUMENTS)
    for row, columns in spans(DOCUMENTS):
        close(packed[row, columns], model(ids[row : row + 1, columns])[0])


@pytest.mark.parametrize("numbering", [name for name in POSITION_IDS if name != "randomized"])
@every_architecture
@every_scheme
def test_each_document_as_if_alone_however_numbered(name: str, architecture: str, numbering: str, tiny) -> None:
    model, ids = tiny(architecture, name, numbering), draw(2, 9)
    packed = model(ids, documents=DOCUMENTS)
    for row, columns in spans(DOCUMENTS):
        close(packed[row, columns], model(ids[row : row + 1, columns])[0])


@every_architecture
def test_no_gradient_crosses(architecture: str, tiny) -> None:
    model, ids, seen = tiny(architecture, "learned"), draw(2, 9), []
    handle = model.embedding.register_forward_hook(lambda _module, _ids, out: seen.append(out))
    logits = model(ids, documents=DOCUMENTS)
    handle.remove()
    for row, columns in spans(DOCUMENTS):
        (into,) = torch.autograd.grad(logits[row, columns].square().sum(), seen, retain_graph=True)
        felt = into.abs().sum(-1) > 0
        inside = torch.zeros(2, 9, dtype=torch.bool)
        inside[row, columns] = True
        assert torch.equal(felt, inside)


@every_architecture
@every_scheme
def test_padding_between_and_after_documents(name: str, architecture: str, tiny) -> None:
    """Whatever number padding bears."""
    model, ids = tiny(architecture, name), draw(3, 9)
    keep = torch.tensor([1, 1, 0, 1, 1, 1, 0, 1, 0]).bool().expand(3, -1)
    documents = torch.tensor([[0, 0, 0, 1, 1, 1, 1, 2, 2], [0, 0, 1, 1, 1, 1, 2, 2, 2], [0, 0, 9, 1, 1, 1, 9, 2, 9]])
    packed = model(ids, keep, documents=documents)
    assert packed.isfinite().all()
    for row in range(3):
        for columns in (slice(0, 2), slice(3, 6), slice(7, 8)):
            close(packed[row, columns], model(ids[row : row + 1, columns])[0])


def test_a_prefix_and_documents_go_together(tiny) -> None:
    """The question of the first document is read both ways; the second is causal and does not see it."""
    model, ids = tiny("decoder_only", "rope", prefix_lm=True), draw(1, 8)
    documents = torch.tensor([[0] * 5 + [1] * 3])
    packed = model(ids, prefix=torch.tensor([3]), documents=documents)
    close(packed[:, :5], model(ids[:, :5], prefix=torch.tensor([3])))
    close(packed[:, 5:], model(ids[:, 5:]))


def test_the_same_number_again_is_the_same_document_to_the_mask(tiny) -> None:
    """Numbers are names: two pieces of one name see each other, though counting begins anew."""
    model, ids = tiny("encoder_only", "none"), draw(2, 9)
    packed = model(ids, documents=torch.tensor([[0] * 9, [4, 3, 3, 3, 3, 3, 0, 0, 4]]))
    ends = torch.cat((ids[1, :1], ids[1, 8:]))[None]
    close(packed[1, [0, 8]], model(ends)[0])


def test_documents_and_a_cache_are_refused(tiny) -> None:
    model = tiny("decoder_only", "rope")
    with pytest.raises(ValueError, match="cache"):
        model(draw(1, 3), cache=model.start(), documents=torch.zeros(1, 3, dtype=torch.long))
