"""One comparison for every engine: every quantity of a layer against the float64 reference.

    check_layer(Case("lstm", T=7, B=3, hidden=(33, 5), directions=2), "cpu")

runs inference and training, forward and backward, with every new buffer of the engine filled with NaN first, and
compares y, hy, cy, dx, dhx, dcx and the gradient of every parameter. Dimensions as in `numbarnn`.

How large an error may be. Inputs, states and gradients are of size 1, so an error is taken relative to the largest
element, or to 1 where that is smaller:

    error = max |value - expected| / max(1, max |expected|)
    limit = eps(dtype) (ROUNDINGS + sqrt(n))          n: the longest sum, max(I_k + H, T B)

A gate is one exp or tanh (2.5 eps at most, tests/cells/test_cells.py) and a few more operations, so that ROUNDINGS of
12 are
those of one step and of what the next ones pass on: gates and weights shrink it, so it does not grow with T and L. The
rounding errors of a sum are those of its n partial sums, and grow like sqrt(n) if they are independent. Over all cases
here the largest error seen is 0.7 of its limit where H = 1 (a weight near 1 shrinks nothing), else 0.4.
"""

from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from itertools import count

import numpy as np

import numbarnn
from numbarnn import reference

ROUNDINGS = 12
CALLS = 4  # of one layer with one problem, for `check_schedule`: eager, recorded, replayed, replayed again
CELLS = ("lstm", "gru", "rnn_tanh", "rnn_relu")
GATES = {"lstm": 4, "gru": 3, "gru_reset_before": 3, "rnn_tanh": 1, "rnn_relu": 1}
OUTPUTS = ("y", "hy", "cy")


@dataclass(frozen=True)
class Case:
    """One problem. `hidden` holds one size per layer; `given` which of dy, dhy and dcy backward gets."""

    cell: str
    T: int = 7
    B: int = 3
    I: int = 4  # noqa: E741 - the legend's letter
    hidden: tuple[int, ...] = (5,)
    directions: int = 1
    bias: bool = True
    dtype: str = "float32"
    batch_first: bool = False
    dropout: float = 0.0
    state: bool = True
    given: tuple[str, ...] = ("dy", "dhy", "dcy")

    def __str__(self):
        """Its id: LSTM-T7-B3-H33_5-bidirectional-float32."""
        words = [self.cell.upper(), f"T{self.T}", f"B{self.B}", f"H{'_'.join(map(str, self.hidden))}"]
        words += [] if self.I == 4 else [f"I{self.I}"]
        words += ["bidirectional"] if self.directions == 2 else []
        words += [] if self.bias else ["no_bias"]
        words += ["batch_first"] if self.batch_first else []
        words += [f"dropout{self.dropout}"] if self.dropout else []
        words += [] if self.state else ["no_state"]
        words += [] if len(self.given) == 3 else ["_".join(self.given) or "no_gradients"]
        return "-".join([*words, self.dtype])

    @property
    def has_c(self):
        """Whether the state is (h, c)."""
        return self.cell == "lstm"

    @property
    def equal_sizes(self):
        """Whether a state is one array (L*D, B, H)."""
        return len(set(self.hidden)) == 1

    @property
    def eps(self):
        """Distance from 1 to the next number of the dtype."""
        return float(np.finfo(self.dtype).eps)

    @property
    def limit(self):
        """The largest error that passes; see the module's docstring."""
        widest = max(self.input_size(layer) + hidden for layer, hidden in enumerate(self.hidden))
        return self.eps * (ROUNDINGS + max(widest, self.T * self.B) ** 0.5)

    def input_size(self, layer):
        """I_k."""
        return self.I if layer == 0 else self.directions * self.hidden[layer - 1]

    def parameter_shapes(self):
        """(name, layer, shape) of every parameter, in PyTorch's order."""
        for layer, hidden in enumerate(self.hidden):
            rows = GATES[self.cell] * hidden
            shapes = {"weight_ih": (rows, self.input_size(layer)), "weight_hh": (rows, hidden)}
            if self.bias:
                shapes |= {"bias_ih": (rows,), "bias_hh": (rows,)}
            for suffix in ("", "_reverse")[: self.directions]:
                for kind, shape in shapes.items():
                    yield f"{kind}_l{layer}{suffix}", layer, shape

    def layer(self, device="cpu", **options):
        """A new layer for the case; options beyond the case's go to it as they are."""
        if self.equal_sizes:
            options |= {"hidden_size": self.hidden[0], "num_layers": len(self.hidden)}
        else:
            options |= {"hidden_size": list(self.hidden)}
        options |= {"bias": self.bias, "batch_first": self.batch_first, "dropout": self.dropout}
        options |= {"bidirectional": self.directions == 2, "dtype": self.dtype, "device": device}
        if self.cell.startswith("rnn_"):
            options |= {"nonlinearity": self.cell.removeprefix("rnn_")}
        options.setdefault("seed", 1)
        if self.cell == "gru_reset_before":
            options |= {"reset_after": False}
        make = {"lstm": numbarnn.LSTM, "rnn_tanh": numbarnn.RNN, "rnn_relu": numbarnn.RNN}.get(self.cell, numbarnn.GRU)
        return make(self.I, **options)

    def packed(self, parts):
        """Per-layer (D, B, H_l) arrays in the form in which layers take and return a state; None stays None."""
        if parts is None:
            return None
        return np.concatenate(parts) if self.equal_sizes else list(parts)

    def layout(self, array):
        """A (T, B, N) array in the case's layout; None stays None."""
        return array if array is None or not self.batch_first else np.swapaxes(array, 0, 1)


