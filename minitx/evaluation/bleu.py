"""BLEU and chrF of free-running outputs, computed by sacreBLEU on whole texts and reported with its signature.

BLEU: Papineni et al. 2002; chrF: Popović 2015; signatures: Post 2018.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from minitx.data.tasks import Task
from minitx.data.text.parallel_files import TextPairs
from minitx.data.text.tokenizer_training import lower
from minitx.generation.options import BEAM_OPTIONS, GenerationOptions
from minitx.inference.predictor import Predictor


def corpus_scores(
    hypotheses: Sequence[str], references: Sequence[str], metrics: Sequence[str], lowercase: bool = False
) -> dict[str, Any]:
    """Scores from 0 to 100 of a corpus by name, each text against one reference, and `signatures`, one for each score.

    Args:
        metrics: any of bleu and chrf; with bleu also bleu_lowercase.
        lowercase: compare in lower case, for models whose output is lowercase; there is no bleu_lowercase then.
    """
    from sacrebleu.metrics import BLEU, CHRF

    scorers: dict[str, BLEU | CHRF] = {"bleu": BLEU(lowercase=lowercase)} if "bleu" in metrics else {}
    if scorers and not lowercase:
        scorers["bleu_lowercase"] = BLEU(lowercase=True)
    if "chrf" in metrics:
        scorers["chrf"] = CHRF(lowercase=lowercase)
    scores = {name: scorer.corpus_score(hypotheses, [references]).score for name, scorer in scorers.items()}
    return {**scores, "signatures": {name: str(scorer.get_signature()) for name, scorer in scorers.items()}}


def translated(predictor: Predictor, texts: Sequence[str], options: GenerationOptions | None = None) -> list[str]:
    """Generate the output for each text, greedily by default.

    An output ends at the model's <eos>, or by default once it is longer than the task's longest answer and its source.
    """
    ids = predictor.tokenizer.encode_batch(texts)  # unlike a prompt, a corpus may have unknown characters: <unk>
    questions = [predictor.tokenizer.special_tokens.question(row) for row in ids]
    return [best.text for best, *_ in predictor.generations(questions, options or GenerationOptions())]


def text_scores(predictor: Predictor, sentences: TextPairs, options: GenerationOptions | None = None) -> dict[str, Any]:
    """Scores of the model's outputs for held-out sentences, against their translations in the file.

    Returns:
        exact_match, the share of outputs that equal their reference; the scores and signatures of corpus_scores; and
        decoding, a description of the search.
    """
    options = options or GenerationOptions()
    task, references = predictor.task, _references(predictor.task, sentences)
    hypotheses = translated(predictor, [source for source, _ in sentences], options)
    matches = sum(one == other for one, other in zip(hypotheses, references, strict=True))
    scores = corpus_scores(hypotheses, references, task.metrics, _lowercase(task))
    decoding = "greedy" if options.num_beams == 1 else f"{options.num_beams} beams"
    chosen = {name: value for name in BEAM_OPTIONS if (value := getattr(options, name)) is not None}
    decoding += "".join(f", {name.replace('_', ' ')} {str(value).lower()}" for name, value in chosen.items())
    return {"exact_match": matches / max(len(references), 1), **scores, "decoding": decoding}


def _lowercase(task: Task) -> bool:
    """Whether answers are generated and compared in lower case."""
    return getattr(task, "lowercase", False)


def _references(task: Task, sentences: TextPairs) -> list[str]:
    """The translations in the file, in the case of the outputs."""
    return [lower(target) if _lowercase(task) else target for _, target in sentences]


def validation_bleu(module: Any) -> float:
    """BLEU of a TransformerModule on its validation set, in every process."""
    predictor = Predictor(module.model, module.task.vocabulary, module.config, module.task)
    sentences = module.task.sentences("validation")[module.global_rank :: module.trainer.world_size]
    return reduced_bleu(predictor, sentences, module.trainer.strategy.reduce)


def reduced_bleu(predictor: Predictor, sentences: TextPairs, reduce: Callable[..., Tensor]) -> float:
    """BLEU of greedy outputs over all processes, each with its share of the sentences; `reduce` adds up a tensor."""
    from sacrebleu.metrics.bleu import BLEU, MAX_NGRAM_ORDER

    counts = [0] * (2 * MAX_NGRAM_ORDER + 2)  # matches and n-grams of each order, lengths; they add up over shares
    if sentences:  # there may be more processes than sentences
        texts = translated(predictor, [source for source, _ in sentences])
        score = BLEU(lowercase=_lowercase(predictor.task)).corpus_score(texts, [_references(predictor.task, sentences)])
        counts = [*score.counts, *score.totals, score.sys_len, score.ref_len]
    *sums, hypotheses, references = reduce(torch.tensor(counts, device=predictor.device), reduce_op="sum").tolist()
    matches, ngrams = sums[:MAX_NGRAM_ORDER], sums[MAX_NGRAM_ORDER:]
    return BLEU.compute_bleu(matches, ngrams, hypotheses, references, smooth_method="exp").score
