"""Problems with every option of the layers, as helpers.py has them without: for test_options.py, and in the simulator.

    check_options(OptionCase("lstm", proj_size=2, lengths=(3, 0, 7)), "cpu", "stepwise")

Where sequences are shorter, x and dy are NaN in padding: whoever reads them is found out.
"""

from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import combinations, count

import numpy as np

import numbarnn
from half_cases import EPS, STORED
from helpers import (
    GATES,
    KINKS,
    ROUNDINGS,
    assert_close,
    assert_same_bits,
    kink_distance,
    on_engine,
    on_host,
    widest,
)
from numbarnn import reference
from philox_reference import dropout_mask

BIASES = {"double": ("bias_ih", "bias_hh"), "input": ("bias_ih",), "recurrent": ("bias_hh",), "none": ()}
SEED = 1  # of layers
HALF_KINKS = 5  # as helpers.KINKS: pre-activations and cell states of halves err by less, in eps, as few are stored


@dataclass(frozen=True)
class OptionCase:
    """One problem. Options as the layers have them; `packed`: x, y and their gradients are packed sequences."""

    cell: str
    T: int = 7
    B: int = 3
    I: int = 4  # noqa: E741 - the legend's letter
    hidden: tuple[int, ...] = (5,)
    directions: int = 1
    bias: str = "double"
    input_mode: str = "linear"
    proj_size: int = 0
    cell_clip: float | tuple[float, float] | None = None
    clip_propagate_nan: bool = True
    lengths: tuple[int, ...] | None = None
    resets: bool = False
    padding_value: float = 0.0
    packed: bool = False
    batch_first: bool = False
    dropout: float = 0.0
    state: bool = True
    dtype: str = "float32"

    def __str__(self):
        """Its id: the cell, the sizes, and the options that are not the usual ones."""
        usual = OptionCase(self.cell)
        words = [self.cell.upper(), f"T{self.T}", f"B{self.B}", f"H{'_'.join(map(str, self.hidden))}"]
        words += ["bidirectional"] if self.directions == 2 else []
        words += [] if self.bias == "double" else [f"bias_{self.bias}"]
        words += [] if self.input_mode == "linear" else [self.input_mode]
        words += [f"P{self.proj_size}"] if self.proj_size else []
        words += [] if self.cell_clip is None else ["clip"]
        words += [] if self.lengths is None else ["lengths_" + "_".join(map(str, self.lengths))]
        words += [f"dropout{self.dropout}"] if self.dropout else []
        words += [] if self.padding_value == 0 else [f"padding{self.padding_value}"]
        words += [
            name
            for name in ("resets", "packed", "batch_first", "state", "clip_propagate_nan")
            if getattr(self, name) != getattr(usual, name)
        ]
        return "-".join([*words, self.dtype])

    @property
    def has_c(self):
        """Whether the state is (h, c)."""
        return self.cell == "lstm"

    @property
    def outputs(self):
        """Size of each layer's h: P or H."""
        return tuple(self.proj_size or hidden for hidden in self.hidden)

    @property
    def eps(self):
        """Distance from 1 to the next number of the dtype."""
        return EPS[self.dtype] if self.dtype in EPS else float(np.finfo(self.dtype).eps)

    @property
    def limit(self):
        """The largest error that passes: as in helpers.py, for halves as in half_cases.py; the projection's product is
        one more rounding of each step, and its sum one of the sums."""
        sums = [self.input_size(layer) + size for layer, size in enumerate(self.outputs)]
        n = max(*sums, *self.hidden, self.T * self.B)
        more = 1 if self.proj_size else 0
        if self.dtype in EPS:
            return self.eps * (STORED + more + n**0.5) / 2
        return self.eps * (ROUNDINGS + more + n**0.5)

    @property
    def closest(self):
        """How near to a kink a ReLU or a bound of the cell state may come, for its side to be beyond doubt."""
        return self.eps * (HALF_KINKS if self.dtype in EPS else KINKS)

    def input_size(self, layer):
        """I_k."""
        if layer > 0:
            return self.directions * self.outputs[layer - 1]
        return self.hidden[0] if self.input_mode == "skip" else self.I

    def parameter_shapes(self):
        """(name, layer, shape) of every parameter."""
        for layer, hidden in enumerate(self.hidden):
            rows = GATES[self.cell] * hidden
            shapes = {"weight_ih": (rows, self.input_size(layer)), "weight_hh": (rows, self.outputs[layer])}
            if layer == 0 and self.input_mode == "skip":
                del shapes["weight_ih"]
            shapes |= {kind: (rows,) for kind in BIASES[self.bias]}
            shapes |= {"weight_hr": (self.proj_size, hidden)} if self.proj_size else {}
            for suffix in ("", "_reverse")[: self.directions]:
                for kind, shape in shapes.items():
                    yield f"{kind}_l{layer}{suffix}", layer, shape

    def layer(self, device="cpu", **options):
        """A new layer for the case; options beyond the case's go to it as they are."""
        options |= {"bias": self.bias, "input_mode": self.input_mode, "batch_first": self.batch_first}
        options |= {"dropout": self.dropout, "bidirectional": self.directions == 2}
        options |= {"dtype": self.dtype, "device": device}
        if self.cell == "lstm":
            options |= {"proj_size": self.proj_size, "cell_clip": self.cell_clip}
            options |= {"clip_propagate_nan": self.clip_propagate_nan}
        if self.cell.startswith("rnn_"):
            options |= {"nonlinearity": self.cell.removeprefix("rnn_")}
        if len(set(self.hidden)) == 1:
            options |= {"hidden_size": self.hidden[0], "num_layers": len(self.hidden)}
        else:
            options |= {"hidden_size": list(self.hidden)}
        options.setdefault("seed", SEED)
        if self.cell == "gru_reset_before":
            options |= {"reset_after": False}
        make = {"lstm": numbarnn.LSTM, "rnn_tanh": numbarnn.RNN, "rnn_relu": numbarnn.RNN}.get(self.cell, numbarnn.GRU)
        return make(self.input_size(0), **options)