class Problem:
    """Random arrays for a case, of its dtype, in the form in which layers take them; None where the case gives none.

    Attributes:
        parameters: name -> array, uniform in ±1/√H, as PyTorch starts them.
        x, dy: (T, B, ...), or (B, T, ...) with `batch_first`.
        h, c, dhy, dcy: (L*D, B, H), or lists of one (D, B, H_l) per layer.
    """

    def __init__(self, case, seed=0):
        rng = np.random.default_rng(seed)
        self.case = case

        def normal(*shape):
            return rng.standard_normal(shape).astype(case.dtype)

        def state(wanted):
            parts = [normal(case.directions, case.B, hidden) for hidden in case.hidden]
            return case.packed(parts) if wanted else None

        self.parameters = {
            name: (rng.uniform(-1, 1, shape) / case.hidden[layer] ** 0.5).astype(case.dtype)
            for name, layer, shape in case.parameter_shapes()
        }
        self.x = case.layout(normal(case.T, case.B, case.I))
        dy = normal(case.T, case.B, case.directions * case.hidden[-1])
        self.dy = case.layout(dy) if "dy" in case.given else None
        self.h, self.c = state(case.state), state(case.state and case.has_c)
        self.dhy, self.dcy = state("dhy" in case.given), state("dcy" in case.given and case.has_c)

    @property
    def state(self):
        """The state argument of a call."""
        return self._argument(self.h, self.c)

    @property
    def dstate(self):
        """The dstate argument of backward."""
        return self._argument(self.dhy, self.dcy)

    def _argument(self, h, c):
        return None if h is None and c is None else (h, c) if self.case.has_c else h

    def layer(self, device="cpu", **options):
        """A layer with the problem's parameters."""
        layer = self.case.layer(device, **options)
        layer.load_state_dict(self.parameters)
        return layer

    def reference(self, masks=None, exact=False):
        """The reference's forward result."""
        x, parameters, h, c = widest([self.case.layout(self.x), self.parameters, self.h, self.c], exact)
        return reference.forward(self.case.cell, x, parameters, h, c, masks=masks)

    def expected(self, masks=None, exact=False):
        """Name -> what the reference computes, float64, in the form in which layers return it.

        exact: in NumPy's longdouble (slow), for judging which of two float64 results errs less: the reference's own
        float64 error is as large as theirs.
        """
        case, result = self.case, self.reference(masks, exact)
        assert kink_distance(case, result) > KINKS * case.eps, "a ReLU is at its kink: choose another problem"
        gradients = reference.backward(result, *widest([case.layout(self.dy), self.dhy, self.dcy], exact))
        values = {"y": case.layout(result.y), "hy": case.packed(result.hy), "cy": case.packed(result.cy)}
        values["dx"] = case.layout(gradients.dx)
        values |= {"dhx": case.packed(gradients.dhx), "dcx": case.packed(gradients.dcx)}
        values |= {f"d{name}": gradients.params[name] for name in self.parameters}
        return {name: value for name, value in values.items() if value is not None}


