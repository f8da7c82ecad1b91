"""`numbarnn bench --stream`: single steps, compared before they are timed; their table, their record, their page."""

import json

import numpy as np
import pytest

from numbarnn import cli
from numbarnn.bench.cases import cases
from numbarnn.bench.cases.shapes import SETS
from numbarnn.bench.peers import peers, streams
from numbarnn.bench.report import rows as compared
from numbarnn.bench.speed import command as speed
from numbarnn.bench.speed import record, stream, timing, trust

torch = pytest.importorskip("torch")
SMALL = ["bench", "--stream", "--device", "cpu", "--rounds", "3", "--threads", "1"]
PEERS = {"torch", "torch cell"} | ({"onnxruntime"} if peers.installed("onnx", "onnxruntime") else set())


@pytest.fixture
def few(monkeypatch, short_turns):
    """Few calls, and no pauses."""
    monkeypatch.setattr(stream, "CALLS", 20)
    monkeypatch.setattr(timing, "WARM_S", 0.0)


def walked(make, *arguments, **sizes):
    """(what a stream returns, what PyTorch computes of the whole sequence in float64)."""
    case = cases.Case(*arguments, **sizes)
    instance = cases.make_instance(case)
    exact = peers.torch_contender(instance.float64, False)
    with torch.inference_mode():
        one = make(instance)
        return one.walk(), one.walk(), exact.results(exact.call())


MAKERS = {
    "call": lambda instance: streams.call_stream(instance, "cpu", "auto"),
    "stepper": lambda instance: streams.stepper_stream(instance, "cpu", "auto"),
    "torch": lambda instance: streams.torch_stream(instance, "cpu"),
    "torch cell": lambda instance: streams.torch_cell_stream(instance, "cpu"),
    "onnxruntime": lambda instance: streams.onnxruntime_stream(instance, 1),
}


@pytest.mark.parametrize("name", MAKERS)
@pytest.mark.parametrize("cell", cases.PEERS_CELLS)
def test_steps_are_those_of_the_whole_sequence(cell, name):
    """Two layers, from a state that is not zero; a second walk begins from it again."""
    if name == "onnxruntime" and name not in PEERS:
        pytest.skip("onnxruntime is not installed")
    found, again, truth = walked(MAKERS[name], cell, 4, 2, 3, (5, 5))
    assert found.keys() == truth.keys()
    for quantity, value in truth.items():
        np.testing.assert_allclose(np.array(found[quantity]), np.array(value), rtol=0, atol=1e-6, err_msg=quantity)
        np.testing.assert_array_equal(np.array(found[quantity]), np.array(again[quantity]))


def test_the_command_times_every_way_and_its_page_shows_them(few, command, page, capsys, tmp_path):
    found = command(*SMALL, "--shape", "1,1,4,5,1", "--cell", "lstm,gru")
    for row in found["results"]:
        assert row["what"] == "one step" and row["calls"] == 21
        assert set(row["seconds"]) == set(row["p99_seconds"]) == {"numbarnn", "stepper", *PEERS}
        assert set(row["ratio"]) == {"stepper", *PEERS} and set(row["stepper_ratio"]) == PEERS
        assert all(0 < row["median_s"][name] <= row["p99_s"][name] for name in row["seconds"])
        assert {check["contender"] for check in row["agreement"]} >= {"numbarnn", "stepper"}
    assert "99th percentile of 21 calls" in (said := capsys.readouterr().out) and "/ torch cell" in said
    text, path = page(found), tmp_path / "record.json"
    assert "One step at a time" in text and "lstm 1,1,4,5,1 float32 step" in text and "<h3>Ratios" not in text
    own = found["results"][0]
    assert f"{own['median_s']['stepper'] * 1e6:.1f} / {own['p99_s']['stepper'] * 1e6:.1f}" in text
    assert cli.main(["report", str(path), "--against", str(path)]) == 0
    assert f"0 of {2 * len(PEERS)} slower" in capsys.readouterr().out


@pytest.mark.parametrize("maker", ["stepper_stream", "call_stream", "torch_cell_stream"])
def test_wrong_steps_have_no_times(maker, few, command, monkeypatch, capsys):
    """A peer with wrong ones is left out."""
    make = getattr(streams, maker)

    def wrong(*arguments):
        made = make(*arguments)
        return streams.Stream(**{**vars(made), "to_numpy": lambda y: made.to_numpy(y) * np.float32(1.1)})

    monkeypatch.setattr(streams, maker, wrong)
    found = command(*SMALL, "--shape", "1,1,3,4,1", "--cell", "gru", code=1)
    [row] = found["results"]
    if maker == "torch_cell_stream":
        assert row["ok"] and "torch cell's y" in row["left_out"]["torch cell"] and "torch cell" not in row["seconds"]
    else:
        assert not row["ok"] and "y: is" in row["refusal"] and row["seconds"] == row["p99_s"] == {}
        assert "1 of 1 REFUSED" in capsys.readouterr().out


