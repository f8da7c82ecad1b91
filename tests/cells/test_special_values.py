"""All functions of equations at special numbers (special_values.py): as NumPy has them, on the CPU, in the GPU's code.

In the simulator: tests/test_every_engine.py.
"""

import numpy as np
import pytest
from numba import cuda
from numba.core import types

import special_values
from emulator import machine
from emulator.memory import Memory
from numbarnn.cells import functions
from numbarnn.cells.definition import Given
from numbarnn.common.precision import DTYPES, compute_dtype
from numbarnn.compile import units
from numbarnn.compile.specialise import forward_function
from numbarnn.cuda import compiler

THREADS = 64


def test_the_table_has_every_function_of_one_unit():
    others = (
        "sum mean layer_norm softmax logsumexp cumsum cumax dropout zoneout normal uniform heads drop_connect columns"
    )
    # Keras' hard_sigmoid is a clip of 0.2 x + 0.5, which are in the table
    others = {
        *others.split(),
        "hard_sigmoid_keras2",
        "chrono",
        "constant",
        "eye",
        "initial",
        "sized",
        "custom_derivative",
    }
    assert {*functions.__all__} == others | {*special_values.NAMES} & {*functions.__all__}


# Of both halves the code of cells is the same: they differ where numbers are loaded and stored.
@pytest.mark.parametrize("dtype", [*DTYPES[:3], pytest.param("bfloat16", marks=pytest.mark.full)])
def test_in_the_code_of_gpus(toolchain_installed, dtype):
    """As Numba compiles the cell's function for a GPU; an emulated GPU runs it."""
    names = special_values.NAMES
    if dtype == "float64":  # there these are calls of subroutines, which the emulator does not know
        names = tuple(name for name in names if name not in ("sin", "cos", "power"))
    cell = special_values.cell_of(names)
    forward, count = forward_function(cell, dtype, "cuda"), cell.num_states
    load, store = units.loader(count), units.storer(count)

    @cuda.jit
    def kernel(out, a, states, size):
        i = cuda.grid(1)
        if i < size:
            new, _ = forward((a[i],), (), load(states, i, size), Given((), (), ()))
            store(out, i, size, new)

    number = np.dtype(compute_dtype(dtype))
    a, b = (one.astype(number) for one in special_values.pairs(dtype))
    vector = types.Array(getattr(types, number.name), 1, "C")
    text = compiler.ptx(kernel, (vector, vector, vector, types.int64), (9, 0))
    memory, parameters, places = Memory(1 << 22), [], []
    for array in (np.full(count * len(a), np.nan, number), a, np.tile(b, count)):
        places.append(memory.allocate(array.nbytes))
        memory.array(places[-1], array.dtype, array.shape)[...] = array
        words = (0, 0, array.size, array.itemsize, places[-1], *array.shape, *array.strides)
        parameters += [np.int64(word).tobytes() for word in words]
    parameters.append(np.int64(len(a)).tobytes())
    with np.errstate(all="ignore"):
        machine.load(text).launch(memory, (-(-len(a) // THREADS), 1, 1), (THREADS, 1, 1), parameters)
    found = memory.array(places[0], number, (count, len(a)))[1:]
    special_values.require_equal(dict(zip(names, found, strict=True)), dtype)
