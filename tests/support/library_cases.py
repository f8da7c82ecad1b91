"""Problems for the library's cells: random arrays, what the loops of cell_loops.py make of them, and comparisons.

    check_cell(CellCase("peephole_lstm", T=7, B=3, hidden=(5, 4)), "cpu", "stepwise")

Results are named "y", "h'" for a final state h, "dx", "dh" for the initial state's gradient, "dweight_ih_l0". Errors
and their limit are those of helpers.py.
"""

from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import count

import numpy as np
import pytest
import torch

import numbarnn
from cell_loops import ACTIVATIONS, LOOPS, kink_distance
from half_cases import EPS, STORED
from helpers import ROUNDINGS, assert_close, nan_filled, on_engine, on_host
from numbarnn.cells import functions, library

FACTORIES = {
    **{f"lstm_with {names}": partial(library.lstm_with, *(getattr(functions, name) for name in names.split()))
       for names in ACTIVATIONS},
    **{f"recurrent_highway {depth}": partial(library.recurrent_highway, depth) for depth in (1, 2, 3)},
}  # fmt: skip
NAMES = tuple(LOOPS)
KINKS, HALF_KINKS = 50, 5  # as in option_cases.py
SEED = 1
QUICK = {"peephole_lstm", "slstm", "recurrent_highway 2", "multiplicative_lstm", "cornn", "sru", "ind_rnn"}


def cell_of(name):
    """The library's cell for a loop's name."""
    return FACTORIES[name]() if name in FACTORIES else getattr(library, name)


def quick_and_slow(values, name_of=str):
    """Values as pytest's parameters: compiling takes seconds a cell, so that those not in QUICK are marked slow."""
    return [pytest.param(v, marks=[] if name_of(v) in QUICK else [pytest.mark.slow]) for v in values]


def place(cell, name):
    """Where a loop's parameter is among the layer's: (kind, its number of H rows); of a vector (name, None)."""
    group, _, gate = name.rpartition(".")
    recurrent = (*cell.recurrent, *(gate for stage in cell.stages for gate in stage.gates))
    if group == "W":
        return "weight_ih", cell.gates.index(gate)
    if group == "P":
        return "weight_hr", 0
    if group == "R":
        return "weight_hh", recurrent.index(gate)
    for kind, known_as, gates in (("bias_ih", "input", cell.gates), ("bias_hh", "recurrent", recurrent)):
        for gate, bias in cell.structure.biases[known_as].items():
            if bias == name:
                return kind, gates.index(gate)
    return name.replace(".", "_"), None


def joined(cell, parameters):
    """One layer's and direction's parameters of a loop (NumPy) under the layer's names, without their ending."""
    places = {place(cell, name): array for name, array in parameters.items()}
    kinds = dict.fromkeys(kind for kind, _ in places)
    found = {}
    for kind in kinds:
        parts = {index: array for (of, index), array in places.items() if of == kind}
        assert None in parts or sorted(parts) == list(range(len(parts))), kind
        found[kind] = parts[None] if None in parts else np.concatenate([parts[k] for k in sorted(parts)])
    return found


@dataclass(frozen=True)
class CellCase:
    """One problem. `hidden` holds one size per layer."""

    name: str
    T: int = 5
    B: int = 3
    I: int = 4  # noqa: E741 - the legend's letter
    hidden: tuple[int, ...] = (5,)
    directions: int = 1
    dtype: str = "float32"

    def __str__(self):
        words = [self.name.replace(" ", "_"), f"T{self.T}", f"B{self.B}", f"H{'_'.join(map(str, self.hidden))}"]
        return "-".join([*words, *(["bidirectional"] if self.directions == 2 else []), self.dtype])

    @property
    def eps(self):
        """Distance from 1 to the next number of the dtype."""
        return EPS[self.dtype] if self.dtype in EPS else float(np.finfo(self.dtype).eps)

    @property
    def limit(self):
        """The largest error that passes: as in helpers.py and, for halves, half_cases.py, a stage being a step of its
        own. In float64 the loops err as much as we do."""
        widest = max(self.input_size(layer) + hidden for layer, hidden in enumerate(self.hidden))
        parts, terms = 1 + len(cell_of(self.name).stages), max(widest, self.T * self.B)
        if self.dtype in EPS:
            return self.eps * (STORED * parts + terms**0.5) / 2
        return self.eps * (ROUNDINGS * parts + terms**0.5) * (2 if self.dtype == "float64" else 1)

    def input_size(self, layer):
        """I_k."""
        return self.I if layer == 0 else self.directions * self.hidden[layer - 1]


