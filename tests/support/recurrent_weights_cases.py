"""Problems for cells whose R is blocks on the diagonal (heads), or of which training drops weights (DropConnect).

    check_weights(WeightCase("lstm", hidden=(6, 4), heads=2, drop=0.3), "cpu", "stepwise")

The cells are those of the library that the float64 reference has too, with other `heads`, `drop_connect` and
`projected`. The reference gets dense matrices, put together here block by block, with masks of NumPy's own Philox.
Cases and limits are those of option_cases.py.
"""

from copy import copy
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

import numbarnn
from half_cases import EPS
from helpers import GATES, assert_same_bits, on_host
from numbarnn.cells import library
from numbarnn.common.precision import numpy_dtype
from option_cases import SEED, OptionCase, OptionProblem, assert_matches, nonsense_filled, plain, to_engine
from philox_reference import dropout_mask

STREAM, STREAMS = 1 << 30, 1 << 8  # of DropConnect's random words: the first, and how many each place has


@lru_cache(maxsize=64)
def make_cell(name, heads, rates, projected):
    """A cell of the library with these; always the same, as its kernels are kept with it. One name for all of a kind:
    the CPU's loops are compiled for each name, and do not differ."""
    return replace(getattr(library, name), name=f"own_{name}", heads=heads, drop_connect=rates, projected=projected)