def widest(value, exact):
    """Nested lists and dicts of arrays, as they are or, if `exact`, in longdouble."""
    if isinstance(value, dict):
        return {name: widest(part, exact) for name, part in value.items()}
    if isinstance(value, list):
        return [widest(part, exact) for part in value]
    return value if value is None or not exact else value.astype(np.longdouble)


# A ReLU whose pre-activation is nearer to 0 than its error may fall on the other side than the reference's, and then
# its gradient is wrong by all of it. Errors of pre-activations are some eps.
KINKS = 50


def kink_distance(case, result):
    """How near a ReLU comes to its kink; those whose inputs are all 0 are exactly 0 everywhere."""
    if case.cell != "rnn_relu":
        return np.inf
    steps = [step for layer in result.tape.steps for direction in layer for step in direction]
    a = np.concatenate([np.abs(step["saved"]["a"]).ravel() for step in steps])
    return np.min(a[a > 0], initial=np.inf)


@lru_cache(maxsize=64)
def make_problem(case):
    """A problem for the case, always the same; for the ReLU the first whose units keep away from the kink."""
    problems = (Problem(case, seed) for seed in count())
    return next(p for p in problems if kink_distance(case, p.reference()) > KINKS * case.eps)


# --------------------------------------------------------------------------------------------------- running a layer
@contextmanager
def nan_filled(engine):
    """Fill every new buffer of the engine with NaN, so that an element that is read before it is written shows; of ints
    with a number that means nothing."""
    original = engine.empty

    def empty(shape, dtype):
        array = original(shape, dtype)
        array.fill(85 if array.dtype.kind in "iu" else np.nan)
        return array

    engine.empty = empty
    try:
        yield
    finally:
        del engine.empty


def on_engine(engine, value):
    """A state or array of NumPy arrays as arrays of the engine."""
    if isinstance(value, tuple | list):
        return type(value)(on_engine(engine, part) for part in value)
    return None if value is None else engine.from_host(value)


def on_host(engine, value):
    """A state or array of the engine as NumPy arrays."""
    if isinstance(value, tuple | list):
        return type(value)(on_host(engine, part) for part in value)
    return None if value is None else engine.to_host(value)


def named_outputs(layer, y, state):
    """{"y": ..., "hy": ..., "cy": ...} as NumPy arrays."""
    state = state if layer.cell == "lstm" else (state,)
    return dict(zip(OUTPUTS, on_host(layer.engine, [y, *state]), strict=False))


def named_gradients(layer, gradients):
    """{"dx": ..., "dhx": ..., "dcx": ..., "dweight_ih_l0": ..., ...} as NumPy arrays."""
    state = gradients.state if layer.cell == "lstm" else (gradients.state,)
    values = [gradients.x, *state, *gradients.params.values()]
    names = ["dx", *("dhx", "dcx")[: len(state)], *(f"d{name}" for name in gradients.params)]
    return dict(zip(names, on_host(layer.engine, values), strict=True))


def infer(layer, problem):
    """Name -> result of an inference call."""
    with nan_filled(layer.engine):
        x, state = on_engine(layer.engine, [problem.x, problem.state])
        return named_outputs(layer, *layer(x, state))


def train(layer, problem):
    """(name -> result of forward and backward, the dropout masks)."""
    engine = layer.engine
    with nan_filled(engine):
        x, state, dy, dstate = on_engine(engine, [problem.x, problem.state, problem.dy, problem.dstate])
        y, state, tape = layer.forward(x, state)
        values = named_outputs(layer, y, state)
        masks = layer.dropout_masks(tape)
        values |= named_gradients(layer, layer.backward(tape, dy, dstate))
    return values, masks


