"""One problem from a few words, what it must give in float64, and one comparison, for every cell, option and engine.

    check(Case("lstm", T=7, B=3, hidden=(33, 5), directions=2, lengths=(7, 0, 3)), "cpu", "wavefront")

runs inference and training, forward and backward, with every new buffer of the engine filled with NaN first, and
compares y, the final states, dx, the initial states' gradients and the gradient of every parameter. Built-in cells are
compared with `numbarnn.reference`, others with PyTorch's autograd (`equations`). Where sequences are shorter, x and dy
are NaN in padding: whoever reads them is found out. Dimensions as in `numbarnn`.

How large an error may be. Inputs, states and gradients are of size 1, so an error is taken relative to the largest
element, or to 1 where that is smaller:

    error = max |value - expected| / max(1, max |expected|)
    limit = eps(dtype) (ROUNDINGS + sqrt(n))          n: the longest sum, max(I_k + H, T B)
    limit = eps(dtype) (STORED + sqrt(n)) / 2         of 16 bits

A gate is one exp or tanh (2.5 eps at most, tests/cells) and a few more operations, so that ROUNDINGS of 12 are those of
one step and of what the next ones pass on: gates and weights shrink it, so it does not grow with T and L. The rounding
errors of a sum are those of its n partial sums, and grow like sqrt(n) if they are independent. Of 16 bits, what is
rounded on the way is what is stored, by eps / 2 each: x Wᵀ, what is saved or h, the pre-activation's gradient, the
result; all between is float32's. Over all cases the largest error seen is 0.7 of its limit where H = 1 (a weight near 1
shrinks nothing), else 0.5.
"""

from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from functools import cached_property, lru_cache
from itertools import count

import numpy as np

import equations
import numbarnn
from numbarnn import cells, reference
from numbarnn.common.precision import HALVES, is_half, numpy_dtype
from numbarnn.passes import bound
from philox_reference import dropout_mask

ROUNDINGS, STORED = 12, 4
# A ReLU whose pre-activation is nearer to 0 than its error may fall on the other side than the reference's, and then
# its gradient is wrong by all of it; so may a cell state at a bound. Errors of these are some eps, of halves fewer.
KINKS, HALF_KINKS = 50, 5
CALLS = 4  # of one layer with one problem: eager, recorded, replayed, replayed again
SEED = 1  # of layers
CELLS = ("lstm", "gru", "rnn_tanh", "rnn_relu")
BUILT_IN = (*CELLS, "gru_reset_before")
BIASES = {"double": ("bias_ih", "bias_hh"), "input": ("bias_ih",), "recurrent": ("bias_hh",), "none": ()}
STREAM, STREAMS = 1 << 30, 1 << 8  # of DropConnect's random words: the first, and how many each place has

for _dtype in HALVES:
    numpy_dtype(_dtype)  # NumPy knows the name "bfloat16" from here on


