"""What a forward and a backward call allocate, as tables: `print(as_text())` shows it.

A row is a buffer; its columns are those of `Row`. Its shape is written in letters, T, B, D, L, G as in `numbarnn`:

    of the cell    A gates of h Rᵀ; K values saved per unit; N private states; S further products; Q sums over units;
                   V parameters per unit; E columns of a head's block of R
    of the layer   I width of its input; H its units; P width of its h, H without projection. A buffer of the whole call
                   has I of the first layer, H and P of the last
    of the call    M steps that are kept, T or in inference 1; C slots of private states, T + 2 or 2; J segments of a
                   call with checkpoints; F numbers of all parameters; Z numbers that are made of some of them for
                   kernels (`numbarnn.weights.formed`); X numbers of all R, with blocks on the diagonal spread; Y
                   numbers of the largest of these R

Passes ask for the buffers of a task as they come to it, so that on the CPU a layer's scratch is gone before the next
layer's is made. What depends on sizes alone is worked out once for a problem: a call that an engine replays only looks
it up.
"""

from functools import lru_cache
from types import MappingProxyType
from typing import NamedTuple

from numbarnn.common.precision import known_dtype
from numbarnn.schedules.plan import BOTH, KINDS
from numbarnn.schedules.problem import state_shapes

NOTHING = MappingProxyType({})  # the arrays of a buffer that a problem does not have


class Row(NamedTuple):
    """One buffer.

    Attributes:
        name: of the pass's attribute: an array for per "call" (None if it does not exist), an array or a list of arrays
            for "state", a dict with keys `layer` or `(layer, direction)` for "layer" and "place".
        per: what there is one for: "call", "state" (D, B, width: all layers in one array, or a list if their widths
            differ), "layer", "place" (a layer and direction).
        shape: in this module's letters, as Python.
        dtype: "storage" (that of x and weights), "state" (in which states accumulate), or a dtype.
        needed_by: "call": always there; kinds of tasks, with whose first it comes; another need that a pass names;
            "caller": an argument of the call, copied where recordings expect it (`Engine.settled`); "host": numbers
            that the host works out.
        until: when it is let go: after the "steps" of its layer and direction, after the "call", or with the "tape".
        what: it is.
        when: it exists, as Python over `p`, the `Problem`, and `cell`; always if empty.
        within: the buffer whose memory it has, with rows perhaps longer than the shape says; None if it has its own.
    """

    name: str
    per: str
    shape: str
    dtype: str
    needed_by: str
    until: str
    what: str
    when: str = ""
    within: str | None = None


SAVES = "p.training and cell.num_saved"
RECURRENT = "cell.num_ah and (cell.heads > 1 or p.training and any(cell.drop_connect))"
DROPS = "cell.num_ah and p.training and any(cell.drop_connect)"

# Of blocks of 4 units or more.
WORDS = Row(
    "words",
    "place",
    "2, Q, B, -(-H // 4)",
    "int64",
    "launch",
    "call",
    "of blocks' parts of sums over units, `kernels.persistent.across`",
    "cell.num_sums",
)

