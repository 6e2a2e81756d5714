"""The signals of position schemes, from their hooks."""

import pytest
import torch

from minitx.interpret.position_signals import PositionSignal, position_signals
from minitx.nn import POSITIONS
from small_models import build_tiny

LENGTH = 9


def signals(name: str, architecture: str = "encoder_decoder", **changes: object) -> dict[str, PositionSignal]:
    return position_signals(build_tiny(architecture, name, **changes), LENGTH)


@pytest.mark.parametrize("name", POSITIONS)
def test_every_scheme_is_shown_in_every_stack(name: str) -> None:
    found = signals(name)
    assert [*found] == ["encoder", "decoder"]
    for signal in found.values():
        assert any(part is not None for part in signal) == (name != "none")
        assert signal.table is None or signal.table.shape == (LENGTH, 16)
        assert signal.bias is None or signal.bias.shape == (4, LENGTH, LENGTH)
        assert (signal.angles is None) == (signal.similarity is None), "of rotations"
    assert signals(name, architecture="decoder_only", n_kv_heads=2).keys() == {"decoder"}


@pytest.mark.parametrize("name", ["rope", "pope"])
def test_the_similarity_of_rotated_vectors_is_the_mean_cosine_of_their_angles(name: str) -> None:
    """Also where a scheme scales them."""
    signal = signals(name)["decoder"]
    assert position_signals(build_tiny("decoder_only", name), 1)["decoder"].angles.equal(signal.angles[:1])
    assert signal.angles[3, 0].item() == pytest.approx(3.0)
    assert signal.similarity.tolist() == pytest.approx(signal.angles.cos().mean(dim=1).tolist(), abs=1e-5)
    assert signal.similarity[0].item() == pytest.approx(1.0)


def test_biases_by_head_what_is_not_seen_and_a_window_with_a_scheme_of_its_own() -> None:
    found = signals("alibi")
    both, past = found["encoder"].bias, found["decoder"].bias
    distance = (torch.arange(LENGTH)[:, None] - torch.arange(LENGTH)).abs()
    for head in range(4):
        torch.testing.assert_close(both[head], -(2.0 ** (-2 * (head + 1))) * distance)
        assert torch.equal(past[head].tril(), both[head].tril())
    assert (past == float("-inf")).equal(torch.ones(LENGTH, LENGTH, dtype=torch.bool).triu(1).expand(4, -1, -1))
    assert all(part.angles is not None for part in signals("rope", window=(3, None), window_position="alibi").values())
