# ---
# jupyter:
#   jupytext:
#     text_representation: {extension: .py, format_name: percent}
#   kernelspec: {display_name: Python 3, language: python, name: python3}
# ---

# %% [markdown]
# # A tour of minitx
#
# Train a Transformer, generate answers, inspect and ablate every head. Training takes less than a minute on a laptop.
#
# Open this file as a notebook: in the project folder, `pip install -e '.[notebook]'` and
# `jupytext --to ipynb notebooks/tour.py`.

# %%
import minitx

# %% [markdown]
# ## Train
#
# `reverse` is a bundled config: a small encoder-decoder of "Attention Is All You Need", trained to reverse sequences.
# Any key can be changed; here validation is more frequent.

# %%
figures = minitx.train("reverse", {"trainer.val_every_n_steps": 250, "run.name": "tour"})
figures["exact_match"]

# %% [markdown]
# This is *free-running exact match*: the share of generated answers to unseen questions that are right as a whole.
#
# ## Training curves

# %%
minitx.curves("runs/tour").of("training/loss", "training/learning_rate", "validation/*")

# %% [markdown]
# The loss falls while the share of weight on the mirrored position rises in both heads of layer 2:

# %%
minitx.curves("runs/tour").of("*heads_cross/antidiagonal/*", "*heads_cross/entropy/*")

# %% [markdown]
# ## Generate

# %%
model = minitx.load("runs/tour")
model.generate(["3 1 4", "2 7 1 8 2 8", "0"])

# %%
assert model.generate("3 1 4 1 5") == "5 1 4 1 3"
model.score("3 1 4", "4 1 3"), model.score("3 1 4", "4 1 5")  # log-probabilities: the right answer, a wrong one

# %% [markdown]
# ## Attention maps
#
# Every head of every layer, for encoder, decoder and cross-attention. Point at a row; click a head to enlarge it.

# %%
maps = model.attend("3 1 4 1 5 9 2 6")
maps

# %%
[layer.shape for layer in maps.cross]  # batch, heads, target tokens, source tokens

# %% [markdown]
# ## Ablation
#
# Evaluate the model without each of its heads.

# %%
from minitx.interpret.ablation import ablate, table

print(table(ablate(model, "test", 200)))

# %% [markdown]
# ## Position schemes
#
# An encoder alone, a few seconds each. Without positions every token of an encoder attends to the same set of tokens,
# so the model cannot distinguish the first from the last.

# %%
for scheme in ("sinusoidal", "learned", "none"):
    figures = minitx.train("reverse_encoder", {"model.position.name": scheme, "run.name": f"tour_{scheme}"})
    assert (figures["exact_match"] > 0.9) == (scheme != "none")

# %% [markdown]
# Next: `induction_heads.py` in this folder trains a circuit of two heads; the guide explains each part.
