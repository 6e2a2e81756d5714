"""Overlapping windows count every token once, and bits are divided by what the text has."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import decoders

from huggingface.hf_models import unigram
from minitx.data.examples import Stream
from minitx.data.text.tokenizer_training import BPETokenizer
from minitx.data.tokenizers import SPECIAL_TOKENS, SpecialIds, SpecialTokens, Tokenizer
from minitx.evaluation.metrics import Scores
from minitx.evaluation.perplexity import strided, text_figures
from small_models import build_tiny

SPECIAL = SpecialIds(pad=0, bos=1, eos=2, sep=3, unk=4, mask=5)
MODEL = build_tiny("decoder_only", vocab_size=12, dropout=0.3).train()


def blocks(ids: list[int], block: int, pad: int = SPECIAL.pad) -> Stream:
    """A text as Text.examples cuts it."""
    padded = [*ids, *[pad] * block]
    return Stream(torch.tensor([padded[start : start + block + 1] for start in range(0, len(ids) - 1, block)]))


@torch.no_grad()
def one_by_one(ids: list[int], block: int, stride: int) -> Scores:
    """Scores of a text, each token predicted by itself from the window in which it is to be counted."""
    window, correct, loss = 0, 0, 0.0
    MODEL.eval()
    for place in range(1, len(ids)):
        window = max(0, math.ceil((place - block) / stride))
        context = ids[window * stride : place]
        assert min(place, block - stride + 1) <= len(context) <= block
        logs = MODEL(torch.tensor([context]))[0, -1].log_softmax(dim=-1)
        correct += int(logs.argmax()) == ids[place]
        loss -= float(logs[ids[place]])
    MODEL.train()
    return Scores(window + 1, None, len(ids) - 1, correct, pytest.approx(loss, rel=1e-4, abs=1e-4))


@settings(max_examples=30)
@given(st.data(), st.lists(st.sampled_from([SPECIAL.pad, 6, 7, 8]), min_size=1, max_size=20), st.integers(1, 7))
def test_every_token_counts_once_with_its_context(data: st.DataObject, ids: list[int], block: int) -> None:
    """Also <eos> within the text, where it is the padding too; in several batches of windows."""
    ids.append(9)
    stride = data.draw(st.integers(1, block))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("minitx.evaluation.metrics.TOKENS_AT_ONCE", 15)
        scores = strided(MODEL, blocks(ids, block), stride, SPECIAL)
    assert scores == one_by_one(ids, block, stride)
    assert MODEL.training, "left as it was"


def test_bits_are_those_of_the_text_whatever_its_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    """An unknown token is a piece of it, one character, or, as <eos>, nothing; an endless loss is still a number."""
    monkeypatch.setattr("minitx.evaluation.perplexity.BLOCKS_AT_ONCE", 2)
    text = "añañ añañ 日本 añañ\n" * 8
    tokenizer = BPETokenizer(size=280).train([[text]])
    ids = tokenizer.encode(text)
    rest, unk = text.removeprefix(tokenizer.decode(ids[:1])), SPECIAL.unk
    gpt, padded = SPECIAL._replace(unk=SPECIAL.eos), SPECIAL._replace(pad=unk)
    kinds = (gpt, 0, None), (SPECIAL, 0, None), (SPECIAL, 1, None), (SPECIAL, 1, (3, 5)), (padded, 1, None)
    for special, unknown, extent in kinds:
        reader = Tokenizer(tokenizer.backend, SpecialTokens(special))
        stream = blocks([*ids[:2], *[unk] * unknown, *ids[2:], SPECIAL.eos], 7, special.pad)
        count, (characters, size) = len(ids) + unknown, extent or (unknown, unknown)
        figures = text_figures(Scores(tokens=count, loss=3.0 * count), stream, reader, extent)
        bits, measured = 3.0 * count / math.log(2), [*figures.values()][:3]
        expected = [math.exp(3.0), bits / (len(rest) + characters), bits / (len(rest.encode()) + size)]
        assert measured == pytest.approx(expected)
    assert math.isfinite(text_figures(Scores(tokens=1, loss=1e9), stream, tokenizer, None)["perplexity"])
    llama = Tokenizer(unigram([*SPECIAL_TOKENS], ["to be or not"], 60), SpecialTokens(SPECIAL))
    documents = [token for text in ["to be", "or", "not to be"] * 9 for token in (*llama.encode(text), SPECIAL.eos)]
    # Blocks that cut characters; a letter of a token is a byte, but for the space before a document. Pads may be text.
    for own, tokens, step in ((tokenizer, ids, 2), (llama, documents, 1), (llama, documents, 2)):
        for special in (SPECIAL, SPECIAL._replace(pad=tokens[1])):
            reader, spread = Tokenizer(own.backend, SpecialTokens(special)), blocks(tokens, 7, special.pad).ids[::step]
            labels = Stream(spread).frame("decoder_only", special).labels
            pairs = [pair for pair in zip(spread[:, :-1].flatten(), labels.flatten(), strict=True) if pair[1] > 5]
            size = sum(len(str(own.backend.id_to_token(token))) - int(before == 2) for before, token in pairs)
            figures = text_figures(Scores(tokens=1, loss=math.log(2)), Stream(spread), reader, None)
            assert figures["bits_per_byte"] == pytest.approx(1 / size)
    for llama.backend.decoder in (None, decoders.WordPiece(), decoders.BPEDecoder()):  # spaces between tokens
        assert text_figures(Scores(tokens=1, loss=0.0), blocks(documents, 7), llama, None) == {"perplexity": 1.0}
