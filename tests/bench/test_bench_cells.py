"""`numbarnn cells`, and the loops in PyTorch that it compares with."""

import json
import re
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch")

import torch

import formed_loops
import numbarnn as nr
from cases import Case
from equations import LIBRARY
from numbarnn import cli
from numbarnn.bench import own_cells
from numbarnn.bench.cases import passes
from numbarnn.bench.named_cells import library_table
from numbarnn.bench.peers.torch_loop import LoopNetwork, why_not
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


@pytest.mark.parametrize("name", ("tgru", "tgru_of_wide_x", "small_context", "large_memory", "sums_and_scalings"))
def test_loop_of_formed_cells_equals_an_independent_one(name):
    """With states of other sizes than h among them."""
    layer = formed_loops.layer_of(name)
    given = x, states, dy, d_states = formed_loops.problem(name, layer)
    expected, names = formed_loops.expected(name, layer, given), layer.stack.cell.states
    network = LoopNetwork(layer._cell, formed_loops.H, layer.state_dict())
    states, d_states = (dict(zip(names, parts, strict=True)) for parts in (states, d_states))
    found = run_network(network, x, states, dy, d_states)
    wanted = {"y": expected["y"], "dx": expected["x"]}
    for number, state in enumerate(names):
        wanted |= {f"{state}y": expected[f"final {number}"], f"d{state}x": expected[f"state {number}"]}
    tape = layer.forward(x, tuple(states.values()) if len(states) > 1 else states[names[0]])[-1]
    d_states = tuple(d_states.values()) if len(d_states) > 1 else d_states[names[0]]
    wanted |= {f"d{key}": gradient for key, gradient in layer.backward(tape, dy, d_states).params.items()}
    assert_equal(found, wanted)


