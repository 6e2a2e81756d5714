"""The page of minitx play in a browser: its numbers and texts are those of the model."""

import itertools
import math
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from typing import Any
from urllib.parse import urlencode

import pytest
import torch

from minitx.data import tokenizers
from minitx.data.text.tokenizer_training import CharTokenizer
from minitx.generation.options import GenerationOptions
from minitx.generation.sampling import filtered
from minitx.inference.predictor import Predictor
from minitx.interpret.ablation import ablate
from minitx.playground.server import LOOPBACK, serve
from minitx.playground.written_steps import distribution, filled, written
from predictors import built, masked
from web_pages import LOWEST_CONTRAST, eventually, watched

HOLD = """(name) => {
    const fetched = fetch;
    const held = new Promise((release, refuse) => Object.assign(window, { release, refuse, asked: false }));
    window.fetch = (...all) => {
        if (all[0] !== name) return fetched(...all);
        Object.assign(window, { fetch: fetched, asked: true });
        return held.then(() => fetched(...all));
    };
}"""
"""In the page: a request that follows a new route of Playwright can still pass it by while the page is busy."""


class PlayPage:
    def __init__(self, page: Any, address: str) -> None:
        self.page, self.address = page, address

    def open(self, **view: Any) -> None:
        if self.page.url.startswith(self.address):  # no new page
            self.after(lambda: self.page.evaluate("view => { location.hash = view }", urlencode(view)))
            return
        self.page.goto(f"{self.address}#{urlencode(view)}")
        if "prompt" in view:
            self.settled()

    def settled(self, state: str = "done") -> None:
        eventually(self.page, f"document.body.dataset.state === '{state}'")

    def after(self, act: Callable[[], Any], state: str = "done") -> None:
        """Act, and wait for the text that this requests."""
        self.page.locator("body").evaluate("body => body.dataset.state = 'waiting'")
        act()
        self.settled(state)

    def press(self, name: str) -> None:
        self.page.get_by_role("button", name=name, exact=True).click()

    def slide(self, label: str, value: float) -> None:
        slider = self.page.get_by_label(label, exact=True)
        slider.evaluate("(one, value) => { one.value = value; }", str(value))
        slider.dispatch_event("input")
        slider.dispatch_event("change")

    def held(self, name: str, act: Callable[[], Any]) -> None:
        """Act, and wait for the first request of a name that this makes, which then waits for release or refuse."""
        self.page.evaluate(HOLD, name)
        act()
        eventually(self.page, "window.asked")

    @property
    def text(self) -> str:
        return str(self.page.locator(".outcome").get_attribute("data-text"))

    @property
    def tokens(self) -> list[int]:
        return list(self.page.locator("button.chip").evaluate_all("all => all.map((one) => Number(one.dataset.token))"))

    def bars(self, name: str = "before") -> dict[int, float]:
        rows = self.page.locator(".candidates button")
        return dict(rows.evaluate_all("(all, key) => all.map(({ dataset }) => [+dataset.token, +dataset[key]])", name))

    def shown_bars(self, own: dict[int, float], name: str = "before") -> dict[int, float]:
        """The bars, which must have these probabilities."""
        bars = self.bars(name)
        assert bars == pytest.approx({token: own[token] for token in bars}, abs=5e-4)
        return bars

    def force(self, token: int) -> None:
        self.after(self.page.locator(f'.candidates [data-token="{token}"]').click)


@pytest.fixture(scope="module")
def play(browser: Any) -> Iterator[Callable[..., PlayPage]]:
    """play(predictor): its page; errors and requests elsewhere fail the test."""
    with ExitStack() as stack:
        page = stack.enter_context(watched(browser, f"http://{LOOPBACK}:", "data:"))
        page.set_viewport_size({"width": 1000, "height": 900})

        def opened(predictor: Predictor) -> PlayPage:
            server, address = serve(predictor, imports={"own task.py": "its hash"})
            threading.Thread(target=server.serve_forever, args=(0.05,)).start()
            stack.callback(server.shutdown)  # which waits for its end
            return PlayPage(page, address)

        yield opened


def shares(step: dict[str, Any]) -> dict[int, float]:
    """The probabilities of a step, which are those of the model: test_written_steps.py."""
    return dict(zip(step["ids"], torch.tensor(step["logits"]).softmax(dim=0).tolist(), strict=True))


