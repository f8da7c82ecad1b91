"""A cell as an argument of compiled CPU code: what `cell_steps` reads of it, such as `cell.num_gates` and
`cell.forward`.

Numba knows the attributes by the argument's type: numbers are constants, functions are those of the cell. So those of
`cell_steps` are ordinary module-level functions, which Numba compiles per cell and caches on disk.
"""

import hashlib
import sys
from functools import cache

import numpy as np
from numba import types
from numba.core.imputils import lower_getattr_generic
from numba.core.typing.templates import AttributeTemplate, infer_getattr
from numba.extending import NativeValue, models, register_model, typeof_impl, unbox

from numbarnn.cells import Cell, scalar
from numbarnn.common import philox
from numbarnn.compile import pipeline, plain, units
from numbarnn.compile import scalar as compiled_scalar
from numbarnn.compile import specialise as compiling
from numbarnn.compile.specialise import backward_function, forward_function, jit, specialise
from numbarnn.cuda.cubin_cache import fingerprint
from numbarnn.engines.cpu import cell_steps, records, vectors
from numbarnn.engines.cpu.disk_cache import code_of_module

WRITTEN = (
    *(scalar, compiled_scalar, compiling, pipeline, plain, units, philox),
    *(vectors, records, cell_steps, sys.modules[__name__]),
)


class CellTag:
    """A cell that computes in a dtype, as an argument of a compiled function."""

    def __init__(self, cell: Cell, dtype="float32"):
        self._numba_type_ = CellTagType(cell, dtype)  # where Numba's fast path looks for the type of an argument
        # The type may have been known by its name alone, from a file of Numba's.
        self._numba_type_.cell, self._numba_type_.dtype = cell, dtype


# ------------------------------------------------------------------------------------------ types
class _Described(types.Type):
    """A type whose attributes tell of a cell; `CellTag` says it of types that are known by their names alone."""

    cell = None

    def __reduce__(self):
        """In Numba's files the type is its name: a cell's functions may be of a module that others cannot import."""
        return _known_by_name, (type(self), self.name)


def _known_by_name(kind, name):
    known = kind.__new__(kind)
    types.Type.__init__(known, name)
    return kind._intern(known)


def _digest(cell):
    """Of all sources that become part of the compiled loops. Numba itself compiles again only when the file of the
    compiled function changes."""
    functions = [cell.forward, cell.backward]
    functions += [function for stage in cell.stages for function in (stage.forward, stage.backward)]
    stages = [(stage.gates, stage.sums, stage.largest) for stage in cell.stages]
    layout = cell.gates, cell.recurrent, stages, cell.states, cell.saved, cell.per_unit, cell.noise
    about = [code_of_module(module.__name__) for module in WRITTEN]
    about += [*map(fingerprint, functions), repr((layout, cell.same_gradient, cell.general))]
    return hashlib.sha256("".join(about).encode()).hexdigest()[:16]


class CellTagType(_Described):
    """Numba's type of a `CellTag`: the cell's name and a digest of sources, which keys the disk cache."""

    def __init__(self, cell, dtype):
        self.cell, self.dtype = cell, dtype
        super().__init__(name=f"CellTag({cell.name}, {dtype}, {_digest(cell)})")

    @property
    def of_cell(self):
        """The cell."""
        return self.cell

    @property
    def of_dtype(self):
        """The name of the dtype."""
        return self.dtype

    def attribute(self, name):
        return _attribute_of_cell(self.cell, self.dtype, name)

    def stage(self, number):
        """The type of a stage."""
        known = StageType(self, number)
        known.of, known.number = self, number  # as in `CellTag`
        return known


class StageType(_Described):
    """The type of a stage's tag: what the stage does not have itself, its cell has."""

    def __init__(self, of, number):
        self.of, self.number = of, number
        super().__init__(name=f"Stage({number}, {of.name})")

    @property
    def of_cell(self):
        """The cell that the stage is of."""
        return self.of.cell

    @property
    def of_dtype(self):
        """The name of its dtype."""
        return self.of.dtype

    def attribute(self, name):
        if name == "whole":  # the tag of its cell
            return self.of
        return _attribute_of_stage(self.of.cell, self.of.dtype, self.number, name)


for _type in (CellTagType, StageType):
    register_model(_type)(models.OpaqueModel)


@typeof_impl.register(CellTag)
def _typeof(value, context):
    return value._numba_type_


@unbox(CellTagType)
def _unbox(typ, obj, c):
    return NativeValue(c.context.get_dummy_value())


