"""What kernels read of a cell's parameters where that is not the parameters themselves, formed once per call.

A cell's `Layout` says by `Term`s what it is: `p.R.a - p.R.a.T`, p.scalar.alpha for every unit, the rows of the matrices
that one array is to have. `FormedWeights.form` computes it before a forward or a backward pass; `pull_back` takes the
gradients of it, which kernels compute, to those of the parameters, after one. Both are array code, NumPy's or CuPy's;
what kernels read as it is is not copied.
"""

import numpy as np

from numbarnn.cells.layout import SCALARS, Term, parameters_in
from numbarnn.common.precision import compute_dtype, known_dtype
from numbarnn.weights.space import OWN


class FormedWeights:
    """The parameters of a stack of layers as its kernels read them.

    Args:
        space: the `WeightSpace`.
        engine: of the stack.
        flat: the flat buffer of parameters.
        dtype: its dtype, a name.
        in_one: kernels know weights by their places in one array.
        allocate: function (name, shape, dtype) for memory that a later call may find again; None: new memory.

    Attributes:
        flat: the buffer that kernels know weights by: the parameters', or `in_one` a copy with `formed` behind it.
        formed: (space.formed_size,).
    """

    def __init__(self, space, engine, flat, dtype, in_one, allocate=None):
        allocate = allocate or engine.allocate(flat)
        self._space, self._engine, self._parameters, self._blocks = space, engine, flat, space.blocks
        if in_one:
            self.flat = allocate("formed", (space.size + space.formed_size,), known_dtype(dtype))
            self.formed = self.flat[space.size :]
        else:
            self.flat, self.formed = flat, allocate("formed", (space.formed_size,), known_dtype(dtype))
        self._wide = np.dtype(compute_dtype(dtype))
        self._views = {
            place: {name: flat[where].reshape(shape) for name, (_, where, shape) in own.items()}
            for place, own in self._blocks.items()
        }
        self._live, self._known, self._fixed, self._gradients = self._bits(), None, {}, {}

    def _bits(self):
        """A view of the bits of all parameters that something is formed of, from the first to the last; None where to
        look at them would be to wait for a device."""
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
            known, self._known = self._live.copy(), None  # an interrupt may come before all is written
        engine, space = self._engine, self._space
        with engine.activate():
            engine.follow()
            if self.flat is not self._parameters:
                self.flat[: space.size] = self._parameters
            for place, kinds in space.formed.items():
                values = self._values(place)
                for made in kinds.values():
                    out = made.of(self.formed)
                    for number, term in enumerate(made.terms):
                        self._put(made.rows(out, number), values, term, made.groups)
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
                values = self._values(place)
                values.gradients = kinds, d_formed
                found = self._gradients.get(place)
                if found is None:
                    terms = {(kind, n): term for kind, made in kinds.items() for n, term in enumerate(made.terms)}
                    found = self._gradients[place] = gradients_of(terms)
                for name, (part, where, shape) in self._blocks[place].items():
                    read = part.kind not in (*kinds, *OWN)  # by kernels, as it is
                    own = dw[where].reshape(shape)
                    if name in found:
                        self._set(own, values, found[name], accumulate or read)
                    elif not read and not accumulate:
                        own[...] = 0

    def _put(self, out, values, term, groups):
        """A gate's rows of a term's value, that of h or a state of fewer units than kernels have too.

        Units beyond are copies of the last one, so that they are finite where it is; they multiply with zeros.
        """
        shape = values.shape(term)
        if shape in ((), out.shape):
            self._set(out, values, term, add=False)
            return
        rows, part = shape[0], _part(out, shape, groups)
        if part.ndim == 3:
            part[...] = values.of(term).reshape(part.shape)
        else:
            self._set(part, values, term, add=False)
        if len(shape) == 2:
            out.reshape(len(out), groups, -1)[:rows, :, shape[1] // groups :] = 0
        out[rows:] = out[rows - 1]

    def _set(self, out, values, term, add):
        """out = a term's value, or +=."""
        value = values.of(term)
        out[...] = out.astype(self._wide, copy=False) + value if add else value

    def _values(self, place):
        values = Values(self._engine.array_module, self._views[place], self._wide, self._space.sizes[place])
        values.fixed = self._fixed.setdefault(place, values.fixed)
        return values


def _part(array, shape, groups):
    """The part of a gate's rows that a value of that shape fills, a view: (rows, groups, columns of one) of several
    groups of columns; all of it, where the value is a number."""
    if groups > 1:
        return array.reshape(len(array), groups, -1)[: shape[0], :, : shape[1] // groups]
    return array[tuple(map(slice, shape))]


class Values:
    """The values of terms, each computed once.

    Args:
        arrays: numpy, or a module with its functions.
        parameters: name -> array. dtype: to compute in.
        sizes: letter -> int.

    Attributes:
        fixed: term -> the value of what does not depend on parameters; other `Values` of these sizes may share it.
        gradients: (kind -> `Formed`, the gradients of all that is formed as one array), for terms of `gradients_of`.
    """

    gradients = None

    def __init__(self, arrays, parameters, dtype, sizes):
        self.arrays, self.parameters, self.dtype, self._sizes = arrays, parameters, dtype, sizes
        self._known, self.fixed = {}, {}

    def of(self, term):
        """An array, or a number."""
        value = self._known.get(term)
        if value is None:
            value = self._known[term] = self._computed(term)
        return value

    def shape(self, term):
        """The shape of a term's value, which need not be computed for it."""
        if term.op == "parameter":
            return self.parameters[term.data].shape
        if term.op in ("eye", "lower"):
            return (self._sizes.get(term.data, term.data),) * 2
        if term.op == "constant":
            return self.of(term).shape
        if term.op == "transpose":
            return self.shape(term.args[0])[::-1]
        if term.op == "product":
            return self.shape(term.args[0])[0], self.shape(term.args[1])[1]
        return next((shape for shape in map(self.shape, term.args) if shape), ())

    def _computed(self, term):
        if term.op in OPERATIONS:
            return OPERATIONS[term.op](*(self.of(one) for one in term.args))
        if term.op in ("number", "zero"):
            return term.data or 0.0
        if term.op in ("constant", "eye", "lower"):
            if term not in self.fixed:
                self.fixed[term] = self._fixed(term)
            return self.fixed[term]
        if term.op == "gradient":
            kinds, d_formed = self.gradients
            kind, number = term.data
            made = kinds[kind]
            shape = self.shape(made.terms[number])
            d = _part(made.rows(made.of(d_formed), number), shape, made.groups)
            return (d.reshape(shape) if d.ndim == 3 else d).astype(self.dtype, copy=False)
        if term.op == "sum":
            return self._sum(*term.args)
        return self.parameter(term.data)

    def _sum(self, term):
        """The sum of all elements of a term's value; of products row by row, without an array of them."""
        if term.op == "mul" and not any(map(is_scalar, term.args)):
            one, other = term.args
            if "eye" in (one.op, other.op):
                return self.of(other if one.op == "eye" else one).trace()
            return self.arrays.einsum("ij,ij->i", self.of(one), self.of(other)).sum()
        return self.of(term).sum()

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


# --------------------------------------------------------------------------------- gradients of the parameters
# If kernels read the matrix `R.a - R.a.T`, and g is its gradient, then the gradient of R.a is `g - g.T`. Such a
# gradient is worked out once, as a `Term`, and computed by the code that computes the matrix. Besides a `Term`'s other
# operations there are
#
#     gradient    of a matrix that is formed; data: which      sum    of all elements of its argument
def gradients_of(terms):
    """Name of a parameter -> the `Term` of its gradient.

    Args:
        terms: a name for each formed matrix, anything hashable -> the matrix' `Term`.
    """
    found = {}
    for name, term in terms.items():
        _add_gradients(term, Term("gradient", data=name), found)
    return found


def _add_gradients(term, g, found):
    if term.op in ("parameter", "fill"):
        g = _sum(g) if is_scalar(term) else g
        found[term.data] = _add(found[term.data], g) if term.data in found else g
    for argument, derivative in zip(term.args, _DERIVATIVES.get(term.op, ()), strict=True):
        if parameters_in((argument,)):
            _add_gradients(argument, derivative(g, *term.args), found)


def is_scalar(term):
    """Whether a term is one number."""
    if term.op in ("number", "sum", "fill"):
        return True
    if term.op == "parameter":
        return term.data.startswith(SCALARS)
    return bool(term.args) and term.op != "product" and all(map(is_scalar, term.args))


# --------------------------------------------------------------------------------- terms, with signs taken to the front
def _neg(a):
    return a.args[0] if a.op == "neg" else Term("neg", (a,))


def _signed(op, *args):
    """The term of an operation that is linear in its first argument."""
    if args[0].op == "neg":
        return _neg(Term(op, (args[0].args[0], *args[1:])))
    return Term(op, args)


def _add(a, b):
    return Term("sub", (a, b.args[0])) if b.op == "neg" else Term("add", (a, b))


def _sum(a):
    return a if is_scalar(a) else _signed("sum", a)


def _transpose(a):
    return a.args[0] if a.op == "transpose" else _signed("transpose", a)


#: Operation -> for each argument a function of g, the gradient of the operation's value, and of all arguments, that
#: gives the argument's gradient.
_DERIVATIVES = {
    "transpose": (lambda g, a: _transpose(g),),
    "neg": (lambda g, a: _neg(g),),
    "add": (lambda g, a, b: g, lambda g, a, b: g),
    "sub": (lambda g, a, b: g, lambda g, a, b: _neg(g)),
    "mul": (lambda g, a, b: _signed("mul", g, b), lambda g, a, b: _signed("mul", g, a)),
    "divide": (
        lambda g, a, b: _signed("divide", g, b),
        lambda g, a, b: _neg(_signed("divide", _signed("mul", g, a), Term("mul", (b, b)))),
    ),
    "product": (
        lambda g, a, b: _signed("product", g, _transpose(b)),
        lambda g, a, b: Term("product", (_transpose(a), g)),
    ),
}
