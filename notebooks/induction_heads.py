# ---
# jupyter:
#   jupytext:
#     text_representation: {extension: .py, format_name: percent}
#   kernelspec: {display_name: Python 3, language: python, name: python3}
# ---

# %% [markdown]
# # An induction circuit
#
# The last symbol of `7 2 9 4 2` occurs earlier in the string, where it is followed by `9 4`. Two layers of attention
# alone, without feed-forward networks, can learn to predict `9 4`, and one layer cannot (Elhage et al. 2021, Olsson et
# al. 2022). A head of the first layer copies the *previous token* into the vector of each token; a head of the second
# layer attends to the token whose predecessor is the current symbol. This notebook trains both heads and ablates them.

# %%
import minitx

CHANGES = {"trainer.val_every_n_steps": 100, "run.name": "induction_notebook"}
figures = minitx.train("induction", CHANGES)
figures["exact_match"]

# %% [markdown]
# ## When the circuit appears
#
# The loss, and the share of each head's weight on the previous token (`previous_token`) and on the token that followed
# the same symbol earlier (`induction`).

# %%
curves = minitx.curves("runs/induction_notebook")
curves.of("training/loss", "validation/exact_match")

# %%
curves.of("*heads_decoder/previous_token/*", "*heads_decoder/induction/*")

# %%
strongest = max(curves.of("*heads_decoder/induction/*").points.items(), key=lambda item: item[1][-1][1])
name, points = strongest
print(f"{name}: {points[0][1]:.2f} at step {points[0][0]}, {points[-1][1]:.2f} at step {points[-1][0]}")
assert "layer_2" in name
assert points[-1][1] > 0.8 > points[0][1]

# %% [markdown]
# ## The attention maps
#
# In the second layer, the last symbol of the question attends to the token that followed its earlier occurrence. So
# does the row of `<sep>`, which predicts the answer: another head of layer 1 gives it the last symbol.

# %%
model = minitx.load("runs/induction_notebook")
model.attend("7 2 9 4 11 3 2")

# %%
model.generate("7 2 9 4 11 3 2")

# %% [markdown]
# ## Ablation
#
# Set the output of each head to zero, one after the other, then of all heads of a pattern together.

# %%
from minitx.interpret.ablation import ablate, table

ablation = ablate(model, "test", 300)
print(table(ablation))

# %% [markdown]
# ## One layer is not enough
#
# The same number of steps with one layer: no earlier layer adds the previous token to the vectors.

# %%
alone = minitx.train("induction", {**CHANGES, "model.n_layers": 1, "run.name": "induction_one_layer"})
print(f"two layers {figures['exact_match']:.1%}, one layer {alone['exact_match']:.1%}")
assert figures["exact_match"] > 0.95
assert alone["exact_match"] < 0.3

# %% [markdown]
# Try: other seeds (`"run.seed": 2`), `"model.n_heads": 1`, `"model.position.name": "none"`. Which head of the second
# layer becomes the induction head depends on the seed. With one head, or without positions, the circuit may not form.
