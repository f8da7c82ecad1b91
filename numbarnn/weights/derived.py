"""Derived weights: arrays that kernels read in place of a cell's parameters.

A cell's `Layout` defines them by `Term`s: p.R.a - p.R.a.T, p.scalar.alpha for every unit, or the rows that one
array holds for several matrices. `DerivedWeights.derive` computes them before a forward or a backward pass. After a
backward pass `pull_back` turns their gradients into those of the parameters. Both are array code for NumPy or CuPy;
parameters that kernels read unchanged are not copied.
"""

import numpy as np

from numbarnn.cells.layout import parameters_in
from numbarnn.common.precision import compute_dtype, known_dtype
from numbarnn.weights.space import OWN


class DerivedWeights:
    """The parameters of a stack of layers as its kernels read them.

    Args:
        space: the `WeightSpace`. engine: of the stack. flat, dtype: the flat buffer of parameters, its dtype, a name.
        in_one: kernels find weights by their places in one array: `flat` is then a copy, followed by `derived`.
        allocate: function (name, shape, dtype) for memory that a later call may use again; None: new memory.

    Attributes: flat: the buffer in which kernels find weights. derived: (space.derived_size,).
    """

    def __init__(self, space, engine, flat, dtype, in_one, allocate=None):
        self._space, self._engine, self._parameters, self._blocks = space, engine, flat, space.blocks
        copy = (allocate or engine.allocate(flat))(
            "derived", (space.size * in_one + space.derived_size,), known_dtype(dtype)
        )
        self.flat, self.derived = (copy, copy[space.size :]) if in_one else (flat, copy)
        self._engine_values = engine.array_module, np.dtype(compute_dtype(dtype))
        self._views = {
            place: {name: flat[where].reshape(shape) for name, (_, where, shape) in self._blocks[place].items()}
            for place in space.derived
        }
        self._fixed = {place: {} for place in space.derived}
        self._read, self._known = None, None
        if engine.array_module is np and not in_one:  # on a device a look at parameters would wait for it
            read = [
                self._blocks[place][name][1]
                for place, kinds in space.derived.items()
                for name in parameters_in([term for derived in kinds.values() for term in derived.terms])
            ]
            first, last = min((one.start for one in read), default=0), max((one.stop for one in read), default=0)
            self._read = flat[first:last].view(f"u{flat.itemsize}")

    def _values(self, place):
        arrays, dtype = self._engine_values
        return Values(arrays, self._views[place], dtype, self._space.sizes[place], self._fixed[place])

    def derive(self):
        """Compute the derived weights from the current parameters, unless these are unchanged.
        Several threads may do so at once: each writes the same, finished numbers."""
        known = None
        if self._read is not None:
            if self._known is not None and (self._read == self._known).all():
                return
            known, self._known = self._read.copy(), None  # an interrupt may come before all is written
        with self._engine.activate():
            self._engine.follow()
            if self.flat is not self._parameters:
                self.flat[: self._space.size] = self._parameters
            for place, kinds in self._space.derived.items():
                values = self._values(place)
                for derived in kinds.values():
                    out = derived.of(self.derived)
                    for number, term in enumerate(derived.terms):
                        _put(derived.rows(out, number), values.of(term), derived.groups)
        self._known = known

    def pull_back(self, dw, d_derived, accumulate):
        """Set, or add to, the gradients dw of the parameters from which weights are derived. d_derived: the gradient of
        `derived`. dw holds the gradients of parameters that kernels read unchanged already."""
        with self._engine.activate():
            for place, kinds in self._space.derived.items():
                values, gradients = self._values(place), {}
                for derived in kinds.values():
                    d_made = derived.of(d_derived)
                    for number, term in enumerate(derived.terms):
                        shape = values.shape(term)
                        g = _part(derived.rows(d_made, number), shape, derived.groups)
                        g = g.reshape(shape) if g.ndim == 3 else g
                        values.pull_back(term, g.astype(values.dtype, copy=False), gradients)
                for name, (part, where, shape) in self._blocks[place].items():
                    read = part.kind not in (*kinds, *OWN)  # by kernels, unchanged
                    gradient = dw[where].reshape(shape)
                    if name in gradients:
                        g, add = gradients[name], accumulate or read
                        gradient[...] = gradient.astype(values.dtype, copy=False) + g if add else g
                    elif not read and not accumulate:
                        gradient[...] = 0