class OptionProblem:
    """Random arrays for a case, of its dtype; every argument of the calls.

    Attributes:
        parameters: name -> array, uniform in ±1/√H.
        x, dy: (T, B, ...), NaN in padding.
        resets: (T, B) bools, or None.
        h, c, dhy, dcy: one (D, B, size) per layer; None where the case gives none.
    """

    def __init__(self, case, seed=0):
        rng = np.random.default_rng(seed)
        self.case = case

        def normal(*shape):
            return rng.standard_normal(shape).astype(case.dtype)

        def state(sizes, wanted):
            return [normal(case.directions, case.B, size) for size in sizes] if wanted else None

        self.parameters = {
            name: (rng.uniform(-1, 1, shape) / case.hidden[layer] ** 0.5).astype(case.dtype)
            for name, layer, shape in case.parameter_shapes()
        }
        self.x = normal(case.T, case.B, case.input_size(0))
        self.dy = normal(case.T, case.B, case.directions * case.outputs[-1])
        self.x[self.padding] = self.dy[self.padding] = np.nan
        self.resets = rng.random((case.T, case.B)) < 0.4 if case.resets else None
        self.h, self.c = state(case.outputs, case.state), state(case.hidden, case.state and case.has_c)
        self.dhy, self.dcy = state(case.outputs, True), state(case.hidden, case.has_c)

    @property
    def masks(self):
        """The dropout masks of a first training call; None without dropout."""
        case = self.case
        if not case.dropout:
            return None
        shapes = [(case.T, case.B, case.directions * size) for size in case.outputs[:-1]]
        return [dropout_mask(shape, case.dropout, SEED, k, 0, case.dtype) for k, shape in enumerate(shapes)]

    @property
    def padding(self):
        """(T, B) bools: what is beyond a sequence's length."""
        case = self.case
        lengths = [case.T] * case.B if case.lengths is None else case.lengths
        return np.arange(case.T)[:, None] >= np.array(lengths)

    def layer(self, device="cpu", **options):
        """A layer with the problem's parameters."""
        layer = self.case.layer(device, **options)
        layer.load_state_dict(self.parameters)
        return layer

    # ---------------------------------------------------------------------------- in the form in which layers take them
    def sequences(self, array):
        """A (T, B, N) array as the case gives x and dy: time first, batch first or packed."""
        if self.case.packed:
            return pack(array, self.case.lengths)
        return np.swapaxes(array, 0, 1) if self.case.batch_first else array

    def joined(self, parts):
        """One (D, B, size) per layer as one array (L*D, B, size) if sizes are equal; None stays None."""
        if parts is None:
            return None
        return np.concatenate(parts) if len({part.shape for part in parts}) == 1 else list(parts)

    def form(self, h, c):
        """A state argument; None if there is none."""
        h, c = self.joined(h), self.joined(c)
        return None if h is None and c is None else (h, c) if self.case.has_c else h

    def options(self):
        """The keyword arguments of a call."""
        case, options = self.case, {}
        if case.lengths is not None and not case.packed:
            options["lengths"] = list(case.lengths)
        if self.resets is not None:
            options["resets"] = self.resets.T if case.batch_first and not case.packed else self.resets
        if case.padding_value:
            options["padding_value"] = case.padding_value
        return options

    # ------------------------------------------------------------------------------------------------- what is expected
    def reference(self, masks=None, exact=False):
        """The reference's forward result."""
        case = self.case
        return reference.forward(
            case.cell,
            *widest([self.x, self.parameters, self.h, self.c], exact),
            masks=masks,
            lengths=case.lengths,
            resets=self.resets,
            cell_clip=case.cell_clip,
            clip_propagate_nan=case.clip_propagate_nan,
            padding_value=case.padding_value,
        )

    def expected(self, masks=None, exact=False):
        """Name -> what the reference computes, float64 (`exact`: longdouble), in the form in which layers return it."""
        result = self.reference(masks, exact)
        assert side_distance(self.case, result) > self.case.closest, "a unit is at its kink: choose another problem"
        gradients = reference.backward(result, *widest([self.dy, self.dhy, self.dcy], exact))
        values = {"y": self.sequences(result.y), "hy": self.joined(result.hy), "cy": self.joined(result.cy)}
        values |= {"dx": self.sequences(gradients.dx), "dhx": self.joined(gradients.dhx)}
        values |= {"dcx": self.joined(gradients.dcx)}
        values |= {f"d{name}": gradient for name, gradient in gradients.params.items()}
        return {name: plain(value) for name, value in values.items() if value is not None}


