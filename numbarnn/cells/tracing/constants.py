"""Constants of equations that depend on the hidden size: `numbarnn.constant(lambda H: ...)` and `numbarnn.eye()`."""

import operator

import numpy as np

from numbarnn.cells.layout import Constant, Term
from numbarnn.cells.tracing.graph import add_operators
from numbarnn.cells.tracing.values import Traced


class ConstantOfH:
    """An array that depends on H: a vector (H,) or a matrix left of @. It also works with NumPy arrays."""

    __array_ufunc__ = None  # NumPy's operators call ours

    def __init__(self, function):
        self.data = Constant(function=function)

    def __repr__(self):
        return f"numbarnn.constant({self.data})"

    def term(self):
        return Term("constant", data=self.data)

    def _array_for(self, other):
        """Return its array for an operation with `other`, whose first axis has length H."""
        array = self.data.of({"H": len(other)})
        return array[:, None] if array.ndim == 1 < np.ndim(other) else array

    def _operation(self, op, left, right):
        function, other = getattr(operator, op), right if left is self else left
        if isinstance(other, Traced):
            return NotImplemented
        return self._computed(function if left is self else lambda a, b: function(b, a), other)

    def _computed(self, function, other):
        """Apply a function to this array and another; the result depends on H unless `other` is an array."""
        own = self.data.function
        if isinstance(other, ConstantOfH):
            return ConstantOfH(lambda H: function(np.asarray(own(H)), np.asarray(other.data.function(H))))
        if np.ndim(other) == 0:
            return ConstantOfH(lambda H: function(np.asarray(own(H)), other))
        return function(self._array_for(other), other)

    def __matmul__(self, other):
        if isinstance(other, Traced):
            return NotImplemented  # so that Traced.__rmatmul__ handles it
        return self.data.of({"H": len(other)}) @ other

    def __neg__(self):
        return self * -1


add_operators(ConstantOfH, {name: name for name in ("add", "sub", "mul", "truediv")})


class Identity(ConstantOfH):
    """A multiple of the identity matrix, of the size that the expression needs."""

    T = property(lambda self: self)

    def __init__(self, scale=1.0):
        super().__init__(lambda H: scale * np.eye(H))
        self.scale = scale

    def __repr__(self):
        return "numbarnn.eye()" if self.scale == 1 else f"{self.scale} * numbarnn.eye()"

    def term(self):
        eye = Term("eye", data="numbarnn.eye() is square")
        return eye if self.scale == 1 else Term("mul", (Term("number", data=float(self.scale)), eye))

    def _array_for(self, other):
        return self.scale * np.eye(len(other), dtype=other.dtype)

    def _computed(self, function, other):
        if isinstance(other, Identity):
            return Identity(function(self.scale, other.scale))
        if np.ndim(other) == 0 and function(0.0, other) == 0:  # * and / by a number
            return Identity(function(self.scale, other))
        return super()._computed(function, other)

    def __matmul__(self, other):
        if isinstance(other, Traced):
            return NotImplemented
        return Identity(self.scale * other.scale) if isinstance(other, Identity) else self.scale * other

    def __rmatmul__(self, other):
        return other * self.scale
