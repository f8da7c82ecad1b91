"""Problems to run: sizes and options as data, their random arrays, and the layer that solves them."""

from dataclasses import dataclass, replace
from functools import cached_property
from importlib.util import find_spec

import numpy as np

from numbarnn.cells import precision

GATES = {"lstm": 4, "gru": 3, "rnn_tanh": 1, "rnn_relu": 1}
CELLS = tuple(GATES)
DTYPES = ("float32", "float64")
GRADIENTS = ("y and state", "y", "state")  # the outputs whose gradients are given to backward

TIMES_AND_BATCHES = ((7, 3), (1, 1), (2, 3), (7, 1), (1, 3), (2, 1))
# Every option at least once: odd and unequal hidden sizes, 1 to 3 layers, and options that meet each other.
OPTION_SETS = (
    {"input_size": 4, "hidden": (33,)},
    {"input_size": 1, "hidden": (1,)},
    {"input_size": 5, "hidden": (33, 33)},
    {"input_size": 5, "hidden": (33, 17, 5), "bidirectional": True},
    {"input_size": 3, "hidden": (5, 5), "bias": False},
    {"input_size": 6, "hidden": (16,), "batch_first": True},
    {"input_size": 4, "hidden": (7, 33), "batch_first": True, "bidirectional": True, "bias": False},
    {"input_size": 5, "hidden": (33,), "state": False},
    {"input_size": 5, "hidden": (9, 9), "state": False, "bidirectional": True, "gradients": "y"},
    {"input_size": 5, "hidden": (8, 33), "gradients": "state"},
    {"input_size": 5, "hidden": (33, 17), "dropout": 0.3},
    {"input_size": 5, "hidden": (11, 11, 11), "dropout": 0.5, "bidirectional": True},
    {"input_size": 5, "hidden": (33,), "accumulate": True},
    {"input_size": 5, "hidden": (6, 13), "accumulate": True, "bidirectional": True},
)
QUICK_OPTION_SETS = (3, 6, 7, 10, 13)  # indices into OPTION_SETS: together they still use every option
LONGER = (
    {"T": 25, "B": 16, "input_size": 64, "hidden": (128,)},
    {"T": 100, "B": 1, "input_size": 32, "hidden": (96,)},
    {"T": 30, "B": 5, "input_size": 32, "hidden": (64, 48), "bidirectional": True},
)


@dataclass(frozen=True)
class Case:
    """One problem: a cell, its sizes (`hidden` holds one size per layer) and its options."""

    cell: str
    T: int
    B: int
    input_size: int
    hidden: tuple[int, ...]
    bidirectional: bool = False
    bias: bool = True
    batch_first: bool = False
    state: bool = True  # initial states are given
    dropout: float = 0.0
    gradients: str = "y and state"
    accumulate: bool = False  # weight gradients are added to those of an earlier backward
    dtype: str = "float32"

    @property
    def D(self):
        """Number of directions."""
        return 2 if self.bidirectional else 1

    @property
    def L(self):
        """Number of layers."""
        return len(self.hidden)

    @property
    def equal_layers(self):
        """True when all layers are of one size, so that states are one array (L*D, B, H)."""
        return len(set(self.hidden)) == 1

    @property
    def masked(self):
        """True when training applies dropout masks: there is dropout, and a layer after another."""
        return self.dropout > 0 and self.L > 1

    @property
    def options(self):
        """The problem in one line, without the cell's name."""
        hidden = ",".join(map(str, self.hidden))
        words = [f"T={self.T} B={self.B} I={self.input_size} H={hidden} {self.dtype}"]
        words += ["bidirectional"] if self.bidirectional else []
        words += [] if self.bias else ["bias=False"]
        words += ["batch_first"] if self.batch_first else []
        words += [] if self.state else ["no initial state"]
        words += [f"dropout={self.dropout}"] if self.dropout else []
        words += [f"gradient of {self.gradients} only"] if self.gradients != "y and state" else []
        words += ["dw accumulates"] if self.accumulate else []
        return " ".join(words)

    def layer_input_size(self, layer):
        """Width of what layer `layer` reads."""
        return self.input_size if layer == 0 else self.D * self.hidden[layer - 1]


def spread(cell, size="full"):
    """The cases for one cell.

    full    every option set with every (T, B) and dtype, and some longer problems
    quick   a few option sets that together use every option, (T, B) and dtype taking turns
    """
    if size == "full":
        cases = [
            Case(cell=cell, T=T, B=B, dtype=dtype, **options)
            for options in OPTION_SETS
            for T, B in TIMES_AND_BATCHES
            for dtype in DTYPES
        ]
        return cases + [Case(cell=cell, dtype=dtype, **sizes) for sizes in LONGER for dtype in DTYPES]
    turn = CELLS.index(cell)  # another (T, B) and dtype for the same options in each cell
    cases = []
    for i in QUICK_OPTION_SETS:
        options = OPTION_SETS[i]
        T, B = TIMES_AND_BATCHES[(i + turn) % len(TIMES_AND_BATCHES)]
        T = max(T, 2) if options.get("dropout") else T
        cases.append(Case(cell=cell, T=T, B=B, dtype=DTYPES[(i + turn) % 2], **options))
    return cases


