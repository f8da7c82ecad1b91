"""DeepBench's problems with its own semantics, and shapes that others have published."""

import numpy as np
import pytest

from numbarnn import cli
from numbarnn.bench.cases import passes, shapes
from numbarnn.bench.cases.shapes import DEEPBENCH, Shape
from numbarnn.bench.speed import command as speed
from numbarnn.bench.speed import lineup, peak
from stub_layer import use_stub

pytest.importorskip("torch")
TINY = {"lstm": shapes.shapes("3,2,5,5,1"), "rnn_relu": shapes.shapes("4,1,6,6,1")}


@pytest.fixture
def tiny(monkeypatch, short_turns):
    """Two problems in place of DeepBench's."""
    for name in ("deepbench-train", "deepbench-server"):
        monkeypatch.setitem(speed.DEEPBENCH, name, TINY)


def bench(command, name, *more, code=0):
    return command("bench", "--device", "cpu", "--threads", "1", "--rounds", "3", "--set", name, *more, code=code)


def test_there_are_125_problems():
    found = [(name, cell, shape) for name, own in DEEPBENCH.items() for cell, some in own.items() for shape in some]
    assert len(found) == len(set(found)) == 125
    assert all(shape.I == shape.H and shape.L == 1 for _, _, shape in found)
    assert {name: sum(map(len, own.values())) for name, own in DEEPBENCH.items()} == {
        "deepbench-train": 53, "deepbench-server": 69, "deepbench-device": 3,
    }  # fmt: skip
    for name, cell, T, B, H in (
        ("deepbench-train", "rnn_relu", 50, 128, 2560),
        ("deepbench-train", "lstm", 50, 8, 1536),
        ("deepbench-train", "gru", 1500, 64, 1024),
        ("deepbench-server", "lstm", 150, 4, 256),
        ("deepbench-server", "gru", 187, 2, 2816),
        ("deepbench-device", "rnn_relu", 672, 1, 32),
    ):
        assert Shape(T, B, H, H, 1) in DEEPBENCH[name][cell]
    assert Shape(25, 64, 1536, 1536, 1) not in DEEPBENCH["deepbench-train"]["lstm"]


def test_training_problems_run_on_the_cpu_pass_by_pass(tiny, command, page, capsys):
    found = bench(command, "deepbench-train")
    assert [(row["cell"], row["what"]) for row in found["results"]] == [
        (c, what) for c in TINY for what in passes.APART
    ]
    for row in found["results"]:
        assert row["input_mode"] == "skip" and set(row["seconds"]) == {"numbarnn"} and row["ratio"] == {}
        assert row["left_out"] == {"torch": lineup.NO_SKIP}
        compared = {check["quantity"] for check in row["agreement"]}
        assert ("dx" in compared) == (row["what"] in ("backward", "backward data"))
        assert ("weight_hh_l0" in compared) == (row["what"] in ("backward", "backward weights"))
        assert ("y" in compared) == ("forward" in row["what"]) and "weight_ih_l0" not in compared
    said = capsys.readouterr().out
    assert "3,2,5,5,1 skip" in said and "bwd data" in said and "it has no skip input" in said
    assert "lstm 3,2,5,5,1 skip float32 bwd weights" in page(found)


def test_inference_problems_have_forward_alone(tiny, command):
    found = bench(command, "deepbench-server", "--cell", "rnn_relu", "--compile")
    (row,) = found["results"]
    assert (row["cell"], row["what"]) == ("rnn_relu", "forward")
    assert row["left_out"] == dict.fromkeys(("torch", "torch.compile"), lineup.NO_SKIP)


@pytest.mark.parametrize(("quantity", "wrong"), [
    ("y", {"forward", "forward in training"}), ("dx", {"backward data", "backward"}),
    ("weight_hh_l0", {"backward weights", "backward"}),
])  # fmt: skip
def test_a_wrong_pass_is_refused(quantity, wrong, tiny, command, monkeypatch):
    use_stub(monkeypatch, lambda name, array: array + np.float32(1e-3) if name == quantity else array)
    found = bench(command, "deepbench-train", "--cell", "lstm", code=1)
    assert {row["what"] for row in found["results"] if not row["ok"]} == wrong


def test_a_cell_that_a_set_lacks_is_refused(capsys):
    assert cli.main(["bench", "--device", "cpu", "--set", "deepbench-device", "--cell", "gru"]) == 2
    assert "--set deepbench-device has problems of rnn_relu, lstm: got --cell gru" in capsys.readouterr().err


def test_its_operations_are_of_r_alone():
    """2 G H² B T of a forward pass, as DeepBench's sheets count them."""
    shape = Shape(25, 16, 512, 512, 1)._asdict()
    row = {"cell": "lstm", "shape": shape, "what": "forward", "input_mode": "skip"}
    assert peak.work_of(row) == 2 * 4 * 512**2 * 16 * 25
    assert peak.work_of(row | {"what": "backward"}) == 2 * peak.work_of(row)
    assert peak.work_of({"cell": "lstm", "shape": shape, "what": "forward+backward"}) == 6 * peak.work_of(row)