class CellProblem:
    """Random arrays for a case, of its dtype.

    Attributes:
        cell, loop: of the case's name.
        parameters: one list per layer of one dict per direction, in the loop's names; ±1/√H.
        x, dy: (T, B, ...).
        states, d_states: one list per layer of one (D, B, H) per state's name.
    """

    def __init__(self, case, seed=0):
        rng = np.random.default_rng(seed)
        self.case, self.cell, self.loop = case, cell_of(case.name), LOOPS[case.name]

        def normal(*shape):
            return rng.standard_normal(shape).astype(case.dtype)

        def states():
            return [[normal(case.directions, case.B, size) for _ in self.loop.states] for size in case.hidden]

        self.parameters = [
            [
                {
                    name: (rng.uniform(-1, 1, shape) / size**0.5).astype(case.dtype)
                    for name, shape in self.loop.shapes(case.input_size(layer), size).items()
                }
                for _ in range(case.directions)
            ]
            for layer, size in enumerate(case.hidden)
        ]
        self.x, self.dy = normal(case.T, case.B, case.I), normal(case.T, case.B, case.directions * case.hidden[-1])
        self.states, self.d_states = states(), states()
        if "n" in self.loop.states:  # a normaliser is positive
            n = self.loop.states.index("n")
            for layer in self.states:
                layer[n] = 0.5 + abs(layer[n])

    @property
    def state_dict(self):
        """The parameters with the layer's names."""
        return {
            f"{kind}_l{layer}{suffix}": array
            for layer, directions in enumerate(self.parameters)
            for suffix, parameters in zip(("", "_reverse"), directions, strict=False)
            for kind, array in joined(self.cell, parameters).items()
        }

    def form(self, states):
        """States (one list per layer) as layers take them: one per name, alone if there is but one."""
        named = [list(parts) for parts in zip(*states, strict=True)]
        if len(set(self.case.hidden)) == 1:
            named = [np.concatenate(parts) for parts in named]
        return named[0] if len(named) == 1 else tuple(named)

    def layer(self, device="cpu", **options):
        """A layer with the problem's parameters."""
        case = self.case
        sizes = {"hidden_size": list(case.hidden)}
        if len(set(case.hidden)) == 1:
            sizes = {"hidden_size": case.hidden[0], "num_layers": len(case.hidden)}
        options |= {"bidirectional": case.directions == 2, "dtype": case.dtype, "device": device, "seed": SEED}
        layer = numbarnn.RNN(self.cell, input_size=case.I, **sizes, **options)
        layer.load_state_dict(self.state_dict)
        return layer

    # ------------------------------------------------------------------------------------------------- what is expected
    def run_loop(self):
        """The loop's tensors in float64: parameters, x, states (as lists), y, final states (one list per layer)."""

        def tensor(array):
            return torch.tensor(np.asarray(array, np.float64), requires_grad=True)

        parameters = [[{n: tensor(a) for n, a in p.items()} for p in layer] for layer in self.parameters]
        x, states = tensor(self.x), [[tensor(part) for part in layer] for layer in self.states]
        y, finals, inputs = x, [], x
        for layer, own in zip(parameters, states, strict=True):
            y, final = self.loop.run(layer, inputs, own)
            finals.append(final)
            inputs = y
        return parameters, x, states, y, finals

    def expected(self):
        """Name -> what the loop and autograd compute."""
        parameters, x, states, y, finals = self.run_loop()
        weights = [torch.tensor(np.asarray(a, np.float64)) for layer in self.d_states for a in layer]
        loss = (y * torch.tensor(np.asarray(self.dy, np.float64))).sum()
        loss = loss + sum((a * b).sum() for a, b in zip([f for layer in finals for f in layer], weights, strict=True))
        loss.backward()
        finals = [[final.detach().numpy() for final in layer] for layer in finals]
        for state in (state for layer in states for state in layer):
            if state.grad is None:  # such as h of a cell without products of h
                state.grad = torch.zeros_like(state)
        d_states = [[state.grad.numpy() for state in layer] for layer in states]
        values = {"y": y.detach().numpy()} | self.named(finals, "{}'")
        values |= {"dx": x.grad.numpy()} | self.named(d_states, "d{}")
        for layer, directions in enumerate(parameters):
            for suffix, own in zip(("", "_reverse"), directions, strict=False):
                gradients = {name: tensor.grad.numpy() for name, tensor in own.items()}
                values |= {f"d{k}_l{layer}{suffix}": a for k, a in joined(self.cell, gradients).items()}
        return values

    def named(self, states, form):
        """States in the form in which layers return them, by name."""
        found = self.form(states)
        return name_states(self.loop.states, found, form)


def name_states(names, state, form):
    """{"h'": ..., "c'": ...} of a state as layers return it, which is alone if there is one name."""
    parts = state if len(names) > 1 else (state,)
    return {form.format(name): part for name, part in zip(names, parts, strict=True)}


@lru_cache(maxsize=64)
def make_problem(case):
    """A problem for the case, always the same: the first whose units keep away from kinks."""
    problems = (CellProblem(case, seed) for seed in count())
    closest = case.eps * (HALF_KINKS if case.dtype in EPS else KINKS)
    return next(p for p in problems if kink_distance(p.run_loop) > closest)


# -------------------------------------------------------------------------------------------------------------- running
def infer(layer, problem):
    """Name -> result of an inference call."""
    with nan_filled(layer.engine):
        x, state = on_engine(layer.engine, [problem.x, problem.form(problem.states)])
        y, state = on_host(layer.engine, list(layer(x, state)))
        return {"y": y} | name_states(problem.loop.states, state, "{}'")


def train(layer, problem):
    """Name -> result of forward and backward."""
    engine, names = layer.engine, problem.loop.states
    with nan_filled(engine):
        arrays = [problem.x, problem.form(problem.states), problem.dy, problem.form(problem.d_states)]
        x, state, dy, d_state = on_engine(engine, arrays)
        y, state, tape = layer.forward(x, state)
        y, state = on_host(engine, [y, state])
        gradients = layer.backward(tape, dy, d_state)
        dx, d_state = on_host(engine, [gradients.x, gradients.state])
        values = {"y": y} | name_states(names, state, "{}'") | {"dx": dx} | name_states(names, d_state, "d{}")
        return values | {f"d{name}": engine.to_host(value) for name, value in gradients.params.items()}


def check_cell(case, device, schedule):
    """Inference and training of a case by a schedule, every quantity against the loop."""
    problem = make_problem(case)
    layer, expected = problem.layer(device, schedule=schedule), problem.expected()
    outputs, values = infer(layer, problem), train(layer, problem)
    assert set(values) == set(expected)
    assert_close(case, outputs, {name: expected[name] for name in outputs}, "inference")
    assert_close(case, values, {name: expected[name] for name in values}, "training")
