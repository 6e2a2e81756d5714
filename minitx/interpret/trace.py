"""Record activations of a running model by their names; see sites.py for the names and shapes."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial

from torch import Tensor, nn

from minitx.config.errors import ConfigError, did_you_mean
from minitx.interpret.sites import Site, changed, sites


class Trace(dict[str, Tensor]):
    """Activations by name; `names` are those that are recorded."""

    def __init__(self, names: Iterable[str]) -> None:
        super().__init__()
        self.names = [*names]

    def __missing__(self, name: str) -> Tensor:
        """Raise a ConfigError: the name is wrong, or no forward has computed it."""
        if name in self.names:
            raise ConfigError(f"the trace has no {name} yet: the model has not computed it within the block")
        raise ConfigError(f"the trace has no {name}: {did_you_mean(name, self.names)}")

    def record(self, name: str, site: Site, value: Tensor) -> Tensor:
        """Keep a value, and return it unchanged."""
        self[name] = value.clone() if site.kind in ("k", "v") else value  # a cache changes its buffers in place
        return value


@contextmanager
def trace(model: nn.Module, only: str | Iterable[str] = "*") -> Iterator[Trace]:
    """Within this block, record activations by name.

        with trace(model, only=["*.resid_post", "decoder.layers.1.cross_attn.z"]) as t:
            logits = model(source, target)
        t["decoder.layers.1.cross_attn.z"]  # [B, T, H, K]

    Activations that are not requested are neither computed nor kept; outputs are unchanged. Works on every device, in
    generation and under autocast; within `intervene` a trace has the changed values. A tensor of the residual stream
    is part of the graph of its forward, so torch.autograd.grad can differentiate with respect to it.

    Args:
        only: names, with wildcards; every activation by default.

    Yields:
        A mapping that each forward fills. A later call overwrites the values of an earlier one: in a generation, those
        of the step before.

    Raises:
        ConfigError: a name that the model does not have; on access, a name that was not recorded.
    """
    wanted = sites(model, only)
    recorded = Trace(wanted)
    with changed(model, ((site, partial(recorded.record, name, site)) for name, site in wanted.items())):
        yield recorded
