"""The page of `numbarnn trace` in a real browser: it loads, plays, seeks, answers mouse and keyboard."""

import json
from contextlib import contextmanager
from itertools import pairwise

import pytest

import browser
from numbarnn.bench.cases.shapes import Shape
from numbarnn.bench.trace import launches, page, record
from numbarnn.cells import CELLS
from traces import device_record

pytestmark = pytest.mark.skipif(browser.find() is None, reason="no Chromium is installed: apt-get install chromium")
T, L = 6, 3


@pytest.fixture(scope="module")
def made():
    return launches.record("a wavefront", CELLS["lstm"], Shape(T, 2, 4, 8, L), False, 1, "wavefront")


@contextmanager
def page_of(made, folder, **options):
    """A record's page in a browser, which complains of nothing."""
    path = folder / "page.html"
    path.write_text(page.html(made), encoding="utf-8")
    with browser.open_page(path, **options) as shown:
        yield shown
        assert shown.complaints == []


@pytest.fixture(scope="module")
def opened(made, tmp_path_factory):
    with page_of(made, tmp_path_factory.mktemp("page")) as shown:
        yield shown


@pytest.fixture
def shown(opened):
    """The page at its beginning, in pause."""
    opened.press("Home")
    opened.evaluate("document.activeElement.blur()")
    return opened


def text(shown, identity):
    return shown.evaluate(f"document.getElementById('{identity}').textContent")


def slider(shown):
    return shown.evaluate("Number(document.getElementById('slider').value)")


def of_all(shown, selector, value):
    """A JavaScript expression of `one`, for each element."""
    every = f"[...document.querySelectorAll({json.dumps(selector)})].map(one => {value})"
    return json.loads(shown.evaluate(f"JSON.stringify({every})"))


def states(shown):
    """For each layer the states of its steps."""
    by_cell = dict(of_all(shown, "[data-cell]", "[one.dataset.cell, one.dataset.state]"))
    return [[by_cell[f"{layer} 0 {step}"] for step in range(T)] for layer in range(L)]


def test_it_shows_the_record_from_its_beginning(shown, made):
    assert shown.evaluate("document.title") == "numbarnn trace: a wavefront"
    assert text(shown, "clock").startswith("0 steps of ")
    assert shown.evaluate("document.querySelectorAll('.bar').length") == len(made.events)
    assert shown.evaluate("document.querySelectorAll('.lane').length") == len(made.blocks)
    assert all(state != "done" for row in states(shown) for state in row)
    assert text(shown, "count-fronts") == str(T + L - 1)


def test_the_wavefront_moves_through_layers_and_time(shown):
    seen = set()
    for _ in range(200):
        done = [row.count("done") for row in states(shown)]
        assert [row[:count] for row, count in zip(states(shown), done, strict=True)] == [["done"] * n for n in done]
        assert done == sorted(done, reverse=True)  # a layer is never ahead of the one below it
        seen.add(tuple(done))
        before = slider(shown)
        shown.press("ArrowRight", shift=False)
        if slider(shown) == before:
            break
    assert done == [T] * L and len(seen) > T + L - 1
    assert any(len(set(counts)) == L for counts in seen)


def test_keys_seek(shown):
    shown.press("ArrowRight")
    assert slider(shown) == 1
    shown.press("ArrowRight", shift=True)
    assert slider(shown) == 11
    shown.press("ArrowLeft")
    assert slider(shown) == 10
    shown.press("ArrowDown")
    assert text(shown, "chosen").startswith("stream 1: layer 0, steps ")
    shown.press("ArrowUp")
    assert text(shown, "chosen").startswith("stream 0: layer 0, products ")
    shown.press("End")
    assert slider(shown) == shown.evaluate("Number(document.getElementById('slider').max)")
    first, _, rest = text(shown, "clock").partition(" of ")
    assert first == rest


def test_the_slider_seeks_by_mouse(shown):
    last = shown.evaluate("Number(document.getElementById('slider').max)")
    for share in (0.75, 0.25):
        shown.point("#slider", click=True, share=share)
        assert abs(slider(shown) - share * last) <= 0.1 * last
    assert not text(shown, "clock").startswith("0 ")
    shown.point("#forward", click=True)
    assert abs(slider(shown) - 0.25 * last) <= 0.1 * last + 1


def test_backward_begins_at_the_last_layer_and_time(tmp_path):
    for directions, words in (
        (1, f"layer {L - 1}, step 0 (time {T - 1}), on anti-diagonal 0"),
        (2, f"layer {L - 1} →, step 0 (time {T - 1})"),
    ):
        made = launches.record("a wavefront", CELLS["lstm"], Shape(T, 2, 4, 8, L), True, directions, "wavefront")
        with page_of(made, tmp_path) as shown:
            shown.point(f"[data-cell='{L - 1} 0 0']")
            assert text(shown, "cell") == words
            visible = of_all(shown, ".one-way, .two-ways", "getComputedStyle(one).display !== 'none'")
            assert visible == [directions == 1, directions == 2]
            shown.press("ArrowRight", shift=True)
            assert states(shown)[L - 1][0] == "done" and states(shown)[0][-1] == "todo"


def test_space_plays_and_pauses(shown):
    shown.press(" ")
    assert "Pause" in text(shown, "play")
    assert shown.wait_until(lambda: slider(shown) >= 2), "it does not play"
    shown.press(" ")
    at = text(shown, "clock")
    assert "Play" in text(shown, "play")
    shown.pause(0.3)
    assert text(shown, "clock") == at