FORWARD = (
    Row("x", "call", "T, B, I", "storage", "caller", "tape", "x as tasks read it: the caller's, or a copy"),
    Row("x_given", "call", "B, T, I", "storage", "caller", "call", "x before it is copied to x_copy"),
    Row("hx", "state", "D, B, P", "storage", "caller", "call", "the initial h; None is zero"),
    Row("cx", "state", "D, B, N * H", "storage", "caller", "call", "the initial private states; None is zero"),
    Row("lengths", "call", "B,", "int32", "caller", "call", "of sequences", "p.padded"),
    Row("resets", "call", "T, B", "uint8", "caller", "call", "where sequences begin anew", "p.resets"),
    Row("h", "layer", "T + 2, B, D * P", "storage", "call", "tape", "slot t + 1 is after step t, 0 and T + 1 initial"),
    Row("c", "layer", "C, B, D * N * H", "state", "call", "tape", "private states, likewise; in inference modulo 2"),
    Row("m", "layer", "T + 2, B, D * H", "storage", "call", "tape", "the cell's outputs, of which h is made",
        "p.projection"),
    Row("y_copy", "call", "B, T, D * P", "storage", "call", "call", "y as the caller has it", "p.batch_major"),
    Row("y_copy", "call", "T, B, D * P", "storage", "call", "call", "y filled beyond sequences",
        "p.padded and not p.batch_major"),
    Row("all_states", "call", "B, T, D * N * H", "storage", "call", "call", "the last layer's c of every step",
        "p.keeps_states and p.batch_major"),
    Row("all_states", "call", "T, B, D * N * H", "storage", "call", "call", "the last layer's c of every step",
        "p.keeps_states and not p.batch_major"),
    Row("x_copy", "call", "T, B, I", "storage", "call", "tape", "x with time first, zero beyond sequences",
        "p.copies_x"),
    Row("hy", "state", "D, B, P", "storage", "call", "call", "the final h"),
    Row("cy", "state", "D, B, N * H", "storage", "call", "call", "the final private states",
        "cell.num_private and not p.is_segment"),
    Row("cy", "state", "D, B, N * H", "state", "call", "call", "the final private states",
        "cell.num_private and p.is_segment"),
    Row("step_mask_given", "call", "D, T + 2, B", "uint8", "caller", "call", "of a segment",
        "p.masked and p.is_segment"),
    Row("step_mask", "call", "D, T + 2, B", "uint8", "call", "tape", "what each step is (`numbarnn.common.order`)",
        "p.masked"),
    Row("masks", "call", "L - 1, 6", "uint64", "host", "tape", "of dropout, `philox.dropout_masks`", "p.dropping"),
    Row("noise", "call", "L * D, 6", "uint64", "host", "tape", "`philox.noise_words` of each layer and direction",
        "p.training and cell.noise"),
    Row("drop_words", "call", "L * D, A, 6", "uint64", "host", "tape", "masks of weights, `philox.drop_connect_words`",
        DROPS),
    Row("R", "call", "X,", "storage", "R", "tape", "all R as steps multiply with them", RECURRENT),
    Row("all_weights", "call", "(p.flat_size or F + Z) + X,", "storage", "all_weights", "tape",
        "the parameters, then all R", RECURRENT),
    Row("R_dropped", "call", "Y // cell.heads,", "storage", "R_dropped", "tape", "a parameter before it is spread",
        DROPS + " and cell.heads > 1"),
    Row("trouble", "call", "1,", "int64", "trouble", "tape", "the call's word, `numbarnn.kernels.error_flag`"),
    Row("dropped_input", "layer", "T, B, I", "storage", "dropout remake", "call", "the layer's input, dropped out",
        "p.dropping"),
    Row("gates", "place", "T, B, max(K, G) * H", "storage", "input steps launch", "tape", "what the cell saves", SAVES),
    Row("ax", "place", "T, B, G * H", "storage", "input steps", "steps", "x Wᵀ", SAVES, "gates"),
    Row("ax", "place", "T, B, G * H", "storage", "input steps", "steps", "x Wᵀ", f"not ({SAVES})"),
    Row("ah", "place", "B, A * H", "state", "steps", "steps", "h Rᵀ of one step"),
    Row("v", "place", "M, B, S * H", "storage", "steps", "tape", "what further products multiply", "cell.num_products"),
    Row("v", "place", "T, B, S * H", "storage", "launch", "tape", "likewise", "cell.num_products"),
    Row("sums", "place", "M, B, Q", "state", "steps launch", "tape", "over units", "cell.num_sums"),
    WORDS,
)  # fmt: skip

