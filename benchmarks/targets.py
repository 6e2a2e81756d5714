"""Targets and published results: one entry for each row of docs/results.md.

A new config gets an entry here. Variants of a config are entries with overrides.
"""

import shlex
from dataclasses import dataclass


def words(line: str) -> tuple[str, ...]:
    """The words of a command line."""
    return tuple(shlex.split(line))


@dataclass(frozen=True)
class Target:
    name: str
    """The row, and results/runs/<name>.json: the name of the config, or config-variant."""
    what: str
    """The experiment in a few words."""
    reference: str
    """A published result, or our measurement of another project."""
    target: str
    """A threshold to reach."""
    config: str = ""
    """Stem of the file in configs/; default: the name up to the first hyphen."""
    overrides: tuple[str, ...] = ()
    """Options --section.key=value of the variant."""
    lengths: str | None = None
    """from:to: lengths of the question to measure separately."""
    headline: tuple[str, ...] = ("exact_match",)
    """The figures to show: a name, of benchmarks/measures.py too, or name@from-to, its mean over these lengths."""
    first_seed: int = 1
    """The first of the row's consecutive seeds; 11 if 1 to 3 were used in the search for its settings."""
    needs: str = ""
    """Requirements that not every machine meets."""

    @property
    def stem(self) -> str:
        return self.config or self.name.partition("-")[0]


