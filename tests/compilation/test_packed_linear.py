"""Linear maps with packed weights are those of the model, and are used where they are faster."""

from typing import Any
from unittest.mock import Mock

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils.parametrizations import weight_norm
from torch.nn.utils.parametrize import cached

from minitx.compilation import packed_linear
from minitx.compilation.packed_linear import PackedLinear, PackedLinears
from minitx.compilation.replay import REPLAYED
from minitx.hardware import races
from small_models import build_tiny, draw
from tests.compilation.test_replay import check_equal, programs

IS_FASTER = packed_linear.is_faster
pytestmark = pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="torch has no oneDNN here")


@pytest.fixture(autouse=True)
def _all_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packed_linear, "MIN_WEIGHT", 0)


@pytest.mark.parametrize("rows", [1, 3, 100])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_same_product(rows: int, bias: bool, dtype: torch.dtype) -> None:
    if not packed_linear.has_onednn(dtype):
        pytest.skip(f"oneDNN has no {dtype} here")
    given: Any = {"device": "cpu", "dtype": dtype}
    weight, x = torch.randn(24, 40, **given).T, torch.randn(rows, 1, 48, **given)[..., ::2]
    own = torch.randn(40, **given) if bias else None
    expected = F.linear(x.double(), weight.double(), None if own is None else own.double()).to(dtype)
    rounding = 16 * torch.finfo(dtype).eps
    torch.testing.assert_close(PackedLinear(weight)(x, own), expected, rtol=rounding, atol=rounding)


@pytest.mark.parametrize(("packed", "copy", "faster"), [(0.9, 0.6, True), (0.9, 6.4, False), (0.96, 0.0, False)])
def test_a_map_is_packed_where_that_is_faster_with_a_share_of_its_copy(
    packed: float, copy: float, faster: bool, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Measured once for each size and power of two of rows, and read by the next process."""
    monkeypatch.setenv("MINITX_CACHE", str(tmp_path))
    monkeypatch.setattr(packed_linear, "is_faster", IS_FASTER)
    seconds = {"torch": 1.0, "oneDNN": packed, "copy": copy}
    race = Mock(side_effect=lambda racers, limit: [run() for run in racers.values()] and dict(seconds))
    monkeypatch.setattr(races, "race", race)
    weights = [nn.Parameter(torch.randn(8, 4, device="cpu")) for _ in range(2)]
    for agreeing in (3, 1):
        monkeypatch.setattr(races, "AGREEING_MEASUREMENTS", agreeing)
        maps = PackedLinears()
        for rows in (3, 4, 5, 8):
            found = [maps.find(torch.randn(rows, 4, device="cpu"), weight) for weight in weights]
            assert [own is not None for own in found] == [faster, faster]
        assert len(maps.by_weight) == 2 * faster
    assert race.call_count == len([*(tmp_path / "races").iterdir()]) == 2


def test_which_weights_of_a_model_are_packed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Joined ones as one, once for all numbers of rows; none that is small, beyond the limit or in another dtype."""
    monkeypatch.setattr(packed_linear, "is_faster", lambda *given: True)

    def packed(model: Any, *rows: int) -> list[Any]:
        for count in rows:
            with torch.inference_mode():
                model.step(draw(count, 2), cache := model.start())
                for _ in range(4):
                    model.step(draw(count, 1), cache)
        return [own.weight.shape for own in REPLAYED[cache]._known.packed.by_weight.values()]

    with torch.device("cpu"):
        model = build_tiny("decoder_only", "rope")
        joined = model.decoder.layers[0].self_attn.q_proj.weight.repeat(3, 1)
        shapes = packed(model, 2, 3)
        assert shapes.count(joined.shape) == len(model.decoder.layers)
        assert len(shapes) == 4 * len(model.decoder.layers) + 1
        assert not packed(model.double(), 2)
        monkeypatch.setattr(packed_linear, "MIN_WEIGHT", joined.numel())
        assert {*packed(build_tiny("decoder_only", "rope"), 2)} == {joined.shape}
        monkeypatch.setattr(packed_linear, "MAX_COPIED", joined.numel())
        assert packed(build_tiny("decoder_only", "rope"), 2) == [joined.shape]


def test_a_weight_that_each_step_computes_is_not_packed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packed_linear, "is_faster", lambda *given: True)
    with torch.device("cpu"):
        model = build_tiny("decoder_only", "rope").apply(lambda part: isinstance(part, nn.Linear) and weight_norm(part))
        with cached():  # for several steps, but no constant of others
            check_equal(model.eval())
        model.head.parametrizations.weight.original0.data.mul_(2)
        check_equal(model)
        check_equal(model, padded=True)
    assert [*map(bool, programs(model))] == [False, True]
