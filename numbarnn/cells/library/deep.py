"""Steps of several products, one after the other."""

from dataclasses import replace
from functools import cache

from numbarnn.cells.functions import sigmoid, tanh
from numbarnn.cells.tracing import cell


def recurrent_highway(depth=2):
    """Recurrent highway network: a step is `depth` highway layers, of which the first sees x; the same object for the
    same depth.

    Zilly et al. 2017, arXiv:1607.03474, with carry gate 1 - t.

    Args:
        depth: layers, from 1 on; each after the first is one more product.
    """
    if not isinstance(depth, int) or isinstance(depth, bool) or depth < 1:
        raise ValueError(f"depth must be an int from 1 on, the number of highway layers of a step, not {depth!r}")
    return _highway(depth)


@cache
def _highway(depth):
    @cell(name=f"recurrent_highway_{depth}")
    def highway(x, h, p):
        for layer in range(1, depth + 1):
            candidate = getattr(p.R, f"h{layer}") @ h + getattr(p.b, f"h{layer}")
            gate = getattr(p.R, f"t{layer}") @ h + getattr(p.b, f"t{layer}")
            if layer == 1:
                candidate, gate = p.W.h @ x + candidate, p.W.t @ x + gate
            t = sigmoid(gate)
            h = tanh(candidate) * t + h * (1 - t)
        return h

    return replace(highway, origin=(recurrent_highway, (depth,)))
