"""What kernels read of the parameters of a stack of layers: views of its flat buffer, by layer and direction."""

from functools import cached_property

from numbarnn.kernels.step.groups import Parameters
from numbarnn.weights.formed import FormedWeights


class KernelWeights:
    """What kernels read of a stack's flat buffer of parameters; the last buffer's is kept.

    Args:
        engine: of the stack. problem: any `Problem` of it: what depends on the call is not looked at.
    """

    def __init__(self, engine, problem):
        self._engine, self._problem, self._space = engine, problem, problem.space
        self._known = (None, None)  # the last flat buffer, and what kernels read of it

    def of(self, flat):
        """What kernels read of a flat buffer.

        Returns:
            [layer][direction] -> `Parameters`, views, with zeros for biases that the stack does not have; the buffer
            that kernels know them by; a `FormedWeights`, or None where that is the parameters' own.
        """
        known, found = self._known  # one read: another thread may change them
        if known is not flat:
            found = self._of(flat)
            self._known = (flat, found)
        return found

    def _of(self, flat):
        problem, formed = self._problem, None
        if self._space.formed_size:
            formed = FormedWeights(self._space, self._engine, flat, problem.dtype)
        arrays = (flat, None) if formed is None else (formed.flat, formed.formed)
        sizes = enumerate(zip(problem.hidden_sizes, problem.output_sizes, strict=True))
        found = [
            [self._parameters_at(arrays, (layer, direction), *size) for direction in range(problem.directions)]
            for layer, size in sizes
        ]
        return found, arrays[0], formed

    def _parameters_at(self, arrays, place, hidden, width):
        """Those of one layer, of H units and an h of that width, and direction."""
        flat, formed = arrays
        parts = self._space.pseudo_layer(flat, *place, formed)
        sizes = {"b_w": self._problem.cell.num_gates * hidden, "b_r": self._problem.cell.num_ah * hidden}
        zeros = {kind: self._no_bias[:size] for kind, size in sizes.items() if kind not in parts}
        if "R" not in parts:
            zeros["R"] = self._no_bias[:0].reshape(0, width)
        return Parameters(**parts, **zeros)

    @cached_property
    def _no_bias(self):
        gates = max(self._problem.cell.num_gates, self._problem.cell.num_ah)
        return self._engine.zeros(gates * max(self._problem.hidden_sizes), self._problem.dtype)