@infer_getattr
class _Attributes(AttributeTemplate):
    """The types of attributes."""

    key = _Described

    def generic_resolve(self, typ, name):
        value = typ.attribute(name)
        if isinstance(value, types.Type):
            return value
        if isinstance(value, bool | int):
            return types.boolean if isinstance(value, bool) else types.intp
        return types.Dispatcher(value)


@lower_getattr_generic(_Described)
def _constant(context, builder, typ, value, name):
    """The values of attributes; of a function its type is all there is."""
    found = typ.attribute(name)
    if isinstance(found, bool | int):
        return context.get_constant(types.boolean if isinstance(found, bool) else types.intp, found)
    return context.get_dummy_value()


def what_is_compiled(arguments):
    """(What, about how long) of a function of the CPU engine, by the Numba types of its arguments; for `notice`."""
    for one in arguments:
        if isinstance(one, _Described):
            return f"the cell {one.of_cell.name} for the CPU engine, {one.of_dtype}", "a few seconds"
    return "the CPU engine's loops and products", "a few seconds"


# ------------------------------------------------------------------------------------------ attributes
def _sums(cell, dtype):
    """f(row, H): `sums` as a cell's functions see it, from a row of all sums; H in units."""
    if not cell.num_sums:
        return jit(lambda row, H: (), "cpu")
    number, load, join = getattr(np, dtype), units.loader(cell.num_sums, "cpu"), units.joiner("cpu")
    return jit(lambda row, H: join(number(H), load(row, 0, 1)), "cpu")


def _noise(cell, dtype):
    """f(words, position, t, training): as `units.noise_loader`; in inference the means."""
    if not cell.noise:
        return jit(lambda words, position, t, training: (), "cpu")
    draw, mean = units.noise_loader(cell.noise, "cpu", dtype), units.mean_noise(cell.noise, "cpu", dtype)

    def numbers(words, position, t, training):
        return draw(words, position, t) if training else mean()

    return jit(numbers, "cpu")


def _zero(dtype):
    zero = getattr(np, dtype)(0)
    return jit(lambda: zero, "cpu")


_OF_CELL = {
    "zero": lambda cell, dtype: _zero(dtype),
    "forward": lambda cell, dtype: forward_function(cell, dtype, "cpu"),
    "backward": lambda cell, dtype: backward_function(cell, dtype, "cpu"),
    "load_input": lambda cell, _: units.biased_loader(cell.num_gates, "cpu"),
    "load_recurrent": lambda cell, _: units.biased_loader(cell.num_ah, "cpu"),
    "load_per_unit": lambda cell, _: units.loader(cell.num_per_unit, "cpu"),
    "load_private": lambda cell, _: units.loader(cell.num_private, "cpu"),
    "load_saved": lambda cell, _: units.loader(cell.num_saved, "cpu"),
    "load_sums": _sums,
    "load_d_sums": lambda cell, _: units.loader(cell.num_sums, "cpu"),
    "load_d_v": lambda cell, _: units.loader(cell.num_products, "cpu"),
    "load_noise": _noise,
    "store_states": lambda cell, _: units.storer(cell.num_states, "cpu"),
    "store_saved": lambda cell, _: units.storer(cell.num_saved, "cpu"),
    "store_gates": lambda cell, _: units.storer(cell.num_gates, "cpu"),
    "store_recurrent": lambda cell, _: units.storer(cell.num_recurrent, "cpu"),
    "store_per_unit": lambda cell, _: units.storer(cell.num_per_unit, "cpu"),
}
_OF_STAGE = {
    "forward": lambda cell, dtype, number: specialise(cell.stages[number].forward, dtype, "cpu"),
    "backward": lambda cell, dtype, number: specialise(cell.stages[number].backward, dtype, "cpu"),
    "count": lambda cell, _, number: len(cell.stages[number].gates) or len(cell.stages[number].sums),
    "store_gates": lambda cell, _, number: units.storer(len(cell.stages[number].gates), "cpu"),
    "store_sums": lambda cell, _, number: units.storer(len(cell.stages[number].sums), "cpu"),
}


@cache
def _attribute_of_cell(cell, dtype, name):
    """A function, or a number or bool of the cell itself."""
    return _OF_CELL[name](cell, dtype) if name in _OF_CELL else getattr(cell, name)


@cache
def _attribute_of_stage(cell, dtype, number, name):
    return _OF_STAGE[name](cell, dtype, number) if name in _OF_STAGE else _attribute_of_cell(cell, dtype, name)
