"""What kernels read of a cell's parameters where that is not the parameters themselves, formed once per call.

A cell's `Layout` says by `Term`s what it is: `p.R.a - p.R.a.T`, p.scalar.alpha for every unit, the rows of the matrices
that one array is to have. `FormedWeights.form` computes it before a forward or a backward pass; `pull_back` takes the
gradients of it, which kernels compute, to those of the parameters, after one. Both are array code, NumPy's or CuPy's,
one pass over each matrix; what kernels read as it is is not copied.
"""

import numpy as np

from numbarnn.cells.layout import parameters_in
from numbarnn.common.precision import compute_dtype
from numbarnn.weights.space import OWN


class FormedWeights:
    """The parameters of a stack of layers as its kernels read them.

    Args:
        space: the `WeightSpace`.
        engine: of the stack.
        flat: the flat buffer of parameters.
        dtype: its dtype, a name.

    Attributes:
        flat: the buffer that kernels know weights by: the parameters', or, on an engine whose kernels know them by
            their places in one array, a copy with `formed` behind it.
        formed: (space.formed_size,).
    """

    def __init__(self, space, engine, flat, dtype):
        self._space, self._engine, self._parameters, self._blocks = space, engine, flat, space.blocks
        if engine.weights_in_one:
            self.flat = engine.empty((space.size + space.formed_size,), dtype)
            self.formed = self.flat[space.size :]
        else:
            self.flat, self.formed = flat, engine.empty((space.formed_size,), dtype)
        self._wide = np.dtype(compute_dtype(dtype))
        self._views = {
            place: {name: flat[where].reshape(shape) for name, (_, where, shape) in own.items()}
            for place, own in self._blocks.items()
        }
        self._live, self._known, self._fixed = self._bits(), None, {}

    def _bits(self):
        """A view of the bits of all parameters that stand in what is formed, and of what is between them; None where
        looking at them would be waiting for a device."""
        if self._engine.array_module is not np or self.flat is not self._parameters:
            return None
        inside = [
            self._blocks[place][name][1]
            for place, kinds in self._space.formed.items()
            for name in parameters_in([term for made in kinds.values() for term in made.terms])
        ]
        first = min((where.start for where in inside), default=0)
        last = max((where.stop for where in inside), default=0)
        return self._parameters[first:last].view(f"u{self._parameters.itemsize}")

    def form(self):
        """Compute it, of the parameters as they are now, unless that has been done for just these numbers.

        Several threads may do so at once: each writes finished numbers, the same ones.
        """
        if self._live is not None:
            if self._known is not None and (self._live == self._known).all():
                return
            known = self._live.copy()
        engine, space = self._engine, self._space
        with engine.activate():
            engine.follow()
            if self.flat is not self._parameters:
                self.flat[: space.size] = self._parameters
            for place, kinds in space.formed.items():
                values = self._values(place)
                for made in kinds.values():
                    out = self.formed[made.offset : made.offset + made.size].reshape(made.shape)
                    for rows, term in _rows(made):
                        _put(out[rows], values.of(term))
        if self._live is not None:
            self._known = known

    def pull_back(self, dw, d_formed, accumulate):
        """dw (+)= the gradients of the parameters that stand in what is formed.

        Args:
            dw: laid out as the parameters; of those that kernels read as they are it has the gradients already.
            d_formed: the gradient of `formed`.
            accumulate: add to dw.
        """
        with self._engine.activate():
            for place, kinds in self._space.formed.items():
                values, found = self._values(place), {}
                for made in kinds.values():
                    d = d_formed[made.offset : made.offset + made.size].reshape(made.shape)
                    for rows, term in _rows(made):
                        d_rows = d[rows].astype(self._wide, copy=False)
                        add_gradients(values, term, d_rows[_where(np.shape(values.of(term)))], found)
                for name, (part, where, shape) in self._blocks[place].items():
                    read = part.kind not in (*kinds, *OWN)  # by kernels, as it is
                    if name in found or not read:
                        own, total = dw[where].reshape(shape), found.get(name, 0)
                        own[...] = own.astype(self._wide, copy=False) + total if accumulate or read else total

    def _values(self, place):
        values = Values(self._engine.array_module, self._views[place], self._wide, self._space.sizes[place])
        values.fixed = self._fixed.setdefault(place, values.fixed)
        return values