# -------------------------------------------------------------------------------------------------------- comparing
def error(value, expected):
    """max |value - expected| / max(1, max |expected|), of arrays or of lists of arrays; NaN where `value` has one."""
    value, expected = flat(value), flat(expected)
    return float(np.max(np.abs(value - expected)) / max(1.0, np.max(np.abs(expected))))


def flat(value):
    """An array, or a list of arrays, as one vector, float64 or longdouble."""
    parts = value if isinstance(value, list) else [value]
    return np.concatenate([np.asarray(part, np.result_type(part, np.float64)).ravel() for part in parts])


def shapes(value):
    """Shape of an array, or shapes of a list of arrays."""
    return [part.shape for part in value] if isinstance(value, list) else value.shape


def dtypes(value):
    """Dtype names of an array, or of a list of arrays."""
    return {part.dtype.name for part in (value if isinstance(value, list) else [value])}


def assert_close(case, values, expected, what="", limit=None):
    """Every quantity has the expected shape, the case's dtype, and an error within the limit."""
    limit = limit or case.limit
    assert list(values) == list(expected), what
    problems = []
    for name, value in values.items():
        assert shapes(value) == shapes(expected[name]), f"{what} {name}"
        assert dtypes(value) == {case.dtype}, f"{what} {name}"
        found = error(value, expected[name])
        if not found <= limit:  # so that NaN fails
            problems.append(f"{name}: {found / case.eps:.2f} eps")
    assert not problems, f"{case} {what}: errors above {limit / case.eps:.2f} eps: {', '.join(problems)}"


def assert_same_bits(values, others, what=""):
    """Two dicts of results hold the same bits."""
    assert list(values) == list(others), what
    for name, value in values.items():
        pairs = zip(value, others[name], strict=True) if isinstance(value, list) else [(value, others[name])]
        for one, other in pairs:
            np.testing.assert_array_equal(one, other, err_msg=f"{what} {name}", strict=True)


def check_layer(case, device):
    """Inference and training of one case on one device against the reference, every quantity."""
    problem = make_problem(case)
    layer = problem.layer(device)
    expected = problem.expected()
    outputs = {name: expected[name] for name in OUTPUTS if name in expected}
    assert_close(case, infer(layer, problem), outputs, "inference")
    values, masks = train(layer, problem)
    assert len(masks) == len(case.hidden) - 1
    assert_close(case, values, problem.expected(masks) if case.dropout else expected, "training")


def assert_equals_stepwise(case, device, schedule):
    """Inference and training by a schedule equal stepwise to rounding, with the same dropout masks."""
    problem = make_problem(case)
    ours, step = (problem.layer(device, schedule=name, seed=3) for name in (schedule, "stepwise"))
    (values, masks), (expected, expected_masks) = train(ours, problem), train(step, problem)
    for mask, expected_mask in zip(masks, expected_masks, strict=True):
        np.testing.assert_array_equal(mask, expected_mask, strict=True)
    assert_close(case, values, expected, "training")
    assert_close(case, infer(ours, problem), infer(step, problem), "inference")


def check_schedule(case, device, schedule):
    """A schedule's first calls and later ones, which may replay what the first recorded: right, and the same bits.

    Returns the planner's reason where the schedule cannot run the case, else None.
    """
    problem = make_problem(case)
    layer = problem.layer(device, schedule=schedule)
    try:
        layer.explain(problem.x.shape)
    except RuntimeError as reason:
        return str(reason)
    outputs, *others = [infer(layer, problem) for _ in range(CALLS)]
    for other in others:
        assert_same_bits(outputs, other, "inference")
    runs = []
    for _ in range(CALLS):
        layer.training_calls = 0  # the same dropout masks
        runs.append(train(layer, problem))
    values, masks = runs[0]
    for other, _ in runs[1:]:
        assert_same_bits(values, other, "training")
    expected = problem.expected()
    assert_close(case, outputs, {name: expected[name] for name in outputs}, "inference")
    assert_close(case, values, problem.expected(masks) if case.dropout else expected, "training")
    return None
