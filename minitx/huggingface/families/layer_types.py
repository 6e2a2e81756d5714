"""Windows by layer in Hugging Face's settings: a list with the kind of each layer."""

from collections.abc import Sequence

from minitx.config.errors import ConfigError
from minitx.config.schema import ModelConfig

SLIDING, FULL = "sliding_attention", "full_attention"
KINDS = (FULL, SLIDING)
MAX_LAYERS = 2**12


def check_depth(layers: object) -> int:
    """Refuse a number of layers that is not 1 to MAX_LAYERS, before a list of so many is built; returns it."""
    if not isinstance(layers, int) or not 1 <= layers <= MAX_LAYERS:
        raise ConfigError(f"the number of layers must lie between 1 and {MAX_LAYERS:,}, got {layers}")
    return layers


def pattern(
    kinds: Sequence[str], layers: int, window: int | None, names: Sequence[str] = KINDS
) -> int | tuple[int | None, ...] | None:
    """model.window of layers of these kinds, the shortest list that repeats; names: full, windowed."""
    if len(kinds) != layers:
        raise ConfigError(f"layer_types must have the kind of each of {layers} layers, got {len(kinds)}")
    if unknown := [kind for kind in kinds if kind not in names]:
        raise ConfigError(f"layers of type {unknown[0]} are not supported; minitx imports {', '.join(names)}")
    windows = [window if kind == names[1] else None for kind in kinds]
    period = next(n for n in range(1, len(windows) + 1) if all(w == windows[i % n] for i, w in enumerate(windows)))
    return windows[0] if period == 1 else tuple(windows[:period])


def layer_types(config: ModelConfig, names: Sequence[str] = KINDS) -> list[str]:
    """The kind of each layer."""
    windows = [config.windows[layer % len(config.windows)] for layer in range(config.n_layers)]
    return [names[window is not None] for window in windows]


def window_size(config: ModelConfig) -> int | None:
    """The window of the layers that have one."""
    return next((window for window in config.windows if window is not None), None)
