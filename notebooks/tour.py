# ---
# jupyter:
#   jupytext:
#     text_representation: {extension: .py, format_name: percent}
#   kernelspec: {display_name: Python 3, language: python, name: python3}
# ---

# %% [markdown]
# # A tour of minitx
#
# Train a Transformer, let it write, look at every head, take a head away. Half a minute of training on a laptop.
#
# Open this file as a notebook: `pip install 'minitx[notebook]'`, then `jupytext --to ipynb notebooks/tour.py`.

# %%
import minitx

# %% [markdown]
# ## Train
#
# `reverse` is a bundled config: the encoder-decoder of "Attention Is All You Need", small, learning to write a sequence
# backwards. Any key can be changed; here we look at the heads more often.

# %%
figures = minitx.train("reverse", {"trainer.val_every_n_steps": 250, "run.name": "tour"})
figures["exact_match"]

# %% [markdown]
# That is *free-running exact match*: the model wrote whole answers by itself, to questions it has never seen.
#
# ## How it got there

# %%
minitx.curves("runs/tour").of("training/loss", "training/learning_rate", "validation/*")

# %% [markdown]
# The loss stands still for a while and then falls at once. What happened? The share of each head on the mirrored place:

# %%
minitx.curves("runs/tour").of("heads_cross/antidiagonal/*", "heads_cross/entropy/*")

# %% [markdown]
# ## Let it write

# %%
model = minitx.load("runs/tour")
model.generate(["3 1 4", "2 7 1 8 2 8", "0"])

# %%
assert model.generate("3 1 4 1 5") == "5 1 4 1 3"
model.score("3 1 4", "4 1 3"), model.score("3 1 4", "4 1 5")  # log-probabilities: the right answer, a wrong one

# %% [markdown]
# ## Look inside
#
# Every head of every layer, for encoder, decoder and cross-attention. Point at a row; click a head to enlarge it.

# %%
maps = model.attend("3 1 4 1 5 9 2 6")
maps

# %%
[layer.shape for layer in maps.cross]  # batch, heads, written tokens, read tokens

# %% [markdown]
# ## Take a head away
#
# What is each head worth? Evaluate without it.

# %%
from minitx.interpret.ablation import ablate, table

print(table(ablate(model, "test", 200)))

# %% [markdown]
# ## One word changes the position scheme
#
# An encoder alone, three seconds each. Without positions every place of an encoder sees the same set of tokens, so it
# cannot tell the first from the last.

# %%
for scheme in ("sinusoidal", "learned", "none"):
    figures = minitx.train("reverse_encoder", {"model.position.name": scheme, "run.name": f"tour_{scheme}"})
    assert (figures["exact_match"] > 0.9) == (scheme != "none")

# %% [markdown]
# Next: `induction_heads.py` beside this file grows a circuit of two heads; the guide explains each part.
