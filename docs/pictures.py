"""Figures of the guide that no minitx command makes: `python docs/pictures.py NAME FILE.png`.

Legend: B batch, T tokens, H heads, K d_head, D d_model.
"""

from __future__ import annotations

import math
import shutil
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageDraw
from torch import Tensor, nn

import minitx
from minitx.checkpoints import format as checkpoint
from minitx.interpret import images
from minitx.nn import EncoderLayer, FeedForward, MultiHeadAttention, masks, scaled_dot_product_attention
from minitx.plotting.panels import Heat, Lines, sheet
from minitx.plotting.style import COLOURS, QUIET, new_figure, save, styled
from minitx.tensorboard import map_format

WORDS = ["I", "love", "apple", "phones"]


def reach(path: Path) -> None:
    """Gradient of the last output by each input, for untrained layers of one width."""
    torch.manual_seed(1)
    tokens, width = 64, 64
    layers = {
        "recurrent (tanh)": nn.RNN(width, width, batch_first=True),
        "LSTM": nn.LSTM(width, width, batch_first=True),
        "self-attention": MultiHeadAttention(width, 4),
    }
    curves = []
    for name, layer in layers.items():
        x = torch.randn(256, tokens, width, requires_grad=True)
        out = layer(x)
        (out[0] if isinstance(out, tuple) else out)[:, -1].square().sum().backward()
        assert x.grad is not None
        size = x.grad.norm(dim=2).mean(dim=0)[:-1]  # without the last token's own path
        curves.append((name, (size / size.max()).flip(0).tolist()))
    steps = range(1, tokens)
    sheet(path, "Gradient by distance", [Lines("share of its largest", steps, curves, "tokens back")])


def weights(path: Path) -> None:
    """The worked example: scores, weights and outputs of attention on four words."""
    x = torch.tensor([[1.0, 0.5, 0.2, 0.1], [0.9, 1.1, 0.1, 0.0], [0.1, 0.2, 1.0, 0.5], [0.0, 0.1, 0.4, 1.2]])
    q = x @ torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 0.0], [0.0, 1.0]])
    k = x @ torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.0, 1.0], [1.0, 0.0]])
    v = x @ torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0], [0.0, 1.0]])
    out, found = scaled_dot_product_attention(*(part[None, None] for part in (q, k, v)), return_weights=True)
    named = ", ".join(f"{number} {word}" for number, word in enumerate(WORDS))
    panels = [
        Heat("scores Q Kᵀ", (q @ k.T).numpy(), "key", "query"),
        Heat("weights, each row sums to 1", found[0, 0].numpy(), "key", "query"),
        Heat("output: mixed values", out[0, 0].numpy(), "dimension", "query"),
    ]
    sheet(path, f"One head on four words ({named})", panels)


def scaling(path: Path) -> None:
    """Scores, weights and gradients over the width of a head, with and without the division by its root."""
    widths = [4, 8, 16, 32, 64, 128, 256, 512, 1024]
    sizes: dict[str, list[list[float]]] = {"divided by √d": [], "not divided": []}
    for width in widths:
        torch.manual_seed(1)
        keys = torch.randn(2000, 16, width)
        for name, found in sizes.items():
            queries = torch.randn(2000, 1, width, requires_grad=True)
            scores = queries @ keys.mT / (math.sqrt(width) if name == "divided by √d" else 1.0)  # [B, 1, S]
            weights = scores.softmax(dim=-1)
            weights[..., 0].sum().backward()
            assert queries.grad is not None
            gradient = queries.grad.norm(dim=-1).median()
            found.append([scores.std().item(), weights.max(dim=-1).values.mean().item(), gradient.item()])
    titles = ["standard deviation of scores", "the largest of 16 weights", "gradient at the query (median)"]
    panels = [
        Lines(title, np.log2(widths).tolist(), [(name, [row[n] for row in rows]) for name, rows in sizes.items()],
              "log2 of the head's width")
        for n, title in enumerate(titles)
    ]  # fmt: skip
    sheet(path, "Random queries and keys, one query on 16 keys", panels)


