"""`numbarnn trace`: the record, the page and its data."""

import json
import re

import pytest

import traces
from numbarnn import cli
from numbarnn.bench.trace import command as trace

T, L = 6, 3


@pytest.fixture(scope="module")
def traced(tmp_path_factory):
    """(record, page's file) of a persistent kernel, by the command, in the simulator's own process."""
    folder = tmp_path_factory.mktemp("trace")
    files = folder / "page.html", folder / "record.json"
    arguments = ["--shape", f"{T},2,4,8,{L}", "--html", str(files[0]), "--json", str(files[1])]
    assert cli.main(["trace", *arguments]) == 0
    return json.loads(files[1].read_text()), files[0]


def test_the_command_records_what_the_plan_says(traced):
    made, _ = traced
    assert made["title"] == f"lstm, persistent, forward: T={T}, B=2, I=4, H=8, L={L}"
    computed = traces.computed(made)
    assert set(computed) == {(layer, 0, step) for layer in range(L) for step in range(T)}
    owners = {len({event["block"] for event in events}) for events in computed.values()}
    assert owners == {len(made["blocks"]) // L}
    assert traces.require_order(made)
    depths = traces.depths(made)
    assert set(depths.values()) == set(range(1, T + L))  # as many fronts as steps and layers, less one
    assert all(depth == 1 + layer + step for (layer, _, step), depth in depths.items())


def test_a_page_must_be_asked_for(cannot):
    assert "--html FILE" in cannot("trace", code=2)


def test_the_page_holds_the_record_and_stands_alone(traced):
    made, path = traced
    text = path.read_text(encoding="utf-8")
    data = re.search(r'<script type="application/json"[^>]*>(.*?)</script>', text, re.DOTALL)[1]
    assert json.loads(data) == made
    assert not re.findall(r"<(link|img|iframe|object)|\b(src|href)=|url\((?!#)|@import|fetch\(|import\(", text)
    assert not re.findall(r"https?://(?!www\.w3\.org/2000/svg)", text) and len(text) < 100_000


def test_what_a_record_says_is_text_on_the_page(traced):
    page = trace.html(traced[0] | {"title": "</script><b>bold", "error": "</summary> livelock"})
    assert "<b>" not in page and "</summary> livelock" not in page
    assert "The run failed: &lt;/summary&gt; livelock" in page
