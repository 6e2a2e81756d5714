"""Predictors with random weights that write something, for the tests of what is built upon them."""

import copy
from typing import Any

import pytest
import tokenizers as library
import torch
from tokenizers import decoders, models, pre_tokenizers
from torch import Tensor

from minitx.checkpoints import format as checkpoint
from minitx.config.schema import Config, ModelConfig, config_from_dict
from minitx.data import tokenizers
from minitx.data.text.tokenizer_training import CharTokenizer
from minitx.data.tokenizers import SPECIAL_TOKENS, Tokenizer
from minitx.inference.predictor import Predictor
from minitx.models.builder import build_model
from minitx.training.resolve import resolve
from small_models import ARCHITECTURES

LONGEST, BLOCK = 6, 8
SYMBOLS = tokenizers.symbols([str(symbol) for symbol in range(7)])
CHARACTERS = CharTokenizer().train([["abcdefg \n"]])
SEQUENCES = {"name": "reverse", "symbols": 7, "length": [1, LONGEST]}
TEXT = {"name": "text", "path": "/was/here/when/it/was/trained.txt", "block": BLOCK}
EVERY = sorted(ARCHITECTURES)
KINDS_OF = {
    "encoder_decoder": ["encoder", "decoder", "cross"], "decoder_only": ["decoder"], "encoder_only": ["encoder"],
}  # fmt: skip
WRITERS = [("decoder_only", False), ("encoder_decoder", False), ("decoder_only", True)]
each_writer = pytest.mark.parametrize(("architecture", "text"), WRITERS)
EVERY_KIND = [*((architecture, False) for architecture in EVERY), ("decoder_only", True)]
every_kind = pytest.mark.parametrize(("architecture", "text"), EVERY_KIND)
H, LAYERS = 2, 2
BUILT: dict[str, Predictor] = {}


def built(
    architecture: str = "decoder_only", text: bool = False, seed: int = 1, ends: bool = True, **model: Any
) -> Predictor:
    """A predictor without a file, not to be changed: random weights, large enough that every token read matters; no
    special token is ever written, apart from the end where it may be."""
    key, tokenizer = repr((architecture, text, seed, ends, model)), CHARACTERS if text else SYMBOLS
    if key in BUILT:
        return BUILT[key]
    sizes: Any = {"d_model": 16, "n_heads": H, "n_layers": LAYERS, "tie_embeddings": False, **model}
    config = Config(data=TEXT if text else SEQUENCES, model=ModelConfig(architecture=architecture, **sizes))
    with torch.no_grad(), torch.random.fork_rng():  # a test draws the same numbers whichever test built the model first
        torch.manual_seed(seed)
        network = build_model(config.model, tokenizer.vocab_size)
        for name, parameter in network.named_parameters():
            if parameter.dim() > 1 and "embedding" not in name and "head" not in name:
                parameter.mul_(2)
        last = getattr(network, "decoder", network.encoder if architecture == "encoder_only" else None)
        last.norm.bias.fill_(1.0)  # which the centred rows of the head do not see, and those of special tokens hate
        network.head.weight -= network.head.weight.mean(dim=1, keepdim=True)
        for special in tokenizer.special:
            if not (ends and special == tokenizer.special.eos):
                network.head.weight[special] = -1.0
    return BUILT.setdefault(key, Predictor(network.eval(), tokenizer, config_from_dict(config.to_dict())))


def trained(architecture: str, *options: Any, **model: Any) -> dict[str, Any]:
    """The contents of the checkpoint of such a predictor, to be changed at will."""
    predictor = built(architecture, *options, **model)
    parts = predictor.config.to_dict(), predictor.tokenizer.to_dict(), predictor.model.state_dict()
    return copy.deepcopy(checkpoint.contents_of(*parts))


def untrained(config: Config) -> Predictor:
    resolved, task, model, *_ = resolve(config)
    return Predictor(model.eval(), task.vocabulary, resolved)


def masked() -> Predictor:
    """A masked language model with random weights, large enough that its predictions differ."""
    torch.manual_seed(1)
    config = ModelConfig(architecture="encoder_only", d_model=16, n_heads=2, tie_embeddings=False)
    network = build_model(config, CHARACTERS.vocab_size).eval()
    with torch.no_grad():
        network.head.weight.mul_(8)
    data = {"name": "masked_text", "path": "/was/here/when/it/was/trained.txt", "block": 12}
    return Predictor(network, CHARACTERS, Config(data=data, model=config))


def bytewise() -> Tokenizer:
    """A token for each byte: most characters outside of English take several."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    words = {token: index for index, token in enumerate([*SPECIAL_TOKENS, *alphabet])}
    backend = library.Tokenizer(models.BPE(words, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    return Tokenizer(backend)


def prompts(predictor: Predictor) -> list[str]:
    if predictor.tokenizer.vocab_size == CHARACTERS.vocab_size:
        return ["abc", "g", "fed cab"]
    return ["3 1 4", "5", "0 2 6 6 1"]


def forward(predictor: Predictor, question: str, answer: list[int]) -> Tensor:
    """Logits of one question and its continuation, padded by hand: for the answer and the token after it."""
    special, asked = predictor.tokenizer.special, predictor.tokenizer.encode(question)
    with torch.no_grad():
        if predictor.architecture == "encoder_decoder":
            return predictor.model(torch.tensor([asked]), torch.tensor([[special.bos, *answer]]))[0]
        if predictor.architecture == "encoder_only":
            return predictor.model(torch.tensor([asked]))[0]
        if predictor.config.data["name"] == "text":
            return predictor.model(torch.tensor([asked + answer]))[0, len(asked) - 1 :]
        return predictor.model(torch.tensor([[*asked, special.sep, *answer]]))[0, len(asked) :]