def _rows(made):
    """(slice of its rows, term) of each term of a `Formed`."""
    rows = made.shape[0] // len(made.terms)
    for number, term in enumerate(made.terms):
        yield slice(number * rows, (number + 1) * rows), term


def _where(shape):
    """The part of a gate's H rows that a value of that shape fills; all of them, where it is a number."""
    return tuple(map(slice, shape))


def _put(out, value):
    """A gate's H rows of a value, that of a state of fewer units too.

    Units beyond the state's are copies of its last one, so that they are finite where it is; they multiply with zeros.
    """
    shape = np.shape(value)
    if shape in ((), out.shape):
        out[...] = value
    else:
        rows = shape[0]
        out[...] = 0
        out[_where(shape)] = value
        out[rows:] = out[rows - 1]


class Values:
    """The values of terms, each computed once.

    Args:
        arrays: numpy, or a module with its functions.
        parameters: name -> array. dtype: to compute in.
        sizes: letter -> int.

    Attributes:
        fixed: term -> the value of what does not depend on parameters; other `Values` of these sizes may share it.
    """

    def __init__(self, arrays, parameters, dtype, sizes):
        self.arrays, self.parameters, self.dtype, self._sizes = arrays, parameters, dtype, sizes
        self._known, self.fixed = {}, {}

    def of(self, term):
        """An array, or a number."""
        value = self._known.get(term)
        if value is None:
            value = self._known[term] = self._computed(term)
        return value

    def _computed(self, term):
        if term.op in OPERATIONS:
            return OPERATIONS[term.op](*(self.of(one) for one in term.args))
        if term.op in ("number", "zero"):
            return term.data or 0.0
        if term.op in ("constant", "eye", "lower"):
            if term not in self.fixed:
                self.fixed[term] = self._fixed(term)
            return self.fixed[term]
        return self.parameter(term.data)

    def _fixed(self, term):
        if term.op == "constant":
            return self.constant(term.data.of(self._sizes))
        size = self._sizes.get(term.data, term.data)
        if term.op == "eye":
            return self.arrays.eye(size, dtype=self.dtype)
        return self.arrays.tril(self.arrays.ones((size, size), dtype=self.dtype))

    def parameter(self, name):
        """One parameter, to compute with."""
        return self.parameters[name].astype(self.dtype, copy=False)

    def constant(self, array):
        """A NumPy array, likewise."""
        return self.arrays.asarray(array, self.dtype)


OPERATIONS = {
    "transpose": lambda a: a.T,
    "neg": lambda a: -a,
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "divide": lambda a, b: a / b,
    "product": lambda a, b: a @ b,
}

#: Operation -> the gradients of its arguments: of g, the gradient of its value, and the values of the arguments.
DERIVATIVES = {
    "transpose": (lambda g, a: g.T,),
    "neg": (lambda g, a: -g,),
    "add": (lambda g, a, b: g, lambda g, a, b: g),
    "sub": (lambda g, a, b: g, lambda g, a, b: -g),
    "mul": (lambda g, a, b: g * b, lambda g, a, b: g * a),
    "divide": (lambda g, a, b: g / b, lambda g, a, b: -g * a / (b * b)),
    "product": (lambda g, a, b: g @ b.T, lambda g, a, b: a.T @ g),
}


def add_gradients(values, term, g, found):
    """Add what a term's gradient g comes to for its parameters to `found`, name -> gradient."""
    if term.op in ("parameter", "fill"):
        g = g if np.ndim(values.of(term)) else g.sum()  # one number per layer
        found[term.data] = found[term.data] + g if term.data in found else g
    for argument, derivative in zip(term.args, DERIVATIVES.get(term.op, ()), strict=True):
        if parameters_in((argument,)):
            add_gradients(values, argument, derivative(g, *map(values.of, term.args)), found)
