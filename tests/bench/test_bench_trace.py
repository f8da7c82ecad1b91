"""`numbarnn trace`: the record's form, plans as records, the page and its data, and the page in a real browser."""

import json
import re
from html.parser import HTMLParser
from itertools import pairwise

import pytest

import numbarnn as nr
import traces
from general_cells import SUM_CELLS
from numbarnn import cli
from numbarnn.bench.cases.shapes import Shape
from numbarnn.bench.trace import launches, page, record
from numbarnn.cells import CELLS
from numbarnn.cells.library import layer_norm_gru, sru

T, L = 6, 3


@pytest.fixture(scope="module")
def traced(tmp_path_factory):
    """(Record, page's file) of a persistent kernel, by the command, in the simulator's own process."""
    folder = tmp_path_factory.mktemp("trace")
    files = folder / "page.html", folder / "record.json"
    arguments = ["--shape", f"{T},2,4,8,{L}", "--html", str(files[0]), "--json", str(files[1])]
    assert cli.main(["trace", *arguments]) == 0
    return record.read(files[1]), files[0]


# ------------------------------------------------------------------------------------------------------- the record
def test_a_record_of_a_device_comes_in(tmp_path, capsys):
    given, shown = tmp_path / "device.json", tmp_path / "page.html"
    given.write_text(json.dumps(traces.device_record()))
    made = record.read(given)
    assert (made.unit, made.blocks[1].name) == ("ns", "block 1: layer 1")
    assert made.about == (("device", "one that does not exist"),)
    assert made.waiting() == [0, 0.325]
    assert traces.require_order(made) == 2 and set(traces.depths(made).values()) == {1, 2, 3}
    assert record.from_json(record.as_json(made)) == made
    assert cli.main(["trace", "--from", str(given), "--html", str(shown)]) == 0
    assert "32%" in capsys.readouterr().out and "nanoseconds" in shown.read_text()


@pytest.mark.parametrize("edit, words", [
    (lambda data: data.update(format="something"), ["'numbarnn trace 1'", "'something'"]),
    (lambda data: data.pop("layers"), ['no "layers"']),
    (lambda data: data.update(steps="two"), ['"steps"', "a whole number", "'two'"]),
    (lambda data: data.update(unit="s"), ['"unit"', "turns, steps, ns", "'s'"]),
    (lambda data: data.update(directions=3), ['"directions"', "1, 2", "3"]),
    (lambda data: data.update(layers=0), ['"layers"', "at least 1"]),
    (lambda data: data.update(events=[]), ["no events"]),
    (lambda data: data.update(events={}), ['"events"', "a list"]),
    (lambda data: data.update(about=[["a"]]), ["about[0]", "two texts"]),
    (lambda data: data["events"].append(7), ["events[12]", "an object"]),
    (lambda data: data["events"][3].pop("kind"), ["events[3]", 'no "kind"']),
    (lambda data: data["events"][3].update(kind="sleep"), ['"kind" of events[3]', "wait", "'sleep'"]),
    (lambda data: data["events"][3].update(step=True), ['"step" of events[3]', "True"]),
    (lambda data: data["events"][3].update(layer=2), ['"layer" of events[3] is 2', "less than 2"]),
    (lambda data: data["events"][3].update(end=0), ["events[3] ends at 0, before it starts"]),
    (lambda data: data["events"][3].update(start=0), ["events[", "block 0", "before"]),
    (lambda data: data["events"][6]["waits_for"][0].update(block=9), ["events[6]", '"block"', "9", "less than 2"]),
    (lambda data: data["events"][6]["waits_for"][0].pop("layer"), ["events[6].waits_for[0]", 'no "layer"']),
])  # fmt: skip
def test_a_wrong_record_is_refused_by_name(edit, words, tmp_path, cannot):
    data, path = traces.device_record(), tmp_path / "wrong.json"
    edit(data)
    path.write_text(json.dumps(data))
    said = cannot("trace", "--from", str(path), "--html", str(tmp_path / "page.html"), code=2)
    assert all(word in said for word in ["--from", "wrong.json", *words]), said
    assert not (tmp_path / "page.html").exists()


