"""Activations of an imported GPT-2 with random weights, compared with those of TransformerLens.

pip install transformer-lens        # 4.3, in an environment of its own
python -m benchmarks.transformer_lens
"""

import tempfile
from pathlib import Path
from typing import Any

import tokenizers
import torch
import transformers
from torch import Tensor

import minitx
from benchmarks.common import table
from minitx.huggingface.importing import import_model
from minitx.inference.predictor import Predictor
from minitx.interpret.attribution import attribute
from minitx.interpret.patching import Patch, patched_logits

NAMES = {
    "resid_pre": "hook_resid_pre", "resid_mid": "hook_resid_mid", "resid_post": "hook_resid_post",
    "self_attn.q": "attn.hook_q", "self_attn.k": "attn.hook_k", "self_attn.v": "attn.hook_v",
    "self_attn.scores": "attn.hook_attn_scores", "self_attn.weights": "attn.hook_pattern",
    "self_attn.z": "attn.hook_z", "self_attn.result": "attn.hook_result", "self_attn.out": "hook_attn_out",
    "ffn.hidden": "mlp.hook_post", "ffn.out": "hook_mlp_out",
}  # fmt: skip
"""Names of a layer's activations in minitx, and in TransformerLens."""
LAYERS, TOKENS = 3, 24


def models() -> tuple[Predictor, Any]:
    """One GPT-2 with random weights: imported, and as TransformerLens loads it."""
    from transformer_lens.model_bridge import TransformerBridge

    torch.manual_seed(0)
    backend = tokenizers.Tokenizer(tokenizers.models.BPE())
    backend.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = tokenizers.decoders.ByteLevel()
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=300, special_tokens=["<|endoftext|>"], show_progress=False, initial_alphabet=alphabet
    )
    backend.train_from_iterator(["the cat sat on the mat"], trainer)
    special = dict.fromkeys(("bos_token", "eos_token", "unk_token"), "<|endoftext|>")
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=backend, **special)
    config = transformers.GPT2Config(
        vocab_size=len(tokenizer), n_embd=64, n_head=4, n_layer=LAYERS, n_positions=64, bos_token_id=0, eos_token_id=0
    )
    config._attn_implementation = "eager"
    model = transformers.GPT2LMHeadModel(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.1)
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        import_model(folder, Path(folder) / "gpt2.ckpt")
        ours = minitx.load(Path(folder) / "gpt2.ckpt", device="cpu")
        theirs = TransformerBridge.boot_transformers(
            folder, hf_model=model, tokenizer=transformers.AutoTokenizer.from_pretrained(folder), device="cpu"
        )
    theirs.cfg.use_attn_result = True
    return ours, theirs


@torch.no_grad()
def differences() -> dict[str, float]:
    """The largest difference of each activation over all layers."""
    ours, theirs = models()
    ids = torch.randint(1, 250, (2, TOKENS))
    with minitx.trace(ours.model) as t:
        logits = ours.model(ids)
    other_logits, cache = theirs.run_with_cache(ids)
    found = {"logits": float((logits - other_logits).abs().max())}
    for name, other in NAMES.items():
        pairs = [(t[f"decoder.layers.{layer}.{name}"], cache[f"blocks.{layer}.{other}"]) for layer in range(LAYERS)]
        if name.endswith("scores"):  # TransformerLens hides a key by a low number
            pairs = [(one.masked_fill(one.isinf(), 0.0), other.masked_fill(one.isinf(), 0.0)) for one, other in pairs]
        found[name] = max(float((one - other).abs().max()) for one, other in pairs)
    return found


@torch.no_grad()
def patching_differences() -> dict[str, float]:
    """The same for the logit difference of each activation patch, and for direct logit attribution."""
    ours, theirs = models()
    clean, corrupted = torch.randint(1, 250, (2, 1, TOKENS))
    with minitx.trace(ours.model, only=["*.resid_pre", "*.z"]) as values:
        ours.model(clean)
    _, cache = theirs.run_with_cache(clean)
    found = {}
    for name in ("resid_pre", "self_attn.z"):
        patches = [[Patch(f"decoder.layers.{layer}.{name}", at)] for layer in range(LAYERS) for at in range(TOKENS)]
        logits = patched_logits(ours.model, {"ids": corrupted}, values, patches)
        rows = []
        for layer in range(LAYERS):
            for at in range(TOKENS):

                def replaced(value: Tensor, hook: Any, at: int = at) -> Tensor:
                    value = value.clone()
                    value[:, at] = cache[hook.name][:, at]
                    return value

                hook = (f"blocks.{layer}.{NAMES[name]}", replaced)
                rows.append(theirs.run_with_hooks(corrupted, fwd_hooks=[hook])[0, -1])
        other = torch.stack(rows)
        found[f"patching of {name}"] = float((logits[:, 7] - logits[:, 9] - other[:, 7] + other[:, 9]).abs().max())
    last = torch.full_like(clean, 7)
    parts = attribute(ours.model, {"ids": clean}, last)
    scaled = cache.stack_head_results(layer=-1, pos_slice=-1)[:, 0]  # [heads, D]
    frozen: Any = ours.model.decoder.norm
    scale = (cache[f"blocks.{LAYERS - 1}.hook_resid_post"][0, -1].var(unbiased=False) + frozen.eps).sqrt()
    centred = scaled - scaled.mean(dim=-1, keepdim=True)
    expected = (centred / scale * frozen.weight) @ ours.model.head.weight[7]
    own = torch.stack([values[0, -1] for name, values in parts.items() if name.split(".")[-1].isdigit()])
    found["attribution of the heads"] = float((own - expected).abs().max())
    return found


if __name__ == "__main__":
    found = {**differences(), **patching_differences()}
    print(table(["activation", "largest difference"], [(name, f"{value:.1e}") for name, value in found.items()]))