def test_torch_compile_is_a_peer_where_it_is_asked_for(few, command, monkeypatch):
    """What it compiles is a step of all layers; a compiler that fails is told of, and nothing else is lost."""
    asked = []
    monkeypatch.setattr(torch, "compile", lambda function, **options: asked.append(options) or function)
    found = command(*SMALL, "--shape", "1,2,3,4,2", "--cell", "lstm", "--compile")
    assert asked == [{}]
    row = found["results"][0]
    assert set(row["seconds"]) == {"numbarnn", "stepper", "torch.compile", *PEERS}
    assert row["compile_s"]["torch.compile"] > 0

    def fails(*arguments):
        raise RuntimeError("no compiler here")

    monkeypatch.setattr(torch, "compile", lambda function, **options: fails)
    found = command(*SMALL, "--shape", "1,2,3,4,2", "--cell", "gru", "--compile")
    [row] = found["results"]
    assert row["left_out"] == {"torch.compile": "RuntimeError: no compiler here"}
    assert set(row["seconds"]) == {"numbarnn", "stepper", *PEERS}


def test_percentiles_are_of_all_calls_and_of_each_round():
    seconds = {name: np.arange(1.0, 201.0).reshape(2, 100) for name in ("numbarnn", "stepper", "torch")}
    seconds["torch"] = 2 * seconds["torch"]
    found = stream.figures(seconds)
    assert found["calls"] == 200 and found["median_s"]["stepper"] == 100.5
    assert found["p99_s"]["stepper"] == pytest.approx(198.01)
    assert found["seconds"]["stepper"] == [50.5, 150.5]
    assert found["p99_seconds"]["torch"] == pytest.approx([198.02, 398.02])
    assert found["stepper_ratio"] == {"torch": 0.5} and found["ratio"] == {"stepper": 1.0, "torch": 0.5}


def test_streams_take_turns_and_each_call_waits(monkeypatch):
    did = []

    def fake(name):
        def step(x):
            did.append(f"{name}{x}")

        return streams.Stream(name, [0, 1], None, step, None, synchronize=lambda: did.append("."))

    monkeypatch.setattr(timing, "GAP_S", 0.0)
    monkeypatch.setattr(timing, "WARM_S", 0.0)
    found = timing.single_calls([fake("a"), fake("b")], rounds=2, calls=5)
    assert {name: times.shape for name, times in found.items()} == {"a": (2, 3), "b": (2, 3)}
    of_a, of_b = "a0.a1.a0.", "b0.b1.b0."
    assert "".join(did) == of_a + of_b + of_b + of_a and all((times > 0).all() for times in found.values())


def test_a_tail_that_scatters_is_in_doubt():
    row = {"seconds": {"a": [1.0, 1.0, 1.0, 1.0]}, "p99_seconds": {"a": [1.0, 1.2, 1.3, 1.2]}}
    assert trust.doubts(row, ["a"]) == []
    row["p99_seconds"] = {"a": [1.0, 5.0, 1.0, 5.0]}
    assert trust.doubts(row, ["a"]) == ["a's 99th percentile scatters by 133%"]


def test_more_than_one_step_is_refused(cannot):
    said = cannot(*SMALL, "--shape", "2,1,3,4,1", code=2)
    assert "T must be 1 in --shape T,B,I,H,L: got 2,1,3,4,1" in said


def test_its_own_set_is_the_default(monkeypatch):
    asked = []
    monkeypatch.setattr(speed, "take_times", lambda args, where, todo, *rest: asked.extend(todo) or [])
    assert cli.main([*SMALL]) == 0
    assert {shape for _, shape, _, _ in asked} == set(SETS["stream"]) and all(shape.T == 1 for _, shape, _, _ in asked)


def test_its_rows_are_no_rows_of_the_tables():
    """A single step of (1, 1, 512, 512, 1) is no forward pass of that shape."""
    from numbarnn.bench import tables

    shape = {"T": 1, "B": 1, "I": 512, "H": 512, "L": 1}
    row = {"schedule": "auto", "input_mode": "linear", "what": "one step", "shape": shape, "form": []}
    assert tables.rows_of({"results": [row]}) == []
    assert tables.rows_of({"results": [row | {"what": "forward"}]}, SETS["default"])


def test_a_result_has_entries_and_steps_apart(few, command, tmp_path):
    path = tmp_path / "record.json"
    path.write_text(json.dumps(command(*SMALL, "--shape", "1,1,3,4,1", "--cell", "gru")), encoding="utf-8")
    result = compared.result_of("x", record.read(path))
    assert not result.entries and [key.what for key in result.steps] == ["one step"]
