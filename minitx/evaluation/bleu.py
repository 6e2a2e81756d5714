"""BLEU and chrF of what a model writes by itself, computed by sacreBLEU on whole texts and told with its signature.

BLEU: Papineni et al. 2002; chrF: Popović 2015; why a signature belongs to a score: Post 2018.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from minitx.data.text.parallel_files import Sentences
from minitx.generation.options import GenerationOptions
from minitx.inference.predictor import Predictor

ROWS = 500
"""Texts written at once, beams counted."""


def corpus_scores(
    hypotheses: Sequence[str], references: Sequence[str], metrics: Sequence[str], lowercase: bool = False
) -> dict[str, Any]:
    """Scores from 0 to 100 of texts as a whole, each against one reference.

    Args:
        hypotheses: what was written.
        references: what it is compared with.
        metrics: bleu, chrf.
        lowercase: compare in lower case only, for models that write nothing else.

    Returns:
        bleu, bleu_lowercase (not with lowercase, where bleu itself is that), chrf, and the signatures of each by name.
    """
    from sacrebleu.metrics import BLEU, CHRF

    scorers: dict[str, BLEU | CHRF] = {}
    if "bleu" in metrics:
        scorers["bleu"] = BLEU(lowercase=lowercase)
        if not lowercase:
            scorers["bleu_lowercase"] = BLEU(lowercase=True)
    if "chrf" in metrics:
        scorers["chrf"] = CHRF(lowercase=lowercase)
    figures: dict[str, Any] = {
        name: scorer.corpus_score(hypotheses, [references]).score for name, scorer in scorers.items()
    }
    figures["signatures"] = {name: str(scorer.get_signature()) for name, scorer in scorers.items()}
    return figures


def written(predictor: Predictor, texts: Sequence[str], options: GenerationOptions | None = None) -> list[str]:
    """What the model writes for each text, greedily if nothing else is asked for; texts of like length together.

    No reference is looked at, so none gives a length away: a text ends where the model ends it, or at the task's limit.
    """
    options = options or GenerationOptions()
    size = max(ROWS // options.num_beams, 1)
    order = sorted(range(len(texts)), key=lambda place: len(texts[place]))
    result = [""] * len(texts)
    for start in range(0, len(order), size):
        places = order[start : start + size]
        # Not as a prompt that somebody types: what training has never seen is unknown, and not refused.
        ids = predictor.tokenizer.encode_batch([texts[place] for place in places])
        questions = [predictor.tokenizer.conventions.question(row) for row in ids]
        generations = predictor.generations_of(questions, options)
        for place, (best, *_) in zip(places, generations, strict=True):
            result[place] = best.text
    return result


def text_scores(predictor: Predictor, sentences: Sentences, options: GenerationOptions | None = None) -> dict[str, Any]:
    """Scores of what the model writes for held-out questions, against their answers as they stand in the file.

    Returns:
        exact_match, the share of texts that equal their reference; the figures and signatures of corpus_scores; and
        decoding, how it was written.
    """
    options = options or GenerationOptions()
    task, references = predictor.task, [target for _, target in sentences]
    hypotheses = written(predictor, [source for source, _ in sentences], options)
    expected = [text.lower() for text in references] if task.caseless else references
    same = sum(one == other for one, other in zip(hypotheses, expected, strict=True))
    scores = corpus_scores(hypotheses, references, task.metrics, task.caseless)
    return {"exact_match": same / max(len(references), 1), **scores, "decoding": described(options)}


def described(options: GenerationOptions) -> str:
    """How texts are written, in words."""
    if options.num_beams == 1:
        return "greedy"
    penalty = 1.0 if options.length_penalty is None else options.length_penalty
    return f"{options.num_beams} beams, length penalty {penalty:g}"


def statistics(hypotheses: Sequence[str], references: Sequence[str], lowercase: bool = False) -> list[int]:
    """What BLEU is computed from, to be added up over parts of a set: matches and n-grams of each order, lengths."""
    from sacrebleu.metrics.bleu import BLEU, MAX_NGRAM_ORDER

    if not hypotheses:  # a process may have no share of a small set
        return [0] * (2 * MAX_NGRAM_ORDER + 2)
    score = BLEU(lowercase=lowercase).corpus_score(hypotheses, [references])
    return [*score.counts, *score.totals, score.sys_len, score.ref_len]


def bleu(statistics: Sequence[int]) -> float:
    """BLEU from 0 to 100 of added-up statistics."""
    from sacrebleu.metrics import BLEU

    orders = (len(statistics) - 2) // 2
    counts, totals = list(statistics[:orders]), list(statistics[orders : 2 * orders])
    return BLEU.compute_bleu(counts, totals, statistics[-2], statistics[-1], smooth_method="exp").score
