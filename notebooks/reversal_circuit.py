# ---
# jupyter:
#   jupytext:
#     text_representation: {extension: .py, format_name: percent}
#   kernelspec: {display_name: Python 3, language: python, name: python3}
# ---

# %% [markdown]
# # The reversal circuit
#
# An encoder-decoder that reverses a sequence attends, step by step, to the mirrored position of the source. Which parts
# of the model write the symbol, and where does the mirrored position come from? Lenses, attribution and patching answer
# this by experiments: an activation is replaced, and the answer changes or not.

# %%
import torch

import minitx
from minitx.interpret.patching import head_patches, patched_inputs, patched_logits

figures = minitx.train("reverse", {"run.name": "reversal_notebook"})
model = minitx.load("runs/reversal_notebook")
figures["exact_match"]

# %%
minitx.curves("runs/reversal_notebook").of("training/loss", "validation/exact_match")

# %% [markdown]
# ## From which layer on is the answer there?
#
# The first table applies the head to the decoder after each layer. The second one lets the decoder read the encoder
# after each layer. A click on a cell lists the ten likeliest tokens, and what each part adds to the answer's logit.

# %%
QUESTION, ANSWER = "3 1 4 1 5 9 2 6", "6 2 9 5 1 4 1 3"
model.lens(QUESTION, ANSWER)

# %% [markdown]
# ## Which heads carry the symbol?
#
# The corrupted question has another symbol at one place. Take one head at a time from the clean run: which of them
# restore the clean answer?

# %%
CORRUPTED, WRONG = "3 1 4 2 5 9 2 6", "6 2 9 5 2 4 1 3"
patches = model.patch(QUESTION, CORRUPTED, sites="heads", answers=(ANSWER, WRONG))
patches

# %% [markdown]
# Both heads of the last cross-attention together:

# %%
inputs = patched_inputs(model, QUESTION, CORRUPTED, (ANSWER, WRONG))
with torch.no_grad(), minitx.trace(model.model, only="*attn.z") as clean:
    model.model(**inputs.clean)
heads = head_patches(model.model)
groups = [[heads["cross.2.1"], heads["cross.2.2"]], [heads["cross.1.1"], heads["cross.1.2"]], [heads["decoder.2.1"]]]
right, wrong = inputs.answers
logits = patched_logits(model.model, inputs.corrupted, clean, groups, inputs.position)
restored = (logits[:, right] - logits[:, wrong] - patches.corrupted) / (patches.clean - patches.corrupted)
print([f"{share:.2f}" for share in restored.tolist()])
assert restored[0] > 0.9
assert restored[1:].max() < 0.1

# %% [markdown]
# ## Where is the mirrored position computed?
#
# Give the third step an activation of the sixth step, in the same run. If the activation holds the position that is
# read next, the third symbol of the answer becomes the sixth one, a `4`.

# %%
inputs = model.batch(QUESTION, ANSWER).model_inputs()
names = {
    "embedding of the step": "decoder.layers.0.resid_pre",
    "first self-attention": "decoder.layers.0.self_attn.out",
    "first cross-attention": "decoder.layers.0.cross_attn.out",
    "first layer": "decoder.layers.0.resid_post",
    "second self-attention": "decoder.layers.1.self_attn.out",
    "queries of the last cross-attention": "decoder.layers.1.cross_attn.q",
}
written = {}
for label, name in names.items():
    with torch.no_grad(), minitx.trace(model.model, only=name) as recorded:
        model.model(**inputs)
    moved = recorded[name].clone()
    moved[:, 2] = moved[:, 5]
    with torch.no_grad(), minitx.intervene(model.model, {name: moved}):
        tokens = model.tokenizer.tokens(model.model(**inputs)[0].argmax(dim=-1).tolist())
    written[label] = tokens[2]
    print(f"{label:36} {' '.join(tokens)}")
assert written["queries of the last cross-attention"] == "4"
assert "4" not in (written["first self-attention"], written["first cross-attention"])

# %% [markdown]
# The queries of the last cross-attention hold the position. They have it from the embedding of the step, which passes
# through the first layer; no single sublayer on the way holds it. But the mirrored position also needs the *length* of
# the source. Take the first step of a shorter question into a longer one:

# %%
LONGER, SHORTER = "0 1 2 3 4 5 6 7 8 9", "0 1 2 3 4 5"
long, short = (model.batch(text, "").model_inputs() for text in (LONGER, SHORTER))
read = {}
for name in ("decoder.layers.0.cross_attn.out", "decoder.layers.0.self_attn.out", "decoder.layers.1.cross_attn.q"):
    with torch.no_grad(), minitx.trace(model.model, only=name) as recorded:
        model.model(**short)
    with (
        torch.no_grad(),
        minitx.intervene(model.model, {name: recorded[name]}),
        minitx.trace(model.model, only="decoder.layers.1.cross_attn.weights") as maps,
    ):
        model.model(**long)
    read[name] = maps["decoder.layers.1.cross_attn.weights"][0, :, 0].argmax(dim=-1).tolist()
    print(f"{name:36} both heads attend to the symbols {read[name]}")

# %% [markdown]
# Without a change both heads attend to symbol 9, the last one. With the first cross-attention of the shorter question,
# or with its queries, they attend further left, but not to its last symbol 5: the first cross-attention of the decoder
# carries a part of the length. The keys, which the encoder computes from the whole source, may carry the rest; this is
# not tested here. The first self-attention, which reads `<bos>` alone, changes nothing.

# %%
assert max(read["decoder.layers.0.cross_attn.out"]) < 9
assert read["decoder.layers.0.self_attn.out"] == [9, 9]
