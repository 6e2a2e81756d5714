import json

import pytest
import tokenizers as backend
from hypothesis import given, settings
from hypothesis import strategies as st

from minitx.data.text.tokenizer_training import TOKENIZERS, CharTokenizer
from minitx.data.tokenizers import SPECIAL_TOKENS, SpecialIds, Tokenizer, symbols

DIGITS = symbols([str(digit) for digit in range(10)])
CORPUS = [
    "def f(x):\n    return x + 1  # naïve 字 😀 <pad> <mask>\n" * 20,
    "the cat sat on the mat, the cat sat\n" * 30,
]


def characters(*texts: str) -> Tokenizer:
    return CharTokenizer().train([list(texts)])


@given(st.lists(st.integers(0, 9), max_size=20))
def test_symbols_survive_the_round_trip(numbers: list[int]) -> None:
    text = " ".join(map(str, numbers))
    ids = DIGITS.encode(text)
    assert DIGITS.decode([DIGITS.special.bos, *ids, DIGITS.special.pad]) == text
    assert DIGITS.tokens([*ids, DIGITS.special.eos]) == [*text.split(), "<eos>"]
    assert DIGITS.encode(text.replace(" ", " \n\t")) == ids


def test_the_characters_of_all_batches_are_collected_in_an_order_of_their_own() -> None:
    apart = CharTokenizer().train([["\nd"], ["c"], ["a", "b"]])
    assert CharTokenizer().train([["ba", "c"], ["d\n"]]).alphabet == apart.alphabet == ["\n", "a", "b", "c", "d"]


@pytest.mark.parametrize("tokenizer", [DIGITS, characters("some text\n"), characters("")])
def test_special_tokens_come_first_and_are_named_by_their_ids(tokenizer: Tokenizer) -> None:
    assert sorted(tokenizer.special) == list(range(len(SPECIAL_TOKENS)))
    assert tokenizer.tokens(tokenizer.special) == list(SPECIAL_TOKENS) == [f"<{name}>" for name in SpecialIds._fields]
    assert tokenizer.vocab_size == len(SPECIAL_TOKENS) + len(tokenizer.alphabet)
    imported = Tokenizer(tokenizer.backend, tokenizer.special_tokens)
    assert (tokenizer.separator, imported.separator) == (" " if tokenizer is DIGITS else "", None)


@pytest.mark.parametrize(
    ("tokenizer", "text", "piece"),
    [(DIGITS, "3 x 4", "x"), (DIGITS, "1x", "1x"), (DIGITS, "3 <eos> 4", "<eos>"), (characters("ab \n"), "abc", "c")],
)
def test_an_unknown_piece_is_refused_with_the_alphabet(tokenizer: Tokenizer, text: str, piece: str) -> None:
    with pytest.raises(ValueError, match="alphabet") as caught:
        tokenizer.encode(text)
    message = str(caught.value)
    assert repr(piece) in message
    for token in tokenizer.alphabet:
        assert (repr(token) if token.isspace() else token) in message.partition("which is: ")[2]


def test_a_large_vocabulary_is_not_listed_as_a_whole() -> None:
    with pytest.raises(ValueError, match=r"'x' is not in .* 0 1 2 3 .* \.\.\.$") as caught:
        symbols(range(20_000)).encode("x")
    assert len(str(caught.value)) < 400


def test_a_vocabulary_without_special_tokens_is_refused_by_name() -> None:
    foreign = backend.Tokenizer(backend.models.WordLevel({"a": 0, "<pad>": 1}, unk_token="a"))
    with pytest.raises(ValueError, match="<eos>"):
        Tokenizer.from_dict(json.loads(foreign.to_str()))


def trained(name: str, corpus: list[str], size: int = 400) -> Tokenizer:
    return TOKENIZERS[name](**({} if name in ("char", "byte") else {"size": size})).train([corpus])


@pytest.mark.parametrize("name", TOKENIZERS)
def test_the_text_that_it_was_trained_on_comes_back_and_makes_the_same_tokenizer(name: str) -> None:
    tokenizer, twin = (trained(name, CORPUS) for _ in range(2))
    assert tokenizer.to_dict() == twin.to_dict()
    for text in CORPUS:
        ids = tokenizer.encode(text)
        assert tokenizer.decode(ids) == text
        assert Tokenizer.from_dict(tokenizer.to_dict()).encode(text) == ids


@pytest.mark.parametrize("name", [name for name in TOKENIZERS if name not in ("char", "word")])
@pytest.mark.parametrize("special", SPECIAL_TOKENS)
@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=40))
@settings(max_examples=5)
def test_bytes_know_every_text_and_that_of_a_special_token_stays_text(name: str, special: str, text: str) -> None:
    """However often the corpus spells it, so that pairs would grow into it."""
    tokenizer = trained(name, [*CORPUS, f"{special} {special}{special} a\n" * 50])
    text = f"{text}{special} a{special}{text}"
    ids = tokenizer.encode(text)
    assert not set(ids) & set(tokenizer.special)
    assert tokenizer.decode(ids) == text


def test_labels_are_readable_and_parts_of_characters_are_spelled_bytes() -> None:
    labels = ["Eine", "Ġсобака", ",", "Ġ»", "größer", "«", "Ġ字典", "Ġ\ufffd", "Ġ😀", "Ċ"]
    text = "".join(labels).replace("Ġ", " ").replace("Ċ", "\n")
    tokenizer = trained("bpe", [text * 30])
    assert tokenizer.tokens(tokenizer.encode(text)) == labels
    assert tokenizer.tokens(tokenizer.encode("ж犬é\t")) == [*"Ð¶çĬ¬Ã©ĉ"]


@pytest.mark.parametrize("name", ["bpe", "unigram"])
def test_more_tokens_make_shorter_rows_and_no_more_than_asked_for(name: str) -> None:
    assert trained(name, [""], 262).vocab_size == 262, "bytes alone, of an empty text too"
    tokenizers = {size: trained(name, CORPUS, size) for size in (262, 300, 400)}
    assert all(tokenizer.vocab_size <= size for size, tokenizer in tokenizers.items())
    tokenizers[300].backend.enable_truncation(2)  # of a file that was written for another model
    own = Tokenizer(tokenizers[300].backend)
    rows = [len(each.encode(CORPUS[1])) for each in (tokenizers[262], own, tokenizers[400])]
    assert len(CORPUS[1]) == rows[0] > rows[1] >= rows[2], "first bytes alone"


def test_unigram_pieces_of_equal_score_are_in_alphabetical_order() -> None:
    """The order of the trainer varies from run to run."""
    words = [f"{first}{second}{third} " for first in "zyxw" for second in "dcba" for third in "onm"]
    vocab = json.loads(trained("unigram", ["".join(3 * words)]).backend.to_str())["model"]["vocab"]
    pieces = [(-score, piece) for piece, score in vocab[len(SPECIAL_TOKENS) + 256 :]]
    assert len({score for score, _ in pieces}) < len(pieces)
    assert [byte for byte, score in vocab[: -len(pieces)] if score > vocab[0][1]] == [*"mnoĠ"], "which are left over"
    assert pieces == sorted(pieces)


def test_rare_words_are_unknown_and_frequent_ones_are_not() -> None:
    tokenizer = TOKENIZERS["word"](size=5).train([["a a a a bb bb bb c c d\n" * 5]])
    (ids,) = tokenizer.encode_batch(["a bb d"])
    assert tokenizer.encode("a bb d") == ids
    assert tokenizer.decode([*ids, tokenizer.special.eos]) == "a bb <unk>"
    assert tokenizer.vocab_size == 5 + len(SPECIAL_TOKENS)