@dataclass(frozen=True)
class Case:
    """One problem, in words.

    Attributes:
        cell: a built-in one's name, or one that `equations` knows.
        hidden: one size per layer.
        bias: as layers take it; not of cells whose equations say which biases there are.
        lengths, resets, packed: of the sequences; packed: x, y and their gradients are packed sequences.
        state: whether there are initial states.
        given: which of dy, dhy and dcy backward gets; dcy: all states but h.
        heads, drop: of R: blocks on the diagonal; the rate at which training drops the weights of the first gate, of
            the next ones less and less.
    """

    cell: str
    T: int = 7
    B: int = 3
    I: int = 4  # noqa: E741 - the legend's letter
    hidden: tuple[int, ...] = (5,)
    directions: int = 1
    bias: str | bool = "double"
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
    given: tuple[str, ...] = ("dy", "dhy", "dcy")
    heads: int = 1
    drop: float = 0.0
    dtype: str = "float32"

    def __str__(self):
        """Its id: LSTM-T7-B3-H33_5-bidirectional-float32: the cell, sizes, and the options that are not the usual."""
        words = [self.cell.upper().replace(" ", "_"), f"T{self.T}", f"B{self.B}", f"H{'_'.join(map(str, self.hidden))}"]
        for item in fields(self)[3:-1]:
            value = getattr(self, item.name)
            if value == item.default or item.name == "hidden":
                continue
            if item.name == "directions":
                words.append("bidirectional")
            elif item.name == "given":
                words.append("_".join(value) or "no_gradients")
            elif isinstance(value, bool):
                words.append(item.name if value else f"no_{item.name}")
            elif isinstance(value, tuple):
                words.append(f"{item.name}_{'_'.join(map(str, value))}")
            else:
                words.append(f"{item.name.removesuffix('_mode')}_{value}")
        return "-".join([*words, self.dtype])

    # ----------------------------------------------------------------------------------------------- what it is made of
    @property
    def of_reference(self):
        """Whether the float64 reference knows the cell."""
        return self.cell in BUILT_IN

    @property
    def definition(self):
        """The Cell; of a built-in one with heads or drop the library's, which can have them."""
        if not self.of_reference:
            return equations.cell_of(self.cell, self.heads)
        if self.heads == 1 and not self.drop:
            return cells.get(self.cell)
        return equations.weighted(self.cell, self.heads, self.rates, self.proj_size > 0)

    @property
    def rates(self):
        """DropConnect's, per gate of R: the last has none."""
        gates = cells.get(self.cell).num_gates
        return tuple(self.drop * (1 - gate / gates) for gate in range(gates)) if self.drop else ()

    @property
    def bias_mode(self):
        """ "double", "input", "recurrent" or "none"."""
        usual = {True: "double", False: "none"}.get(self.bias, self.bias)
        return self.definition.bias or usual

    @property
    def states(self):
        """Their names."""
        return self.definition.states

    @property
    def has_c(self):
        """Whether the state is more than h."""
        return len(self.states) > 1

    @property
    def eps(self):
        """Distance from 1 to the next number of the dtype."""
        return {"float16": 2.0**-10, "bfloat16": 2.0**-7}.get(self.dtype) or float(np.finfo(self.dtype).eps)

    @property
    def limit(self):
        """The largest error that passes: as above. A stage of the library's cells is a step of its own, a projection
        one more rounding. Autograd in float64 errs as much as we do. Norms pass errors on several times as large: in
        each step each is divided by a deviation of 0.3 or more."""
        sums = [self.input_size(layer) + size for layer, size in enumerate(self.outputs)]
        terms = max(*sums, *self.hidden, self.T * self.B) ** 0.5
        parts, more, scale = 1, 1 if self.proj_size else 0, 1
        if not self.of_reference:
            kind = equations.kind(self.cell)
            parts = 1 + len(self.definition.stages) if kind == "library" else 1
            more += len(self.definition.stages) if is_half(self.dtype) and kind != "library" else 0
            scale = (8 if kind == "written" and self.definition.num_sums else 1) * (2 if self.dtype == "float64" else 1)
        if is_half(self.dtype):
            more += 2 * (self.heads > 1 or self.drop > 0)  # a weight that is kept, what a second product multiplies
            return scale * self.eps * (STORED * parts + more + terms) / 2
        return scale * self.eps * (ROUNDINGS * parts + more + terms)

    @property
    def closest(self):
        """How near to a kink a ReLU or a bound of the cell state may come, for its side to be beyond doubt."""
        return self.eps * (HALF_KINKS if is_half(self.dtype) else KINKS)

    @property
    def outputs(self):
        """Size of each layer's h: P or H."""
        return tuple(self.proj_size or hidden for hidden in self.hidden)

    @property
    def equal_sizes(self):
        """Whether a state is one array (L*D, B, H)."""
        return len(set(self.hidden)) == 1

    def input_size(self, layer):
        """I_k."""
        if layer > 0:
            return self.directions * self.outputs[layer - 1]
        return self.hidden[0] if self.input_mode == "skip" else self.I

    def parameter_shapes(self):
        """(name, layer, shape) of every parameter, in the order of PyTorch's."""
        cell = self.definition
        for layer, hidden in enumerate(self.hidden):
            G, A, P = cell.num_gates * hidden, cell.num_ah * hidden, self.outputs[layer]
            if cell.layout is not None:  # some rows of R may be constants
                A = len(cell.rows.get("weight_hh", ())) * hidden
            shapes = {"weight_ih": (G, self.input_size(layer)), "weight_hh": (A, P // self.heads)}
            if layer == 0 and self.input_mode == "skip":
                del shapes["weight_ih"]
            biases = {"bias_ih": G, "bias_hh": A}
            if cell.layout is not None:  # its equations may give a bias to some gates only
                biases = {kind: len(cell.rows.get(kind, ())) * hidden for kind in biases}
            shapes |= {kind: (biases[kind],) for kind in BIASES[self.bias_mode]}
            shapes |= {"weight_hr": (P, hidden)} if self.proj_size or cell.projected else {}
            shapes |= dict.fromkeys(cell.per_unit, (hidden,))
            for suffix in ("", "_reverse")[: self.directions]:
                yield from ((f"{kind}_l{layer}{suffix}", layer, shape) for kind, shape in shapes.items() if shape[0])

    def layer(self, device="cpu", **options):
        """A new layer for the case; options beyond the case's go to it as they are."""
        of_case = {"batch_first": self.batch_first, "dropout": self.dropout, "bidirectional": self.directions == 2}
        of_case |= {"input_mode": self.input_mode, "dtype": self.dtype, "device": device, "seed": SEED}
        if self.definition.bias is None:
            of_case["bias"] = self.bias
        if self.proj_size:
            of_case["proj_size"] = self.proj_size
        if self.cell_clip is not None:
            of_case |= {"cell_clip": self.cell_clip, "clip_propagate_nan": self.clip_propagate_nan}
        sizes = {"hidden_size": list(self.hidden)}
        if self.equal_sizes:
            sizes = {"hidden_size": self.hidden[0], "num_layers": len(self.hidden)}
        arguments = {"input_size": self.input_size(0)} | sizes | of_case | options
        if cells.CELLS.get(self.cell) is not self.definition:
            return numbarnn.RNN(self.definition, **arguments)
        if self.cell.startswith("rnn_"):
            return numbarnn.RNN(nonlinearity=self.cell.removeprefix("rnn_"), **arguments)
        if self.cell == "lstm":
            return numbarnn.LSTM(**arguments)
        return numbarnn.GRU(**arguments, **({"reset_after": False} if self.cell == "gru_reset_before" else {}))


@dataclass
class Drawn:
    """What a training call draws at random.

    Attributes:
        masks: of dropout between layers, (T, B, D*H) each.
        drops: name of each R -> the mask of its weights.
        noise: of the units' random numbers, (D, T, B, N, H) per layer.
    """

    masks: list
    drops: dict
    noise: list


class Problem:
    """Random arrays for a case, of its dtype; what backward or the call does not get is None.

    Attributes:
        parameters: name -> array, uniform in ±1/√H, as PyTorch starts them.
        x, dy: (T, B, ...), NaN in padding.
        resets: (T, B) bools, or None.
        states, d_states: per name of a state one array (D, B, size) per layer, or None.
    """

    def __init__(self, case, seed=0):
        rng = np.random.default_rng(seed)
        self.case = case

        def normal(*shape):
            return rng.standard_normal(shape).astype(case.dtype)

        def states(*wanted):
            sizes = [case.outputs, *[case.hidden] * (len(case.states) - 1)]
            wanted = [wanted[0], *wanted[1:] * (len(case.states) - 1)]
            return [
                [normal(case.directions, case.B, size) for size in own] if one else None
                for own, one in zip(sizes, wanted, strict=True)
            ]

        self.parameters = {
            name: (rng.uniform(-1, 1, shape) / case.hidden[layer] ** 0.5).astype(case.dtype)
            for name, layer, shape in case.parameter_shapes()
        }
        self.x = normal(case.T, case.B, case.input_size(0))
        self.dy = normal(case.T, case.B, case.directions * case.outputs[-1])
        self.x[self.padding] = self.dy[self.padding] = np.nan
        self.dy = self.dy if "dy" in case.given else None
        self.resets = rng.random((case.T, case.B)) < 0.4 if case.resets else None
        self.states, self.d_states = states(case.state, case.state), states("dhy" in case.given, "dcy" in case.given)
        if case.state and "n" in case.states and not case.of_reference and equations.kind(case.cell) == "library":
            n = case.states.index("n")  # a normaliser is positive
            self.states[n] = [0.5 + abs(part) for part in self.states[n]]

    # ---------------------------------------------------------------------------- in the form in which layers take them
    h = cached_property(lambda self: self.joined(self.states[0]))
    c = cached_property(lambda self: self.joined(self.states[1]) if self.case.has_c else None)
    dhy = cached_property(lambda self: self.joined(self.d_states[0]))
    dcy = cached_property(lambda self: self.joined(self.d_states[1]) if self.case.has_c else None)

    @property
    def state(self):
        """The state argument of a call; h and c are the same arrays each time."""
        return self.argument(self.h, self.c, self.states)

    @property
    def dstate(self):
        """The dstate argument of backward, likewise."""
        return self.argument(self.dhy, self.dcy, self.d_states)

    def argument(self, h, c, states):
        """States as layers take and return them: one per name, alone if there is but one; None if there is none."""
        parts = (h, *[c] * self.case.has_c, *map(self.joined, states[2:]))
        if all(part is None for part in parts):
            return None
        return parts if len(parts) > 1 else parts[0]

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

    def sequences(self, array):
        """A (T, B, N) array as the case gives x and dy: time first, batch first or packed; None stays None."""
        if array is None or self.case.packed:
            return array if array is None else pack(array, self.case.lengths)
        return np.swapaxes(array, 0, 1) if self.case.batch_first else array

    def joined(self, parts):
        """One (D, B, size) per layer as one array (L*D, B, size) if sizes are equal; None stays None."""
        if parts is None:
            return None
        return np.concatenate(parts) if self.case.equal_sizes or len({p.shape for p in parts}) == 1 else list(parts)

    def form(self, states):
        """Per-layer states in the form of an argument."""
        return self.argument(*[*map(self.joined, states[:2]), None][:2], states)

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
    @cached_property
    def masks(self):
        """The dropout masks of a first training call, by NumPy's own Philox."""
        case = self.case
        shapes = [(case.T, case.B, case.directions * size) for size in case.outputs[:-1]]
        if not case.dropout:
            return [np.ones(shape, case.dtype) for shape in shapes]
        return [dropout_mask(shape, case.dropout, SEED, k, 0, case.dtype) for k, shape in enumerate(shapes)]

    def drops(self, call=0):
        """Name of each R -> the mask of a training call, of R's shape and of the dtype in which it multiplies."""
        case, found = self.case, {}
        dtype = "float32" if is_half(case.dtype) else case.dtype
        rates = case.definition.drop_connect
        for place, name in enumerate(name for name in self.parameters if name.startswith("weight_hh") and rates):
            rows, columns = self.parameters[name].shape
            streams = STREAM + STREAMS * place + np.arange(len(rates))
            parts = [
                dropout_mask((rows // len(rates), columns), rate, SEED, stream, call, dtype)
                for rate, stream in zip(rates, streams, strict=True)
            ]
            found[name] = np.concatenate(parts)
        return found

    def dense_parameters(self, drops):
        """The parameters with R's weights dropped and its blocks put on the diagonal of (A*H, P)."""
        case, found = self.case, dict(self.parameters)
        for name in [name for name in found if name.startswith("weight_hh")]:
            R = found[name]
            if name in drops:
                R = (R.astype(drops[name].dtype) * drops[name]).astype(R.dtype)
            found[name] = dense(R, case.definition.num_ah, case.heads)
        return found

    def reference(self, drawn=None, exact=False):
        """The reference's forward result."""
        case = self.case
        h, c = self.states[0], self.states[1] if case.has_c else None
        return reference.forward(
            case.cell,
            *widest([self.x, self.dense_parameters(drawn.drops if drawn else {}), h, c], exact),
            masks=drawn.masks if drawn and case.dropout else None,
            lengths=case.lengths,
            resets=self.resets,
            cell_clip=case.cell_clip,
            clip_propagate_nan=case.clip_propagate_nan,
            padding_value=case.padding_value,
        )

    def expected(self, drawn=None, exact=False, by_autograd=False):
        """Name -> what must come out, float64, in the form in which layers return it.

        Args:
            drawn: of the training call, a `Drawn`; None: of inference.
            exact: in NumPy's longdouble (slow), for judging which of two float64 results errs less: the reference's
                own float64 error is as large as theirs. Built-in cells.
            by_autograd: of built-in cells too.
        """
        if self.case.of_reference and not by_autograd:
            y, finals, dx, d_states, gradients = self._by_reference(drawn, exact)
        else:
            y, finals, dx, d_states, gradients = equations.autograd(self, drawn)
        values = {"y": plain(self.sequences(y)), **self.named(self.form(finals), "{}y")}
        values |= {"dx": plain(self.sequences(dx)), **self.named(self.form(d_states), "d{}x")}
        return values | {f"d{name}": gradients[name] for name in self.parameters}

    def _by_reference(self, drawn, exact):
        """(y, final states, dx, gradients of initial states, of parameters by name)."""
        case, result = self.case, self.reference(drawn, exact)
        assert side_distance(case, result) > case.closest, "a unit is at its kink: choose another problem"
        given = [self.dy, self.d_states[0], self.d_states[1] if case.has_c else None]
        found = reference.backward(result, *widest(given, exact))
        drops, gradients = drawn.drops if drawn else {}, dict(found.params)
        for name in [name for name in gradients if name.startswith("weight_hh")]:
            gradient = blocks(gradients[name], case.definition.num_ah, case.heads)
            gradients[name] = gradient * drops[name] if name in drops else gradient
        two = slice(0, len(case.states))
        return result.y, [result.hy, result.cy][two], found.dx, [found.dhx, found.dcx][two], gradients

    def named(self, state, form):
        """{form.format(name): value} of states as layers return them."""
        if state is None:
            return {}
        parts = state if len(self.case.states) > 1 else (state,)
        return {form.format(name): part for name, part in zip(self.case.states, parts, strict=True)}


def widest(value, exact):
    """Nested lists and dicts of arrays, as they are or, if `exact`, in longdouble."""
    if isinstance(value, dict):
        return {name: widest(part, exact) for name, part in value.items()}
    if isinstance(value, list):
        return [widest(part, exact) for part in value]
    return value if value is None or not exact else value.astype(np.longdouble)


def dense(R, gates, heads):
    """(A*H, P) of a parameter (A*H, P/n): n blocks on each gate's diagonal."""
    if heads == 1:
        return R
    whole = np.zeros((len(R), R.shape[1] * heads), R.dtype)
    for row, head in enumerate(_head_of_rows(len(R), gates, heads)):
        whole[row, head * R.shape[1] : (head + 1) * R.shape[1]] = R[row]
    return whole


def blocks(whole, gates, heads):
    """The other way round."""
    width = whole.shape[1] // heads
    return np.stack(
        [whole[k, n * width : (n + 1) * width] for k, n in enumerate(_head_of_rows(len(whole), gates, heads))]
    )


def _head_of_rows(rows, gates, heads):
    return np.arange(rows) % (rows // gates) // (rows // gates // heads)


def side_distance(case, result):
    """How near a ReLU comes to its kink, or a cell state to a bound; what is exactly 0 everywhere has inputs of 0."""
    if case.cell != "rnn_relu" and case.cell_clip is None:
        return np.inf
    walks = [walk for layer in result.tape.walks for pieces in layer for walk in pieces]
    steps = [step["saved"] for walk in walks for step in walk]
    if case.cell_clip is None:
        a = np.concatenate([np.abs(step["a"]).ravel() for step in steps])
        return np.min(a[a > 0], initial=np.inf)
    bounds = case.cell_clip if isinstance(case.cell_clip, tuple) else (-case.cell_clip, case.cell_clip)
    c = np.concatenate([step["unclipped"].ravel() for step in steps])
    return min(np.min(np.abs(c[np.isfinite(c)] - bound), initial=np.inf) for bound in bounds)


@lru_cache(maxsize=64)
def make_problem(case):
    """A problem for the case, always the same: the first whose units keep away from their kinks, in inference and in
    training."""

    def distance(problem):
        if not case.of_reference:
            return equations.kink_distance(problem)
        if case.cell != "rnn_relu" and case.cell_clip is None:
            return np.inf
        runs = [None, *([Drawn(problem.masks, problem.drops(), [])] if case.dropout or case.drop else [])]
        return min(side_distance(case, problem.reference(drawn)) for drawn in runs)

    return next(problem for problem in (Problem(case, seed) for seed in count()) if distance(problem) > case.closest)


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


# --------------------------------------------------------------------------------------------------- running a layer
@contextmanager
def nan_filled(engine):
    """Fill every new buffer of the engine with NaN, so that an element that is read before it is written shows; of ints
    with the largest there is, as no step's code."""
    original = engine.empty

    def empty(shape, dtype):
        array = original(shape, dtype)
        array.fill(np.iinfo(array.dtype).max if array.dtype.kind in "iu" else np.nan)
        return array

    engine.empty = empty
    try:
        yield
    finally:
        del engine.empty


@contextmanager
def bound_each_time():
    """No call of layers that are made meanwhile is bound once for many (`numbarnn.passes.bound`)."""
    before, bound.SMALL = bound.SMALL, -1
    try:
        yield
    finally:
        bound.SMALL = before


def on_engine(engine, value):
    """A state, array or packed sequence of NumPy arrays as arrays of the engine."""
    if isinstance(value, numbarnn.PackedSequence):
        return replace(value, data=engine.from_host(value.data))
    if isinstance(value, tuple | list):
        return type(value)(on_engine(engine, part) for part in value)
    return None if value is None else engine.from_host(value)


def on_host(engine, value):
    """A state, array or packed sequence's data of the engine as NumPy arrays."""
    if isinstance(value, tuple | list):
        return type(value)(on_host(engine, part) for part in value)
    return None if value is None else engine.to_host(plain(value))


def _named(layer, state, form):
    names = layer.stack.cell.states
    return {form.format(name): part for name, part in zip(names, state if len(names) > 1 else (state,), strict=True)}


def named_outputs(layer, y, state):
    """{"y": ..., "hy": ..., "cy": ...} as NumPy arrays."""
    y, state = on_host(layer.engine, [y, state])
    return {"y": y, **_named(layer, state, "{}y")}


def named_gradients(layer, gradients):
    """{"dx": ..., "dhx": ..., "dcx": ..., "dweight_ih_l0": ..., ...} as NumPy arrays."""
    dx, state = on_host(layer.engine, [gradients.x, gradients.state])
    params = {f"d{name}": layer.engine.to_host(value) for name, value in gradients.params.items()}
    return {"dx": dx, **_named(layer, state, "d{}x"), **params}


def infer(layer, problem):
    """Name -> result of an inference call."""
    with nan_filled(layer.engine):
        x, state = on_engine(layer.engine, [problem.sequences(problem.x), problem.state])
        return named_outputs(layer, *layer(x, state, **problem.options()))


def train_and_draw(layer, problem):
    """(name -> result of forward and backward, what was `Drawn`)."""
    engine = layer.engine
    with nan_filled(engine):
        x, dy = on_engine(engine, [problem.sequences(problem.x), problem.sequences(problem.dy)])
        state, dstate = on_engine(engine, [problem.state, problem.dstate])
        y, state, tape = layer.forward(x, state, **problem.options())
        values = named_outputs(layer, y, state)
        drawn = Drawn(layer.dropout_masks(tape), layer.drop_connect_masks(tape), layer.noise(tape))
        values |= named_gradients(layer, layer.backward(tape, dy, dstate))
    return values, drawn


def train(layer, problem):
    """(name -> result of forward and backward, the dropout masks)."""
    values, drawn = train_and_draw(layer, problem)
    return values, drawn.masks


# -------------------------------------------------------------------------------------------------------- comparing
def error(value, expected):
    """max |value - expected| / max(1, max |expected|), of arrays or of lists of arrays; NaN where `value` has one."""
    value, expected = flat(value), flat(expected)
    if value.size == 0:
        return 0.0
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
    assert set(values) == set(expected), what
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


def check(case, device, schedule="stepwise", calls=1):
    """Inference and training of a case by a schedule, every quantity against what is expected; what was drawn against
    another Philox; later calls, which may replay what the first recorded: the same bits."""
    problem = make_problem(case)
    layer = problem.layer(device, schedule=schedule)
    outputs, (values, drawn) = infer(layer, problem), train_and_draw(layer, problem)
    drops = problem.drops()
    assert len(drawn.masks) == len(problem.masks) and list(drawn.drops) == list(drops)
    for mask, expected in zip(drawn.masks, problem.masks, strict=True):
        np.testing.assert_array_equal(mask, expected, strict=True)
    for name, mask in drawn.drops.items():
        np.testing.assert_array_equal(mask, drops[name].astype(case.dtype), strict=True)
    drawn.drops = drops  # of the dtype that multiplies
    assert_close(case, values, problem.expected(drawn), "training")
    at_random = case.dropout or drops or drawn.noise
    if at_random:
        expected = problem.expected()
        assert_close(case, outputs, {name: expected[name] for name in outputs}, "inference")
    else:
        assert_same_bits(outputs, {name: values[name] for name in outputs}, "inference and training")
    if layer.engine.binds_calls:
        with bound_each_time():
            again = problem.layer(device, schedule=schedule)
            assert_same_bits(infer(again, problem), outputs, "inference, bound at each call")
            assert_same_bits(train(again, problem)[0], values, "training, bound at each call")
    for call in range(1, calls):
        assert_same_bits(infer(layer, problem), outputs, f"inference, call {call}")
        layer.training_calls = 0  # the same numbers
        assert_same_bits(train(layer, problem)[0], values, f"training, call {call}")
    if calls > 1 and at_random:
        values, drawn = train_and_draw(layer, problem)
        if drops:
            drawn.drops = problem.drops(call=1)
        assert_close(case, values, problem.expected(drawn), "training, with the next numbers")


def refusal(case, device, schedule):
    """The planner's reason where a schedule cannot run the case, else None."""
    try:
        case.layer(device, schedule=schedule).explain(
            np.shape(plain(make_problem(case).sequences(make_problem(case).x)))
        )
    except RuntimeError as reason:
        return str(reason)
    return None


def assert_equals_stepwise(case, device, schedule):
    """Inference and training by a schedule equal stepwise to rounding, with the same random numbers."""
    problem = make_problem(case)
    ours, step = (problem.layer(device, schedule=name, seed=3) for name in (schedule, "stepwise"))
    (values, masks), (expected, expected_masks) = train(ours, problem), train(step, problem)
    for mask, expected_mask in zip(masks, expected_masks, strict=True):
        np.testing.assert_array_equal(mask, expected_mask, strict=True)
    assert_close(case, values, expected, "training")
    assert_close(case, infer(ours, problem), infer(step, problem), "inference")
