"""The four-token example of the course notes, "I love apple phones", through our own attention.

The notes print X, the three projections of head 1, Q, K, V, scores, weights and outputs. Run through, three of these do
not follow from what stands before them; each is named below. Everything else does, to the digits that are printed.
"""

import math

import pytest
import torch
from torch import Tensor

from minitx.nn import MultiHeadAttention, scaled_dot_product_attention

TOKENS = ["I", "love", "apple", "phones"]
X = torch.tensor([[1.0, 0.5, 0.2, 0.1], [0.9, 1.1, 0.1, 0.0], [0.1, 0.2, 1.0, 0.5], [0.0, 0.1, 0.4, 1.2]])
W_Q = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 0.0], [0.0, 1.0]])
W_K = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.0, 1.0], [1.0, 0.0]])
W_V = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0], [0.0, 1.0]])

# As the notes print them.
Q = torch.tensor([[1.2, 0.6], [1.0, 1.1], [1.1, 0.7], [0.4, 1.3]])
K = torch.tensor([[1.2, 0.6], [0.9, 1.1], [0.7, 0.7], [1.3, 0.3]])
V = torch.tensor([[1.2, 0.6], [0.9, 1.1], [1.1, 1.2], [1.3, 1.3]])
SCORES = torch.tensor(
    [[1.80, 1.74, 1.26, 1.74], [1.86, 2.11, 1.47, 1.96], [1.74, 1.76, 1.26, 1.64], [1.26, 1.79, 1.19, 1.91]]
)
WEIGHTS = torch.tensor(
    [
        [0.278, 0.266, 0.190, 0.266],
        [0.248, 0.296, 0.189, 0.267],
        [0.273, 0.277, 0.195, 0.255],
        [0.200, 0.292, 0.191, 0.317],
    ]
)
OUTPUTS = torch.tensor([[1.128, 1.034], [1.119, 1.049], [1.124, 1.035], [1.125, 1.082]])


def heads(x: Tensor) -> Tensor:
    """[T, K] as [B, H, T, K]."""
    return x[None, None]


def test_queries_follow_from_the_embeddings() -> None:
    torch.testing.assert_close(X @ W_Q, Q)


@pytest.mark.parametrize(
    ("printed", "weight", "true"),
    [
        (K, W_K, [[1.1, 0.7], [0.9, 1.2], [0.6, 1.2], [1.2, 0.5]]),
        (V, W_V, [[1.2, 0.8], [1.0, 1.2], [1.1, 1.7], [0.4, 1.7]]),
    ],
    ids=["keys", "values"],
)
def test_printed_keys_and_values_do_not(printed: Tensor, weight: Tensor, true: list[list[float]]) -> None:
    torch.testing.assert_close(X @ weight, torch.tensor(true))
    assert not torch.allclose(printed, X @ weight, atol=0.05)


def test_scores_follow_from_the_printed_queries_and_keys_but_for_two() -> None:
    scores = Q @ K.T
    wrong = {(TOKENS[i], TOKENS[j]) for i, j in ((scores - SCORES).abs() > 0.006).nonzero().tolist()}
    assert wrong == {("love", "phones"), ("phones", "phones")}
    assert scores[1, 3] == pytest.approx(1.63)  # printed 1.96
    assert scores[3, 3] == pytest.approx(0.91)  # printed 1.91


def test_weights_and_outputs_follow_from_the_printed_scores() -> None:
    # Scores as given: an identity for the queries makes q k^T / sqrt(K) whatever the keys say.
    k = (SCORES / math.sqrt(2)).T * math.sqrt(4)
    out, weights = scaled_dot_product_attention(heads(torch.eye(4)), heads(k), heads(V), return_weights=True)
    torch.testing.assert_close(weights[0, 0], WEIGHTS, atol=1e-3, rtol=0)
    torch.testing.assert_close(out[0, 0], OUTPUTS, atol=2e-3, rtol=0)


def test_the_whole_of_head_one_from_the_embeddings() -> None:
    """What the notes' matrices really give, by multi-head attention with head 1 in front."""
    attention = MultiHeadAttention(d_model=4, n_heads=2, bias=False)
    torch.manual_seed(0)
    with torch.no_grad():
        for projection, weight in ((attention.q_proj, W_Q), (attention.k_proj, W_K), (attention.v_proj, W_V)):
            projection.weight.copy_(torch.cat((weight, torch.randn(4, 2)), dim=1).T)
        attention.o_proj.weight.copy_(torch.eye(4))  # so that the output is the heads side by side
        out = attention(X[None])[0, :, :2]
    scores = (X @ W_Q) @ (X @ W_K).T / math.sqrt(2)
    by_hand = torch.stack([sum(w * v for w, v in zip(row.softmax(0), X @ W_V, strict=True)) for row in scores])
    torch.testing.assert_close(out, by_hand)