def test_what_is_not_json_is_refused(tmp_path, cannot):
    path = tmp_path / "wrong.json"
    path.write_bytes(b"\xff no")
    said = cannot("trace", "--from", str(path), "--json", str(tmp_path / "x.json"), code=2)
    assert "wrong.json is not JSON" in said


# ----------------------------------------------------------------------------------------------------- the command
@pytest.mark.parametrize("schedule", ("stepwise", "wavefront"))
@pytest.mark.parametrize("backward", (False, True), ids=("forward", "backward"))
@pytest.mark.parametrize("directions", (1, 2))
def test_a_plan_is_a_record_too(schedule, backward, directions):
    made = launches.record("a plan", CELLS["gru"], Shape(T, 2, 4, 8, L), backward, directions, schedule)
    assert record.from_json(json.loads(json.dumps(record.as_json(made)))) == made
    computed = traces.computed(made)
    assert len(computed) == L * directions * T and all(len(events) == 1 for events in computed.values())
    traces.require_order(made)
    depths = traces.depths(made)
    assert max(depths.values()) == (T + L - 1 if directions == 1 else T * L)
    lanes = {(event.layer, event.direction) for event in made.events}
    assert len(made.blocks) == (1 if schedule == "stepwise" else 2 * len(lanes))
    length = max(event.end for event in made.events)
    if directions == 1:
        assert length > T * L if schedule == "stepwise" else length < T * L


@pytest.mark.parametrize("cell, forward, backward", [
    (CELLS["gru"], "MP", "MP"),
    (sru, "P", "P"),
    (CELLS["gru_reset_before"], "MEMP", "MEMP"),
    (layer_norm_gru, "MEEP", "MEEP"),
    (SUM_CELLS["ladder"], "MEEMEEEMP", "MEMEEEMEP"),
], ids=["one product", "none", "two", "sums", "both"])  # fmt: skip
def test_a_step_is_drawn_as_what_it_is_made_of(cell, forward, backward):
    """M: multiplies, E: exchanges, P: publishes."""
    for pass_, letters in enumerate((forward, backward)):
        made = launches.record("a plan", cell, Shape(2, 2, 4, 8, 1), bool(pass_), 1, "stepwise")
        steps = [event for event in made.events if event.kind in ("multiply", "exchange", "publish")]
        assert "".join(event.kind[0].upper() for event in steps) == 2 * letters
        assert all(one.end == other.start for one, other in pairwise(steps))
        traces.require_order(made)


@pytest.mark.parametrize("hidden, words", [
    (8, "hidden_size must be a multiple of the 3 heads"), (6, "a state of 8 units, .*, beside matrices of 3 heads"),
])  # fmt: skip
@pytest.mark.parametrize("schedule", ("stepwise", "wavefront"))
def test_what_a_layer_cannot_be_is_no_record(schedule, hidden, words):
    def with_heads(x, h, m, p):
        return nr.tanh(p.W.h @ x + nr.heads(p.R.h, 3) @ h), 0.5 * nr.sized(m, 8)

    for record_of in (lambda: nr.RNN(nr.cell(with_heads), 4, hidden), lambda: launches.record(
        "a plan", nr.cell(with_heads), Shape(2, 2, 4, hidden, 1), False, 1, schedule
    )):  # fmt: skip
        with pytest.raises(ValueError, match=words):
            record_of()