BACKWARD = (
    Row("dy", "call", "T, B, D * P", "storage", "caller", "tape", "the gradient of y; None is zero"),
    Row("dhy", "state", "D, B, P", "storage", "caller", "tape", "that of hy, likewise"),
    Row("dcy", "state", "D, B, N * H", "storage", "caller", "tape", "that of cy, likewise"),
    Row("d_states", "call", "T, B, D * N * H", "storage", "caller", "tape", "that of c of every step; None is zero"),
    Row("dh", "state", "D, B, P", "state", "call", "tape", "that of the final h, at last of the initial"),
    Row("dc", "state", "D, B, N * H", "state", "call", "tape", "of the private states, likewise", "cell.num_private"),
    Row("dhx", "state", "D, B, P", "storage", "call", "tape", "dh, rounded once",
        "p.dtype != p.state_dtype and not p.is_segment"),
    Row("dcx", "state", "D, B, N * H", "storage", "call", "tape", "dc, rounded once",
        "p.dtype != p.state_dtype and cell.num_private and not p.is_segment"),
    Row("dx_copy", "call", "B, T, I", "storage", "dx_copy", "tape", "dx as x was given", "p.batch_major"),
    Row("dy_copy", "call", "T, B, D * P", "storage", "dy_copy", "tape", "dy with time first, or zeros for None"),
    Row("d_states_copy", "call", "T, B, D * N * H", "storage", "d_states_copy", "tape", "that with time first"),
    Row("trouble", "call", "1,", "int64", "trouble", "tape", "the tape's word, or one of its own"),
    Row("dw", "call", "F,", "storage", "dw", "tape", "the gradients of all parameters"),
    Row("d_formed", "call", "Z,", "storage", "d_formed", "tape", "of what is made of parameters",
        "p.space.formed_size"),
    Row("dx", "layer", "T, B, I", "storage", "input", "tape", "of the layer's input: dy of the layer below"),
    Row("dax", "place", "T, B, G * H", "storage", "steps", "tape", "of x Wᵀ", SAVES, "gates"),
    Row("dax", "place", "T, B, G * H", "storage", "steps", "tape", "of x Wᵀ", f"not ({SAVES})"),
    Row("dax", "place", "T, B, G * H", "storage", "launch", "tape", "of x Wᵀ"),
    Row("dah", "place", "T, B, A * H", "storage", "steps launch", "tape", "of h Rᵀ", "cell.same_gradient", "dax"),
    Row("dah", "place", "T, B, A * H", "storage", "steps launch", "tape", "of h Rᵀ", "not cell.same_gradient"),
    Row("d_per_unit", "place", "T, B, V * H", "storage", "steps launch", "tape", "of the parameters per unit",
        "cell.per_unit"),
    Row("dht", "place", "T, B, P", "storage", "steps launch", "tape", "all of the gradient of h", "p.projection"),
    Row("dm", "place", "B, H", "state", "steps", "steps", "of m of one step", "p.projection"),
    Row("d_v", "place", "B, S * H", "state", "steps", "steps", "of v of one step", "cell.num_products"),
    WORDS,
    Row("d_sums", "place", "B, Q", "state", "steps", "steps", "of the sums of one step", "cell.num_sums"),
    Row("h_before", "place", "T, B, P", "storage", "weights", "tape", "h before each step, zero where one begins anew",
        "p.resets"),
    Row("dR", "place", "A * H, E", "storage", "dR", "tape", "of R, before it is dropped out and added", DROPS),
)  # fmt: skip

CHECKPOINTED = (
    Row("x", "call", "B, T, I", "storage", "caller", "tape", "the caller's x, or a copy", "p.batch_major"),
    Row("x", "call", "T, B, I", "storage", "caller", "tape", "the caller's x, or a copy", "not p.batch_major"),
    Row("h", "place", "J, B, P", "storage", "call", "tape", "h before each segment, in the direction's order"),
    Row("c", "place", "J, B, N * H", "state", "call", "tape", "private states, likewise", "cell.num_private"),
    Row("outputs", "layer", "T * (at + 1 < L), B, D * P", "storage", "call", "tape", "the input of the layer above",
        "p.directions > 1"),
    *(row for row in FORWARD if row.name in ("step_mask", "all_states", "hy", "cy") and row.dtype != "state"),
    *(row for row in FORWARD if row.name == "masks"),
    Row("y", "call", "B, T, D * P", "storage", "call", "call", "y as the caller has it", "p.batch_major"),
    Row("y", "call", "T, B, D * P", "storage", "call", "call", "y", "not p.batch_major"),
)  # fmt: skip

CHECKPOINTED_BACKWARD = (
    Row("dhx", "state", "D, B, P", "storage", "call", "call", "the gradient of the initial h"),
    Row("dcx", "state", "D, B, N * H", "storage", "call", "call", "that of the initial private states",
        "cell.num_private"),
    Row("dx", "layer", "T, B, I", "storage", "input", "call", "of the layer's input: dy of the layer below"),
    Row("dh", "place", "1, B, P", "state", "steps", "steps", "that of the final h, as it accumulates"),
    Row("dc", "place", "1, B, N * H", "state", "steps", "steps", "of the private states, likewise",
        "cell.num_private"),
    *(row for row in BACKWARD if row.name in ("dx_copy", "dw", "d_formed")),
)  # fmt: skip

