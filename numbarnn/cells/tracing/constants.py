"""Constants of equations that depend on the hidden size: `numbarnn.constant(lambda H: ...)`."""

import operator

import numpy as np

from numbarnn.cells.layout import Constant, Term
from numbarnn.cells.tracing.values import Traced


class ConstantOfH:
    """An array that a function makes of H: a number per unit, (H,), or a matrix left of @; also among NumPy arrays.

    Args:
        function: H -> array.
    """

    __array_ufunc__ = None  # NumPy's operators leave it to these

    def __init__(self, function):
        self.data = Constant(function=function)

    def __repr__(self):
        return f"numbarnn.constant({self.data})"

    def term(self):
        """The `Term` of it."""
        return Term("constant", data=self.data)

    def _computed(self, function, other):
        """The function of this array and another, whose axis of units says H; of a number a function of H again."""
        own = self.data.function
        if isinstance(other, ConstantOfH):
            return ConstantOfH(lambda H: function(np.asarray(own(H)), np.asarray(other.data.function(H))))
        if np.ndim(other) == 0:
            return ConstantOfH(lambda H: function(np.asarray(own(H)), other))
        array = self.data.of({"H": len(other)})
        return function(array[:, None] if array.ndim == 1 < np.ndim(other) else array, other)

    def __matmul__(self, other):
        if isinstance(other, Traced):
            return NotImplemented  # it takes this as a matrix
        return self.data.of({"H": len(other)}) @ other

    def __neg__(self):
        return self * -1


def _operator(function):
    def forward(self, other):
        return NotImplemented if isinstance(other, Traced) else self._computed(function, other)

    def reflected(self, other):
        return NotImplemented if isinstance(other, Traced) else self._computed(lambda a, b: function(b, a), other)

    return forward, reflected


for _name in ("add", "sub", "mul", "truediv"):
    _forward, _reflected = _operator(getattr(operator, _name))
    setattr(ConstantOfH, f"__{_name}__", _forward)
    setattr(ConstantOfH, f"__r{_name}__", _reflected)