def side_distance(case, result):
    """How near a ReLU comes to its kink, or a cell state to a bound of its clipping."""
    if case.cell_clip is None:
        return kink_distance(case, result)
    bounds = case.cell_clip if isinstance(case.cell_clip, tuple) else (-case.cell_clip, case.cell_clip)
    steps = [step for layer in result.tape.steps for direction in layer for step in direction]
    c = np.concatenate([step["saved"]["unclipped"].ravel() for step in steps])
    c = c[np.isfinite(c)]
    return min(np.min(np.abs(c - bound), initial=np.inf) for bound in bounds)


@lru_cache(maxsize=64)
def make_problem(case):
    """A problem for the case, always the same: the first whose units keep away from their kinks, in inference and in
    training."""
    problems = (OptionProblem(case, seed) for seed in count())
    runs = {False, bool(case.dropout)}
    return next(
        p
        for p in problems
        if all(side_distance(case, p.reference(p.masks if run else None)) > case.closest for run in runs)
    )


# -------------------------------------------------------------------------------------------------------------- packing
def pack(array, lengths):
    """A (T, B, N) array as a packed sequence: step after step, the longest sequence first (ties as they come)."""
    order = sorted(range(len(lengths)), key=lambda b: -lengths[b])
    counts = [sum(length > t for length in lengths) for t in range(max(lengths))]
    data = np.concatenate([array[t, order[:rows]] for t, rows in enumerate(counts)])
    return numbarnn.PackedSequence(data, np.array(counts), np.array(order), np.argsort(order))


def plain(value):
    """The data of a packed sequence; anything else as it is."""
    return value.data if isinstance(value, numbarnn.PackedSequence) else value


def to_engine(engine, value):
    """As helpers.on_engine, packed sequences too."""
    if isinstance(value, numbarnn.PackedSequence):
        return replace(value, data=engine.from_host(value.data))
    return on_engine(engine, value)


