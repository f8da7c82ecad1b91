"""A cell as an argument of compiled CPU code: a type that carries the cell's equations.

`cpu_loops` calls the functions below with a tag; each stands for one of the cell's. So the loops are ordinary
module-level functions, which Numba compiles per cell and caches on disk.
"""

import hashlib
import inspect
import sys

from numba import types
from numba.extending import NativeValue, models, overload, register_model, typeof_impl, unbox

from numbarnn import gemm
from numbarnn.cells import Cell, definition, order, scalar, specialise, units
from numbarnn.cells.definition import FAST_MATH, Inner
from numbarnn.engines import atomics

INLINE = dict(forceinline=True, fastmath=FAST_MATH, error_model="numpy")


class CellTag:
    """A cell as an argument of a compiled function."""

    def __init__(self, cell: Cell):
        self.cell = cell
        self._numba_type_ = CellTagType(cell)  # where Numba's fast path looks for the type of an argument


class CellTagType(types.Type):
    """Numba's type of a `CellTag`: the cell's name and a digest of sources, which keys the disk cache.

    Numba itself compiles again only when the file of the compiled function changes; what that function takes from
    other files must be in the digest.
    """

    def __init__(self, cell):
        self.cell = cell
        modules = {sys.modules[function.__module__] for function in (cell.forward, cell.backward)}
        modules |= {definition, order, scalar, units, gemm, atomics, sys.modules[__name__]}
        sources = sorted(inspect.getsource(module) for module in modules)
        digest = hashlib.sha256("".join(sources).encode()).hexdigest()[:16]
        super().__init__(name=f"CellTag({cell.name}, {digest})")


register_model(CellTagType)(models.OpaqueModel)


@typeof_impl.register(CellTag)
def _typeof_tag(value, context):
    return value._numba_type_


@unbox(CellTagType)
def _unbox_tag(typ, obj, c):
    return NativeValue(c.context.get_dummy_value())


def _per_cell(select):
    """A function f(tag, *arguments) for compiled code that calls select(cell, dtype), the dtype that of its last
    argument (a tuple of scalars, or an array)."""

    def function(tag, *arguments):
        raise NotImplementedError("only for compiled code")

    @overload(function, jit_options=INLINE)
    def _typed(tag, *arguments):
        dtype = str(getattr(arguments[-1], "dtype", None)) if arguments else None
        device_function = select(tag.cell, dtype)

        def call(tag, *arguments):
            return device_function(*arguments)

        return call

    return function


# Of cells whose steps have one product the compiled loops need types, not results: these are never called.
_NO_INNER = Inner(0, lambda ax, ah, state: state[0], lambda kept, dv, state: (kept, dv))


def _inner(cell):
    return cell.inner or _NO_INNER


cell_forward = _per_cell(lambda cell, dtype: specialise(cell.forward, dtype, "cpu"))
cell_backward = _per_cell(lambda cell, dtype: specialise(cell.backward, dtype, "cpu"))
load_pre_activations = _per_cell(lambda cell, _: units.biased_loader(cell.num_gates, "cpu"))
inner_forward = _per_cell(lambda cell, dtype: specialise(_inner(cell).forward, dtype, "cpu"))
inner_backward = _per_cell(lambda cell, dtype: specialise(_inner(cell).backward, dtype, "cpu"))
load_outer = _per_cell(lambda cell, _: units.biased_loader(cell.num_outer, "cpu"))
load_kept = _per_cell(lambda cell, _: units.loader(cell.num_outer, "cpu"))
store_outer = _per_cell(lambda cell, _: units.storer(cell.num_outer, "cpu"))
load_private = _per_cell(lambda cell, _: units.loader(cell.num_private, "cpu"))
load_saved = _per_cell(lambda cell, _: units.loader(cell.num_saved, "cpu"))
store_states = _per_cell(lambda cell, _: units.storer(cell.num_states, "cpu"))
store_saved = _per_cell(lambda cell, _: units.storer(cell.num_saved, "cpu"))
store_gates = _per_cell(lambda cell, _: units.storer(cell.num_gates, "cpu"))


def _constant(attribute):
    """A function f(tag) for compiled code that is an attribute of the cell."""

    def function(tag):
        raise NotImplementedError("only for compiled code")

    @overload(function, jit_options=INLINE)
    def _typed(tag):
        value = getattr(tag.cell, attribute)
        return lambda tag: value

    return function


num_gates = _constant("num_gates")
num_outer = _constant("num_outer")
num_private = _constant("num_private")
num_states = _constant("num_states")
num_saved = _constant("num_saved")
same_gradient = _constant("same_gradient")