def visible(path: Path) -> None:
    """The masks of a sequence of twelve tokens; bright is visible."""
    size = 12
    documents = torch.tensor([[1] * 5 + [2] * 4 + [3] * 3])
    keep = torch.arange(size)[None] < 9

    padding = masks.key_padding(keep)
    assert padding is not None

    def built(*rules: masks.Predicate) -> Tensor:
        return masks.build(*rules, queries=size, keys=size).expand(1, 1, size, size)[0, 0]

    shown = {
        "causal": built(masks.causal),
        "causal window of 4": built(masks.window(4, causal=True)),
        "window of 5, both ways": built(masks.window(5, causal=False)),
        "prefix of 5": built(masks.prefix(torch.tensor([5]))),
        "three packed documents": built(masks.causal, masks.same_document(documents)),
        "three tokens of padding": padding.expand(1, 1, size, size)[0, 0],
    }
    sheet(path, "Visible keys", [Heat(name, mask.float().numpy(), "key", "query") for name, mask in shown.items()])


def residual(path: Path) -> None:
    """Norms of vectors and gradients through sixteen untrained layers."""
    depth, width = 16, 64
    sizes, gradients = [], []
    for name, framed in (("pre-norm", True), ("post-norm", False), ("neither", None)):
        torch.manual_seed(1)
        stack = [
            EncoderLayer(MultiHeadAttention(width, 4), FeedForward(width, 4 * width), width, norm_first=bool(framed))
            for _ in range(depth)
        ]
        x = torch.randn(32, 16, width, requires_grad=True)
        seen = [x]
        for layer in stack:
            h = seen[-1]
            if framed is None:
                assert layer.ffn is not None
                h = layer.ffn(layer.self_attn(h))
            else:
                h = layer(h)
            h.retain_grad()
            seen.append(h)
        (seen[-1] * torch.randn_like(seen[-1])).sum().backward()
        sizes.append((name, [h.norm(dim=-1).mean().log10().item() for h in seen]))
        found = [h.grad.norm(dim=-1).mean().log10().item() for h in seen if h.grad is not None]
        gradients.append((name, [size - found[-1] for size in found]))
    panels = [
        Lines("length of the vectors, log10", range(depth + 1), sizes, "layer"),
        Lines("gradient relative to the last layer, log10", range(depth + 1), gradients, "layer"),
    ]
    sheet(path, "Sixteen layers before training", panels)


def cost(path: Path) -> None:
    """Time and memory of causal self-attention, forward and backward, over the length."""
    lengths = [128, 256, 512, 1024, 2048]
    seconds: dict[str, list[float]] = {"explicit": [], "fused": []}
    for tokens in lengths:
        parts = [torch.randn(1, 8, tokens, 32, requires_grad=True) for _ in range(3)]
        for name, explicit in (("explicit", True), ("fused", False)):
            taken = []
            for _ in range(3):
                start = time.perf_counter()
                out = scaled_dot_product_attention(*parts, return_weights=explicit, causal=True)
                (out[0] if explicit else out).sum().backward()
                taken.append(time.perf_counter() - start)
            seconds[name].append(1000 * min(taken))
    kept = [("scores, T × T", [8 * n * n / 1e6 for n in lengths]), ("output, T × d", [256 * n / 1e6 for n in lengths])]
    panels = [
        Lines("milliseconds, best of 3", lengths, list(seconds.items()), "tokens"),
        Lines("millions of numbers", lengths, kept, "tokens"),
    ]
    sheet(path, "Self-attention, 8 heads of width 32", panels)


def temperature(path: Path) -> None:
    """One set of scores at several temperatures."""
    logits = torch.tensor([3.0, 2.2, 1.5, 1.0, 0.4, 0.0, -0.5, -1.0])
    curves = [(f"temperature {t:g}", (logits / t).softmax(dim=0).tolist()) for t in (0.3, 1.0, 2.0)]
    sheet(path, "The same scores", [Lines("probability", range(1, 9), curves, "token, the likeliest first")])


