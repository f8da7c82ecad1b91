"""Cases (sizes and options), their instances (random arrays), and the layers that compute them."""

from dataclasses import dataclass, fields, replace
from functools import cached_property, partial

import numpy as np

import numbarnn
from numbarnn import cells
from numbarnn.cells import library
from numbarnn.cells.functions import drop_connect, initial, layer_norm, tanh, zoneout
from numbarnn.cells.tracing import cell as traced
from numbarnn.common import precision
from numbarnn.reference.layer_norm_rnn import VECTORS
from numbarnn.weights import WeightSpace

CELLS = ("lstm", "gru", "rnn_tanh", "rnn_relu", "gru_reset_before")  # built in
PEERS_CELLS = ("lstm", "gru", "rnn_tanh", "rnn_relu")  # cells that PyTorch and cuDNN have
DROPPED, ZONEOUT = 0.3, 0.2  # of the elements of R; of units in a step
RESET_RATE = 0.3  # of the elements of random resets


@traced
def layer_norm_rnn(x, h, p):
    """A vanilla RNN, normalized, with dropped weights and zoneout (`numbarnn.reference` has it too)."""
    n = layer_norm(p.W.h @ x + drop_connect(p.R.h, DROPPED) @ h)
    return zoneout(tanh(initial(p.gain.h, 1) * n + p.b.h), h, ZONEOUT)


# Cells written as equations: the LSTM, and a cell with features that no built-in cell has (sums over all units,
# per-unit parameters, dropped weights, random numbers in a step).
TRACED_CELLS = {"traced_lstm": library.lstm, "layer_norm_rnn": layer_norm_rnn}
ALL_CELLS = (*CELLS, *TRACED_CELLS)
SEED = (3 << 32) + 5  # neither 32-bit word of the random numbers' key is 0
DTYPES = ("float32", "float64")
LAYER_OPTIONS = ("input_mode", "proj_size", "cell_clip", "clip_propagate_nan")  # passed only if not the default
# The fields of `Case` that are options of a layer or a call, in display order.
OPTIONS = (
    "bidirectional", "bias", *LAYER_OPTIONS, "dropout", "batch_first", "state", "lengths", "padding_value", "resets",
    "gradients", "accumulate",
)  # fmt: skip


@dataclass(frozen=True)
class Case:
    """A cell, its sizes (`hidden` holds one size per layer) and its options."""

    cell: str
    T: int
    B: int
    input_size: int
    hidden: tuple[int, ...]
    bidirectional: bool = False
    bias: bool | str = True  # True: both; False: none; "input" or "recurrent": that one
    batch_first: bool = False
    state: bool = True  # initial states are given
    dropout: float = 0.0
    gradients: str = "y and state"  # outputs whose gradients backward gets; or "y", or "state"
    accumulate: bool = False  # weight gradients are added to those of an earlier backward
    dtype: str = "float32"
    input_mode: str = "linear"
    proj_size: int = 0
    cell_clip: tuple[float, float] | None = None
    clip_propagate_nan: bool = True
    nan_state: bool = False  # one element of the initial cell state is NaN
    # None: all T; "padded": sequences of random lengths, 0 among them; "packed"; "half": evenly from T/2 to T
    lengths: str | None = None
    padding_value: float = 0.0
    resets: bool = False  # sequences are reset at random times
    allow_tf32: bool | str = False  # on a GPU; True: float32 products may be rounded; "3x": each as three of TF32

    D = property(lambda self: 2 if self.bidirectional else 1)
    L = property(lambda self: len(self.hidden))
    outputs = property(lambda self: tuple(self.proj_size or H for H in self.hidden))  # width of each layer's h
    equal_layers = property(lambda self: len(set(self.hidden)) == 1)  # states are then one array (L*D, B, H)
    masked = property(lambda self: self.dropout > 0 and self.L > 1)  # training applies dropout masks
    has_c = property(lambda self: self.cell in ("lstm", "traced_lstm"))  # the state is (h, c)
    draws = property(lambda self: self.masked or self.cell == "layer_norm_rnn")  # each training call draws new numbers
    training_calls = property(lambda self: 2 if self.accumulate or self.draws else 1)  # the last call is compared
    uses = property(lambda self: tuple(name for name in self.changed if name in OPTIONS))  # names of options

    @property
    def forward_only(self):
        """Whether gradients are not compared.

        A NaN has none, and they jump at the bounds of `cell_clip`, which rounding to 16 bits may move."""
        return self.nan_state or (self.cell_clip is not None and precision.is_half(self.dtype))

    @cached_property
    def changed(self):
        """Name -> value of the options that differ from their defaults."""
        return {name: getattr(self, name) for name in (*OPTIONS, "nan_state") if getattr(self, name) != DEFAULTS[name]}

    @property
    def options(self):
        """The case in one line, without the cell's name."""
        words = [f"T={self.T} B={self.B} I={self.input_size} H={','.join(map(str, self.hidden))} {self.dtype}"]
        return " ".join(words + [name if value is True else f"{name}={value}" for name, value in self.changed.items()])

    def layer_input_size(self, layer):
        return self.input_size if layer == 0 else self.D * self.outputs[layer - 1]


