"""`numbarnn cells`; `numbarnn bench --cell` of other cells, and the loops in PyTorch that it compares with."""

import json
import re
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch")

import torch

import numbarnn as nr
from cases import Case
from equations import LIBRARY
from numbarnn import cli
from numbarnn.bench.cases.shapes import WHOLE
from numbarnn.bench.cells import COLUMNS
from numbarnn.bench.peers import peers
from numbarnn.bench.peers.torch_loop import LoopNetwork, why_not
from numbarnn.bench.speed.own_cells import named_cells
from numbarnn.cells import library
from problems import make_problem

TOLERANCE = 1e-13  # float64: a loop of a few steps, in another order of sums


pytestmark = pytest.mark.usefixtures("short_turns")


def tensor(array):
    return torch.tensor(np.asarray(array, np.float64), requires_grad=True)


def run_network(network, x, states, dy, d_states):
    """Name -> result and gradient of a network with the loss of `Problem.expected`; d_states and states by name."""
    for leaf in network.leaves.values():
        leaf.requires_grad_().grad = None
    x, states = tensor(x), {name: tensor(array) for name, array in states.items()}
    y, finals = network(x, list(states.values()))
    finals = dict(zip(states, map(torch.stack, zip(*finals, strict=True)), strict=True))
    loss = (y * torch.tensor(dy)).sum() + sum((finals[n] * torch.tensor(d)).sum() for n, d in d_states.items())
    loss.backward()
    found = {"y": y, "dx": x.grad} | {f"{name}y": final for name, final in finals.items()}
    found |= {f"d{n}x": torch.zeros_like(s) if s.grad is None else s.grad for n, s in states.items()}
    found = {name: value.detach().numpy() for name, value in found.items()}
    return found | {f"d{name}": gradient for name, gradient in network.gradients().items()}


def assert_equal(found, expected):
    assert set(found) == set(expected)
    for name, value in expected.items():
        assert found[name].shape == value.shape, name
        assert np.abs(found[name] - value).max() <= TOLERANCE * max(1, np.abs(value).max()), name


# ------------------------------------------------------------------------------------------------------------ the loop
@pytest.mark.parametrize("name", LIBRARY)
def test_loop_of_each_library_cell_equals_an_independent_one(name):
    case = Case(name, T=4, B=3, I=3, hidden=(6, 6), dtype="float64")
    problem, names = make_problem(case), case.states
    states, d_states = (
        dict(zip(names, map(problem.joined, parts), strict=True)) for parts in (problem.states, problem.d_states)
    )
    network = LoopNetwork(case.definition, 6, problem.parameters, layers=2)
    assert_equal(run_network(network, problem.x, states, problem.dy, d_states), problem.expected())


def test_cells_without_a_loop_say_why():
    assert why_not(library.lstm, True) is None
    noisy = nr.cell(library.lstm, zoneout_h=0.1)
    assert why_not(noisy, False) is None and "random" in why_not(noisy, True)
    assert "random" in why_not(nr.cell(library.lstm, drop_R=0.1), True)
    from numbarnn.cells import get

    assert "by hand" in why_not(get("lstm"), False)


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
    assert {"y", "final h", "final c", "dx", "dh", "dc", "weight_ih_l0", "weight_hh_l1"} <= names
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


def test_the_library_is_listed(capsys, tmp_path):
    """With states, products and papers; and the guide has the same table."""
    assert cli.main(["cells", "--json", str(tmp_path / "cells.json")]) == 0
    found = json.loads((tmp_path / "cells.json").read_text())
    rows = {row["cell"].partition("(")[0]: row for row in found}
    assert [*rows] == library.__all__ and "ugrnn" in capsys.readouterr().out
    assert all(row["paper"] for name, row in rows.items() if name != "lstm_with")
    assert rows["cornn"] == {
        "cell": "cornn", "paper": "Rusch and Mishra 2021, arXiv:2010.00951", "states": "y z", "products": 2,
        "equation": "y + dt * z_new; z_new = z + dt * (force - gamma * y - epsilon * z); "
        "force = tanh(p.R.y @ y + p.R.z @ z + p.W.z @ x + p.b.z)",
    }  # fmt: skip
    for row in rows.values():  # no gate is named that is not shown
        names = set(re.findall(r"(?<![.\w])(\w+_new|candidate|[ifogzr])(?!\w)", row["equation"]))
        names.difference_update(row["states"].split())
        assert all(re.search(rf"\b{name}\b.* = ", row["equation"]) for name in names)
    assert rows["on_lstm"]["products"] == 3 and rows["sru"]["products"] == 0  # two of them cumsum
    lines = [COLUMNS, ["---"] * len(COLUMNS)]
    for row in found:
        equation = "<br>".join(f"`{part}`" for part in row["equation"].split("; "))
        lines.append((f"`{row['cell']}`", *list(row.values())[1:4], equation))
    table = "\n".join(f"| {' | '.join(map(str, line))} |" for line in lines)
    page = (Path(__file__).parents[2] / "notebooks" / "guides" / "own_cells.md").read_text()
    assert f"<!-- table: library -->\n{table}\n<!-- end of table -->" in page
