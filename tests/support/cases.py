"""One problem in a few words, for every cell and option, and how large an error may be: `Case`.

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

from dataclasses import dataclass, fields

import numpy as np

import equations
import numbarnn
from numbarnn import cells
from numbarnn.common.precision import HALVES, is_half, numpy_dtype

ROUNDINGS, STORED = 12, 4
# A ReLU whose pre-activation is nearer to 0 than its error may fall on the other side than the reference's, and then
# its gradient is wrong by all of it; so may a cell state at a bound. Errors of these are some eps, of halves fewer.
KINKS, HALF_KINKS = 50, 5
SEED = 1  # of layers
CELLS = ("lstm", "gru", "rnn_tanh", "rnn_relu")
BUILT_IN = (*CELLS, "gru_reset_before")
BIASES = {"double": ("bias_ih", "bias_hh"), "input": ("bias_ih",), "recurrent": ("bias_hh",), "none": ()}

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
