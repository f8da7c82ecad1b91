"""The arrays of a `cases.Case`, and what must come out of them in float64: by `numbarnn.reference` for built-in cells,
by PyTorch's autograd (`equations`) for others.

Where sequences are shorter, x and dy are NaN in padding: whoever reads them is found out.
"""

from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import count

import numpy as np

import equations
import kinks
import numbarnn
from cases import SEED
from numbarnn import reference
from numbarnn.common.precision import is_half
from numbarnn.reference.philox import dropout_mask

STREAM, STREAMS = 1 << 30, 1 << 8  # of DropConnect's random words: the first, and how many each place has


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
        if "phased" in case.cell and (case.dtype == "float32" or case.cell == "phased_lstm"):
            self._slow_clocks(rng)

    def _slow_clocks(self, rng):
        """Whole numbers of steps, as a clock counts them, in the first period: there a phase errs by a few eps of
        itself. A later one errs by an eps of 1 for each period before, which the opening gate multiplies by 40."""
        for name, array in self.parameters.items():
            if name.startswith("log_period"):
                array[...] = np.log(rng.uniform(16, 40, array.shape))
            elif name.startswith("shift"):
                array[...] = -rng.random(array.shape)
        t = self.case.states.index("t")
        if self.states[t] is not None:
            self.states[t] = [rng.integers(0, 3, part.shape).astype(part.dtype) for part in self.states[t]]

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

    def reference(self, drawn=None):
        """The reference's forward result."""
        case = self.case
        h, c = self.states[0], self.states[1] if case.has_c else None
        return reference.forward(
            case.cell,
            *(self.x, self.dense_parameters(drawn.drops if drawn else {}), h, c),
            masks=drawn.masks if drawn and case.dropout else None,
            lengths=case.lengths,
            resets=self.resets,
            cell_clip=case.cell_clip,
            clip_propagate_nan=case.clip_propagate_nan,
            padding_value=case.padding_value,
        )

    def expected(self, drawn=None):
        """Name -> what must come out, float64, in the form in which layers return it; drawn: of a training call."""
        if self.case.of_reference:
            y, finals, dx, d_states, gradients = self._by_reference(drawn)
        else:
            y, finals, dx, d_states, gradients = equations.autograd(self, drawn)
        values = {"y": plain(self.sequences(y)), **self.named(self.form(finals), "{}y")}
        values |= {"dx": plain(self.sequences(dx)), **self.named(self.form(d_states), "d{}x")}
        return values | {f"d{name}": gradients[name] for name in self.parameters}

    def _by_reference(self, drawn):
        """(y, final states, dx, gradients of initial states, of parameters by name)."""
        case, result = self.case, self.reference(drawn)
        assert side_distance(case, result) > case.closest, "a unit is at its kink: choose another problem"
        given = [self.dy, self.d_states[0], self.d_states[1] if case.has_c else None]
        found = reference.backward(result, *given)
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
    """How near a ReLU comes to its kink, or a cell state to a bound; what is exactly there is so in every precision."""
    found = kinks.sides(case.cell, case.cell_clip, result)
    if found is None:
        return np.inf
    return np.min(np.abs(found[np.isfinite(found) & (found != 0)]), initial=np.inf)


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