DEFAULTS = {field.name: field.default for field in fields(Case)}


@dataclass(frozen=True)
class Instance:
    """The arrays of a case, C-contiguous, of the case's dtype; None for those that the case lacks.

    x (T, B, I); dy (T, B, D*H_last), both NaN in the padding. h0, c0, dhy, dcy: lists with one array (D, B, H_l) per
    layer; with a projection h0 and dhy have P in place of H_l. lengths (B,) of int64, resets (T, B) of bool.
    """

    case: Case
    parameters: dict
    x: np.ndarray
    dy: np.ndarray | None
    h0: list | None
    c0: list | None
    dhy: list | None
    dcy: list | None
    lengths: np.ndarray | None = None
    resets: np.ndarray | None = None

    @cached_property
    def float64(self):
        """The same instance in float64."""

        def cast(value):
            if isinstance(value, list):
                return [cast(array) for array in value]
            return None if value is None else value.astype(np.float64)

        arrays = {name: cast(getattr(self, name)) for name in ("x", "dy", "h0", "c0", "dhy", "dcy")}
        arrays["parameters"] = {name: cast(array) for name, array in self.parameters.items()}
        return replace(self, case=replace(self.case, dtype="float64"), **arrays)

    @cached_property
    def padding(self):
        return padding(self.lengths, *self.x.shape[:2])


def layer_of(name):
    return int(name.split("_l")[-1].split("_")[0])


def renamed(name, by):
    """Return a parameter's name with its layer's number raised by `by`."""
    return name.replace(f"_l{layer_of(name)}", f"_l{layer_of(name) + by}")


def parameter_shapes(case):
    """Return name -> shape of every parameter, with PyTorch's names, layer by layer."""
    has_gain = case.cell == "layer_norm_rnn"
    bias = "none" if has_gain else {True: "double", False: "none"}.get(case.bias, case.bias)
    gates = (TRACED_CELLS.get(case.cell) or cells.get(case.cell)).num_gates
    sizes = gates, case.input_size, case.hidden, case.D, bias, case.proj_size, case.input_mode
    return WeightSpace(*sizes, per_unit=VECTORS if has_gain else ()).shapes


def random_lengths(random, T, B, form):
    """Return lengths (B,) in any order, T among them, and 0 if the form is "padded": PyTorch packs no length of 0.

    The form "half" gives lengths evenly from T/2 to T, as in arXiv:1806.01818."""
    if form == "half":
        return half_lengths(T, B)
    if B == 1:
        return np.array([T if form == "packed" else max(1, T - 1)])
    least = 1 if form == "packed" else 0
    return random.permutation(np.array([T, least, *random.integers(least, T, B - 2, endpoint=True)], np.int64))


def half_lengths(T, B):
    """Return lengths (B,), evenly from T/2, but at least 1, to T."""
    return np.maximum(1, np.linspace(T / 2, T, B).astype(np.int64))