# -------------------------------------------------------------------------------------------------------------- running
@contextmanager
def nonsense_filled(engine):
    """As helpers.nan_filled, for arrays of integers too: with the largest there is, as no step's code."""
    original = engine.empty

    def empty(shape, dtype):
        array = original(shape, dtype)
        array.fill(np.nan if array.dtype.kind not in "iu" else np.iinfo(array.dtype).max)
        return array

    engine.empty = empty
    try:
        yield
    finally:
        del engine.empty


def named(layer, y, state, x="y", h="hy", c="cy"):
    """{"y": ..., "hy": ..., "cy": ...} as NumPy arrays."""
    state = state if isinstance(layer, numbarnn.LSTM) else (state,)
    return dict(zip((x, h, c), on_host(layer.engine, [plain(y), *state]), strict=False))


def infer(layer, problem):
    """Name -> result of an inference call."""
    with nonsense_filled(layer.engine):
        x = to_engine(layer.engine, problem.sequences(problem.x))
        state = to_engine(layer.engine, problem.form(problem.h, problem.c))
        return named(layer, *layer(x, state, **problem.options()))


def train(layer, problem):
    """(name -> result of forward and backward, the dropout masks)."""
    engine = layer.engine
    with nonsense_filled(engine):
        x, dy = (to_engine(engine, problem.sequences(array)) for array in (problem.x, problem.dy))
        state = to_engine(engine, problem.form(problem.h, problem.c))
        dstate = to_engine(engine, problem.form(problem.dhy, problem.dcy))
        y, state, tape = layer.forward(x, state, **problem.options())
        values, masks = named(layer, y, state), layer.dropout_masks(tape)
        gradients = layer.backward(tape, dy, dstate)
        values |= named(layer, gradients.x, gradients.state, "dx", "dhx", "dcx")
        values |= {f"d{name}": engine.to_host(value) for name, value in gradients.params.items()}
    return values, masks


def assert_matches(case, values, expected, what=""):
    """As helpers.assert_close, with the parameters in any order."""
    assert set(values) == set(expected)
    assert_close(case, values, {name: expected[name] for name in values}, what)


def check_options(case, device, schedule, calls=2):
    """Inference and training of a case by a schedule, each quantity against the reference; later calls: the same."""
    problem = make_problem(case)
    layer = problem.layer(device, schedule=schedule)
    outputs, (values, masks) = infer(layer, problem), train(layer, problem)
    for mask, expected_mask in zip(masks, problem.masks or [], strict=bool(case.dropout)):
        np.testing.assert_array_equal(mask, expected_mask, strict=True)
    expected = problem.expected(problem.masks)
    assert_matches(case, values, expected, "training")
    if case.dropout:
        expected = problem.expected()
    assert_close(case, outputs, {name: expected[name] for name in outputs}, "inference")
    for call in range(1, calls):
        assert_same_bits(infer(layer, problem), outputs, f"inference, call {call}")
        layer.training_calls = 0  # the same dropout masks
        assert_same_bits(train(layer, problem)[0], values, f"training, call {call}")


# ----------------------------------------------------------------------------------------------------- pairs of options
def pairwise_choices(factors, seed=0, tries=30):
    """Choices, a dict name -> value each, so that every pair of values of two factors meets in one: of `tries` random
    completions of a pair that is still open, always the one that closes most.

    factors   name -> values
    """
    rng = np.random.default_rng(seed)

    def pairs(choice):
        return {tuple(sorted(pair)) for pair in combinations([(name, index) for name, index in choice.items()], 2)}

    places = [(name, index) for name, values in factors.items() for index in range(len(values))]
    left = {tuple(sorted((one, two))) for one, two in combinations(places, 2) if one[0] != two[0]}
    while left:
        fixed = dict(min(left))
        candidates = [
            {name: int(rng.integers(len(values))) for name, values in factors.items()} | fixed for _ in range(tries)
        ]
        best = max(candidates, key=lambda choice: len(pairs(choice) & left))
        left -= pairs(best)
        yield {name: factors[name][index] for name, index in best.items()}
