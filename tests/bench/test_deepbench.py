"""DeepBench's problems with its own semantics, and shapes that others have published."""

import pytest

from numbarnn import cli
from numbarnn.bench import lineup, shapes, speed
from numbarnn.bench.shapes import DEEPBENCH, Shape

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
    assert Shape(1500, 64, 1024, 1024, 1) in DEEPBENCH["deepbench-train"]["gru"]
    assert Shape(25, 64, 1536, 1536, 1) not in DEEPBENCH["deepbench-train"]["lstm"]


def test_training_problems_run_on_the_cpu_pass_by_pass(tiny, command, page, capsys):
    found = bench(command, "deepbench-train")
    assert [(row["cell"], row["what"]) for row in found["results"]] == [
        (c, what) for c in TINY for what in shapes.APART
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


def test_a_cell_that_a_set_lacks_is_refused(capsys):
    assert cli.main(["bench", "--device", "cpu", "--set", "deepbench-device", "--cell", "gru"]) == 2
    assert "--set deepbench-device has problems of rnn_relu, lstm: got --cell gru" in capsys.readouterr().err