def test_an_encoder_decoder_is_written_forced_sampled_searched_and_reopened(play: Any) -> None:
    predictor, prompt = built("encoder_decoder", ends=False), "1 2 3 4"
    page = play(predictor)
    page.open()
    page.press("Write")
    page.page.get_by_role("alert").get_by_text("the prompt is empty").wait_for()
    page.page.get_by_placeholder("3 1 4").fill(prompt)
    page.after(lambda: page.page.get_by_label("prompt").press("Enter"))
    assert (page.text, page.page.inner_text(".form")) == (predictor.generate(prompt), "Example: 3 1 4 -> 4 1 3.")
    _, *steps, _ = written(predictor, predictor.encode(prompt), GenerationOptions(), {})
    assert page.tokens == [step["id"] for step in steps]
    page.page.locator("button.chip").nth(2).click()
    bars = page.shown_bars(shares(steps[2]))
    row = predictor.attend(prompt, page.text).cross[-1][0].mean(dim=0)[2].tolist()  # all heads of the last layer
    lines, box = page.page.locator(".text svg path"), page.page.locator("button.chip").nth(2).bounding_box()
    begins = page.page.locator(".text svg").bounding_box()["x"] + float(lines.first.get_attribute("d")[1:].split()[0])
    assert begins == pytest.approx(box["x"] + box["width"] / 2, abs=0.5)
    lines = lines.evaluate_all("all => all.map(({ dataset }) => +dataset.weight)")
    assert lines == pytest.approx([weight for weight in row if weight >= 0.04], abs=0.01)

    page.page.keyboard.press("2")
    last = page.page.locator('[data-lens="lens"] tr').last
    assert float(last.get_attribute("data-share")) == pytest.approx(max(bars.values()), abs=5e-4)
    page.force(token := [*bars][1])
    _, *steps, _ = written(predictor, predictor.encode(prompt), GenerationOptions(), {2: token})
    assert page.tokens == [step["id"] for step in steps]
    page.page.locator("button.chip").nth(3).click()
    bars = page.shown_bars(own := shares(steps[3]))
    page.after(page.page.reload)
    assert (page.tokens, page.bars()) == ([step["id"] for step in steps], bars)
    logits = torch.tensor([own[token] for token in sorted(own)]).log()[None]
    for name, value, neutral in (("temperature", 1.7, 1), ("top_p", 0.8, 1), ("top_k", 3, 0), ("min_p", 0.15, 0)):
        page.slide(name.replace("_", "-"), value)
        page.shown_bars(dict(enumerate(filtered(logits, **{name: value})[0].tolist())), "after")
        page.slide(name.replace("_", "-"), neutral)
    temperature = page.page.get_by_label("temperature", exact=True)
    page.page.keyboard.press("1")
    temperature.press("End")
    assert float(temperature.input_value()) == float(temperature.get_attribute("max"))
    page.open(prompt=prompt, strategy="sample", temperature=1.5, seed=7, item=0.5)  # not a layer: ignored
    assert page.text == predictor.generate(prompt, do_sample=True, temperature=1.5, seed=7)
    page.open(prompt=prompt, strategy="beams", num_beams=3)
    beams = predictor.generations([prompt], GenerationOptions(num_beams=3, num_return_sequences=3))[0]
    assert page.page.locator(".beams bdi").all_inner_texts() == [beam.text for beam in beams]
    assert page.tokens == beams[0].ids
    rows = {*page.page.locator(".tree .token").evaluate_all("all => all.map((one) => one.getAttribute('y'))")}
    assert 3 <= len(rows) <= 6, "three beams at a step, and those that end there"
    assert page.page.evaluate("document.querySelector('.scroll').scrollWidth") < 470, "the width of the panel"
    for name in ("first step", "previous step", "next step", "last step", "keys"):
        assert page.page.get_by_role("button", name=name).is_visible()
    for tokens in (0, 3):  # 0: none was typed
        page.open(prompt=prompt, strategy="beams", num_beams=3, tokens=tokens)
        page.after(page.page.locator(".beams button").nth(1).click)
        field, limits = page.page.get_by_label("max new tokens"), {"max_new_tokens": tokens} if tokens else {}
        assert field.input_value() == str(tokens or len(beams[1].ids)), "a beam that did not end is not continued"
        page.after(lambda: page.press("Write"))
        assert (field.input_value(), page.text) == (str(tokens or ""), predictor.generate(prompt, **limits))


