"""What kernels read of the parameters of a stack of layers: its flat buffer, and what is made of it."""

from numbarnn.weights.derived import DerivedWeights


class KernelWeights:
    """What kernels read of a stack's flat buffer of parameters.

    Args:
        engine: of the stack. problem: any `Problem` of it: what depends on the call is not looked at.
    """

    def __init__(self, engine, problem):
        self.engine, self.problem = engine, problem
        gates = max(problem.cell.num_gates, problem.cell.num_ah)
        self.no_bias = engine.zeros(gates * max(problem.hidden_sizes), problem.dtype)  # in place of missing biases
        self._last = None  # the `ReadWeights` of the last flat buffer: what is formed of it takes long to prepare

    def of(self, flat):
        """Return the `ReadWeights` of a flat buffer that later calls use too."""
        last = self._last  # one read: another thread may change it
        if last is None or last.parameters is not flat:
            last = self._last = ReadWeights(self.engine, self.problem, self.no_bias, flat)
        return last


class ReadWeights:
    """What kernels read of one flat buffer of parameters.

    Args:
        engine, problem, no_bias: of the `KernelWeights`. parameters: the flat buffer. allocate: see `DerivedWeights`.

    Attributes:
        parameters: the flat buffer.
        formed: a `DerivedWeights`; None where kernels read nothing but the parameters.
        flat: the buffer that kernels know weights by: the parameters, or that of `formed`.
    """

    def __init__(self, engine, problem, no_bias, parameters, allocate=None):
        self._of_stack, self.parameters, self.formed = (engine, problem, no_bias), parameters, None
        if problem.space.derived_size:
            options = problem.dtype, problem.weights_in_one, allocate
            self.formed = DerivedWeights(problem.space, engine, parameters, *options)
        self.flat = parameters if self.formed is None else self.formed.flat

    def arrays(self):
        """Name of a program's buffer -> array, of all that it reads."""
        apart = {} if self.formed is None else {"formed": self.formed.derived}
        return {"flat": self.flat, "no_bias": self._of_stack[-1]} | apart

    def form(self):
        """Before a program, make what kernels read in place of parameters; the host's array code does it, on the
        caller's stream."""
        if self.formed is not None:
            self.formed.form()

    def pull_back(self, dw, d_formed, accumulate):
        """After a program, turn the gradients of what is formed into those of the parameters, see `DerivedWeights`."""
        self.formed.pull_back(dw, d_formed, accumulate)

    def of_copy(self, parameters, allocate=None):
        """Return the same of another flat buffer, which is one call's own."""
        return ReadWeights(*self._of_stack, parameters, allocate)


class Formed:
    """Weights of a stack that have been formed, for its segments."""

    def __init__(self, read):
        self.parameters, self.flat, self.formed, self.arrays = read.parameters, read.flat, read.formed, read.arrays

    def form(self):
        """Once for all segments."""
