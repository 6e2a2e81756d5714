"""The heads, feed-forward networks and neurons of a model, by names such as cross.2.1 and decoder.1.ffn.37."""

import itertools
import re
from collections import defaultdict
from collections.abc import Iterable
from typing import NamedTuple

from minitx.config.errors import ConfigError
from minitx.interpret.intervene import At, Replacement, at
from minitx.interpret.recording import KINDS
from minitx.interpret.sites import sites
from minitx.models.transformers import Transformer


class Part(NamedTuple):
    """A head such as cross.2.1, a feed-forward network such as decoder.1.ffn, or one of its neurons: decoder.1.ffn.37.

    Layers, heads and neurons are counted from 1.
    """

    kind: str  # encoder, decoder or cross
    layer: int
    number: int  # of the head or the neuron; 0 for a whole network
    ffn: bool = False

    def __str__(self) -> str:
        words = [self.kind, self.layer, *(["ffn"] if self.ffn else []), *([self.number] if self.number else [])]
        return ".".join(map(str, words))

    @property
    def site(self) -> str:
        """The name of the activation that the part is in."""
        stack, attention = ("decoder", "cross_attn") if self.kind == "cross" else (self.kind, "self_attn")
        name = ("ffn.hidden" if self.number else "ffn.out") if self.ffn else f"{attention}.z"
        return f"{stack}.layers.{self.layer - 1}.{name}"


def all_parts(model: Transformer) -> dict[str, list[Part]]:
    """The "heads" and the feed-forward networks, "ffn", of a model, stack by stack and layer by layer."""
    known, parts = sites(model), dict[str, list[Part]](heads=[], ffn=[])
    for kind in KINDS:
        for layer in itertools.count(1):
            if (first := known.get(Part(kind, layer, 1).site)) is None:
                break
            parts["heads"] += [Part(kind, layer, head) for head in range(1, first.size + 1)]
            ffn = Part(kind, layer, 0, ffn=True)
            parts["ffn"] += [ffn] if kind != "cross" and ffn.site in known else []
    return parts


def in_place_of(parts: Iterable[Part], value: Replacement) -> dict[str, At]:
    """Changes, for intervene, that put a value in place of the outputs of some parts."""
    groups: dict[tuple[str, bool], list[int]] = defaultdict(list)
    for part in parts:
        groups[part.site, part.ffn].append(part.number - 1)
    return {
        site: at(value) if site.endswith(".out") else at(value, **{"neurons" if ffn else "heads": numbers})
        for (site, ffn), numbers in groups.items()
    }


def named_parts(model: Transformer, names: str | Iterable[str | Part], key: str) -> list[Part]:
    """The parts of a model by names, each once: heads, ffn, or such as cross.2.1,decoder.1.ffn,decoder.1.ffn.37.

    Raises:
        ConfigError: not KIND.LAYER.HEAD, KIND.LAYER.ffn or KIND.LAYER.ffn.NEURON; a part that the model does not have.
    """
    existing, named = all_parts(model), dict[Part, None]()
    for name in map(str, names.split(",") if isinstance(names, str) else names):
        word = name.strip()
        named |= dict.fromkeys(existing[word] if word in existing else [_part(model, word, existing, key)])
    if not named:
        raise ConfigError(f"{key} {names}: this model has no feed-forward networks: expected heads")
    return [*named]


def _part(model: Transformer, name: str, existing: dict[str, list[Part]], key: str) -> Part:
    if not (found := re.fullmatch(r"([a-z]+)\.(\d+)\.(?:(\d+)|(ffn)(?:\.([1-9]\d*))?)", name)):
        forms = "KIND.LAYER.HEAD, KIND.LAYER.ffn or KIND.LAYER.ffn.NEURON"
        examples = "decoder.1.2, decoder.1.ffn or decoder.1.ffn.37"
        raise ConfigError(f"{key} must be {forms}, such as {examples}, got {name or 'an empty name'}")
    kind, layer, head, ffn, neuron = found.groups()
    part = Part(kind, int(layer), int(head or neuron or 0), bool(ffn))
    known = sites(model)
    whole = part._replace(number=0) if part.ffn else part
    if whole in existing["ffn" if part.ffn else "heads"] and (not part.number or part.number <= known[part.site].size):
        return part
    last = {head.kind: head for head in existing["heads"]}.values()
    heads = ", ".join(f"{head.kind}.1.1 to {head}" for head in last)
    networks = ", ".join(f"{ffn}.1 to {ffn}.{known[ffn._replace(number=1).site].size}" for ffn in existing["ffn"])
    has = (networks or "no feed-forward networks") if part.ffn else heads
    raise ConfigError(f"{key}: there is no {part} in this model, which has {has}")
