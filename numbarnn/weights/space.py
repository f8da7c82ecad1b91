"""The weight space: all parameters of a stack of layers in one flat buffer, in cuDNN's order.

A pseudo-layer is one direction of a layer: layer 0 forward, layer 0 backward, layer 1 forward, ... The buffer begins
with the matrices of all pseudo-layers, each W, R and, with projection, W_hr, gate after gate, row-major. Then come all
biases, each b_w and b_r (cudnnGetRNNWeightParams). Names are PyTorch's: weight_ih_l0 (W), weight_hh_l0 (R),
weight_hr_l0 (W_hr), bias_ih_l0 (b_w), bias_hh_l0 (b_r), with "_reverse" for the backward direction.
"""

import math
from collections import namedtuple
from copy import copy
from dataclasses import dataclass
from typing import NamedTuple

from numbarnn.cells import begin
from numbarnn.cells.layout import BIAS_MODES, STACKED, Layout, Term, constants_in, flat_name, parameters_in

INPUT_MODES = ("linear", "skip", "given")
WITHOUT_W = ("skip", "given")  # input modes in which layer 0 has no W

PER_UNIT = "per_unit"  # the kind of a per-unit parameter, (H,)
SCALAR, VECTOR, MATRIX = OWN = "scalar", "vector", "matrix"  # kinds of other parameters with a separate array


@dataclass(frozen=True)
class Parameter:
    """One array of the weight space.

    Attributes:
        name: PyTorch's name. layer, direction: its pseudo-layer. offset, shape: its place in the flat buffer.
        kind: "W" (G*H, I), "R" (A*H, H), "b_w" (G*H,), "b_r" (A*H,) or `PER_UNIT` (H,). With projection R is (A*H, P)
            and "W_hr" (P, H). A is the number of gates of h Rᵀ, G for built-in cells. With n heads R has 1/n of the
            columns, and row g H + j multiplies head j div (H/n). Custom cells may have fewer rows, and a `MATRIX`,
            `VECTOR` or `SCALAR` (`Layout`).
        parts: names in the cell's equations of its blocks of rows.
    """

    name: str
    kind: str
    layer: int
    direction: int
    offset: int
    shape: tuple[int, ...]
    parts: tuple[str, ...] = ()

    @property
    def size(self):
        """Number of elements."""
        return math.prod(self.shape)

    def of(self, flat):
        """Return its view of a flat buffer, or of several buffers (n, size)."""
        where = slice(self.offset, self.offset + self.size)
        if flat.ndim == 1:
            return flat[where].reshape(self.shape)
        return flat[:, where].reshape((len(flat), *self.shape))


# Properties of custom cells: A (None: G), the names of per-unit parameters, the number of heads, which divides H and P,
# and the `Layout` of all parameters (None: only per-unit parameters have names).
General = namedtuple("General", "num_ah per_unit heads layout", defaults=(None, (), 1, None))


def parameter_name(kind, layer, direction):
    """Return PyTorch's name of a parameter by its kind ("W", "R", "W_hr", "b_w", "b_r")."""
    return named(STACKED[kind], layer, direction)


def named(name, layer, direction):
    """Return a parameter's name with the suffix of its layer and direction."""
    return f"{name}_l{layer}{'_reverse' if direction else ''}"


