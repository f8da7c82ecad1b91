"""A cell as an argument of compiled CPU code: a type that carries the cell's equations.

`cpu_loops` calls the functions below with a tag; each stands for one of the cell's. So the loops are ordinary
module-level functions, which Numba compiles per cell and caches on disk.
"""

import hashlib
import inspect
import sys

import numpy as np
from numba import types
from numba.extending import NativeValue, models, overload, register_model, typeof_impl, unbox

from numbarnn import gemm
from numbarnn.cells import Cell, definition, order, scalar, specialise, units
from numbarnn.cells.definition import FAST_MATH, jit
from numbarnn.engines import atomics, cpu_products
from numbarnn.kernels.cubin_cache import fingerprint

INLINE = dict(forceinline=True, fastmath=FAST_MATH, error_model="numpy")


class CellTag:
    """A cell as an argument of a compiled function."""

    def __init__(self, cell: Cell):
        self.cell = cell
        self._numba_type_ = CellTagType(cell)  # where Numba's fast path looks for the type of an argument
        self._numba_type_.cell = cell  # the type may have been known by its name alone, from a file of Numba's


class CellTagType(types.Type):
    """Numba's type of a `CellTag`: the cell's name and a digest of sources, which keys the disk cache.

    Numba itself compiles again only when the file of the compiled function changes; what that function takes from
    other files must be in the digest.
    """

    def __init__(self, cell):
        self.cell = cell
        modules = definition, order, scalar, units, gemm, atomics, cpu_products, sys.modules[__name__]
        functions = [cell.forward, cell.backward]
        functions += [function for stage in cell.stages for function in (stage.forward, stage.backward)]
        layout = (
            cell.gates,
            cell.recurrent,
            [stage.gates for stage in cell.stages],
            cell.states,
            cell.saved,
            cell.vectors,
        )
        about = [inspect.getsource(module) for module in modules]
        about += [*map(fingerprint, functions), repr((layout, cell.same_gradient, cell.general))]
        digest = hashlib.sha256("".join(about).encode()).hexdigest()[:16]
        super().__init__(name=f"CellTag({cell.name}, {digest})")

    def __reduce__(self):
        """In Numba's files the type is its name: a cell's functions may be of a module that others cannot import."""
        return _known_by_name, (self.name,)


def _known_by_name(name):
    tag = CellTagType.__new__(CellTagType)
    types.Type.__init__(tag, name)
    tag.cell = None
    return CellTagType._intern(tag)


register_model(CellTagType)(models.OpaqueModel)


@typeof_impl.register(CellTag)
def _typeof_tag(value, context):
    return value._numba_type_


@unbox(CellTagType)
def _unbox_tag(typ, obj, c):
    return NativeValue(c.context.get_dummy_value())


def _per_cell(select, place=2):
    """A function f(tag, *arguments) for compiled code that calls select(cell, dtype), the dtype that of one of its
    arguments (a tuple of scalars that is not empty, or an array).

    Args:
        place: of that argument.
    """

    def function(tag, *arguments):
        raise NotImplementedError("only for compiled code")

    @overload(function, jit_options=INLINE)
    def _typed(tag, *arguments):
        dtype = str(getattr(arguments[place], "dtype", None)) if len(arguments) > place else None
        device_function = select(tag.cell, dtype)

        def call(tag, *arguments):
            return device_function(*arguments)

        return call

    return function


def _stage_vector(cell, dtype):
    """f(stage, ax, ah, state, vectors, sums, noise): the vector of a stage by its number."""
    chain = jit(lambda stage, ax, ah, state, vectors, sums, noise: state[0], "cpu")
    for number in reversed(range(len(cell.stages))):
        chain = _vector_or(number, specialise(cell.stages[number].forward, dtype, "cpu"), chain)
    return chain


