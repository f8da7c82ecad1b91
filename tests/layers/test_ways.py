"""How many functions of the package hand x and dy on, from the caller to the compiled function or kernel."""

import sys
from pathlib import Path

import numpy as np
import pytest

import numbarnn

PACKAGE = str(Path(numbarnn.__file__).parent)


class Way:
    """The functions that get an array, its copy at the place where a GPU's recording expects it, or a tuple or list
    with one of these, while the block runs; comprehensions and lambdas are no functions here."""

    def __init__(self, engine, array):
        self._engine, self._spans = engine, [self._span_of(engine, array)]
        self.functions = set()

    @staticmethod
    def _span_of(engine, array):
        return engine.address(array), engine.address(array) + array.nbytes

    def _has(self, value):
        if type(value) is self._engine.array_module.ndarray:
            first, end = self._span_of(self._engine, value)
            return any(first < other_end and other < end for other, other_end in self._spans)
        return isinstance(value, tuple | list) and any(map(self._has, value))

    def _see(self, frame, event, result):
        code = frame.f_code
        if not code.co_filename.startswith(PACKAGE) or code.co_name.startswith("<"):
            return
        where = code.co_filename, code.co_firstlineno, code.co_name
        if event == "return" and code.co_name == "settled" and where in self.functions and result is not None:
            self._spans.append(self._span_of(self._engine, result))
        arguments = (value for name, value in frame.f_locals.items() if name not in code.co_freevars)
        if event == "call" and any(map(self._has, arguments)):
            self.functions.add(where)

    def __enter__(self):
        self._before = sys.getprofile()
        sys.setprofile(self._see)

    def __exit__(self, *error):
        sys.setprofile(self._before)


@pytest.mark.parametrize("device, most", [("cpu", 16), pytest.param("cuda", 22, marks=pytest.mark.gpu)])
def test_x_and_dy_pass_through_few_functions(device, most):
    layer = numbarnn.RNN(4, 5, device=device, seed=0)
    module, random = layer.engine.array_module, np.random.default_rng(0)
    for _ in range(2):  # whoever comes first prepares what others find
        x, dy = (module.asarray(random.standard_normal((3, 2, size), np.float32)) for size in (4, 5))
        of_x, of_dy = Way(layer.engine, x), Way(layer.engine, dy)
        with of_x:
            tape = layer.forward(x)[-1]
        with of_dy:
            layer.backward(tape, dy)
        for way in (of_x, of_dy):
            assert 3 < len(way.functions) <= most, "\n".join(map(str, sorted(way.functions)))
