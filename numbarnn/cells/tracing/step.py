"""`step`: the default of what equations get the number of the step as."""


class _Step:
    """The number of the step within its sequence, as a hyperparameter of equations:

        @cell
        def clocked(x, h, p, t=step):
            a = tanh(p.W.a @ x + p.R.a @ h)
            return where(t % 4 < 1, a, h)

    It is 0 in a sequence's first step, in either direction where that direction begins: the backward one at the
    sequence's last element. A reset begins with 0 again; steps beyond a sequence's length are not counted.

    It is one more state of the cell, the last one, by the name of the argument: a layer returns it, and a sequence that
    goes on with that state in another call goes on counting. As arrays of states are float32 at least, it is exact up
    to 2^24 steps. Equations that run as plain NumPy are given it: `cell.function(x, h, p, t=3)`.
    """

    def __repr__(self):
        return "numbarnn.step"

    __name__ = "step"

    def __reduce__(self):
        return "step"

    def __call__(self, *_):
        raise TypeError(
            "numbarnn.step is no function: the equations take it as an argument, f(x, h, p, t=numbarnn.step)"
        )


step = _Step()
