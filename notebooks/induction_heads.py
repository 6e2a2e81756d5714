# ---
# jupyter:
#   jupytext:
#     text_representation: {extension: .py, format_name: percent}
#   kernelspec: {display_name: Python 3, language: python, name: python3}
# ---

# %% [markdown]
# # An induction circuit, grown
#
# A string such as `7 2 9 4 2` ends in a symbol that was there before. How did it go on, then? `9 4`. Two layers of
# attention alone, without any feed-forward network, can find out, and one layer cannot (Elhage et al. 2021, Olsson et
# al. 2022): a head of the first layer writes into each place *what stood before it*; a head of the second looks for the
# place whose predecessor is the symbol at hand. This notebook lets both grow, and then takes them away.

# %%
import minitx

CHANGES = {"trainer.max_steps": 2000, "trainer.val_every_n_steps": 100, "run.name": "induction_notebook"}
figures = minitx.train("induction", CHANGES)
figures["exact_match"]

# %% [markdown]
# ## The moment it appears
#
# Loss, and for each head how much of its weight lies on the token before (`previous_token`) and on what followed the
# same symbol earlier (`induction`).

# %%
curves = minitx.curves("runs/induction_notebook")
curves.of("training/loss", "validation/exact_match")

# %%
curves.of("heads_decoder/previous_token/*", "heads_decoder/induction/*")

# %%
strongest = max(curves.of("heads_decoder/induction/*").points.items(), key=lambda item: item[1][-1][1])
name, points = strongest
print(f"{name}: {points[0][1]:.2f} at step {points[0][0]}, {points[-1][1]:.2f} at step {points[-1][0]}")
assert "layer_2" in name
assert points[-1][1] > 0.8 > points[0][1]

# %% [markdown]
# ## Look at it
#
# In the second layer, the last symbol of the question looks at what followed it the first time.

# %%
model = minitx.load("runs/induction_notebook")
model.attend("7 2 9 4 11 3 2")

# %%
model.generate("7 2 9 4 11 3 2")

# %% [markdown]
# ## Take them away
#
# Zero one head after the other, and all heads of a pattern together.

# %%
from minitx.interpret.ablation import ablate, table

ablation = ablate(model, "test", 300)
print(table(ablation))

# %% [markdown]
# ## One layer cannot
#
# With the same number of steps: there is no earlier head that could have told where each symbol's predecessor was.

# %%
alone = minitx.train("induction", {**CHANGES, "model.n_layers": 1, "run.name": "induction_one_layer"})
print(f"two layers {figures['exact_match']:.1%}, one layer {alone['exact_match']:.1%}")
assert figures["exact_match"] > 0.95
assert alone["exact_match"] < 0.3

# %% [markdown]
# Try: `"model.n_heads": 1`, `"model.position.name": "none"`, other seeds (`"run.seed": 2`). Which head of the second
# layer becomes the induction head is chance; that there is one is not.