@dataclass(frozen=True)
class WeightCase(OptionCase):
    """One problem. `drop`: the rate of the first gate; the next ones have less and less, the last has none."""

    bias: str = "input"
    heads: int = 1
    drop: float = 0.0

    def __str__(self):
        words = [f"{self.heads}heads", *([f"drop{self.drop}"] if self.drop else []), super().__str__()]
        return "-".join(words)

    @property
    def rates(self):
        """Per gate."""
        gates = GATES[self.cell]
        return tuple(self.drop * (1 - gate / gates) for gate in range(gates)) if self.drop else ()

    @property
    def definition(self):
        """The Cell."""
        return make_cell(self.cell, self.heads, self.rates, self.proj_size > 0)

    @property
    def limit(self):
        """In halves two more roundings: of a weight that is kept, and of what a second product multiplies."""
        return super().limit + (self.eps if self.dtype in EPS else 0)

    def parameter_shapes(self):
        for name, layer, shape in super().parameter_shapes():
            yield name, layer, (shape[0], shape[1] // self.heads) if name.startswith("weight_hh") else shape

    def layer(self, device="cpu", **options):
        options |= {"input_mode": self.input_mode, "batch_first": self.batch_first, "dropout": self.dropout}
        options |= {"bidirectional": self.directions == 2, "dtype": self.dtype, "device": device}
        sizes = (self.hidden[0], len(self.hidden)) if len(set(self.hidden)) == 1 else (list(self.hidden),)
        options = {"seed": SEED, "proj_size": self.proj_size} | options
        return numbarnn.RNN(self.definition, self.input_size(0), *sizes, **options)


class WeightProblem(OptionProblem):
    """As `OptionProblem`; R as layers have it."""

    def __init__(self, case, seed=0):
        numpy_dtype(case.dtype)  # so that NumPy knows its name
        super().__init__(case, seed)

    def drops(self, call=0):
        """Name of each R -> the mask of a training call, of R's shape and of the dtype in which it multiplies."""
        case, found = self.case, {}
        dtype = "float32" if case.dtype in EPS else case.dtype
        for place, name in enumerate(name for name in self.parameters if name.startswith("weight_hh")):
            rows, columns = self.parameters[name].shape
            shape = rows // GATES[case.cell], columns
            streams = STREAM + STREAMS * place + np.arange(len(case.rates))
            parts = zip(case.rates, streams, strict=True)
            found[name] = np.concatenate(
                [dropout_mask(shape, rate, SEED, stream, call, dtype) for rate, stream in parts]
            )
        return found

    def expected(self, masks=None, drops=None):
        """Name -> what the reference computes with dense matrices, in the form in which layers return it."""
        case, whole, drops = self.case, copy(self), drops or {}
        whole.parameters = dict(self.parameters)
        names = [name for name in self.parameters if name.startswith("weight_hh")]
        for name in names:
            R = self.parameters[name]
            if name in drops:
                R = (R.astype(drops[name].dtype) * drops[name]).astype(R.dtype)
            whole.parameters[name] = dense(R, GATES[case.cell], case.heads)
        values = OptionProblem.expected(whole, masks)
        for name in names:
            values[f"d{name}"] = blocks(values[f"d{name}"], GATES[case.cell], case.heads) * drops.get(name, 1.0)
        return values


def dense(R, gates, heads):
    """(A*H, P) of a parameter (A*H, P/n)."""
    rows, width = R.shape
    size = rows // gates // heads
    whole = np.zeros((rows, width * heads), R.dtype)
    for row in range(rows):
        head = row % (rows // gates) // size
        whole[row, head * width : (head + 1) * width] = R[row]
    return whole


def blocks(whole, gates, heads):
    """The other way round."""
    rows, width = len(whole), whole.shape[1] // heads
    heads_of_rows = np.arange(rows) % (rows // gates) // (rows // gates // heads)
    return np.stack([whole[row, head * width : (head + 1) * width] for row, head in enumerate(heads_of_rows)])


@lru_cache(maxsize=64)
def make_problem(case):
    """A problem for the case, always the same."""
    return WeightProblem(case)


# -------------------------------------------------------------------------------------------------------------- running
def named(y, state, *names):
    """Name -> output or state; a state is a tuple for the LSTM's cells."""
    return dict(zip(names, (plain(y), *(state if isinstance(state, tuple) else (state,))), strict=False))


def infer(layer, problem):
    """Name -> result of an inference call."""
    with nonsense_filled(layer.engine):
        x = to_engine(layer.engine, problem.sequences(problem.x))
        state = to_engine(layer.engine, problem.form(problem.h, problem.c))
        y, state = layer(x, state, **problem.options())
        return named(layer.engine.to_host(plain(y)), on_host(layer.engine, state), "y", "hy", "cy")


def train(layer, problem):
    """(name -> result of forward and backward, the tape)."""
    engine = layer.engine
    with nonsense_filled(engine):
        x, dy = (to_engine(engine, problem.sequences(array)) for array in (problem.x, problem.dy))
        state = to_engine(engine, problem.form(problem.h, problem.c))
        d_state = to_engine(engine, problem.form(problem.dhy, problem.dcy))
        y, state, tape = layer.forward(x, state, **problem.options())
        values = named(engine.to_host(plain(y)), on_host(engine, state), "y", "hy", "cy")
        found = layer.backward(tape, dy, d_state)
        values |= named(engine.to_host(plain(found.x)), on_host(engine, found.state), "dx", "dhx", "dcx")
        values |= {f"d{name}": engine.to_host(value) for name, value in found.params.items()}
    return values, tape


def check_weights(case, device, schedule, calls=2):
    """Inference and training of a case by a schedule, each quantity against the reference; later calls: the same bits,
    and other masks where training goes on."""
    problem = make_problem(case)
    layer = problem.layer(device, schedule=schedule)
    outputs, (values, tape) = infer(layer, problem), train(layer, problem)
    masks, drops = layer.drop_connect_masks(tape), problem.drops() if case.drop else {}
    assert list(masks) == list(drops)
    for name, mask in masks.items():
        np.testing.assert_array_equal(mask, drops[name].astype(case.dtype), strict=True)
    expected = problem.expected(problem.masks, drops)
    assert_matches(case, values, expected, "training")
    expected = problem.expected()
    assert_matches(case, outputs, {name: expected[name] for name in outputs}, "inference")
    for call in range(1, calls):
        assert_same_bits(infer(layer, problem), outputs, f"inference, call {call}")
        layer.training_calls = 0  # the same masks
        assert_same_bits(train(layer, problem)[0], values, f"training, call {call}")
    if case.drop and calls > 1 and not case.dropout:
        values, _ = train(layer, problem)
        assert_matches(case, values, problem.expected(None, problem.drops(call=1)), "training, the next masks")
