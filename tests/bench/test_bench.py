"""`numbarnn bench`: refuses times of wrong results, and records what it measured."""

from dataclasses import replace

import numpy as np
import pytest

import numbarnn
from numbarnn import cli
from numbarnn.bench import cases, info, shapes, speed
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


def test_a_record_s_digest_is_of_code_alone():
    text = '"""Of a file."""\n\n\ndef f(x):\n    """Of\n\n    it."""\n    # why\n    return x\n'
    assert bench_record._code_lines(text) == ["def f(x):", "    return x"]


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


def test_operations_of_a_call():
    """Against what the weights' sizes say."""
    for cell, make, sizes in (("lstm", numbarnn.LSTM, (5, 3, 7, 11, 3)), ("gru", numbarnn.GRU, (2, 1, 4, 6, 1))):
        shape = dict(zip("TBIHL", sizes, strict=True))
        row = {"cell": cell, "shape": shape, "input_mode": "linear", "form": ()}
        layer = make(shape["I"], shape["H"], num_layers=shape["L"], device="cpu")
        products = sum(value.size for name, value in layer.parameters.items() if name.startswith("weight"))
        for what, times in ((shapes.FORWARD, 2), (shapes.TRAINING, 6)):
            assert bench_record.work_of(row | {"what": what}) == times * shape["T"] * shape["B"] * products


# ------------------------------------------------------------------------------------------------------ fewer of them
def test_only_takes_the_rows_with_a_text_in_their_name(command, stub):
    arguments = [*SMALL, "--shape", "2,1,3,4,2", "--shape", "2,1,3,5,2"]
    record = command(*arguments, "--only", "gru 2,1,3,4", "--only", "lstm 3,2")
    rows = {(row["cell"], tuple(row["shape"].values())) for row in record["results"]}
    assert rows == {("gru", (2, 1, 3, 4, 2)), ("lstm", (3, 2, 4, 5, 1))}


@pytest.mark.parametrize(("more", "rounds"), [([], 5), (["--rounds", "2"], 2), (["--rounds", "9"], 5)])
def test_quick_is_a_set_and_few_rounds(more, rounds, monkeypatch):
    asked = []
    monkeypatch.setattr(speed, "time_case", lambda *arguments: asked.append(arguments) or [])
    assert cli.main(["bench", "--quick", "--device", "cpu", *more]) == 0
    assert {arguments[-2].rounds for arguments in asked} == {rounds}
    assert {shape for _, shape, *_ in asked} == set(shapes.SETS["quick"])


def test_more_threads_than_could_ever_run_are_refused(cannot):
    """They would wait for each other: PyTorch's and the engine's."""
    most = 4 * info.core_count()
    said = cannot("bench", "--device", "cpu", "--shape", "3,2,4,5,1", "--threads", str(most + 1))
    assert f"take at most {most}" in said
