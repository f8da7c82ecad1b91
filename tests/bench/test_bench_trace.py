"""`numbarnn trace`: the record's form, the page and its data."""

import json
import re

import pytest

import traces
from numbarnn import cli
from numbarnn.bench.trace import command, record

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
    assert (made.unit, made.blocks[1]) == ("ns", "block 1: layer 1")
    assert made.about == (("device", "one that does not exist"),)
    assert made.waiting() == [0, 0.325]
    assert traces.require_order(made) == 2 and set(traces.depths(made).values()) == {1, 2, 3}
    assert record.from_json(record.as_json(made)) == made
    assert cli.main(["trace", "--from", str(given), "--html", str(shown)]) == 0
    assert "32%" in capsys.readouterr().out and "nanoseconds" in shown.read_text()


@pytest.mark.parametrize("edit, words", [
    (lambda data: data.update(format="something"), ["'numbarnn trace 1'", "'something'"]),
    (lambda data: data.pop("layers"), ["layers"]),
    (lambda data: data.update(unit="s"), ["'s'"]),
    (lambda data: data.update(events=[]), ["0 events"]),
    (lambda data: data["events"].append(7), ["int"]),
    (lambda data: data["events"][3].pop("kind"), ["kind"]),
    (lambda data: data["events"][3].update(kind="sleep"), ["wait", "'sleep'"]),
])  # fmt: skip
def test_a_wrong_record_is_refused(edit, words, tmp_path, cannot):
    data, path = traces.device_record(), tmp_path / "wrong.json"
    edit(data)
    path.write_text(json.dumps(data))
    said = cannot("trace", "--from", str(path), "--html", str(tmp_path / "page.html"), code=2)
    assert all(word in said for word in ["--from", "wrong.json is no record of a trace", *words]), said
    assert not (tmp_path / "page.html").exists()


# ----------------------------------------------------------------------------------------------------- the command
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
    (["--json", "X", "--from", __file__, "--shape", "3,2,4,8,4"], ["--shape says what to record", "--from"]),
])  # fmt: skip
def test_what_cannot_be_recorded_is_refused(arguments, words, tmp_path, cannot):
    path = tmp_path / "record.json"
    said = cannot("trace", *(str(path) if one == "X" else one for one in arguments), code=2)
    assert all(word in said for word in words) and "Traceback" not in said, said
    assert not path.exists()


# --------------------------------------------------------------------------------------------------------- the page
def test_the_page_holds_the_record_and_stands_alone(traced):
    made, path = traced
    text = path.read_text(encoding="utf-8")
    data = re.search(r'<script type="application/json"[^>]*>(.*?)</script>', text, re.DOTALL)[1]
    assert record.from_json(json.loads(data)) == made
    assert not re.findall(r"<(link|img|iframe|object)|\b(src|href)=|url\((?!#)|@import|fetch\(|import\(", text)
    assert not re.findall(r"https?://(?!www\.w3\.org/2000/svg)", text) and len(text) < 100_000


def test_what_a_record_says_is_text_on_the_page():
    page = command.html(record.from_json(traces.device_record(title="</script><b>bold", error="</summary> livelock")))
    assert "<b>" not in page and "</summary> livelock" not in page
    assert "The run failed: &lt;/summary&gt; livelock" in page
