"""`numbarnn bench --stream`: single steps, compared before they are timed; their table, their record, their page."""

from dataclasses import replace

import numpy as np
import pytest

from numbarnn.bench import cases, stream, timing
from numbarnn.bench.peers import torch_peer
from numbarnn.bench.peers.contender import installed

torch = pytest.importorskip("torch")
SMALL = ["bench", "--stream", "--device", "cpu", "--rounds", "3", "--threads", "1"]
PEERS = {"layer call", "torch", "torch cell"} | ({"onnxruntime"} if installed("onnx", "onnxruntime") else set())


@pytest.fixture
def few(monkeypatch, short_turns):
    """Few calls, and no pauses."""
    monkeypatch.setattr(stream, "CALLS", 20)
    monkeypatch.setattr(timing, "WARM_S", 0.0)


MAKERS = {
    "layer call": lambda instance: stream.call_stream(instance, "cpu"),
    "stepper": lambda instance: stream.stepper_stream(instance, "one step", "cpu", "auto"),
    "torch": lambda instance: stream.torch_stream(instance, "cpu"),
    "torch cell": lambda instance: stream.torch_cell_stream(instance, "cpu"),
    "onnxruntime": lambda instance: stream.onnxruntime_stream(instance, 1),
}


@pytest.mark.parametrize("name", MAKERS)
@pytest.mark.parametrize("cell", cases.PEERS_CELLS)
def test_steps_are_those_of_the_whole_sequence(cell, name):
    """Two layers, from a state that is not zero; a second walk begins from it again."""
    if name == "onnxruntime" and name not in PEERS:
        pytest.skip("onnxruntime is not installed")
    instance = cases.make_instance(cases.Case(cell, 4, 2, 3, (5, 5)))
    exact = torch_peer.torch_contender(instance.float64, False)
    truth = exact.results(exact.call())
    with torch.inference_mode():
        one = MAKERS[name](instance)
        found, _, again = one.results(None), one.call(), one.results(None)
    assert found.keys() == truth.keys()
    for quantity, value in truth.items():
        np.testing.assert_allclose(np.array(found[quantity]), np.array(value), rtol=0, atol=1e-6, err_msg=quantity)
        np.testing.assert_array_equal(np.array(found[quantity]), np.array(again[quantity]))


def test_the_command_times_every_way_and_its_page_shows_them(few, command, page, capsys):
    found = command(*SMALL, "--shape", "1,1,4,5,1", "--cell", "lstm,gru")
    for row in found["results"]:
        assert row["what"] == "one step" and set(row["ratio"]) == PEERS
        assert set(row["seconds"]) == set(row["p99_seconds"]) == {"numbarnn", *PEERS}
        assert all(0 < row["median_s"][name] <= row["p99_s"][name] for name in row["seconds"])
        assert {check["contender"] for check in row["agreement"]} >= {"numbarnn auto", "layer call"}
    assert "99th percentile of 21 calls" in (said := capsys.readouterr().out) and "/ torch cell" in said
    text = page(found)
    assert "One step at a time" in text and "lstm 1,1,4,5,1 float32 step" in text
    own = found["results"][0]
    assert f"{own['median_s']['numbarnn'] * 1e6:.1f} / {own['p99_s']['numbarnn'] * 1e6:.1f}" in text


@pytest.mark.parametrize("maker", ["stepper_stream", "torch_cell_stream"])
def test_wrong_steps_have_no_times(maker, few, command, monkeypatch, capsys):
    """A peer with wrong ones is left out."""
    make = getattr(stream, maker)

    def wrong(*arguments):
        made = make(*arguments)
        return replace(made, results=lambda _: (own := made.results(_)) | {"y": own["y"] * np.float32(1.1)})

    monkeypatch.setattr(stream, maker, wrong)
    found = command(*SMALL, "--shape", "1,1,3,4,1", "--cell", "gru", code=1)
    [row] = found["results"]
    if maker == "torch_cell_stream":
        assert row["ok"] and "torch cell's y" in row["left_out"]["torch cell"] and "torch cell" not in row["seconds"]
    else:
        assert not row["ok"] and "y: is" in row["refusal"] and row["seconds"] == row["p99_s"] == {}
        assert "1 of 1 REFUSED" in capsys.readouterr().out


def test_more_than_one_step_is_refused(cannot):
    said = cannot(*SMALL, "--shape", "2,1,3,4,1", code=2)
    assert "T must be 1 in --shape T,B,I,H,L: got --shape 2,1,3,4,1" in said