def test_right_and_wrong_tokens_parts_that_are_off_and_a_step_during_a_look(play: Any) -> None:
    own, prompt = built("encoder_decoder", ends=False), "1 2 3 4"
    right = [*own.tokenizer.encode("4 3 2 1"), own.tokenizer.special.eos]
    page = play(Predictor(own.model, CharTokenizer().train([["0123456"]]), own.config))
    page.open(prompt="1234")
    assert "4321 ✗" in page.page.locator(".outcome").inner_text()
    page = play(own)
    page.open(prompt=prompt, tokens=2, forced=f"0:{right[0]},1:{right[1]}", temperature=0)  # no NaN in its chart
    assert (page.tokens, page.page.locator(".chip.wrong").count()) == (right[:2], 0)
    assert "4 3 2 1 right so far" in page.page.locator(".outcome").inner_text()
    page.open(prompt=prompt, forced=",".join(f"{step}:{token}" for step, token in enumerate(right)))
    assert page.page.locator(".right-mark").count() == 1
    page.open(prompt=prompt, off="cross.2.1,decoder.1.2", panel="intervene")
    assert page.page.locator(".chip.wrong").count() == 1
    for scheme in ("dark", "light"):
        page.page.emulate_media(color_scheme=scheme)
        page.page.locator(f":root[data-theme={scheme}]").wait_for()
        chips = page.page.locator("button.chip")
        chips.evaluate_all("all => all.forEach((one) => one.style.setProperty('--share', 0))")
        assert chips.evaluate_all(LOWEST_CONTRAST) >= 4.5, "also of improbable tokens and of the wrong one"
    assert page.text != own.generate(prompt)
    page.held("ablate", lambda: page.press("Which parts can go?"))
    page.page.get_by_text("Measuring without each of the 16 parts").wait_for()
    page.page.evaluate("release()")
    eventually(page.page, f"document.querySelectorAll('.ranking li').length === {3 * 2 * 2 + 2 * 2}")  # heads, networks
    page.after(lambda: page.press("All on"))
    assert page.text == own.generate(prompt)
    look = "() => { location.hash = 'prompt=1+2+3+4&panel=look&step=1' }"
    page.held("explain", lambda: page.page.evaluate(look))
    page.page.evaluate("() => { document.querySelector('.outcome div').kept = true }")
    any(page.page.keyboard.press(f"Arrow{key}") for key in ("Right", "Right", "Left"))
    page.page.evaluate("release()")
    page.page.wait_for_timeout(300)
    _, *steps, _ = written(own, own.encode(prompt), GenerationOptions(), {})
    share = "document.querySelector('[data-lens=lens] tr:last-of-type').dataset.share"
    eventually(page.page, f"Math.abs({share} - {max(shares(steps[2]).values())}) < 5e-4")
    asked = "performance.getEntriesByType('resource').filter(({ name }) => name.endsWith('explain')).length"
    assert page.page.evaluate(f"[document.querySelector('.outcome div').kept, {asked}]") == [True, 2]


def test_the_ranking_of_a_language_model_is_the_loss_gained(play: Any, tmp_path: Any) -> None:
    (tmp_path / "text.txt").write_text("abc defg\nfade cab\n" * 60)
    own = built("decoder_only", text=True)
    config = replace(own.config, data={**own.config.data, "path": str(tmp_path / "text.txt")})
    found = ablate(predictor := Predictor(own.model, own.tokenizer, config), examples=100, parts="heads,ffn").to_dict()
    (page := play(predictor)).open(panel="intervene")
    page.press("Which parts can go?")
    page.page.get_by_text(f"loss gained without each, on {found['examples']} examples of validation; loss").wait_for()
    rises = sorted(part["loss"] - found["whole"]["loss"] for part in found["parts"])
    assert page.page.locator(".ranking .number").all_inner_texts() == [f"{rise:+.3f}" for rise in rises]