def curves(path: Path, run: str, *tags: str) -> None:
    """Logged scalars of a run, over its steps."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    log = EventAccumulator(str(checkpoint.find(run).parent)).Reload()
    panels: list[Heat | Lines] = []
    for tag in tags:
        names = [name for name in log.Tags()["scalars"] if name == tag or name.startswith(f"{tag}/")]
        if not names:
            print(f"{run} has no {tag}; it has: {', '.join(log.Tags()['scalars'])}", file=sys.stderr)
            continue
        found = {name: log.Scalars(name) for name in names}
        steps = [event.step for event in found[names[0]]]
        lines = [(name.removeprefix(f"{tag}/"), [event.value for event in events]) for name, events in found.items()]
        panels.append(Lines(tag, steps, lines, "step"))
    sheet(path, run, panels)


@styled()
def shift(path: Path, run: str, word: str, *sentences: str) -> None:
    """The vector of a word in the embedding and after the last layer in each sentence."""
    predictor = minitx.load(run)
    names, vectors = [], []
    for sentence in sentences:
        ids = torch.tensor([predictor.tokenizer.encode(sentence)], device=predictor.device)
        tokens = predictor.tokenizer.tokens(ids[0].tolist())
        words = sentence.split()
        place = tokens.index(words[2])
        with torch.no_grad():
            vectors.append(predictor.model(ids, head=False)[0, place].cpu())
        names.append(" ".join(words[2:]))
    centred = torch.stack(vectors) - torch.stack(vectors).mean(dim=0)
    flat = centred @ torch.linalg.svd(centred).Vh[:2].T  # [N, 2], the two directions in which they differ most
    figure = new_figure(6.8, 3.2)
    wide, narrow = figure.add_gridspec(1, 3)[1:], figure.add_gridspec(1, 3)[0]
    axes_of = [
        (narrow, f"{word} in the embedding", torch.zeros(1, 2), [word]),
        (wide, "after the last layer", flat, names),
    ]
    for where, title, points, labels in axes_of:
        axes = figure.add_subplot(where)
        axes.set_title(title)
        for index, ((x, y), label) in enumerate(zip(points.tolist(), labels, strict=True)):
            own = label.startswith(word)
            axes.plot(x, y, "o", color=COLOURS[1 if own else 0], markersize=7 if own else 5)
            above_or_below = (6, -9 if index % 2 else 4)  # of two points that are near, one each
            axes.annotate(label, (x, y), xytext=above_or_below, textcoords="offset points", color=QUIET)
        axes.margins(0.28)
        axes.set_xticks([])
        axes.set_yticks([])
    save(figure, path)


def recording(path: Path, run: str, tag: str = "cross/example_1") -> None:
    """The attention maps of a run over its steps, as an animated PNG or WebP: every head of one kind and example."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    folder = checkpoint.find(run).parent
    log = EventAccumulator(str(folder), size_guidance={"tensors": 0}).Reload()
    frames = []
    for event in log.Tensors(tag):
        first, *blobs = event.tensor_proto.string_val
        header = map_format.read_header(first)
        tokens = [[label for label in header[side] if label is not None] for side in ("queries", "keys")]
        layers = []
        for number, shape in enumerate(map_format.sizes(header)[: len(header["heads"])]):
            packed = b"".join(map_format.unpacked_pieces(blobs[number], shape))
            levels = np.frombuffer(packed, np.uint8).reshape(shape)
            weights = (levels[:, : len(tokens[0]), : len(tokens[1])] / map_format.LEVELS) ** 2
            heads = images.heads_image(weights, *tokens).convert("RGB")
            layer = Image.new("RGB", (heads.width, heads.height + 24), "white")
            title = f"{header['kind']}-attention, layer {number + 1}, step {event.step:,}"
            ImageDraw.Draw(layer).text((6, 6), title, fill=(40, 40, 40), font_size=12)
            layer.paste(heads, (0, 24))
            layers.append(layer)
        frames.append(Image.fromarray(np.hstack([np.asarray(layer) for layer in layers])))
    milliseconds = [150] * (len(frames) - 1) + [2500]
    frames[0].save(path, save_all=True, append_images=frames[1:], duration=milliseconds, loop=0, lossless=True)


def play(path: Path, run: str, view: str) -> None:
    """The page of minitx play, 1,300 pixels wide; the view is the part of its address after #. Needs chromium."""
    from playwright.sync_api import sync_playwright

    from minitx.playground.server import serve

    server, address = serve(minitx.load(run))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1300, "height": 900})
        page.goto(f"{address}#{view}")
        for drawn in ('body[data-state="done"]', "body[data-examples]", ".explained table, .chart svg, .switch"):
            page.locator(drawn).first.wait_for()
        page.wait_for_timeout(500)
        page.screenshot(path=path)
        browser.close()
    server.shutdown()


PICTURES: dict[str, Callable[..., None]] = {
    "cost": cost, "curves": curves, "masks": visible, "play": play, "reach": reach, "recording": recording,
    "residual": residual, "scaling": scaling, "shift": shift, "temperature": temperature, "weights": weights,
}  # fmt: skip

if __name__ == "__main__":
    if len(sys.argv) < 3 or sys.argv[1] not in PICTURES:
        raise SystemExit(f"usage: python docs/pictures.py NAME FILE.png ...   NAME: {', '.join(PICTURES)}")
    PICTURES[sys.argv[1]](Path(sys.argv[2]), *sys.argv[3:])
    print(sys.argv[2])
