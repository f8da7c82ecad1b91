"""`numbarnn bench`: refuses times of wrong results, and records what it measured."""

from dataclasses import replace

import numpy as np
import pytest

from numbarnn.bench import cases, info, lineup, report, shapes, stream, timing
from numbarnn.bench import record as bench_record
from numbarnn.bench.peers import torch_peer
from numbarnn.bench.peers.contender import installed
from numbarnn.weights import gates
from stub_layer import use_stub

torch = pytest.importorskip("torch")

SMALL = ["bench", "--device", "cpu", "--shape", "3,2,4,5,1", "--rounds", "2", "--threads", "1"]


pytestmark = pytest.mark.usefixtures("short_turns")


def test_times_ratios_and_where_they_come_from(command, stub, capsys):
    record = command(*SMALL, "--shape", "2,1,3,4,2", "--cell", ",".join(cases.PEERS_CELLS))
    assert {"date", "commit", "clean", "driver", "device", "device_name", "environment", "results"} <= record.keys()
    assert record["kernels"] == bench_record.kernels_digest("cpu")
    assert record["method"]["rounds"] == 2 and "cores_busy_elsewhere" in record["method"]
    assert not torch.backends.cudnn.allow_tf32 and not torch.backends.cuda.matmul.allow_tf32
    assert record["environment"]["versions"]["PyTorch"].startswith(torch.__version__.split("+")[0])
    assert len(record["results"]) == 4 * 2 * 2
    for row in record["results"]:
        assert row["ok"] and row["refusal"] is None and row["schedule"] == "auto"
        assert row["plan"].startswith("stepwise") and row["device_seconds"] == row["device_median_s"] == {}
        names = {"numbarnn", "torch"}
        if row["what"] == shapes.FORWARD and installed("onnx", "onnxruntime"):
            names |= {"onnxruntime"}
        assert set(row["seconds"]) == set(row["median_s"]) == names
        assert set(row["ratio"]) == names - {"numbarnn"}
        assert all(len(times) == 2 and min(times) > 0 for times in row["seconds"].values())
        assert all(check["ok"] for check in row["agreement"])
    assert "agree with PyTorch" in capsys.readouterr().out


QUANTITIES = ("y", "hy", "cy", "dx", "dhx", "dcx", "weight_hh_l0", "bias_ih_l0")


@pytest.mark.parametrize("off, quantity", [*((1e-3, quantity) for quantity in QUANTITIES), (np.nan, "y")])
def test_a_wrong_result_is_refused(quantity, off, command, monkeypatch, capsys):
    use_stub(monkeypatch, lambda name, array: array + np.float32(off) if name == quantity else array)
    record = command(*SMALL, "--cell", "lstm", code=1)
    forward, training = record["results"]
    assert forward["ok"] == (quantity not in ("y", "hy", "cy"))
    assert not training["ok"] and training["seconds"] == training["median_s"] == training["ratio"] == {}
    assert quantity in training["refusal"]
    assert "REFUSED" in capsys.readouterr().out


def test_a_wrong_onnx_graph_has_no_time(command, monkeypatch, capsys):
    pytest.importorskip("onnxruntime")
    pytest.importorskip("onnx")
    use_stub(monkeypatch)
    monkeypatch.setitem(gates.ONNX, "gru", ("r", "z", "n"))
    record = command(*SMALL, "--cell", "gru", code=1)
    forward = record["results"][0]
    assert "onnxruntime's" in forward["left_out"]["onnxruntime"] and "onnxruntime" not in forward["seconds"]
    assert forward["ok"] and "onnxruntime, 1 cases such as gru" in capsys.readouterr().out


def test_a_pytorch_whose_results_are_wrong_has_no_time(command, monkeypatch, stub, capsys):
    right = torch_peer.torch_contender

    def wrong(problem, train, device="cpu"):
        contender = right(problem, train, device)
        if problem.case.dtype == "float64":
            return contender
        results = contender.results
        return replace(contender, results=lambda returned: {q: v for q, v in results(returned).items()} | {
            "y": results(returned)["y"] + np.float32(0.01)})  # fmt: skip

    monkeypatch.setattr(torch_peer, "torch_contender", wrong)
    record = command(*SMALL, "--cell", "gru", "--dtype", "float32")
    for row in record["results"]:
        assert "torch's y: is 1.0e-02 from float64" in row["left_out"]["torch"] and "torch" not in row["seconds"]
        assert row["ok"] and row["seconds"]["numbarnn"]