def test_an_imported_model_continues_after_a_forced_token_as_after_a_prompt(play: Any, monkeypatch: Any) -> None:
    own = built("decoder_only", text=True, ends=False)
    data = {**own.config.data, "name": "imported_text", "path": ""}
    predictor = Predictor(own.model, own.tokenizer, replace(own.config, data=data))
    page = play(predictor)
    page.open(prompt="abc ", tokens=12)
    page.force(token := [*page.bars()][2])
    assert page.page.locator(".form, .compact").all_inner_texts() == [f"Task: {predictor.task.__doc__}"]
    letter = predictor.tokenizer.decode([token])
    assert page.text == letter + predictor.generate(f"abc {letter}", max_new_tokens=11)
    unlikely = [*written(predictor, predictor.encode("abc "), GenerationOptions(), {})][1]["ids"][-1]
    page.open(prompt="abc ", tokens=12, forced=f"0:{unlikely}")
    assert page.page.locator(".outcome bdi").evaluate("one => getComputedStyle(one).whiteSpace") == "pre-wrap"
    assert [*page.bars()][-1] == unlikely, "though it is none of the likeliest"
    page.open(prompt="abc ", tokens=12, step=99, mean="decoder.1.2")  # of no data: ignored
    assert page.page.locator("button.chip").nth(11).get_attribute("aria-pressed") == "true"
    page.page.keyboard.press("2")
    page.page.locator('[data-tile="1:1"]').click()
    page.page.locator(".detail .matrix").wait_for()
    any(page.page.keyboard.press(key) for key in ("ArrowUp", "Escape"))
    eventually(page.page, "document.querySelector('.detail').hidden && document.activeElement.dataset.tile === '1:0'")
    page.page.keyboard.press("3")
    ranking, texts = page.page.get_by_role("button", name="Which parts can go?"), [page.text]
    assert (ranking.is_disabled(), "no data of its own" in ranking.get_attribute("title")) == (True, True)
    for state in ("on", "off"):  # and not mean
        page.after(page.page.get_by_role("button", name=f"decoder 1 2: {state}").click)
        texts.append(page.text)
    assert texts[0] == texts[2] != texts[1]
    gate, calls = threading.Event(), itertools.count()
    halted = "minitx.playground.written_steps.distribution"
    monkeypatch.setattr(halted, lambda *given: (next(calls) % 12 == 3 and gate.wait(20), distribution(*given))[1])

    def rewrite(step: int, counted: str) -> None:
        gate.clear()
        page.page.evaluate(f"() => {{ location.hash = 'prompt=abc+&tokens=12&step={step}' }}")
        eventually(page.page, "document.querySelectorAll('button.chip').length === 3")
        state = page.page.evaluate("[document.body.dataset.state, document.querySelector('output').textContent]")
        assert state == ["writing", counted]
        page.press("Look")
        page.page.keyboard.press("ArrowRight")
        hidden = [page.page.locator(name).first.is_hidden() for name in (".bars", "[data-tile]")]
        assert hidden == [step == 9, True], "they are those of the text before"
        page.page.get_by_label("prompt").fill("")
        page.press("Write")
        gate.set()

    page.after(lambda: rewrite(1, "step 2 of 3"))
    page.after(lambda: rewrite(9, ""))
    assert page.page.locator("button.chip").nth(9).get_attribute("aria-pressed") == "true"
    alert, own_command = page.page.get_by_role("alert"), r"generate CHECKPOINT --import 'own task.py' --\S.* 'abc '$"
    command = page.page.get_by_text(re.compile(own_command))
    assert "the prompt is empty" in alert.inner_text(), "also when the text is complete"
    page.open(prompt="abc ", strategy="sample", tokens=4)
    page.after(lambda: page.slide("max new tokens", 5000), "failed")
    page.page.wait_for_timeout(200)  # in which the maps of a text would be requested
    assert ("got 5000" in alert.inner_text(), page.tokens, page.text, command.is_visible()) == (True, [], "", False)
    page.after(lambda: page.slide("max new tokens", 3))
    assert (len(page.tokens), alert.is_visible(), command.is_visible()) == (3, False, True)


def test_maps_that_come_late_are_not_shown_at_another_step_and_those_that_fail_are_requested_again(play: Any) -> None:
    """Of a text that is longer than the model's context, so that steps have different maps."""
    page = play(built("decoder_only", text=True, ends=False, position={"name": "learned", "max_len": 6}))
    page.open(prompt="abc ", tokens=6, panel="look")
    width = "document.querySelector('[data-tile=\"0:0\"] canvas').width"
    eventually(page.page, f"{width} === 6")
    page.page.keyboard.press("End")
    eventually(page.page, f"{width} === 5")
    page.held("look", lambda: page.page.keyboard.press("Home"))
    assert page.page.locator("[data-tile]").first.is_hidden()
    page.page.keyboard.press("End")
    with page.page.expect_response("**/look"):
        page.page.evaluate("release()")
    page.page.wait_for_timeout(200)
    assert page.page.evaluate(width) == 5
    page.held("look", lambda: page.page.keyboard.press("Home"))
    page.page.evaluate("refuse(new TypeError())")
    page.page.get_by_role("alert").get_by_text("does not answer").wait_for()
    assert page.page.locator("[data-tile]").first.is_hidden(), "its maps are those of another step"
    page.page.keyboard.press("ArrowRight")
    eventually(page.page, f"{width} === 6")
    assert page.page.get_by_role("alert").is_hidden()
    page.page.evaluate("() => { navigator.clipboard.writeText = () => Promise.reject() }")
    page.press("Copy link")
    assert page.page.get_by_label("link to this view").input_value() == page.page.url


