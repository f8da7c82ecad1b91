"""Gradients of the parameters that a cell forms its matrices of.

If kernels read the matrix `R.a - R.a.T`, and g is its gradient, then the gradient of R.a is `g - g.T`. Such a gradient
is worked out once, as a `Term`, and computed by the code that computes the matrix. Besides a `Term`'s other operations
there are

    gradient    of a formed matrix; data: which      sum    of all elements of its argument
"""

from numbarnn.cells.layout import SCALARS, Term, parameters_in


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