class WeightSpace:
    """The place of each parameter in the flat buffer.

    Args:
        num_gates, input_size, hidden_sizes, directions: G, I of layer 0, H of each layer, D (1 or 2).
        bias: one of `BIAS_MODES`. proj_size: P, or 0. input_mode: one of `INPUT_MODES`.
        general: properties of a custom cell, see `General`.

    Attributes:
        parameters: tuple of `Parameter`, in the buffer's order. size: number of elements of the buffer.
        derived: (layer, direction) -> kind -> `Derived`. derived_size: number of elements of all derived arrays.
        sizes: (layer, direction) -> letter (H, I, P) -> int. widths: units per layer in kernels (`sizes_of_layers`).

    Raises:
        ValueError: two parameters have one name, or sizes do not fit the cell's equations.
    """

    def __init__(
        self, num_gates, input_size, hidden_sizes, directions=1, bias="double", proj_size=0, input_mode="linear",
        **general,
    ):  # fmt: skip
        num_ah, per_unit, heads, layout = General(**general)
        if clashes := set(STACKED.values()).intersection(per_unit):
            names = ", ".join(sorted(clashes))
            raise ValueError(f"a cell's parameters per unit must not be called {names}. Rename them")
        self._layout = layout = layout or Layout(own=dict.fromkeys(per_unit, ("H",)))
        self.parameters, self.size, self.derived, self.derived_size = (), 0, {}, 0
        num_ah = num_gates if num_ah is None else num_ah

        def shapes(H, I, P):  # noqa: E741
            of_ah = {"R": (num_ah * H, P // heads), "b_r": (num_ah * H,)} if num_ah else {}
            return {"W": (num_gates * H, I), "b_w": (num_gates * H,), "W_hr": (P, H)} | of_ah

        layers = sizes_of_layers(layout, input_size, hidden_sizes, directions, proj_size)
        places = [(layer, direction) for layer in range(len(layers)) for direction in range(directions)]
        self.sizes = {(layer, direction): layers[layer][0] for layer, direction in places}
        self.widths = tuple(wide["H"] for _, wide in layers)
        self._places = {place: [] for place in places}
        for kinds in (("W", "R", "W_hr")[: 3 if proj_size else 2], BIAS_MODES[bias]):
            for layer, direction in places:
                sizes, wide = layers[layer]
                without_W = layer == 0 and input_mode in WITHOUT_W
                check_sizes(layout, sizes, layer, without_W)
                held, read = shapes(**sizes), shapes(**wide)
                for kind in kinds:
                    if kind in held and not (kind == "W" and without_W):
                        groups = directions if kind == "W" and layer and wide["I"] != sizes["I"] else 1
                        self._add_stacked((layer, direction), kind, held[kind], read[kind], groups, without_W)
                self._add_own((layer, direction), "R" in kinds)
        names = [part.name for part in self.parameters]
        if len(set(names)) < len(names):
            raise ValueError(f"two of a cell's parameters would both be called {max(names, key=names.count)}")
        if not self.size:
            raise ValueError(
                "the network has no parameters with these options. Give the equations one, such as p.W.name @ x or "
                "p.name * h"
            )

    def _add_stacked(self, place, kind, shape, read, groups, without_W):
        """Add an array of a kind of `STACKED`.

        shape: shape of all gates' rows. read: shape that kernels read. groups: see `Derived`. without_W: no W here."""
        layout, parts = self._layout, self._layout.rows.get(kind, ())
        if kind in layout.derived or read != shape:
            terms = layout.derived.get(kind) or parameter_terms(parts)
            missing = {*parameters_in(terms)}.intersection(layout.rows.get("W", ())) if without_W else ()
            if missing and len(shape) == 2:
                raise ValueError(
                    f"p.{min(missing)} multiplies more than x, but layer {place[0]} has no matrices for x with this "
                    "input_mode. Use input_mode 'linear'"
                )
            self._add_derived(place, kind, read, terms, groups)
            shape = (len(parts) * (shape[0] // len(terms)), *shape[1:])
        if shape[0]:
            self._append(STACKED[kind], kind, place, shape, parts)

    def _add_own(self, place, matrices):
        """Add the parameters with separate arrays, either matrices, or vectors and scalars."""
        layout, sizes, width = self._layout, self.sizes[place], self.widths[place[0]]
        if not matrices and ("per_unit" in layout.derived or (layout.per_unit and width != sizes["H"])):
            terms = layout.derived.get("per_unit") or parameter_terms(layout.per_unit)
            self._add_derived(place, "per_unit", (len(terms) * width,), terms)
        there = parameters_in([term for derived in self.derived.get(place, {}).values() for term in derived.terms])
        for name, letters in layout.own.items():
            shape = tuple(sizes.get(letter, letter) for letter in letters)
            kind = PER_UNIT if letters == ("H",) else OWN[len(shape)]
            if (kind == MATRIX) == matrices and (kind != MATRIX or name in there):  # without W some are absent
                self._append(flat_name(name), kind, place, shape, (name,))

    def _append(self, name, kind, place, shape, parts):
        part = Parameter(named(name, *place), kind, *place, self.size, shape, parts)
        self._places[place].append(part)
        self.parameters += (part,)
        self.size += part.size

    def _add_derived(self, place, kind, shape, terms, groups=1):
        for constant in constants_in(terms):
            constant.of(self.sizes[place])  # raises if its shape does not fit
        derived = self.derived.setdefault(place, {})[kind] = Derived(terms, self.derived_size, shape, groups)
        self.derived_size += derived.size

    def parts(self, layer, direction, kind):
        """Return the `Parameter`s of a kind of one layer and direction."""
        return [part for part in self._places[layer, direction] if part.kind == kind]

    def views(self, flat):
        """Return name -> view of a flat buffer (NumPy or CuPy), in the order of PyTorch's state_dict."""
        return {part.name: part.of(flat) for part in self._in_order()}

    @property
    def shapes(self):
        """Name -> shape of each parameter, in the order of PyTorch's state_dict."""
        return {part.name: part.shape for part in self._in_order()}

    def _in_order(self):
        order = ("W", "R", "b_w", "b_r", PER_UNIT, SCALAR, VECTOR, MATRIX, "W_hr")  # of one pseudo-layer
        return sorted(self.parameters, key=lambda part: (part.layer, part.direction, order.index(part.kind)))

    @property
    def blocks(self):
        """(layer, direction) -> name in the equations -> (`Parameter`, slice of the flat buffer, shape), ordered as
        `shapes`."""
        blocks = {place: {} for place in sorted(self.sizes)}
        for part in self._in_order():
            named_blocks, size = blocks[part.layer, part.direction], part.size // max(len(part.parts), 1)
            for number, name in enumerate(part.parts):
                start = part.offset + number * size
                shape = (part.shape[0] // len(part.parts), *part.shape[1:]) if part.shape else ()
                named_blocks[name] = part, slice(start, start + size), shape
        return blocks

    def split(self):
        """Return a copy in which each matrix and vector of the equations is its own `Parameter`, such as "W_i_l0"."""
        pieces = [
            Parameter(named(flat_name(name), *place), part.kind, *place, where.start, shape, (name,))
            for place, blocks in self.blocks.items() for name, (part, where, shape) in blocks.items()
        ]  # fmt: skip
        made = copy(self)
        made.parameters = tuple(sorted(pieces, key=lambda one: one.offset))
        return made

    def initial(self, initial, key):
        """Yield (`Parameter`, slice of the flat buffer, values) for each initial value of `Cell.initial`.

        key: int that seeds the random numbers."""
        for (layer, direction), blocks in self.blocks.items():
            for name, value in initial:
                if name in blocks:  # layer 0 may have no W
                    part, where, shape = blocks[name]
                    drawn = begin.draw(value, shape, (key, layer, direction), name)
                    yield part, where, drawn if isinstance(drawn, float) else drawn.reshape(-1)

    def pseudo_layer(self, flat, layer, direction, derived=None):
        """Return kind -> array that kernels read, views of `flat` and `derived`, for one layer and direction.

        All per-unit parameters are one array "per_unit", (V * H,)."""
        parameters = self._places[layer, direction]
        views = {part.kind: part.of(flat) for part in parameters if part.kind in STACKED}
        per_unit = [part for part in parameters if part.kind == PER_UNIT]
        if per_unit:
            views["per_unit"] = flat[per_unit[0].offset : per_unit[-1].offset + per_unit[-1].size]
        if derived is not None:
            views |= {kind: one.of(derived) for kind, one in self.derived.get((layer, direction), {}).items()}
        return views


class Derived(NamedTuple):
    """An array that kernels read, derived from parameters. Each of `terms`, one per gate, fills an equal part of it.

    groups: number of groups of columns, one per direction of the layer below. Each group ends in zeros if kernels
    compute with more units there than h has."""

    terms: tuple
    offset: int
    shape: tuple[int, ...]
    groups: int = 1

    size, of = Parameter.size, Parameter.of

    def rows(self, flat):
        """Yield (term, view of the rows that it fills) in a buffer of derived weights."""
        array, count = self.of(flat), self.shape[0] // len(self.terms)
        for number, term in enumerate(self.terms):
            yield term, array[number * count : (number + 1) * count]


def parameter_terms(names):
    """Return a `Term` for each parameter name."""
    return tuple(Term("parameter", data=name) for name in names)


def sizes_of_layers(layout, input_size, hidden_sizes, directions=1, proj_size=0):
    """Return for each layer (letter (H, I, P) -> int, letter -> the size in kernels), for a cell's `Layout`.

    In kernels h and all states of a layer have the width of the widest. Matrices are padded with columns of zeros."""
    result, inputs, wide_inputs = [], input_size, input_size
    for hidden in hidden_sizes:
        own = inputs if result else inputs - layout.side_width
        sizes = {"H": hidden, "I": own, "P": proj_size or hidden}
        width = max((hidden, *(sizes.get(size, size) for size in layout.states)))
        wide = {"H": width, "I": wide_inputs, "P": proj_size or width}
        result.append((sizes, wide))
        inputs, wide_inputs = directions * sizes["P"], directions * wide["P"]
    return result


def check_sizes(layout, sizes, layer, without_W):
    """Raise ValueError unless `sizes`, letter -> int, meet the `Equal`s of a `Layout`; without W any I will do."""
    for one, other, why in layout.equal:
        if without_W and "I" in (one, other):
            continue
        first, second = (sizes.get(size, size) for size in (one, other))
        if first != second:
            letters = {"I": "input size", "H": "hidden size", "P": "projection size"}
            said = [f"{letters[size]} {number}" if size in letters else f"{number}"
                    for size, number in ((one, first), (other, second))]  # fmt: skip
            raise ValueError(f"layer {layer}: {why}, so its {said[0]} and {said[1]} must be equal")