def _put(out, value, groups):
    """Write a term's value into a gate's rows, which may be more, with more columns, than it has.
    Missing units are copies of the last one, so that they are finite where it is; they multiply with zeros."""
    shape = np.shape(value)
    if shape in ((), out.shape):
        out[...] = value
        return
    part = _part(out, shape, groups)
    part[...] = value.reshape(part.shape)
    if len(shape) == 2:
        out.reshape(len(out), groups, -1)[: shape[0], :, shape[1] // groups :] = 0
    out[shape[0] :] = out[shape[0] - 1]


def _part(array, shape, groups):
    """Return a view of the part of a gate's rows that a value of that shape fills.
    With several groups of columns it is (rows, groups, columns of one). A number fills all rows."""
    if groups > 1 and shape:
        return array.reshape(len(array), groups, -1)[: shape[0], :, : shape[1] // groups]
    return array[tuple(map(slice, shape))]


class Values:
    """The values of terms, each computed once, and their gradients.

    Args:
        arrays: numpy, or a module with its functions. parameters: name -> array. dtype: to compute in.
        sizes: letter -> int. fixed: term -> value, of terms without parameters, shared by `Values` of these sizes.
    """

    def __init__(self, arrays, parameters, dtype, sizes, fixed=None):
        self.arrays, self.parameters, self.dtype, self._sizes = arrays, parameters, dtype, sizes
        self._known, self._fixed = {}, {} if fixed is None else fixed

    def of(self, term):
        """Return a term's value: an array, or a number."""
        if term not in self._known:
            self._known[term] = self._computed(term)
        return self._known[term]

    def _computed(self, term):
        if term.op in OPERATIONS:
            return OPERATIONS[term.op][0](*map(self.of, term.args))
        if term.op in ("number", "zero"):
            return term.data or 0.0
        if term.op in ("parameter", "fill"):
            return self.parameter(term.data)
        if term not in self._fixed:
            self._fixed[term] = self.constant(self._array(term))
        return self._fixed[term]

    def _array(self, term):
        """Return the NumPy array of a term without parameters."""
        if term.op == "constant":
            return term.data.of(self._sizes)
        if term.op == "part":
            return term.data.array(self._sizes)
        identity = np.eye(self._sizes.get(term.data, term.data))
        return identity if term.op == "eye" else np.tril(np.ones_like(identity))

    def parameter(self, name):
        """Return one parameter in the compute dtype."""
        return self.parameters[name].astype(self.dtype, copy=False)

    def constant(self, array):
        """Return a NumPy array in the compute dtype."""
        return self.arrays.asarray(array, self.dtype)

    def shape(self, term):
        """Return the shape of a term's value without computing it."""
        if term.op == "parameter":
            return self.parameters[term.data].shape
        if term.op in ("constant", "eye", "lower", "part"):
            return self.of(term).shape
        if term.op == "transpose":
            return self.shape(term.args[0])[::-1]
        if term.op == "product":
            return self.shape(term.args[0])[0], self.shape(term.args[1])[1]
        return next((shape for shape in map(self.shape, term.args) if shape), ())

    def pull_back(self, term, g, gradients):
        """Add a term's contribution to `gradients`, name -> array; g is the gradient of the term's value.
        If kernels read the matrix R.a - R.a.T, then R.a gets g - g.T."""
        if self.shape(term) == () and np.ndim(g):
            g = g.sum()
        if term.op in ("parameter", "fill"):
            gradients[term.data] = gradients[term.data] + g if term.data in gradients else g
        for argument, gradient in zip(term.args, OPERATIONS.get(term.op, (None,))[1:], strict=True):
            if parameters_in((argument,)):
                self.pull_back(argument, gradient(self, g, *term.args), gradients)

    def times(self, g, term, other):
        """Return the gradient of a factor `other`: g times the value of `term`; for a scalar factor the sum of all
        elements, row by row, without an array of all products."""
        value = self.of(term)
        if self.shape(other) == () and np.ndim(value):
            return self.arrays.einsum("ij,ij->i", g, value).sum()
        return g * value


# Operation -> its function of the arguments' values, and for each argument a gradient function. That takes the
# `Values`, the gradient g of the operation's value and the arguments, all `Term`s, and returns the argument's gradient.
OPERATIONS = {
    "transpose": (lambda a: a.T, lambda of, g, a: g.T),
    "neg": (lambda a: -a, lambda of, g, a: -g),
    "add": (lambda a, b: a + b, lambda of, g, a, b: g, lambda of, g, a, b: g),
    "sub": (lambda a, b: a - b, lambda of, g, a, b: g, lambda of, g, a, b: -g),
    "mul": (lambda a, b: a * b, lambda of, g, a, b: of.times(g, b, a), lambda of, g, a, b: of.times(g, a, b)),
    "divide": (
        lambda a, b: a / b,
        lambda of, g, a, b: g / of.of(b),
        lambda of, g, a, b: -(g * of.of(a)) / (of.of(b) * of.of(b)),
    ),
    "product": (lambda a, b: a @ b, lambda of, g, a, b: g @ of.of(b).T, lambda of, g, a, b: of.of(a).T @ g),
}


# -------------------------------------------------------------------------------------------------------- tangents
def _linear(name):
    def method(self, *arguments, **options):
        return Dual(*(getattr(one, name)(*arguments, **options) for one in (self.value, self.tangent)))

    return method


class Dual:
    """An array and its tangent, a + a' e with e e = 0, for the operations that terms have."""

    __array_ufunc__, __array_priority__ = None, 1000  # arrays leave operations with it to it

    def __init__(self, value, tangent):
        self.value, self.tangent = value, tangent

    shape, ndim = property(lambda self: self.value.shape), property(lambda self: self.value.ndim)
    T = property(lambda self: Dual(self.value.T, self.tangent.T))
    astype, reshape, sum, __neg__ = map(_linear, ("astype", "reshape", "sum", "__neg__"))

    def __add__(self, other):
        other = _dual(other)
        return Dual(self.value + other.value, self.tangent + other.tangent)

    def __mul__(self, other):
        other = _dual(other)
        return Dual(self.value * other.value, self.tangent * other.value + self.value * other.tangent)

    def __truediv__(self, other):
        other = _dual(other)
        ratio = self.value / other.value
        return Dual(ratio, (self.tangent - ratio * other.tangent) / other.value)

    def __matmul__(self, other):
        other = _dual(other)
        return Dual(self.value @ other.value, self.tangent @ other.value + self.value @ other.tangent)

    __radd__, __rmul__ = __add__, __mul__
    __sub__ = lambda self, other: self + -_dual(other)  # noqa: E731
    __rsub__ = lambda self, other: _dual(other) - self  # noqa: E731
    __rtruediv__ = lambda self, other: _dual(other) / self  # noqa: E731
    __rmatmul__ = lambda self, other: _dual(other) @ self  # noqa: E731


def _dual(value):
    return value if isinstance(value, Dual) else Dual(value, 0 * value)


class _DualArrays:
    """What `Values` needs of a module of arrays."""

    def __init__(self, arrays):
        self.asarray = arrays.asarray

    def einsum(self, _, a, b):
        return a * b


def _values(space, engine, flat, direction, dtype, place):
    """Return the `Values` of one layer and direction, `Dual`s with a direction of the weights (None: zero)."""
    direction = engine.array_module.zeros_like(flat) if direction is None else direction
    parameters = {
        name: Dual(flat[where].reshape(shape), direction[where].reshape(shape))
        for name, (_, where, shape) in space.blocks[place].items()
    }
    return Values(_DualArrays(engine.array_module), parameters, np.dtype(dtype), space.sizes[place])


def derived_tangents(space, engine, flat, direction, dtype):
    """Return the tangents of derived weights, (space.derived_size,), for a direction of the parameters."""
    made = engine.array_module.zeros(space.derived_size, dtype)
    for place, kinds in space.derived.items():
        values = _values(space, engine, flat, direction, dtype, place)
        for derived in kinds.values():
            for number, term in enumerate(derived.terms):
                value = values.of(term)
                if isinstance(value, Dual):
                    _put(derived.rows(derived.of(made), number), value.tangent, derived.groups)
    return made


def pulled_back(space, engine, flat, direction, of_derived, made, dtype):
    """Add to the gradients of parameters, and of their direction, those that come from derived weights.

    With a for the gradient of tangents and b for that of values, a + b e is pulled back: the result is so, too.

    of_derived: the gradients of derived weights, and of their tangents. made: the flat gradients to add to."""
    for place, kinds in space.derived.items():
        values, gradients = _values(space, engine, flat, direction, dtype, place), {}
        for derived in kinds.values():
            for number, term in enumerate(derived.terms):
                shape = values.shape(term)
                b, a = (_part(derived.rows(derived.of(one), number), shape, derived.groups) for one in of_derived)
                values.pull_back(
                    term, Dual(*(one.reshape(shape) if one.ndim == 3 else one for one in (a, b))), gradients
                )
        for name, (_, where, _) in space.blocks[place].items():
            if name in gradients:
                found = _dual(gradients[name])
                made[0][where] += found.tangent.reshape(-1)
                made[1][where] += found.value.reshape(-1)
