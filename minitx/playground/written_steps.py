"""A text token by token, with the distribution of every step; some tokens may be forced.

The text is that of `minitx generate`: the same prompt, sampler and random numbers. A forced token is read like a
generated one and consumes a random number too, so the tokens after it have the same random numbers as without it.

Legend: P prompt tokens, T generated tokens, V vocabulary.
"""

import math
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from minitx.config.errors import ConfigError
from minitx.data.batch import IGNORE
from minitx.data.prompts import padded
from minitx.generation import decode
from minitx.generation.options import GenerationOptions
from minitx.inference.predictor import Predictor
from minitx.inference.text_generation import IMPOSSIBLE, check_positions, random_generators
from minitx.models.transformers import max_positions

CANDIDATES = 256
"""Number of likeliest tokens of a step that have their own logits."""
BINS = 256
"""Number of bins of all other tokens, so that the page can compute the distribution at another temperature."""
MAX_NEW_TOKENS = 2000


def written(
    predictor: Predictor, prompt: list[int], options: GenerationOptions, forced: Mapping[int, int]
) -> Iterator[dict[str, Any]]:
    """Yield what is read first (`source` and `target`, ids), each step, and last the text with its log-probability.

    A step has the `id` of its token, its distribution (see `distribution`), and `start`: the index, in `target` and the
    generated tokens, of the first one in the model's cache.

    Args:
        predictor: of a model with a decoder.
        options: of generation; beam search is that of beam_tree.py.
        forced: ids by step, from 0.
    """
    if options.num_beams > 1 or options.num_return_sequences > 1:
        raise ConfigError("this request is for one text: leave num_beams and num_return_sequences at 1")
    generator = predictor.text_generator()
    limit = generator.limit(prompt, options)
    if limit > MAX_NEW_TOKENS:
        raise ConfigError(f"max_new_tokens must be at most {MAX_NEW_TOKENS} here, got {limit}")
    if beyond := [step for step in forced if not 0 <= step < limit]:
        raise ConfigError(f"a forced step must be from 0 to max_new_tokens - 1 = {limit - 1}, got {beyond[0]}")
    tensors, arguments = generator.arguments([prompt], random_generators([prompt], options), limit, options)
    recorded: list[tuple[Tensor, Tensor]] = []  # logits [V], and after processors, before temperature and filters
    process = arguments["logits_processor"]

    def observed(logits: Tensor, *state: Any) -> Tensor:
        processed = logits if process is None else process(logits, *state)
        recorded.append((logits[0].float(), processed[0].float()))
        return processed

    given = with_forced(arguments.get("given"), forced, predictor)
    changed = {"logits_processor": observed, "given": given, "scores": True}
    steps = decode.steps(generator.model, *tensors, **{**arguments, **changed})
    read = tensors[0][0].tolist()
    yield {"source": tensors[1][0].tolist() if len(tensors) > 1 else [], "target": read}
    ids: list[int] = []
    total, start = 0.0, 0
    for step in steps:
        length = len(read) + len(ids)  # tokens that have been read
        if ids and generator.context is not None and length - 1 - start >= generator.context:
            start = length - max(generator.context // 2, 1)  # a full cache is replaced, see decode.steps
        (logits, processed), token = recorded.pop(), int(step.ids[0])
        assert step.log_probability is not None  # scores were requested; 0 for tokens that are fed
        log = float(logits.log_softmax(dim=-1)[token] if len(ids) in forced else step.log_probability[0])
        if math.isnan(log) and len(ids) not in forced:
            raise ConfigError(IMPOSSIBLE)
        total += log
        ids.append(token)
        yield {"id": token, "start": start, **distribution(processed, token)}
        if len(ids) - 1 in forced and token in arguments["eos"]:  # decode.steps does not end at a token that is fed
            break
    found = generator.generation(prompt, ids, total, arguments["eos"])
    yield {"text": found.text, "stopped": found.stopped, "log_probability": finite(total)}


def with_forced(given: Tensor | None, forced: Mapping[int, int], predictor: Predictor) -> Tensor | None:
    """The tokens that are fed, [1, T]: those that the task gives, and the forced ones."""
    size = predictor.model.head.out_features
    if wrong := [token for token in forced.values() if not 0 <= token < size]:
        raise ConfigError(f"a forced token must be an id from 0 to {size - 1}, got {wrong[0]}")
    row = [] if given is None else given[0].tolist()
    row += [IGNORE] * (max(forced, default=-1) + 1 - len(row))
    for step, token in forced.items():
        row[step] = token
    return torch.tensor([row], device=predictor.device) if row else None


def filled(predictor: Predictor, prompt: list[int], forced: Mapping[int, int]) -> Iterator[dict[str, Any]]:
    """The same for an encoder alone, whose steps are the places that it predicts, all at once.

    A forced token of a masked text is an input of the other places; the distribution at its place is that of its mask.
    """
    check_positions(len(prompt), max_positions(predictor.model), predictor.config.model)
    special, masked = predictor.tokenizer.special, predictor.task.kind == "masked"
    places = [index for index, token in enumerate(prompt) if not masked or token == special.mask]
    forced = {places[step]: token for step, token in forced.items() if 0 <= step < len(places)}
    with_forced(None, forced, predictor)
    rows = [{**forced}] + [{place: token for place, token in forced.items() if place != each} for each in forced]
    inputs = [[row.get(index, token) if masked else token for index, token in enumerate(prompt)] for row in rows]
    ids, keep = padded(inputs, special.pad, predictor.device)
    with torch.inference_mode():
        logits = predictor.model(ids, keep).float()  # [1 + forced, P, V]
        logs = logits.log_softmax(dim=-1)
        if masked:
            logits = logits.index_fill(-1, torch.tensor([*{*special} - {-1}], device=logits.device), -torch.inf)
    yield {"source": inputs[0], "target": [], "places": places}
    own = {place: row for row, place in enumerate(forced, start=1)}
    total, whole = 0.0, [*prompt]
    for place in places:
        row = own.get(place, 0)
        found = logits[row, place]
        token = whole[place] = forced.get(place, int(found.argmax()))
        total += float(logs[row, place, token])
        yield {"id": token, "start": 0, **distribution(found, token)}
    yield {"text": predictor.tokenizer.decode(whole), "stopped": "length", "log_probability": finite(total)}


def distribution(logits: Tensor, token: int) -> dict[str, Any]:
    """Logits [V] as the `ids` of the likeliest tokens, their `logits`, and the `rest`: [logit, number of tokens].

    The generated token is the last of them if it is less likely. A bin's logit is the logarithm of the mean of its
    exponentials, so the sum of all exponentials is exact.
    """
    order = logits.argsort(descending=True)
    order = order[logits[order] > -torch.inf]
    if token in order[CANDIDATES:]:
        others = order[order != token]
        order = torch.cat((others[: CANDIDATES - 1], order.new_tensor([token]), others[CANDIDATES - 1 :]))
    values, rest = logits[order[:CANDIDATES]], logits[order[CANDIDATES:]]
    bins = []
    if len(rest):
        scale = BINS / max(float(rest[0] - rest[-1]), 1e-6)
        index = ((rest[0] - rest) * scale).long().clamp(max=BINS - 1)
        sums = torch.zeros(BINS, device=rest.device).index_add(0, index, (rest - rest[0]).exp())
        counts = torch.bincount(index, minlength=BINS)
        means = (sums / counts.clamp(min=1)).log() + rest[0]
        bins = [[round(mean, 4), count] for mean, count in zip(means.tolist(), counts.tolist(), strict=True) if count]
    return {"ids": order[:CANDIDATES].tolist(), "logits": [round(value, 4) for value in values.tolist()], "rest": bins}


def finite(number: float) -> float | None:
    """A number for JSON; None if it is not finite."""
    return number if math.isfinite(number) else None