def _vector_or(number, own, rest):
    def chain(stage, ax, ah, state, vectors, sums, noise):
        if stage == number:
            return own(ax, ah, state, vectors, sums, noise)
        return rest(stage, ax, ah, state, vectors, sums, noise)

    return jit(chain, "cpu")


def _stage_gradients(cell, dtype):
    """f(stage, dah, j, H, *what a stage's backward takes) stores the gradients of a stage's gates."""
    chain = jit(
        lambda stage, dah, j, H, saved, state, new_state, d_state, d_v, vectors, sums, d_sums, noise: None, "cpu"
    )
    for number in reversed(range(len(cell.stages))):
        own = specialise(cell.stages[number].backward, dtype, "cpu")
        store = units.storer(len(cell.stages[number].gates), "cpu")
        chain = _gradients_or(number, own, store, cell.first_of_stage(number), chain)
    return chain


def _gradients_or(number, own, store, first, rest):
    def chain(stage, dah, j, H, saved, state, new_state, d_state, d_v, vectors, sums, d_sums, noise):
        if stage == number:
            store(
                dah,
                j + H * np.uintp(first),
                H,
                own(saved, state, new_state, d_state, d_v, vectors, sums, d_sums, noise),
            )
        else:
            rest(stage, dah, j, H, saved, state, new_state, d_state, d_v, vectors, sums, d_sums, noise)

    return jit(chain, "cpu")


cell_forward = _per_cell(lambda cell, dtype: definition.forward_function(cell, dtype, "cpu"))
cell_backward = _per_cell(lambda cell, dtype: definition.backward_function(cell, dtype, "cpu"))
stage_vector = _per_cell(_stage_vector, place=3)
stage_gradients = _per_cell(_stage_gradients, place=1)
load_input = _per_cell(lambda cell, _: units.biased_loader(cell.num_gates, "cpu"))
load_recurrent = _per_cell(lambda cell, _: units.biased_loader(cell.num_recurrent, "cpu"))
load_vectors = _per_cell(lambda cell, _: units.loader(cell.num_vectors, "cpu"))
load_d_v = _per_cell(lambda cell, _: units.loader(len(cell.stages), "cpu"))
load_private = _per_cell(lambda cell, _: units.loader(cell.num_private, "cpu"))
load_saved = _per_cell(lambda cell, _: units.loader(cell.num_saved, "cpu"))
store_states = _per_cell(lambda cell, _: units.storer(cell.num_states, "cpu"))
store_saved = _per_cell(lambda cell, _: units.storer(cell.num_saved, "cpu"))
store_gates = _per_cell(lambda cell, _: units.storer(cell.num_gates, "cpu"))
store_outer = _per_cell(lambda cell, _: units.storer(cell.num_outer, "cpu"))
store_vectors = _per_cell(lambda cell, _: units.storer(cell.num_vectors, "cpu"))


def _constant(attribute):
    """A function f(tag) for compiled code that is an attribute of the cell, or a function of it."""

    def function(tag):
        raise NotImplementedError("only for compiled code")

    @overload(function, jit_options=INLINE)
    def _typed(tag):
        value = attribute(tag.cell) if callable(attribute) else getattr(tag.cell, attribute)
        return lambda tag: value

    return function


num_gates = _constant("num_gates")
num_outer = _constant("num_outer")
num_recurrent = _constant("num_recurrent")
num_vectors = _constant("num_vectors")
num_private = _constant("num_private")
num_states = _constant("num_states")
num_saved = _constant("num_saved")
same_gradient = _constant("same_gradient")
num_stages = _constant(lambda cell: len(cell.stages))


def stage_first(tag, stage):
    """Number of the first gate of ah of a stage."""
    raise NotImplementedError("only for compiled code")


@overload(stage_first, jit_options=INLINE)
def _stage_first_typed(tag, stage):
    firsts = tuple(tag.cell.first_of_stage(number) for number in range(len(tag.cell.stages) + 1))
    return lambda tag, stage: firsts[stage]