TABLES = {
    "forward": FORWARD,
    "backward": BACKWARD,
    "forward with checkpoints": CHECKPOINTED,
    "backward with checkpoints": CHECKPOINTED_BACKWARD,
}


class _Sizes(dict):
    """This module's letters for a row of a problem; the rarely needed are found when asked for."""

    def __init__(self, problem, layer=None):
        p, cell = problem, problem.cell
        below = p.directions * p.output_sizes[layer - 1] if layer else p.input_size
        at = p.layers - 1 if layer is None else layer
        H, P = p.hidden_sizes[at], p.output_sizes[at]
        super().__init__(
            p=p, cell=cell, T=p.steps, B=p.batch, D=p.directions, L=p.layers, I=below, H=H, P=P,
            G=cell.num_gates, A=cell.num_ah, K=cell.num_saved, N=cell.num_private, S=cell.num_products,
            Q=cell.num_sums, V=len(cell.per_unit), E=P // cell.heads, M=p.steps if p.training else 1,
            C=p.steps + 2 if p.training or p.keeps_states else 2, at=at,
        )  # fmt: skip

    def __missing__(self, name):
        p, cell = self["p"], self["cell"]
        if name in "XY":
            sizes = [cell.num_ah * H * P for H, P in zip(p.hidden_sizes, p.output_sizes, strict=True)]
            return p.directions * sum(sizes) if name == "X" else max(sizes)
        if name == "F":
            return p.space.size
        if name == "Z":
            return p.space.formed_size
        if name == "J":
            return -(-p.steps // p.checkpoint_every)
        raise KeyError(name)


class Table:
    """Rows, and what they come to for a problem.

    Attributes:
        rows: the table.
        single, several: the names of buffers that a pass has as an array (or state), and as a dict.
        scratch: the names of those that are let go after the steps of their layer and direction.
        kept: the names of those that are let go with the tape.
        reserved: of those, the names of the ones that tasks and steps fill: what backward cannot make again.
    """

    def __init__(self, rows):
        self.rows = rows
        names = {row.name: row for row in rows}
        self.single = [name for name, row in names.items() if row.per in ("call", "state")]
        self.several = [name for name, row in names.items() if row.per in ("layer", "place")]
        self.scratch = [name for name, row in names.items() if row.until == "steps"]
        self.kept = {name for name, row in names.items() if row.until == "tape"}
        self.reserved = {
            row.name for row in rows if row.until == "tape" and {*KINDS, "call"} & {*row.needed_by.split()}
        }
        self._when = [compile(row.when or "True", row.name, "eval") for row in rows]
        self._shapes = [compile(f"({row.shape})", row.name, "eval") for row in rows]
        self.layout = lru_cache(maxsize=1024)(self.make_layout)

    def make_layout(self, problem):
        """Which buffers come with what: (kind of task or other need, layer, direction) -> tuple of (name, key, shape,
        dtype, within). Without a layer and direction where it is no task's."""
        layers, directions, found = range(problem.layers), range(problem.directions), {}
        places = {
            "call": [(None, None, None)],
            "layer": [(layer, layer, BOTH) for layer in layers],
            "place": [((layer, d), layer, d) for layer in layers for d in directions],
        }
        dtypes = {"storage": problem.dtype, "state": problem.state_dtype}
        sizes = {layer: _Sizes(problem, layer) for layer in (None, *layers)}
        for row, when, shape in zip(self.rows, self._when, self._shapes, strict=True):
            if not eval(when, {}, sizes[None]):
                continue
            dtype, shapes = known_dtype(dtypes.get(row.dtype, row.dtype)), {}
            for key, layer, direction in places.get(row.per, ()):
                shapes[key, layer, direction] = eval(shape, {}, sizes[layer])
            if row.per == "state":
                widths = [eval(shape, {}, sizes[layer])[-1] for layer in layers]
                shapes[None, None, None] = state_shapes(widths, problem.directions, problem.batch)
            for (key, layer, direction), of_place in shapes.items():
                for need in row.needed_by.split():
                    at = (need, layer, direction) if need in KINDS else (need, None, None)
                    found.setdefault(at, []).append((row.name, key, of_place, dtype, row.within))
        several = sorted({name for buffers in found.values() for name, *_ in buffers} & {*self.several})
        return several, {need: tuple(buffers) for need, buffers in found.items()}


class Buffers:
    """The arrays of one pass of a call, as attributes named as in its table. What the table does not have for a problem
    is None, or an empty dict.

    Args:
        engine, problem: of the call.
        allocate: function (name, shape, dtype), see `Engine.allocate`.
    """

    table: Table

    def __init_subclass__(cls):
        if "table" in vars(cls):
            for name in cls.table.single:
                setattr(cls, name, None)
            for name in cls.table.several:
                setattr(cls, name, NOTHING)

    separate = frozenset()  # buffers whose memory no other one has, whatever the table says

    def __init__(self, engine, problem, allocate):
        self.engine, self.problem, self._allocate, self._made = engine, problem, allocate, {}
        self._new = allocate  # of the table's buffers; a pass may place some of them elsewhere
        several, self._layout = self.table.layout(problem)
        own = vars(self)
        for name in several:
            own[name] = {}

    def allocate(self, need, layer=None, direction=None):
        """Make the buffers that a task of this kind, layer and direction needs, or something else that the table names,
        where they do not exist."""
        own = vars(self)
        for name, key, shape, dtype, within in self._layout.get((need, layer, direction), ()):
            known, at, full_name = (own, name, name) if key is None else (own[name], key, (name, key))
            if known.get(at) is not None:
                continue
            if within is not None and within not in self.separate:
                known[at] = self._shared(within)[key]
            elif type(shape) is tuple:
                known[at] = self._made[full_name] = self._new(full_name, shape, dtype)
            else:  # a state of layers that differ in size
                parts = {(name, layer): self._new((name, layer), part, dtype) for layer, part in enumerate(shape)}
                self._made |= parts
                known[at] = list(parts.values())

    def _shared(self, name):
        """The buffer of that name, in whose memory another one is."""
        return getattr(self, name)

    def take(self, name, array, own=False):
        """An array of the caller's, or a copy of it where recordings expect it (`Engine.settled`), for this call."""
        if array is None:
            return None
        if type(array) is list:
            return [self.take((name, layer), part) for layer, part in enumerate(array)]
        if self.engine.records_jobs:
            array = self.engine.settled(self._allocate, name, array, own)
        self._made[name] = array
        return array

    def give_up(self, name, key):
        """The array of that buffer, somebody else's from now on; `allocate` makes another. None without one."""
        self._made.pop((name, key), None)
        return getattr(self, name).pop(key, None)

    def borrow(self, name, array):
        """Let the buffer of that name be this array, of the engine."""
        self._made[name] = array
        setattr(self, name, array)

    def from_host(self, name, array):
        """A copy of a NumPy array on the engine, for this call."""
        self._made[name] = array = self.engine.from_host_into(self._allocate, name, array)
        return array

    def hand_over(self, name, array):
        """A result as callers get it, see `Engine.handed_over`; a state in its form, None stays None."""
        if array is None or not self.engine.records_jobs:
            return array
        if type(array) is list:
            return [self.hand_over((name, layer), part) for layer, part in enumerate(array)]
        return self.engine.handed_over(self._allocate, name, array)

    def release(self, layer, direction):
        """Let go of the scratch of a layer's and direction's steps, which are done; returns its arrays."""
        key, arrays = (layer, direction), []
        for name in self.table.scratch:
            if getattr(self, name):
                getattr(self, name).pop(key, None)
                arrays.append(self._made.pop((name, key), None))
        return [array for array in arrays if array is not None]

    def release_all(self):
        """Let go of what the tape does not keep; results stay until callers have them."""
        kept = self.table.kept
        self._made = {name: array for name, array in self._made.items() if (name if name in kept else name[0]) in kept}

    def arrays(self):
        """Every array that was made or taken and is still needed, in a fixed order."""
        return self._made.values()


def as_text():
    """The tables, for people."""
    columns, lines = ("name", "per", "shape", "dtype", "needed by", "until"), []
    for title, rows in TABLES.items():
        cells = [columns, *(tuple(row[:6]) for row in rows)]
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        lines.append(f"{title}:")
        for cell, row in zip(cells, (None, *rows), strict=True):
            text = "  ".join(part.ljust(width) for part, width in zip(cell, widths, strict=True))
            if row is None:
                lines.append(f"  {text}  what it is")
                continue
            notes = [f"if {row.when}"] * bool(row.when) + [f"in the memory of {row.within}"] * bool(row.within)
            lines.append(f"  {text}  {row.what}" + (f" ({'; '.join(notes)})" if notes else ""))
    return "\n".join(lines)
