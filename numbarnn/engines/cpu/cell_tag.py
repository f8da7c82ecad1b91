"""A cell as an argument of compiled CPU code: a type that carries the cell's equations.

`cpu_loops` calls the functions below with a tag; each stands for one of the cell's. So the loops are ordinary
module-level functions, which Numba compiles per cell and caches on disk.
"""

import hashlib
import inspect
import sys

import numpy as np
from numba import types
from numba.core.imputils import lower_constant
from numba.extending import NativeValue, models, overload, register_model, typeof_impl, unbox

from numbarnn.cells import Cell, scalar
from numbarnn.common import order, philox
from numbarnn.compile import scalar as compiled_scalar
from numbarnn.compile import specialise as compiling
from numbarnn.compile import units
from numbarnn.compile.specialise import INSIDE, ON_CPU, backward_function, forward_function, jit, specialise
from numbarnn.cuda.cubin_cache import fingerprint
from numbarnn.engines.cpu import atomics, openblas, products

INLINE = {**INSIDE, **ON_CPU, "forceinline": True}


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
        written = scalar, compiled_scalar, compiling, units, order, philox
        modules = *written, openblas, atomics, products, sys.modules[__name__]
        functions = [cell.forward, cell.backward]
        functions += [function for stage in cell.stages for function in (stage.forward, stage.backward)]
        layout = (
            cell.gates,
            cell.recurrent,
            [(stage.gates, stage.sums) for stage in cell.stages],
            cell.states,
            cell.saved,
            cell.per_unit,
            cell.noise,
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


def what_is_compiled(arguments):
    """(What, about how long) of a function of the CPU engine, by the Numba types of its arguments; for `notice`."""
    dtypes = [one.dtype for one in arguments if isinstance(one, types.Array)]
    dtype = next((str(dtype) for dtype in dtypes if isinstance(dtype, types.Float)), "masks")
    for one in arguments:
        if isinstance(one, CellTagType):
            return f"the CPU engine for the cell {one.cell.name}, {dtype}", "half a minute, forward and backward"
    return f"the CPU engine's matrix products, {dtype}", "ten seconds"


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


def _sums(cell, dtype):
    """f(row, H): `sums` as a cell's functions see it, from a row of all sums; H in units."""
    if not cell.num_sums:
        return jit(lambda row, H: (), "cpu")
    number, load, join = getattr(np, dtype), units.loader(cell.num_sums, "cpu"), units.joiner("cpu")
    return jit(lambda row, H: join(number(H), load(row, 0, 1)), "cpu")


def _draws(cell, _):
    """f(words, position, t): what `_noise` needs to know of a sequence and a step; nothing without noise.

    Args of f:
        words: (4,), as in `numbarnn.compile.units.noise_loader`; t too. position: of the sequence's first unit.
    """
    if not cell.noise:
        return jit(lambda words, position, t: (), "cpu")
    return jit(lambda words, position, t: (words, np.uintp(position), np.uint64(t)), "cpu")


def _noise(cell, dtype):
    """f(like, draws, j, training): the random numbers of unit j; `like` is any array, for the dtype."""
    if not cell.noise:
        return jit(lambda like, draws, j, training: (), "cpu")
    draw, mean = units.noise_loader(cell.noise, "cpu", dtype), units.mean_noise(cell.noise, "cpu", dtype)

    def numbers(like, draws, j, training):
        words, position, t = draws
        return draw(words, position + j, t) if training else mean()

    return jit(numbers, "cpu")


cell_forward = _per_cell(lambda cell, dtype: forward_function(cell, dtype, "cpu"))
cell_backward = _per_cell(lambda cell, dtype: backward_function(cell, dtype, "cpu"))
cell_sums = _per_cell(_sums, place=0)
cell_draws = _per_cell(_draws)
cell_noise = _per_cell(_noise, place=0)
load_input = _per_cell(lambda cell, _: units.biased_loader(cell.num_gates, "cpu"))
load_recurrent = _per_cell(lambda cell, _: units.biased_loader(cell.num_ah, "cpu"))
load_per_unit = _per_cell(lambda cell, _: units.loader(cell.num_per_unit, "cpu"))
load_d_v = _per_cell(lambda cell, _: units.loader(cell.num_products, "cpu"))
load_d_sums = _per_cell(lambda cell, _: units.loader(cell.num_sums, "cpu"))
load_private = _per_cell(lambda cell, _: units.loader(cell.num_private, "cpu"))
load_saved = _per_cell(lambda cell, _: units.loader(cell.num_saved, "cpu"))
store_states = _per_cell(lambda cell, _: units.storer(cell.num_states, "cpu"))
store_saved = _per_cell(lambda cell, _: units.storer(cell.num_saved, "cpu"))
store_gates = _per_cell(lambda cell, _: units.storer(cell.num_gates, "cpu"))
store_recurrent = _per_cell(lambda cell, _: units.storer(cell.num_recurrent, "cpu"))
store_per_unit = _per_cell(lambda cell, _: units.storer(cell.num_per_unit, "cpu"))


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
num_recurrent = _constant("num_recurrent")
num_ah = _constant("num_ah")
num_per_unit = _constant("num_per_unit")
num_private = _constant("num_private")
num_states = _constant("num_states")
num_saved = _constant("num_saved")
same_gradient = _constant("same_gradient")
num_sums = _constant("num_sums")
num_stages = _constant(lambda cell: len(cell.stages))


def _by_stage(number):
    """A function f(tag, stage) for compiled code that is number(cell, stage); one stage too many will do."""

    def function(tag, stage):
        raise NotImplementedError("only for compiled code")

    @overload(function, jit_options=INLINE)
    def _typed(tag, stage):
        numbers = tuple(number(tag.cell, stage) for stage in range(len(tag.cell.stages) + 1))
        return lambda tag, stage: numbers[stage]

    return function


first_gate = _by_stage(Cell.first_of_stage)
product_number = _by_stage(Cell.product_number)
first_sum = _by_stage(Cell.first_sum)


# ------------------------------------------------------------------------------------------------ functions of a stage
class _StageNumber:
    """The number of a stage, which compiled code knows by its type: loops over units are compiled for each stage, as
    one that asks within for its stage is seldom vectorised."""

    def __init__(self, number):
        self.number = number


class _StageNumberType(types.Type):
    def __init__(self, number):
        self.number = number
        super().__init__(name=f"Stage({number})")


register_model(_StageNumberType)(models.OpaqueModel)


@typeof_impl.register(_StageNumber)
def _typeof_stage_number(value, context):
    return _StageNumberType(value.number)


@lower_constant(_StageNumberType)
def _constant_stage_number(context, builder, typ, value):
    return context.get_dummy_value()


def _for_stages(names):
    """A function f(tag, stage, loop, *arguments) for compiled code that calls loop(tag, the stage's number by its type,
    *arguments), where the stage has some of `names` ("gates" or "sums")."""

    def function(tag, stage, loop, *arguments):
        raise NotImplementedError("only for compiled code")

    @overload(function, jit_options=INLINE)
    def _typed(tag, stage, loop, *arguments):
        chain = jit(lambda tag, stage, loop, *arguments: None, "cpu")
        for number, one in enumerate(tag.cell.stages):
            if getattr(one, names):
                chain = _or(number, _StageNumber(number), chain)
        return lambda tag, stage, loop, *arguments: chain(tag, stage, loop, *arguments)

    return function


def _or(number, known, rest):
    """f(tag, stage, loop, *arguments): the loop with `known` for the stage of this number, else what rest does."""

    def chain(tag, stage, loop, *arguments):
        if stage == number:
            loop(tag, known, *arguments)
        else:
            rest(tag, stage, loop, *arguments)

    return jit(chain, "cpu")


def _of_stage(function, names, first):
    """A function f(tag, stage, row, j, H, *arguments) for compiled code that stores what a function of a stage, known
    by its type, returns for unit j: a value or a tuple, in units of H from a place of the row.

    Args:
        function: "forward" or "backward".
        names: "gates" or "sums", one per value; None of one value that is no tuple.
        first: first(cell, number) is the place of a stage's first value, in units of H.
    """

    def stored(tag, stage, row, j, H, *arguments):
        raise NotImplementedError("only for compiled code")

    @overload(stored, jit_options=INLINE)
    def _typed(tag, stage, row, j, H, *arguments):
        one, start = tag.cell.stages[stage.number], np.uintp(first(tag.cell, stage.number))
        own = specialise(getattr(one, function), str(row.dtype), "cpu")
        if names is None:

            def call(tag, stage, row, j, H, *arguments):
                row[j + H * start] = own(*arguments)

            return call
        store = units.storer(len(getattr(one, names)), "cpu")

        def call_tuple(tag, stage, row, j, H, *arguments):
            store(row, j + H * start, H, own(*arguments))

        return call_tuple

    return stored


for_product_stage = _for_stages("gates")
for_sum_stage = _for_stages("sums")
store_vector = _of_stage("forward", None, lambda cell, number: 0)
store_gradients = _of_stage("backward", "gates", Cell.first_of_stage)
store_terms = _of_stage("forward", "sums", lambda cell, number: 0)
store_gradient_terms = _of_stage("backward", "sums", lambda cell, number: 0)