def test_it_plays_to_the_end_and_begins_again(shown):
    shown.evaluate("document.getElementById('speed').value = '4'")
    shown.press("End")
    shown.press("ArrowLeft", shift=True)
    shown.point("#play", click=True)
    assert shown.wait_until(lambda: "Play" in text(shown, "play")), "it never ends"
    assert all(state == "done" for row in states(shown) for state in row)
    again = (
        "play.click(); requestAnimationFrame(() => requestAnimationFrame(() => { play.click(); done(slider.value); }))"
    )
    assert int(shown.evaluate(f"new Promise(done => {{ {again} }})")) < 5
    assert "Play" in text(shown, "play")


def test_a_wait_says_whom_it_waits_for(shown, made):
    number, wait = next((n, e) for n, e in enumerate(made.events) if e.kind == "wait" and e.layer == 2 and e.step == 2)
    (source,) = wait.waits_for
    bar = f".bar[data-event='{number}']"
    shown.point(bar)
    said = text(shown, "pointed")
    assert f"for layer 2, step 2 it needs layer {source.layer}, step {source.step} from stream {source.block};" in said
    assert shown.evaluate("document.querySelectorAll('.arrow.pointed').length") == 1
    shown.point(bar, click=True)
    chosen = text(shown, "chosen")
    assert chosen.startswith(f"{made.blocks[wait.block].name} waits: for layer 2, step 2 it needs layer 1")
    pressed = of_all(shown, "#now button", "one.getAttribute('aria-pressed')")
    assert [n for n, one in enumerate(pressed) if one == "true"] == [wait.block]
    assert shown.evaluate("document.querySelectorAll('#arrows .arrow').length") > 0


def test_a_step_shows_its_anti_diagonal_and_what_it_reads(shown):
    shown.point("[data-cell='1 0 3']")
    assert text(shown, "cell") == (
        "layer 1, step 3 (time 3), on anti-diagonal 4; it reads layer 1, step 2 and layer 0, step 3"
    )
    name = "one.dataset.cell"
    assert sorted(of_all(shown, ".grid-cell.front", name)) == ["0 0 4", "1 0 3", "2 0 2"]
    assert sorted(of_all(shown, ".grid-cell.reads", name)) == ["0 0 3", "1 0 2"]
    shown.point("[data-cell='1 0 3']", click=True)
    assert states(shown)[1][3] in ("waiting", "working")


def test_both_themes(shown):
    colour = "getComputedStyle(document.body).backgroundColor"
    shown.prefer("dark")
    assert shown.evaluate(colour) == "rgb(15, 20, 26)"
    shown.prefer("light")
    assert shown.evaluate(colour) == "rgb(255, 255, 255)"
    shown.point("#theme", click=True)
    assert shown.evaluate(colour) == "rgb(15, 20, 26)"
    shown.point("#theme", click=True)


def test_nothing_lies_over_the_data_and_controls_are_reached_by_tab(shown):
    edges = "(({top, bottom}) => [top, bottom])(one.getBoundingClientRect())"
    order = ["grid-legend", "grid", "cell", "legend", "lanes", "pointed", "now"]
    found = of_all(shown, ",".join(f"#{identity}" for identity in order), edges)
    assert len(found) == len(order) and all(above[1] <= below[0] for above, below in pairwise(found)), found
    reached = []
    shown.evaluate("theme.focus()")
    for _ in range(7):
        shown.press("Tab")
        reached.append(shown.evaluate("document.activeElement.id"))
    assert reached == ["play", "back", "forward", "slider", "speed", "zoom", "grid-box"]


def test_a_record_of_a_device_with_a_block_that_stalls(tmp_path):
    data = device_record(error="a kernel gave up")
    last = data["events"][9]  # layer 1 never gets step 1
    data["events"] = [*data["events"][:9], last | {"open": True, "end": last["end"] + 5000}]
    with page_of(record.from_json(data), tmp_path, width=480) as shown:
        shown.press("End")
        assert text(shown, "clock") == "8.1 µs of 8.1 µs"
        assert shown.evaluate("document.querySelectorAll('.bar.open').length") == 1
        shown.press("ArrowDown")
        assert text(shown, "chosen") == (
            "block 1: layer 1 waits: for layer 1, step 1 it needs layer 0, step 1 from block 0; which never comes"
        )
        assert shown.evaluate("document.documentElement.scrollWidth") <= 480
        assert "a kernel gave up" in shown.evaluate("document.querySelector('details.error').textContent")


def test_a_long_record_is_shown_in_pages(tmp_path):
    data, steps = device_record(steps=2400), 2400
    data["events"] = [
        {"block": block, "kind": "publish", "start": 10 * step + block, "end": 10 * step + 8, "layer": block}
        | {"direction": 0, "step": step}
        for block in range(2)
        for step in range(steps)
    ]
    with page_of(record.from_json(data), tmp_path) as shown:
        bars = "document.querySelectorAll('.bar').length"
        assert shown.evaluate("document.getElementById('zoom').value") == "2"
        assert 0 < shown.evaluate(bars) < 3000
        first = shown.evaluate("document.querySelector('.bar').dataset.event")
        shown.press("End")
        assert 0 < shown.evaluate(bars) < 3000
        assert shown.evaluate("document.querySelector('.bar').dataset.event") > first