def random_resets(random, T, B, lengths=None):
    """Return resets (T, B) of bool, at least one, and one behind each sequence's end, where it has no effect."""
    resets = random.random((T, B)) < RESET_RATE
    resets[T // 2, B // 2] = True
    if lengths is not None:
        over = np.flatnonzero(lengths < T)
        resets[lengths[over], over] = True
    return resets


def padding(lengths, T, B):
    """Return (T, B) of bool: true behind the end of a sequence."""
    return np.arange(T)[:, None] >= (np.full(B, T) if lengths is None else lengths)


def filled(array, where):
    """Copy an array (T, B, n) with zeros where `where` (T, B) is true; None stays None."""
    return None if array is None else np.where(where[:, :, None], array.dtype.type(0), array)


def make_instance(case):
    """Return random arrays for a case: weights uniform in ±1/√H, as PyTorch initializes them, the others normal."""
    random, dtype = np.random.default_rng(0), precision.numpy_dtype(case.dtype)

    def normal(*shape, scale=1.0):
        return (scale * random.standard_normal(shape)).astype(dtype)

    def states(wanted, sizes, scale=1.0):
        return [normal(case.D, case.B, size, scale=scale) for size in sizes] if wanted else None

    parameters = {}
    for name, shape in parameter_shapes(case).items():
        bound = 1 / np.sqrt(case.hidden[layer_of(name)])
        parameters[name] = random.uniform(-bound, bound, shape).astype(dtype)
    x = normal(case.T, case.B, case.input_size)
    dy = normal(case.T, case.B, case.D * case.outputs[-1]) if case.gradients != "state" else None
    c0 = states(case.state and case.has_c, case.hidden, scale=0.5)
    if case.nan_state:
        c0[0][0, 0, 0] = np.nan
    lengths = random_lengths(random, case.T, case.B, case.lengths) if case.lengths else None
    for array in (x, dy):
        if array is not None and lengths is not None:
            array[padding(lengths, case.T, case.B)] = np.nan
    h0, dhy = states(case.state, case.outputs, scale=0.5), states(case.gradients != "y", case.outputs)
    dcy = states(case.gradients != "y" and case.has_c, case.hidden)
    resets = random_resets(random, case.T, case.B, lengths) if case.resets else None
    return Instance(case, parameters, x, dy, h0, c0, dhy, dcy, lengths, resets)


def layer_type(cell):
    """Return the layer class of one of ALL_CELLS, as a function of sizes and options."""
    if cell in TRACED_CELLS:
        return partial(numbarnn.RNN, TRACED_CELLS[cell])
    if cell.startswith("rnn_"):
        return partial(numbarnn.RNN, nonlinearity=cell.removeprefix("rnn_"))
    return numbarnn.LSTM if cell == "lstm" else partial(numbarnn.GRU, reset_after=cell == "gru")


def make_layer(case, device, parameters, schedule="auto", seed=SEED):
    """Return the numbarnn layer for a case, with these parameters."""
    options = {name: getattr(case, name) for name in ("batch_first", "dropout", "bidirectional", "dtype")}
    options |= {"device": device, "schedule": schedule, "seed": seed}
    options |= {} if case.cell in TRACED_CELLS else {"bias": case.bias}  # equations say which biases there are
    sizes = {"hidden_size": case.hidden[0], "num_layers": case.L}
    options |= sizes if case.equal_layers else {"hidden_size": list(case.hidden)}
    options |= {name: getattr(case, name) for name in LAYER_OPTIONS if name in case.uses}
    options |= {"allow_tf32": case.allow_tf32} if case.allow_tf32 else {}
    layer = layer_type(case.cell)(case.input_size, **options)
    layer.load_state_dict(parameters)
    return layer


def pack_states(states):
    """Return per-layer states (D, B, H_l) as layers take them: one array (L*D, B, H) if all sizes are equal."""
    if states is None:
        return None
    return np.concatenate(states) if len({state.shape for state in states}) == 1 else list(states)


def unpack_states(case, states):
    if isinstance(states, (list, tuple)):
        return list(states)
    return [states[k * case.D : (k + 1) * case.D] for k in range(case.L)]