# ------------------------------------------------------------------------------------------------------ fewer of them
def test_only_takes_the_rows_with_a_text_in_their_name(command, stub):
    arguments = [*SMALL, "--shape", "2,1,3,4,2", "--shape", "2,1,3,5,2"]
    record = command(*arguments, "--only", "gru 2,1,3,4", "--only", "lstm 3,2")
    rows = {(row["cell"], tuple(row["shape"].values())) for row in record["results"]}
    assert rows == {("gru", (2, 1, 3, 4, 2)), ("lstm", (3, 2, 4, 5, 1))}


def test_more_threads_than_could_ever_run_are_refused(cannot):
    """They would wait for each other: PyTorch's and the engine's."""
    most = 4 * info.core_count()
    said = cannot("bench", "--device", "cpu", "--shape", "3,2,4,5,1", "--threads", str(most + 1))
    assert f"take at most {most}" in said


# ------------------------------------------------------------------------------------ sets of shapes, shapes with words
SHORT = ["bench", "--device", "cpu", "--rounds", "3", "--threads", "1"]


# ------------------------------------------------------------------------------------------------------------ the words


@pytest.mark.parametrize("text", ["1,2,3,4,5,ring", "1,2,3,4,5,lengths,lengths", "1,2,3,4,lengths"])
def test_other_words_are_refused(text, refused):
    said = refused("bench", "--shape", text)
    assert "words of bidirectional, lengths" in said and repr(text) in said


def test_who_has_no_such_forms_refuses_them(refused, cannot):
    assert "T,B,I,H,L, five whole numbers" in refused("trace", "--shape", "1,2,3,4,5,lengths")
    said = cannot("bench", "--cell", "sru", "--device", "cpu", "--shape", "1,2,3,4,5,bidirectional", code=2)
    assert "--cell sru is timed over whole sequences, in one direction: got --shape" in said
    said = cannot("bench", "--stream", "--device", "cpu", "--shape", "1,2,3,4,5,bidirectional", code=2)
    assert "in one direction" in said and "got --shape 1,2,3,4,5,bidirectional" in said


# --------------------------------------------------------------------------------------------------------- who computes


def test_the_command_times_them(command, page, capsys, tmp_path):
    shapes_given = ["4,2,3,5,2,bidirectional", "4,3,3,5,2,bidirectional,lengths"]
    arguments = [word for shape in shapes_given for word in ("--shape", shape)]
    found = command(*SHORT, *arguments, "--cell", "gru")
    assert [",".join(map(str, [*row["shape"].values(), *row["form"]])) for row in found["results"][::2]] == shapes_given
    said = capsys.readouterr().out
    assert "4,2,3,5,2,bidirectional" in said
    for row in found["results"]:
        assert set(row["seconds"]) >= {"numbarnn", "torch"}
        assert row["left_out"].get("onnxruntime", lineup.OTHER_FORM) == lineup.OTHER_FORM
    text = page(found)
    assert len(report.result_of("x", bench_record.read(tmp_path / "record.json")).entries) == 4
    assert all(f"gru {shape} float32 fwd" in text for shape in shapes_given)


# ------------------------------------------------------------------------------------------------------------ DeepBench


def test_a_cell_that_a_set_lacks_is_refused(cannot):
    said = cannot("bench", "--device", "cpu", "--set", "deepbench-device", "--cell", "gru", code=2)
    assert "--set deepbench-device has problems of rnn_relu, lstm: got --cell gru" in said


# --------------------------------------------------------------------------------------------------------- single steps
STREAM = ["bench", "--stream", "--device", "cpu", "--rounds", "3", "--threads", "1"]
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
    found = command(*STREAM, "--shape", "1,1,4,5,1", "--cell", "lstm,gru")
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
    found = command(*STREAM, "--shape", "1,1,3,4,1", "--cell", "gru", code=1)
    [row] = found["results"]
    if maker == "torch_cell_stream":
        assert row["ok"] and "torch cell's y" in row["left_out"]["torch cell"] and "torch cell" not in row["seconds"]
    else:
        assert not row["ok"] and "y: is" in row["refusal"] and row["seconds"] == row["p99_s"] == {}
        assert "1 of 1 REFUSED" in capsys.readouterr().out


def test_more_than_one_step_is_refused(cannot):
    said = cannot(*STREAM, "--shape", "2,1,3,4,1", code=2)
    assert "T must be 1 in --shape T,B,I,H,L: got --shape 2,1,3,4,1" in said