def test_the_command_records_what_the_plan_says(traced):
    made, _ = traced
    assert made.title == f"lstm, persistent, forward: T={T}, B=2, I=4, H=8, L={L}"
    computed = traces.computed(made)
    assert set(computed) == {(layer, 0, step) for layer in range(L) for step in range(T)}
    assert {len({event.block for event in events}) for events in computed.values()} == {len(made.blocks) // L}
    assert traces.require_order(made)
    depths = traces.depths(made)
    assert set(depths.values()) == set(range(1, T + L))  # as many fronts as steps and layers, less one
    assert all(depth == 1 + layer + step for (layer, _, step), depth in depths.items())


@pytest.mark.parametrize("arguments, words", [
    ([], ["--html FILE"]),
    (["--json", "X", "--stall", "1,2", "--schedule", "wavefront"], ["--stall", "'persistent'"]),
    (["--json", "X", "--stall", "4,2"], ["--stall 4,2", "--shape 12,2,4,8,4 has layers 0 to 3"]),
    (["--json", "X", "--from", __file__, "--shape", "3,2,4,8,4"], ["--shape says what to record", "--from"]),
])  # fmt: skip
def test_what_cannot_be_recorded_is_refused(arguments, words, tmp_path, cannot):
    path = tmp_path / "record.json"
    said = cannot("trace", *(str(path) if one == "X" else one for one in arguments), code=2)
    assert all(word in said for word in words) and "Traceback" not in said, said
    assert not path.exists()


@pytest.mark.parametrize("arguments, words", [
    (["--stall", "1"], ["LAYER,STEP", "'1'"]),
    (["--from", "no/such.json"], ["record", "'no/such.json'"]),
    (["--shape", "3"], ["T,B,I,H,L"]),
    (["--cell", "lstmm"], ["did you mean 'lstm'"]),
])  # fmt: skip
def test_bad_arguments_name_what_came_and_what_was_expected(arguments, words, refused):
    said = refused("trace", *arguments)
    assert all(word in said for word in words), said


# --------------------------------------------------------------------------------------------------------- the page
class Outline(HTMLParser):
    """What a page consists of: (tag, attributes, texts within) of every element."""

    VOID = ("meta", "input", "br", "link", "img")

    def __init__(self, text):
        super().__init__()
        self.elements, self._open = [], []
        self.feed(text)
        self.close()
        assert not self._open, f"never closed: {self._open}"

    def handle_starttag(self, tag, attributes):
        element = (tag, dict(attributes), [])
        self.elements.append(element)
        if tag not in self.VOID:
            self._open.append(element)

    def handle_endtag(self, tag):
        assert tag in self.VOID or self._open.pop()[0] == tag

    def handle_data(self, data):
        for _, _, texts in self._open:
            texts.append(data)

    def named(self, *tags):
        return [element for element in self.elements if element[0] in tags]


def data_of(outline):
    """The JSON within a page."""
    (texts,) = [texts for tag, about, texts in outline.elements if about.get("type") == "application/json"]
    return json.loads("".join(texts))


def test_the_page_holds_the_record_and_stands_alone(traced):
    made, path = traced
    text = path.read_text(encoding="utf-8")
    outline = Outline(text)
    assert record.from_json(data_of(outline)) == made
    assert not outline.named("link", "img", "iframe", "object")
    assert not [about for _, about, _ in outline.elements if {"src", "href"} & set(about)]
    assert not re.findall(r"url\((?!#)|@import|https?://(?!www\.w3\.org/2000/svg)|fetch\(|import\(", text)
    identities = [about["id"] for _, about, _ in outline.elements if "id" in about]
    assert len(identities) == len(set(identities))
    for element in re.findall(r'\bel\("([\w-]+)"\)', text):
        assert element in {*identities, "playhead", "veil", "arrows", "pointed-arrows"}, element  # the last are drawn
    assert len(text) < 100_000


def test_every_control_has_a_name(traced):
    outline = Outline(traced[1].read_text(encoding="utf-8"))
    labelled = "".join("".join(texts) for _, _, texts in outline.named("label"))
    assert len(outline.named("button", "input", "select")) == 7
    for tag, about, texts in outline.named("button", "input", "select"):
        assert about.get("aria-label") or (tag == "button" and "".join(texts).strip()) or "Speed" in labelled, about
    for _, about, _ in outline.named("section"):
        assert about.get("aria-label") or about["aria-labelledby"] in "".join(str(e[1]) for e in outline.named("h2"))


def test_what_a_record_says_is_text_on_the_page():
    data = traces.device_record(title="</script><b>bold", error="</summary> livelock, " + "and more " * 30)
    outline = Outline(page.html(record.from_json(data)))
    assert data_of(outline)["title"] == data["title"]
    assert not outline.named("b")
    assert "</script><b>bold" in "".join(outline.named("h1")[0][2])
    (summary,) = outline.named("summary")
    assert "The run failed: </summary> livelock" in "".join(summary[2]) and len("".join(summary[2])) < 250