def test_heads_are_the_dense_loop_with_blocks_on_the_diagonal():
    H, n, rng = 6, 3, np.random.default_rng(0)
    cell = nr.cell(library.slstm, heads=n)
    blocks = nr.RNN(cell, 4, H, device="cpu", dtype="float64", seed=1).state_dict()
    dense, gates = dict(blocks), blocks["weight_hh_l0"].reshape(4, H, H // n)
    inside = np.kron(np.eye(n), np.ones((H // n, H // n))).astype(bool)
    dense["weight_hh_l0"] = (np.tile(gates, (1, 1, n)) * inside).reshape(4 * H, H)
    x, dy = rng.standard_normal((5, 2, 4)), rng.standard_normal((5, 2, H))
    states, d_states = ({name: rng.uniform(0.5, 1, (1, 2, H)) for name in cell.states} for _ in range(2))
    found = run_network(LoopNetwork(cell, H, blocks), x, states, dy, d_states)
    expected = run_network(LoopNetwork(library.slstm, H, dense), x, states, dy, d_states)
    of_dense = expected["dweight_hh_l0"].reshape(4, H, H)[:, inside]
    expected["dweight_hh_l0"] = of_dense.reshape(4 * H, H // n)
    assert_equal(found, expected)


@nr.cell
def odd(x, h, c, p, slope=0.1):
    """Something of everything, in unusual places."""
    u = p.b.u - p.W.u @ x - p.R.u @ c + p.b.v
    v = nr.tanh(p.W.v @ x) * (p.R.v @ nr.leaky_relu(p.W.w @ x, slope))
    w = nr.where(u > v, 1.0, -0.5) + nr.sum(p.g * h) / 7 - nr.mean(u * v)
    q = nr.layer_norm(u, v + c)[1] + nr.layer_norm(p.W.q @ x + p.b.q) + nr.clip(abs(u), 0.25, 1.5) ** 3
    r = nr.maximum(nr.minimum(w, 0.5), q) - nr.softplus(-u) + nr.elu(p.R.r @ c, 0.7) + nr.sin(v) * nr.cos(p.g)
    s = nr.sqrt(nr.exp(p.R.s @ nr.softsign(r) + p.d.s)) / nr.log(2 + abs(p.e.s)) + nr.relu(p.R.t @ c - 1)
    return nr.hard_sigmoid(s) - h, c / 2 + nr.tanh(-r)


@nr.cell
def late(x, h, c, p):
    """y is needed by no step, and sees c before it and after it, and a product."""
    f = nr.sigmoid(p.W.f @ x + p.R.f @ c + p.b.f)
    c_new = f * c + (1 - f) * nr.tanh(p.W.c @ x + p.R.c @ c + p.b.c)
    return nr.sigmoid(p.W.o @ x + p.R.o @ c + p.b.o) * nr.layer_norm(c_new) + p.R.y @ c_new - c, c_new


@nr.cell
def uneven(x, h, c, p):
    """Two products per gate, and biases on both sides: what is added to the second product is the first one."""
    i, g = (getattr(p.W, k) @ x + getattr(p.R, k) @ h + getattr(p.U, k) @ c + getattr(p.b, k) for k in "ig")
    r = p.W.r @ x + p.b.r + nr.tanh(p.R.r @ h + p.q.r)
    return nr.tanh(g) * nr.sigmoid(i) + 0.5 * r, nr.sigmoid(2 * r) - c


@nr.cell
def turned(x, h, p):
    """Gates side by side that are taken off something, and divided."""
    a, b = (p.q - nr.exp(getattr(p.W, k) @ x) - getattr(p.R, k) @ h for k in "ab")
    c, d = ((getattr(p.R, k) @ h) / (1 + nr.exp(getattr(p.W, k) @ x)) for k in "cd")
    return nr.tanh(a) * nr.tanh(b) + c * d


class Namespace:
    """p of equations on NumPy arrays: names with dots are groups."""

    def __init__(self, values):
        for name, value in values.items():
            group, _, rest = name.partition(".")
            inner = {k.partition(".")[2]: v for k, v in values.items() if k.partition(".")[0] == group}
            setattr(self, group, Namespace(inner) if rest else value)


def parameters_by_name(cell, arrays, H):
    """The parameters of one layer as the equations name them."""
    structure, found = cell.structure, {}
    for name, gates in (("weight_ih_l0", structure.gates), ("weight_hh_l0", structure.all_recurrent)):
        found |= {node.data: arrays[name][k * H : (k + 1) * H] for k, node in enumerate(gates.values())}
    for kind, own in (("bias_ih_l0", structure.biases["input"]), ("bias_hh_l0", structure.biases["recurrent"])):
        found |= {bias: arrays[kind][k * H : (k + 1) * H] for k, bias in enumerate(own.values())}
    return found | {node.data: arrays[f"{name}_l0"] for name, node in structure.per_unit.items()}


@pytest.mark.parametrize("cell", [odd, late, uneven, turned], ids=lambda cell: cell.name)
def test_loop_equals_the_equations_run_on_numpy_arrays(cell):
    T, B, I, H, rng = 3, 2, 4, 5, np.random.default_rng(3)  # noqa: E741
    arrays = nr.RNN(cell, I, H, device="cpu", dtype="float64", seed=2).state_dict()
    p = Namespace(parameters_by_name(cell, arrays, H))
    x, states = rng.standard_normal((T, B, I)), [rng.standard_normal((1, B, H)) for _ in cell.states]
    y, finals = LoopNetwork(cell, H, arrays)(torch.tensor(x), [torch.tensor(state) for state in states])
    for b in range(B):
        state = [part[0, b] for part in states]
        for t in range(T):
            state = cell.function(x[t, b], *state, p, **cell.hyperparameters)
            state = state if isinstance(state, tuple) else (state,)
            np.testing.assert_allclose(y[t, b].numpy(), state[0], rtol=0, atol=TOLERANCE)
        for final, expected in zip(finals[0], state, strict=True):
            np.testing.assert_allclose(final[b].numpy(), expected, rtol=0, atol=TOLERANCE)


def test_cells_without_a_loop_say_why():
    assert why_not(library.lstm, True) is None
    noisy = nr.cell(library.lstm, zoneout_h=0.1)
    assert why_not(noisy, False) is None and "random" in why_not(noisy, True)
    assert "random" in why_not(nr.cell(library.lstm, drop_R=0.1), True)
    from numbarnn.cells import get

    assert "by hand" in why_not(get("lstm"), False)


# ---------------------------------------------------------------------------------------------------------- the command
def test_cells_are_found(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text(
        "import numbarnn as nr\n\n@nr.cell\ndef lean(x, h, p):\n    return nr.tanh(p.W.h @ x + p.R.h @ h)\n"
    )
    found = own_cells.named_cells(f"lstm, {file}:lean,numbarnn.cells.library:sru")
    assert [named.name for named in found] == ["lstm", f"{file}:lean", "numbarnn.cells.library:sru"]
    assert [named.cell.name for named in found] == ["lstm", "lean", "sru"]
    assert found[0].cell is library.lstm and all(named.trace_s > 0 for named in found)
    assert [named.name for named in own_cells.named_cells(",".join(own_cells.CELLS))] == list(own_cells.CELLS)


@pytest.mark.parametrize("text, words", [
    ("lsmt", ["'lsmt' of numbarnn.cells.library is not there", "peephole_lstm"]),
    ("recurrent_highway", ["is a function, not a Cell"]),
    ("none.py:lstm", ["none.py", "no such file"]),
    ("no_such_module:lstm", ["no_such_module", "ModuleNotFoundError"]),
    ("numbarnn.cells:sru", ["'sru' of numbarnn.cells is not there", "GRU_RESET_BEFORE"]),
    ("BROKEN:lean", ["CellError", "broken.py"]),
])  # fmt: skip
def test_a_cell_that_is_not_there(text, words, tmp_path, refused):
    broken = tmp_path / "broken.py"
    broken.write_text("import numbarnn as nr\n\n@nr.cell\ndef lean(x, h, p):\n    return p.R.h @ h\n")
    said = refused("cells", "--cell", text.replace("BROKEN", str(broken)))
    assert all(word in said for word in words)


def test_sizes_that_a_cell_cannot_have(tmp_path, cannot):
    file = tmp_path / "headed.py"
    file.write_text("import numbarnn as nr\n\nfour = nr.cell(nr.cells.library.slstm, heads=4)\n")
    said = cannot("cells", "--cell", f"{file}:four", "--shape", "2,1,3,6,1", "--device", "cpu", code=2)
    assert "four cannot have --shape 2,1,3,6,1" in said


SMALL = "cells --device cpu --shape 3,2,4,5,2 --rounds 1 --threads 1".split()


def test_times_ratios_and_refusals(command, tmp_path, monkeypatch, capsys):
    """A cell of a file, all of the table; then numbarnn's results are spoiled."""
    file = tmp_path / "mine.py"
    file.write_text(
        "import numbarnn as nr\n\n@nr.cell\ndef lean(x, h, c, p):\n"
        "    c_new = c * nr.sigmoid(p.W.f @ x + p.R.f @ h) + p.W.c @ x\n    return nr.tanh(c_new), c_new\n"
    )
    cell = f"{file}:lean"
    record = command(*SMALL, "--cell", cell, "--schedule", "stepwise,persistent", code=1)
    assert {"date", "commit", "device_name", "method", "environment"} <= record.keys()
    assert record["method"]["rounds"] == 1
    rows = record["results"]
    wanted = [(what, schedule) for what in passes.WHOLE for schedule in ("stepwise", "persistent")]
    assert [(row["what"], row["schedule"]) for row in rows] == wanted
    for row in rows[1::2]:
        assert not row["ok"] and "not on the CPU" in row["refusal"] and row["seconds"] == row["ratio"] == {}
    for row in rows[::2]:
        assert row["ok"] and row["cell"] == cell and row["plan"].startswith("stepwise") and row["notes"] == []
        assert set(row["seconds"]) == set(row["median_s"]) == {"numbarnn", "lstm", "loop"}
        ours, lstm, loop = (row["median_s"][name] for name in ("numbarnn", "lstm", "loop"))
        assert row["ratio"] == pytest.approx({"cell/lstm": ours / lstm, "loop/cell": loop / ours})
        assert row["saved_bytes"]["lstm"] == 16 and row["saved_bytes"]["cell"] < 16
        assert row["first_call_s"] > 0 and row["trace_s"] > 0
        assert all(check["ok"] for check in row["agreement"])
    names = {check["quantity"] for check in rows[2]["agreement"]}
    assert {"y", "final h", "final c", "dx", "dh", "dc", "weight_ih_l0", "weight_hh_l1"} <= names
    assert "2 of 4 REFUSED" in capsys.readouterr().out

    def spoiled(layer, value):
        return layer.engine.to_host(value) + np.float32(1e-4)

    with monkeypatch.context() as patch:
        patch.setattr(own_cells.peers, "to_host", spoiled)
        record = command(*SMALL, "--cell", cell, "--schedule", "stepwise", "--no-loop", code=1)
    for row in record["results"]:
        assert "from float64, more than" in row["refusal"] and row["seconds"] == {}

    monkeypatch.setattr(own_cells.peers, "installed", lambda *modules: False)
    record = command(*SMALL, "--cell", cell, "--schedule", "stepwise")
    for row in record["results"]:
        assert row["ok"] and set(row["seconds"]) == {"numbarnn", "lstm"} and row["agreement"] == []
        assert "PyTorch is not installed" in row["notes"][0]
    assert "2 not compared" in capsys.readouterr().out


def test_without_options_the_command_lists_the_library(capsys, tmp_path):
    """With states, products and papers; and the guide has the same table."""
    assert cli.main(["cells", "--json", str(tmp_path / "cells.json")]) == 0
    rows = {row["cell"].partition("(")[0]: row for row in json.loads((tmp_path / "cells.json").read_text())}
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
    page = (Path(__file__).parents[2] / "notebooks" / "guides" / "own_cells.md").read_text()
    assert f"<!-- table: library -->\n{library_table()}\n<!-- end of table -->" in page
