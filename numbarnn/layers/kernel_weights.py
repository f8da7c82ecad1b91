"""What kernels read of the parameters of a stack of layers: views of its flat buffer, by layer and direction."""

from numbarnn.kernels.step.groups import Parameters
from numbarnn.weights.formed import FormedWeights


class KernelWeights:
    """What kernels read of a stack's flat buffer of parameters.

    Args:
        engine: of the stack. problem: any `Problem` of it: what depends on the call is not looked at.
    """

    def __init__(self, engine, problem):
        self.engine, self.problem = engine, problem
        gates = max(problem.cell.num_gates, problem.cell.num_ah)
        self.no_bias = engine.zeros(gates * max(problem.hidden_sizes), problem.dtype)  # in place of missing biases
        self._last = None  # the `ReadWeights` of the last flat buffer: finding its views takes 20 us per layer

    def of(self, flat):
        """Return the `ReadWeights` of a flat buffer that later calls use too."""
        last = self._last  # one read: another thread may change it
        if last is None or last.parameters is not flat:
            last = self._last = ReadWeights(self, flat)
        return last


class ReadWeights:
    """What kernels read of one flat buffer of parameters.

    Args:
        owner: the `KernelWeights`. parameters: the flat buffer. allocate: see `FormedWeights`.

    Attributes:
        parameters: the flat buffer.
        formed: a `FormedWeights`; None where kernels read nothing but the parameters.
        flat: the buffer that kernels know weights by: the parameters, or that of `formed`.
        no_bias: the zeros that stand for biases.
    """

    def __init__(self, owner, parameters, allocate=None):
        problem, self._owner, self._problem, self.parameters = owner.problem, owner, owner.problem, parameters
        self.formed, self.no_bias, self._views = None, owner.no_bias, None
        if problem.space.formed_size:
            self.formed = FormedWeights(problem.space, owner.engine, parameters, problem.dtype, allocate)
        self.flat = parameters if self.formed is None else self.formed.flat

    @property
    def views(self):
        """[layer][direction] -> `Parameters`, with zeros for biases that the stack does not have; found when first
        asked for, as calls that an engine replays do not need them."""
        if self._views is None:
            sizes = enumerate(zip(self._problem.hidden_sizes, self._problem.output_sizes, strict=True))
            directions = range(self._problem.directions)
            self._views = [[self._views_at((layer, d), *size) for d in directions] for layer, size in sizes]
        return self._views

    def _views_at(self, place, hidden, width):
        """Those of one layer, of H units and an h of that width, and direction."""
        cell, formed = self._problem.cell, self.formed and self.formed.formed
        parts = self._problem.space.pseudo_layer(self.flat, *place, formed)
        sizes = {"b_w": cell.num_gates * hidden, "b_r": cell.num_ah * hidden}
        zeros = {kind: self.no_bias[:size] for kind, size in sizes.items() if kind not in parts}
        if "R" not in parts:
            zeros["R"] = self.no_bias[:0].reshape(0, width)
        return Parameters(**parts, **zeros)

    def of_copy(self, parameters, allocate=None):
        """Return the same of another flat buffer, which is one call's own."""
        return ReadWeights(self._owner, parameters, allocate)

    def of_chain(self, places):
        """Return the same of some layers of one direction: [(layer, direction)]."""
        return ChainWeights(self, places)


class ChainWeights:
    """What kernels read of some of a stack's layers, in one direction.

    Args:
        whole: the `ReadWeights` of the stack. places: [(layer, direction)].
    """

    formed = None  # once for all chains

    def __init__(self, whole, places):
        self.flat, self.no_bias = whole.flat, whole.no_bias
        self.views = [[whole.views[layer][direction]] for layer, direction in places]
