"""Derived weights: arrays that kernels read in place of a cell's parameters, such as p.R.a - p.R.a.T.

A cell's `Layout` defines them by `Term`s. `DerivedWeights.derive` computes them before a forward or backward pass.
After a backward pass `pull_back` turns their gradients into gradients of the parameters. Arrays are NumPy's or CuPy's.
"""

import numpy as np

from numbarnn.cells.layout import parameters_in
from numbarnn.common.precision import compute_dtype, known_dtype
from numbarnn.weights.space import OWN


class DerivedWeights:
    """The parameters of a stack of layers as its kernels read them.

    Args:
        space: the `WeightSpace`. engine: the stack's. flat: the flat buffer of parameters. dtype: the buffer's, a name.
        in_one: kernels read all weights from one array, so that `flat` becomes a copy, followed by `derived`.
        allocate: function (name, shape, dtype) that returns reusable memory. Default: new memory.

    Attributes: flat: the buffer that kernels read. derived: (space.derived_size,).
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
        if engine.array_module is np and not in_one:  # comparing parameters on a device would wait for it
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
        """Compute the derived weights, unless the parameters are unchanged.

        Several threads may call it at once, as all write the same numbers."""
        known = None
        if self._read is not None:
            if self._known is not None and (self._read == self._known).all():
                return
            known, self._known = self._read.copy(), None  # None until all is written, in case of an interrupt
        with self._engine.activate():
            self._engine.follow()
            if self.flat is not self._parameters:
                self.flat[: self._space.size] = self._parameters
            for place, kinds in self._space.derived.items():
                values = self._values(place)
                for derived in kinds.values():
                    for term, rows in derived.rows(self.derived):
                        _put(rows, values.of(term), derived.groups)
        self._known = known

    def pull_back(self, dw, d_derived, accumulate):
        """Set, or add to, the gradients in `dw` of the parameters from which weights are derived.

        d_derived: the gradient of `derived`. dw already has the gradients of parameters that kernels read directly."""
        with self._engine.activate():
            for place, kinds in self._space.derived.items():
                values, gradients = self._values(place), {}
                for derived in kinds.values():
                    for term, rows in derived.rows(d_derived):
                        g = _gradient(rows, values.shape(term), derived.groups)
                        values.pull_back(term, g.astype(values.dtype, copy=False), gradients)
                for name, (part, where, shape) in self._blocks[place].items():
                    read_directly = part.kind not in (*kinds, *OWN)
                    gradient = dw[where].reshape(shape)
                    if name in gradients:
                        g, add = gradients[name], accumulate or read_directly
                        gradient[...] = gradient.astype(values.dtype, copy=False) + g if add else g
                    elif not read_directly and not accumulate:
                        gradient[...] = 0


def _put(out, value, groups):
    """Write a term's value into a gate's rows, which may have more rows and columns than the value.

    Padding units copy the last unit, so that they stay finite, and padding columns are zero."""
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
    """Return the view of a gate's rows that a value of `shape` fills; with groups (rows, groups, columns of one)."""
    if groups > 1 and shape:
        return array.reshape(len(array), groups, -1)[: shape[0], :, : shape[1] // groups]
    return array[tuple(map(slice, shape))]


def _gradient(rows, shape, groups):
    """Return the gradient of a term's value of `shape` from the gradient of a gate's rows."""
    part = _part(rows, shape, groups)
    return part.reshape(shape) if part.ndim == 3 else part


class Values:
    """Compute the values of terms, each once, and their gradients.

    Args:
        arrays: numpy, or a module with its functions. parameters: name -> array. dtype: the dtype of the arithmetic.
        sizes: letter -> int. fixed: cache of the values of terms without parameters.
    """

    def __init__(self, arrays, parameters, dtype, sizes, fixed=None):
        self.arrays, self.parameters, self.dtype, self._sizes = arrays, parameters, dtype, sizes
        self._known, self._fixed = {}, {} if fixed is None else fixed

    def of(self, term):
        """Return a term's value, an array or a number."""
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
        return self.parameters[name].astype(self.dtype, copy=False)

    def constant(self, array):
        return self.arrays.asarray(array, self.dtype)

    def shape(self, term):
        """Return the shape of a term's value; parameters are not computed with."""
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
        """Add to `gradients`, name -> array, what follows from g, the gradient of a term's value.

        If kernels read the matrix R.a - R.a.T, R.a gets g - g.T."""
        if self.shape(term) == () and np.ndim(g):
            g = g.sum()
        if term.op in ("parameter", "fill"):
            gradients[term.data] = gradients[term.data] + g if term.data in gradients else g
        for argument, gradient in zip(term.args, OPERATIONS.get(term.op, (None,))[1:], strict=True):
            if parameters_in((argument,)):
                self.pull_back(argument, gradient(self, g, *term.args), gradients)

    def times(self, g, term, other):
        """Return the gradient g * `term` of a factor `other`, for a scalar its sum without an array of all products."""
        value = self.of(term)
        if self.shape(other) == () and np.ndim(value):
            return self.arrays.einsum("ij,ij->i", g, value).sum()
        return g * value


# Operation -> (function of the arguments' values; for each argument a function (`Values`, gradient g of the operation's
# value, arguments as `Term`s) -> the argument's gradient).
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
    """An array and its tangent, a + a' e with e e = 0, with the operations that terms have."""

    __array_ufunc__, __array_priority__ = None, 1000  # NumPy's and CuPy's operators call ours

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
    """The functions of an array module that `Values` needs, for `Dual`s."""

    def __init__(self, arrays):
        self.asarray = arrays.asarray

    def einsum(self, _, a, b):
        return a * b


def _values(space, engine, flat, direction, dtype, place):
    """Return the `Values` of one layer and direction as `Dual`s; `direction` has the tangents of `flat`, None: zero."""
    direction = engine.array_module.zeros_like(flat) if direction is None else direction
    parameters = {
        name: Dual(flat[where].reshape(shape), direction[where].reshape(shape))
        for name, (_, where, shape) in space.blocks[place].items()
    }
    return Values(_DualArrays(engine.array_module), parameters, np.dtype(dtype), space.sizes[place])


def derived_tangents(space, engine, flat, direction, dtype):
    """Return the tangents of derived weights, (space.derived_size,), for tangents `direction` of the parameters."""
    tangents = engine.array_module.zeros(space.derived_size, dtype)
    for place, kinds in space.derived.items():
        values = _values(space, engine, flat, direction, dtype, place)
        for derived in kinds.values():
            for term, rows in derived.rows(tangents):
                value = values.of(term)
                if isinstance(value, Dual):
                    _put(rows, value.tangent, derived.groups)
    return tangents


def pulled_back(space, engine, flat, direction, of_derived, of_parameters, dtype):
    """Pull the gradients of derived weights and of their tangents (`of_derived`) back to the parameters.

    The results are added to `of_parameters`, the flat gradients of parameters and of their tangents. A `Dual` whose
    value is the gradient of a tangent, and whose tangent is the gradient of a value, is pulled back like an array."""
    for place, kinds in space.derived.items():
        values, gradients = _values(space, engine, flat, direction, dtype, place), {}
        for derived in kinds.values():
            for (term, of_value), (_, of_tangent) in zip(*map(derived.rows, of_derived), strict=True):
                pair = (_gradient(rows, values.shape(term), derived.groups) for rows in (of_tangent, of_value))
                values.pull_back(term, Dual(*pair), gradients)
        for name, (_, where, _) in space.blocks[place].items():
            if name in gradients:
                gradient = _dual(gradients[name])
                of_parameters[0][where] += gradient.tangent.reshape(-1)
                of_parameters[1][where] += gradient.value.reshape(-1)
