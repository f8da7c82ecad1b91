"""`numbarnn bench --cell` of other cells, and the loops in PyTorch that it compares with."""

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch")

import numbarnn as nr
from numbarnn.bench.custom_cells import named_cells, why_no_loop
from numbarnn.bench.peers import peers
from numbarnn.bench.shapes import WHOLE
from numbarnn.cells import library

pytestmark = pytest.mark.usefixtures("short_turns")


def test_cells_without_a_loop_say_why():
    assert why_no_loop(library.lstm, True) is None
    noisy = nr.cell(library.lstm, zoneout_h=0.1)
    assert why_no_loop(noisy, False) is None and "random" in why_no_loop(noisy, True)
    assert "random" in why_no_loop(nr.cell(library.lstm, drop_R=0.1), True)
    from numbarnn.cells import get

    assert "by hand" in why_no_loop(get("lstm"), False)


# ---------------------------------------------------------------------------------------------------------- the command
LEAN = (
    "import numbarnn as nr\n\n@nr.cell\ndef lean(x, h, c, p):\n"
    "    c_new = c * nr.sigmoid(p.W.f @ x + p.R.f @ h) + p.W.c @ x\n    return nr.tanh(c_new), c_new\n"
)


def test_cells_are_found(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text(LEAN)
    found = named_cells(f"lstm, {file}:lean,numbarnn.cells.library:sru,slstm")
    assert [*map(str, found)] == ["lstm", f"{file}:lean", "numbarnn.cells.library:sru", "slstm"]
    assert [named.cell.name for named in found[1:]] == ["lean", "sru", "slstm"] and found[3].cell is library.slstm


def test_sizes_that_a_cell_cannot_have(tmp_path, cannot):
    file = tmp_path / "headed.py"
    file.write_text("import numbarnn as nr\n\nfour = nr.cell(nr.cells.library.slstm, heads=4)\n")
    said = cannot("bench", "--cell", f"{file}:four", "--shape", "2,1,3,6,1", "--device", "cpu", code=2)
    assert "four cannot have --shape 2,1,3,6,1" in said


SMALL = "bench --device cpu --shape 3,2,4,5,2 --rounds 1 --threads 1".split()


def test_times_and_refusals_of_a_cell_of_a_file(command, page, tmp_path, monkeypatch, capsys):
    """Beside the LSTM and a loop of the same equations; then numbarnn's results are spoiled."""
    file = tmp_path / "mine.py"
    file.write_text(LEAN)
    cell = f"{file}:lean"
    record = command(*SMALL, "--cell", cell, "--schedule", "stepwise,persistent", code=1)
    rows = record["results"]
    wanted = [(what, schedule) for what in WHOLE for schedule in ("stepwise", "persistent")]
    assert [(row["what"], row["schedule"]) for row in rows] == wanted
    for row in rows[1::2]:
        assert not row["ok"] and "not on the CPU" in row["refusal"] and row["seconds"] == row["ratio"] == {}
    for row in rows[::2]:
        assert row["ok"] and row["cell"] == cell and row["plan"].startswith("stepwise") and row["left_out"] == {}
        assert set(row["seconds"]) == set(row["median_s"]) == {"numbarnn", "lstm", "loop"}
        ours, lstm, loop = (row["median_s"][name] for name in ("numbarnn", "lstm", "loop"))
        assert row["ratio"] == pytest.approx({"lstm": ours / lstm, "loop": ours / loop})
        assert all(check["ok"] for check in row["agreement"])
    names = {check["quantity"] for check in rows[2]["agreement"]}
    assert {"y", "final h", "final c", "dx", "dh", "dc", "l0.W.f", "l1.R.f"} <= names
    assert "2 of 4 REFUSED" in capsys.readouterr().out and "lean 3,2,4,5,2" in page(record)
    monkeypatch.setattr(peers, "to_host", lambda layer, value: layer.engine.to_host(value) + np.float32(1e-4))
    record = command(*SMALL, "--cell", cell, "--schedule", "stepwise", code=1)
    for row in record["results"]:
        assert "from float64, more than" in row["refusal"] and row["seconds"] == {}


def test_what_has_no_loop_is_timed_beside_the_lstm_alone(command, tmp_path):
    file = tmp_path / "noisy.py"
    file.write_text("import numbarnn as nr\n\nnoisy = nr.cell(nr.cells.library.lstm, zoneout_h=0.1)\n")
    forward, training = command(*SMALL, "--cell", f"{file}:noisy")["results"]
    assert set(forward["seconds"]) == {"numbarnn", "lstm", "loop"} and set(training["seconds"]) == {"numbarnn", "lstm"}
    assert "random numbers in training" in training["left_out"]["loop"] and training["agreement"] == []


def test_the_guide_lists_the_library():
    """A row for each cell, in the library's order, with its states."""
    page = (Path(__file__).parents[2] / "notebooks" / "guides" / "own_cells.md").read_text()
    table = page.partition("<!-- table: library -->\n")[2].partition("\n<!-- end of table -->")[0]
    rows = [[cell.strip(" `") for cell in line.split("|")[1:-1]] for line in table.splitlines()[2:]]
    assert [name.partition("(")[0] for name, *_ in rows] == library.__all__
    for name, _, states, *_ in rows:
        found = getattr(library, name.partition("(")[0])
        assert states == " ".join((found if isinstance(found, nr.cells.Cell) else found()).states), name