def test_an_encoder_fills_its_masks_at_once(play: Any) -> None:
    predictor, prompt = masked(), "ab<mask>d <mask>g"
    page = play(predictor)
    page.open(prompt=prompt)
    assert page.text == predictor.generate(prompt)
    _, first, *_ = filled(predictor, predictor.encode(prompt), {})
    page.force(token := [*page.shown_bars(shares(first))][1])
    page.page.locator("button.chip").nth(1).click()
    _, _, second, _ = filled(predictor, predictor.encode(prompt), {0: token})
    page.shown_bars(shares(second))
    assert page.tokens == [token, second["id"]]
    assert page.page.locator("button.chip.special").count() == 0, "a mask that is filled is none"
    page.open(prompt="abd g")
    assert page.page.get_by_text("nothing to predict: this text has no <mask>").is_visible()


CUT = """async ([step, settings]) => {
    const names = ["bars", "explained", "matrix", "intervene"].map((name) => import(`./static/${name}.js`));
    const [{ Bars }, { Explained }, { axisTexts }, { Intervene }] = await Promise.all(names);
    const all = [new Bars([], {}), new Explained([])];
    all[0].show(step, 0, settings, false);
    all[1].show({ lens: [], softcap: 9, parts: Array.from({ length: 17 }, (_, part) => [part, part ? 1 : -0.25]) }, 0);
    const wide = { shown: [0], labels: ["A" + "m".repeat(12)] };
    const { texts, width } = axisTexts(wide, document.createElement("canvas").getContext("2d"), 14, 20);
    const [ranked, parts] = [new Intervene({ parts: [] }, {}), [{ parts: [], exact_match: 1 }]];
    ranked.showRanking({ whole: parts[0], parts });
    const capped = all[1].element.textContent.includes("(15.75 in all, before logit_softcap)");
    return [...all.map(({ element }) => element.lastChild.textContent), texts[0], width, ranked.list.innerHTML, capped];
}"""


def test_what_is_cut_or_approximate_is_named(play: Any) -> None:
    page = play(built("encoder_decoder", ends=False))
    page.open()
    logits = 2 * torch.randn(5000, generator=torch.Generator().manual_seed(1))
    for settings in ({"min_p": 0.01}, {"top_p": 0.9}, {"top_k": 9}):
        after = filtered(logits[None], **settings)[0]
        bars, parts, token, width, bar, capped = page.page.evaluate(CUT, [distribution(logits, 0), settings])
        about, kept, entropy = re.search(r"filters, (about )?([\d,]+) of 5,000 .* ([\d.]+) bits", bars).groups()
        assert bool(about) == ("top_k" not in settings) == (f"→ about {entropy}" in bars)
        assert int(kept.replace(",", "")) == pytest.approx(int(after.count_nonzero()), rel=0.05)
        assert float(entropy) == pytest.approx(float(-after.xlogy(after).sum() / math.log(2)), abs=0.06)
    assert (parts, token[0] + token[-1], width <= 126, "after: 1;" in bar) == ("3 other parts: 1.75", "A…", True, True)
    assert capped


HOSTILE = [
    "<script>window.hacked=1</script>", "<img/src=x/onerror=window.hacked=1>", "\u202egnol", "שלום", "&lt;", "x" * 300,
    "👩‍👩‍👧",
]  # fmt: skip


def test_tokens_like_markup_are_shown_as_text(play: Any) -> None:
    own = built("encoder_decoder", ends=False)
    page = play(Predictor(own.model, tokenizers.symbols(HOSTILE), own.config))
    page.open(prompt=" ".join(HOSTILE[:5]), panel="look")
    page.page.keyboard.type("123", delay=100)
    assert page.page.evaluate("() => window.hacked") is None
    assert "<script>window.hacked=1</script>" in page.page.locator(".text").inner_text()
    assert "\u202e" not in page.page.locator("body").inner_text()
    page.page.get_by_label("prompt").fill("<b>not a symbol</b>")
    page.after(lambda: page.page.get_by_label("prompt").press("Enter"), "failed")
    assert "is not in the tokenizer's alphabet" in page.page.locator(".message").inner_text()


@pytest.mark.slow
def test_the_page_fits_every_width(play: Any) -> None:
    page = play(built("encoder_decoder", ends=False))
    for width in (1300, 800, 390):
        page.page.set_viewport_size({"width": width, "height": 800})
        for view in ({"panel": "decide"}, {"strategy": "beams"}, {"panel": "look", "item": 1}, {"panel": "intervene"}):
            page.open(prompt="1 2 3 4", **view)
            page.page.wait_for_timeout(300)
            assert page.page.evaluate("() => document.documentElement.scrollWidth <= innerWidth"), (width, view)