GPU = "a GPU"
TARGETS = (
    Target(
        "reverse",
        "encoder-decoder, 10 symbols, length 1-16",
        "no published free-running exact match",
        "100.0 % of 10,000 in 30 s of training on two CPU cores; a cross-attention head with the largest weight of "
        ">= 99 % of its rows on the anti-diagonal",
        headline=("exact_match", "antidiagonal"),
    ),
    Target(
        "reverse_encoder",
        "encoder alone, 1 layer with 1 head of width 32, 10 symbols, length 16 (UvA deep-learning tutorial 6)",
        "100.00 % of tokens after 10 epochs; we measured 55 s",
        "100.00 % exact in 15 s on two CPU cores",
    ),
    Target(
        "copy",
        "encoder-decoder, 10 symbols, length 10 (the Annotated Transformer)",
        "no score is published",
        ">= 99.9 % exact; a cross-attention head on the diagonal in >= 99 % of its rows",
        headline=("exact_match", "diagonal"),
    ),
    Target(
        "copy-twice",
        "16 symbols, 32 in, the same twice out (x-transformers' toy task)",
        "no score is published",
        ">= 99.9 % exact",
        overrides=("--data.name=copy_twice", "--data.symbols=16", "--data.length=[32,32]"),
    ),
    Target(
        "reverse_words",
        "50 symbols, trained on length 1-25, tested on 1-30 (JoeyNMT)",
        "a recurrent network: BLEU 95.42 on the mixed test",
        ">= 99.9 % exact at 1-25; 26-30 separately",
        lengths="1:30",
        headline=("exact_match@1-25", "exact_match@26-30"),
        first_seed=61,
    ),
    Target("sort", "3 symbols, length 6 (minGPT)", "5000 of 5000", "5000 of 5000"),
    Target(
        "sort-long",
        "50 symbols, trained up to length 20, tested on 21-40",
        "none",
        ">= 99.9 % exact at 1-20; 21-40 published here",
        overrides=words(
            "--data.symbols=50 --data.length=[1,20] --model.d_model=64 --model.n_heads=4 --model.position.max_len=81 "
            "--model.norm=rmsnorm --model.qk_norm=true --optimizer.weight_decay=0.1 --trainer.max_steps=3000"
        ),
        lengths="1:40",
        first_seed=311,
        headline=("exact_match@1-20", "exact_match@21-40"),
    ),
    Target(
        "sort-distinct",
        "the same without repeated symbols, with position ids from a random start on",
        "sorting 150 symbols, trained to 50: 99.96 % at 51-100, 99.37 % at 101-150 (Huang et al. 2025)",
        "published here",
        overrides=words(
            "--data.symbols=50 --data.distinct=true --data.length=[1,20] --model.d_model=64 --model.n_heads=4 "
            "--model.position.max_len=122 --model.position_ids.name=offset --model.position_ids.largest=41 "
            "--model.norm=rmsnorm --model.qk_norm=true --optimizer.weight_decay=0.1 --trainer.max_steps=2000"
        ),
        lengths="1:40",
        first_seed=91,
        headline=("exact_match@1-20", "exact_match@21-40"),
    ),
    Target("addition", "2 digits (minGPT)", "all correct", "all correct"),
    Target(
        "addition-3",
        "3 digits, the sum from its lowest digit",
        "1000 of 1000 with 200,000 parameters",
        "1000 of 1000",
        overrides=("--data.digits=[3,3]", "--data.reverse=true", "--trainer.stop_when=null"),
    ),
    Target(
        "addition-10",
        "1 to 10 digits, lowest digit first, digits of equal value with equal position ids; tested on 10 digits",
        "see the next row",
        ">= 99 %",
        overrides=words(
            "--data.digits=[1,10] --data.reverse=true --data.reverse_operands=true --model.position_ids.name=coupled "
            "--trainer.max_steps=2500 --trainer.stop_when=null"
        ),
        lengths="10:10",
        headline=("exact_match", "exact_match@10-10"),
    ),
    Target(
        "addition-10-small",
        "the same with 2 layers of width 16",
        ">= 99 % of 10,000 with 6,080 parameters",
        ">= 99 % with at most 6,080 parameters",
        overrides=words(
            "--data.digits=[1,10] --data.reverse=true --data.reverse_operands=true --model.position_ids.name=coupled "
            "--model.position.max_len=34 --model.d_model=16 --model.n_heads=2 --model.d_ff=40 --optimizer.lr=1e-2 "
            "--trainer.max_steps=9000 --trainer.stop_when=null"
        ),
        lengths="10:10",
        headline=("exact_match", "exact_match@10-10"),
        first_seed=203,
    ),
    Target(
        "induction",
        "the symbols that followed an earlier occurrence of the last one; 2 layers of attention alone",
        "about 100 %",
        "about 100 %; an induction head of score >= 0.9 in a layer after a previous-token head",
        headline=("exact_match", "induction_head", "previous_token_head"),
    ),
    Target("induction-1", "the same with 1 layer", "fails", "fails", overrides=("--model.n_layers=1",)),
    Target(
        "associative_recall",
        "64 symbols, 4 pairs of key and value, 4 queries, each answered where it is read (MQAR), after a stage with 1 "
        "to 2 pairs; 2 layers of attention alone, the first of which attends to two tokens",
        "about 100 %",
        ">= 99.9 %",
        first_seed=221,
    ),
    Target(
        "associative_recall-16",
        "1 to 16 pairs, 16 queries, after stages with 1 to 2 pairs and with 4",
        "about 100 %",
        ">= 99.5 % at 16 pairs",
        overrides=words(
            "--data.pairs=[1,16] --data.queries=16 "
            "'--data.stages=[{steps: 400, pairs: [1, 2], queries: 2}, {steps: 800, pairs: [4, 4], queries: 4}]' "
            "--trainer.max_steps=2300"
        ),
        lengths="16:16",
        headline=("exact_match", "exact_match@16-16"),
        first_seed=221,
    ),
    Target(
        "associative_recall-256",
        "4 pairs of 256 symbols",
        "about 100 %",
        ">= 99 %",
        overrides=("--data.symbols=256", "--trainer.max_steps=2000"),
        first_seed=221,
    ),
    Target(
        "associative_recall-zoology",
        "zoology's own setting: 4 pairs of 8,192 symbols, 4 queries among 48 random values, 1 head; after stages with "
        "fewer pairs and values. A quarter of each head is rotated, and the rest compares symbols at any distance",
        "about 100 %",
        ">= 99 % in 30 minutes",
        overrides=words(
            "--data.symbols=8192 --data.filler=48 '--data.stages=[{steps: 1000, pairs: [1, 2], queries: 2, filler: 0}, "
            "{steps: 500, pairs: [1, 4], queries: 4, filler: 8}]' --data.batch_size=128 --model.n_heads=1 "
            "'--model.position={name: rope, base: 100.0, fraction: 0.25}' --trainer.max_steps=2500 "
            "--trainer.val_every_n_steps=500"
        ),
        first_seed=74,
    ),
    Target(
        "associative_recall-1",
        "4 pairs with 1 layer, which attends to all tokens",
        "fails",
        "fails",
        overrides=("--model.n_layers=1", "--model.window=null"),
        first_seed=221,
    ),
    Target(
        "majority",
        "the more frequent of two symbols; 1 layer of width 16 without positions, trained on length 1-50, tested on "
        "51-150 (Huang et al. 2025)",
        "99.99 % at 51-100, 99.96 % at 101-150",
        ">= 99.8 %, >= 99.7 %",
        lengths="51:150",
        headline=("exact_match", "exact_match@51-100", "exact_match@101-150"),
        first_seed=131,
    ),
    Target(
        "majority-parity",
        "whether the number of ones is odd; 2 layers of width 64 with learned positions from a random offset on",
        "83 % at 51-100, 62 % at 101-150",
        "fails",
        overrides=words(
            "--data.name=parity --data.length=[1,50] --model.d_model=64 --model.n_heads=4 --model.n_layers=2 "
            "--model.position.name=learned --model.position.max_len=256 --model.position_ids.name=offset"
        ),
        lengths="1:150",
        headline=("exact_match@1-50", "exact_match@51-100", "exact_match@101-150"),
        first_seed=131,
    ),
    Target(
        "copy_distinct",
        "no symbol twice, 150 symbols, trained on length 1-50, tested on 51-150 (Huang et al. 2025); the first layer "
        "attends to two tokens, the second has no positions",
        "99.86 % at 51-100, 98.74 % at 101-150",
        ">= 99 %, >= 97 %",
        lengths="1:150",
        headline=("exact_match@1-50", "exact_match@51-100", "exact_match@101-150"),
        first_seed=91,
    ),
    Target(
        "copy_distinct-repeat",
        "the same with two symbols, which repeat",
        "25.6 % at 51-100, 0 % at 101-150",
        "fails",
        overrides=("--data.symbols=2", "--data.distinct=false"),
        lengths="51:60",
        headline=("exact_match", "exact_match@51-60"),
        first_seed=91,
    ),
    Target(
        "markov",
        "a Markov source of known entropy",
        "the entropy itself",
        "a loss within 1 % of the entropy, not below it by more than noise",
        headline=("loss", "floor"),
    ),
    Target(
        "shakespeare",
        "characters, nanoGPT's CPU size: 2,000 steps of 12 x 64, with Muon, evaluated on the whole held-out tenth",
        "1.88 published; we measured 1.874, and 1.758 with a higher learning rate",
        "<= 1.60 nats per character",
        headline=("loss",),
        first_seed=61,
        needs="the text, see data/README.md",
    ),
    Target(
        "shakespeare-adamw",
        "the same with AdamW",
        "see above",
        "<= 1.70 nats per character",
        overrides=("--optimizer.name=adamw",),
        headline=("loss",),
        needs="the text, see data/README.md",
    ),
    Target(
        "shakespeare-1300",
        "with Muon, in 1,300 steps",
        "the loss of AdamW after 2,000",
        "at most the loss of AdamW, in 0.65 of its steps",
        overrides=("--trainer.max_steps=1300",),
        headline=("loss",),
        first_seed=61,
        needs="the text, see data/README.md",
    ),
    Target(
        "python_code",
        "characters of the Python standard library's source, on every machine without a download",
        "none",
        "published here, bits per character",
        headline=("loss", "bits_per_character"),
    ),
    Target(
        "number_words",
        "numbers below a million to words and back, four languages, characters",
        "none",
        ">= 99.5 % exact on unseen numbers",
        first_seed=141,
    ),
    Target("dates", "dates as people write them, to ISO 8601", "none", ">= 99 % exact on unseen days"),
    Target(
        "multi30k_small",
        "German to English, small enough for two CPU cores",
        "BLEU 36.52 of 3+3 layers of width 256 (spaCy's tokens, lower case)",
        "published here",
        headline=("bleu", "bleu_lowercase", "chrf"),
        needs="the text, see data/README.md",
    ),
    Target(
        "shakespeare-gpu",
        "characters, nanoGPT's GPU size: 6 layers of width 384, 2,500 of its 5,000 steps of 64 x 256, weight decay 3",
        "1.4697 published, the best of all validations",
        "<= 1.45 nats per character",
        overrides=words(
            "--data.block=256 --data.batch_size=64 --model.d_model=384 --model.n_heads=6 --model.n_layers=6 "
            "--model.d_ff=1024 --model.dropout=0.2 --model.attention_dropout=0.2 --optimizer.name=adamw "
            "--optimizer.lr=1e-3 --optimizer.weight_decay=3 --optimizer.schedule.final_ratio=0.02 "
            "--trainer.max_steps=2500 --trainer.val_every_n_steps=250"
        ),
        headline=("loss",),
        first_seed=11,
        needs=GPU,
    ),
    Target(
        "multi30k_de_en",
        "German to English; 3+3 layers of width 256, greedy and with 5 beams",
        "BLEU 36.52 (spaCy's tokens, lower case)",
        "the same, sacreBLEU with its signature",
        headline=("bleu", "bleu_lowercase", "bleu_of_beams"),
        needs=GPU,
    ),
    Target(
        "multi30k_en_de",
        "English to German; 4+4 layers of width 128, greedy and with 5 beams",
        "BLEU 41.02 (tokenised, lower case, averaged checkpoints, 5 beams)",
        "the same, sacreBLEU with its signature",
        headline=("bleu", "bleu_lowercase", "bleu_of_beams"),
        needs=GPU,
    ),
    Target(
        "copy_lengths",
        "decoder alone, T5's bias with coupled ids and an end marker, trained up to length 20, tested on 21-60 (after "
        "Kazemnejad et al. 2023, with 10 symbols instead of 100); by scheme: lengths.md",
        "T5 54.9 %, ALiBi 42.7, none 39.3, sinusoidal 3.4, RoPE 1.5 at 21-40, with 108M parameters; 0 % at 40",
        ">= 99 % at 21-40 with every seed",
        lengths="1:60",
        headline=("exact_match@1-20", "exact_match@21-40", "exact_match@41-60"),
        first_seed=81,
    ),
    Target(
        "reverse_lengths",
        "the same for reversal with T5's bias, <bos> and ids that count down in the answer, tested on 21-40",
        "T5 24.2 %, none 23.0, ALiBi 17.1, RoPE 7.7, sinusoidal 2.3, with 108M parameters; 0 % at 40",
        ">= 95 % at 21-40",
        lengths="1:40",
        headline=("exact_match@1-20", "exact_match@21-40", "exact_match@40-40"),
        first_seed=51,
    ),
    Target(
        "reverse_binary_lengths",
        "encoder alone, 2 symbols, trained on length 1-40, tested on 41-100; 5 layers of width 64 (Ruoss et al. 2023)",
        "randomised positions gain 12 points on average over the unseen lengths (per token, chance is 50 %)",
        "a gain of >= 12 points",
        lengths="1:100",
        headline=("token_accuracy@1-40", "token_accuracy@41-100", "exact_match@41-100"),
        first_seed=71,
    ),
    Target(
        "reverse_binary_lengths-consecutive",
        "the same without randomised positions",
        "see above",
        "12 points less",
        overrides=("--model.position_ids={name: consecutive}",),
        lengths="1:100",
        headline=("token_accuracy@1-40", "token_accuracy@41-100", "exact_match@41-100"),
        first_seed=71,
    ),
    Target(
        "grokking",
        "a + b modulo 97, half of the table for training, 2 layers of width 128, weight decay 1",
        "100 % in training long before validation",
        "training 100 %, validation >= 99 %, the gap visible in the curves",
        headline=("training_match", "exact_match", "steps_to_low_loss", "steps_to_exact_match"),
    ),
    Target(
        "grokking-113",
        "a + b modulo 113, 30 % of the table for training, 1 layer of width 128 (Nanda et al. 2023)",
        "groks; a few frequencies carry it",
        "the same; the frequencies: fourier.md",
        overrides=words(
            "--data.modulus=113 --data.train_share=0.3 --model.n_layers=1 --model.activation=relu "
            "--trainer.max_steps=6000 --trainer.val_every_n_steps=200 --trainer.precision=32-true"
        ),
        headline=("training_match", "exact_match", "steps_to_low_loss", "steps_to_exact_match"),
        first_seed=41,
    ),
)