def half_precision(cell):
    """The quick cases for one cell in float16 and, where it is installed, bfloat16, in turns.

    None for the ReLU: where its argument is nearer to 0 than a rounding to 16 bits, its gradient is all or nothing.
    """
    if cell == "rnn_relu":
        return []
    dtypes = [dtype for dtype in precision.HALVES if dtype != "bfloat16" or find_spec("ml_dtypes")]
    return [replace(case, dtype=dtypes[i % len(dtypes)]) for i, case in enumerate(spread(cell, "quick"))]


@dataclass(frozen=True)
class Problem:
    """The arrays of a case, C-contiguous, of the case's dtype. States are lists: per layer (D, B, H_l).

    x (T, B, I); dy (T, B, D*H_last); h0, c0, dhy, dcy are None where the case gives none or the cell has no c
    """

    case: Case
    parameters: dict
    x: np.ndarray
    dy: np.ndarray | None
    h0: list | None
    c0: list | None
    dhy: list | None
    dcy: list | None

    @cached_property
    def float64(self):
        """The same problem with every array cast to float64, which changes no value."""

        def cast(value):
            if isinstance(value, dict):
                return {name: cast(array) for name, array in value.items()}
            if isinstance(value, list):
                return [cast(array) for array in value]
            return None if value is None else value.astype(np.float64)

        names = ("parameters", "x", "dy", "h0", "c0", "dhy", "dcy")
        return Problem(replace(self.case, dtype="float64"), **{name: cast(getattr(self, name)) for name in names})


def parameter_shapes(case):
    """Name -> shape of every parameter, with PyTorch's names, layer by layer."""
    G, shapes = GATES[case.cell], {}
    for k, H in enumerate(case.hidden):
        for suffix in ("", "_reverse")[: case.D]:
            shapes[f"weight_ih_l{k}{suffix}"] = (G * H, case.layer_input_size(k))
            shapes[f"weight_hh_l{k}{suffix}"] = (G * H, H)
            if case.bias:
                shapes[f"bias_ih_l{k}{suffix}"] = (G * H,)
                shapes[f"bias_hh_l{k}{suffix}"] = (G * H,)
    return shapes


def make_problem(case, seed=0):
    """Random arrays for a case: weights U(-1/sqrt(H), 1/sqrt(H)), PyTorch's start; the rest normal."""
    random, dtype = np.random.default_rng(seed), precision.numpy_dtype(case.dtype)

    def normal(*shape, scale=1.0):
        return (scale * random.standard_normal(shape)).astype(dtype)

    def states(wanted, scale=1.0):
        return [normal(case.D, case.B, H, scale=scale) for H in case.hidden] if wanted else None

    parameters = {}
    for name, shape in parameter_shapes(case).items():
        layer = int(name.split("_l")[1].split("_")[0])
        bound = 1 / np.sqrt(case.hidden[layer])
        parameters[name] = random.uniform(-bound, bound, shape).astype(dtype)
    has_c = case.cell == "lstm"
    state_gradients = case.gradients != "y"
    return Problem(
        case=case,
        parameters=parameters,
        x=normal(case.T, case.B, case.input_size),
        dy=normal(case.T, case.B, case.D * case.hidden[-1]) if case.gradients != "state" else None,
        h0=states(case.state, scale=0.5),
        c0=states(case.state and has_c, scale=0.5),
        dhy=states(state_gradients),
        dcy=states(state_gradients and has_c),
    )


def make_layer(case, device, parameters, schedule="auto", seed=0):
    """The numbarnn layer for a case, with the given parameters loaded."""
    import numbarnn

    options = {
        "hidden_size": case.hidden[0] if case.equal_layers else list(case.hidden),
        "bias": case.bias,
        "batch_first": case.batch_first,
        "dropout": case.dropout,
        "bidirectional": case.bidirectional,
        "dtype": case.dtype,
        "device": device,
        "schedule": schedule,
        "seed": seed,
    }
    if case.equal_layers:
        options["num_layers"] = case.L
    if case.cell.startswith("rnn_"):
        layer = numbarnn.RNN(case.input_size, nonlinearity=case.cell.removeprefix("rnn_"), **options)
    else:
        layer = {"lstm": numbarnn.LSTM, "gru": numbarnn.GRU}[case.cell](case.input_size, **options)
    layer.load_state_dict(parameters)
    return layer


def pack_states(case, states):
    """Per-layer (D, B, H_l) arrays as layers take them: one array (L*D, B, H) when all sizes are equal."""
    if states is None:
        return None
    return np.concatenate(states) if case.equal_layers else list(states)


def unpack_states(case, states):
    """The reverse of `pack_states`, for a state of NumPy arrays that a layer returned."""
    if not case.equal_layers:
        return list(states)
    return [states[k * case.D : (k + 1) * case.D] for k in range(case.L)]
