"""The parts of a cell that `cell_steps` reads, as constants for the compiler: sizes and compiled functions."""

import hashlib
from functools import cache, cached_property

import numpy as np

from numbarnn.cells.definition import Chances
from numbarnn.common.code_cache import fingerprint
from numbarnn.compile import units
from numbarnn.compile.plain import Interleaved, inlined
from numbarnn.compile.specialise import backward_function, forward_function, specialise
from numbarnn.engines.cpu.vectors import VECTOR_BYTES

# Vectors of units per loop iteration, and whether masked loops do the rest. AVX-512 has masks for the last units;
# without them two vectors would leave more units to a scalar loop.
SHORT = Interleaved(4, 2, True) if VECTOR_BYTES == 64 else Interleaved(4, 1, False)
# One vector at a time for equations of that many bytes of bytecode (some 500 operations): with more, LLVM's time
# grows with the square of the length.
LONG_BYTECODE, LONG = 16_000, Interleaved(1, 1, False)


class CellParts:
    """A cell that computes in a dtype; other attributes come from the cell.

    Args:
        cell: the `Cell`. dtype: "float32" or "float64".

    Attributes:
        values: the most numbers per unit that a function of `cell_steps` computes.
        interleaved: vectors per loop iteration. block: units per iteration.
        load_..: functions (row, j, H) -> a tuple of unit j's numbers.
        store: function (row, j, H, tuple) that writes them.
    """

    def __init__(self, cell, dtype):
        self.cell, self.dtype, self.zero = cell, dtype, np.dtype(dtype).type(0)
        count = cell.num_states + cell.num_saved + cell.num_gates + cell.num_recurrent + cell.num_per_unit
        self.values = max(count, 2 * cell.num_sums)
        length = max(len(function.__code__.co_code) for function in (cell.forward, cell.backward))
        self.interleaved = SHORT if length < LONG_BYTECODE else LONG
        self.block = self.interleaved.known * VECTOR_BYTES // 4
        self.load_input, self.load_recurrent = _biased_loader(cell.num_gates), _biased_loader(cell.num_ah)
        self.load_per_unit, self.load_private = _loader(cell.num_per_unit), _loader(cell.num_private)
        self.load_saved, self.load_d_v = _loader(cell.num_saved), _loader(cell.num_products)
        self.load_d_sums, self.load_sums = _loader(cell.num_sums), _sums_loader(cell.num_sums, dtype)
        self.load_noise = _noise_loader(cell.noise_forms, dtype)
        self.store = _store
        self.forward, self.backward = forward_function(cell, dtype, "cpu"), backward_function(cell, dtype, "cpu")

    def __getattr__(self, name):
        return getattr(self.cell, name)

    def __repr__(self):
        """Identify the cell by its equations: files of compiled code are named after this."""
        return self._digest

    @cached_property
    def _digest(self):
        cell = self.cell
        functions = [(one.forward, one.backward) for one in (cell, *cell.stages)]
        stages = [(stage.gates, stage.sums, stage.largest) for stage in cell.stages]
        layout = cell.gates, cell.recurrent, stages, cell.states, cell.saved, cell.per_unit
        texts = [fingerprint(function) for pair in functions for function in pair]
        texts += [repr((layout, cell.noise_forms, cell.same_gradient, cell.general))]
        return f"{self.dtype}, {hashlib.sha256(''.join(texts).encode()).hexdigest()[:16]}"


class StageParts:
    """A stage of a cell; other attributes come from the cell's `CellParts`.

    Args:
        whole: the `CellParts`. number: of the stage.

    Attributes:
        count: its number of gates, or of sums.
    """

    def __init__(self, whole, number):
        stage = whole.cell.stages[number]
        self.whole, self.number, self.count = whole, number, len(stage.gates) or len(stage.sums)
        self.forward, self.backward = (specialise(f, whole.dtype, "cpu") for f in (stage.forward, stage.backward))

    def __getattr__(self, name):
        return getattr(self.whole, name)

    def __repr__(self):
        return f"stage {self.number} of {self.whole}"


# ------------------------------------------------------------------------------------------ numbers in memory
# Value k of unit j stands at index k * H + j of a row.
@cache
def _loader(count):
    def load(row, j, H):
        return tuple(row[k * H + j] for k in range(count))

    return inlined(load)


@cache
def _biased_loader(count):
    """Return load(row, apart, bias, j, H): each value plus its bias; values stand `apart` in the row."""

    def load(row, apart, bias, j, H):
        return tuple(row[k * apart + j] + bias[k * H + j] for k in range(count))

    return inlined(load)


@inlined
def _store(row, j, H, values):
    for k, value in enumerate(values):
        row[k * H + j] = value


@cache
def _sums_loader(count, dtype):
    """Return load(row, H): the `sums` that a cell's functions take, from a row of all sums, after H as a number of the
    dtype."""
    number = np.dtype(dtype).type

    def load(row, H):
        return (number(H), *tuple(row[k] for k in range(count))) if count else ()

    return inlined(load)


@cache
def _noise_loader(forms, dtype):
    """Return load(values, thresholds, words, position, t, training): `units.noise_loader` for chances in two rows.
    In inference it returns the means."""
    draw, mean = units.noise_loader(forms, "cpu", dtype), units.mean_loader(forms, "cpu", dtype)
    load_row = _loader(len(forms))

    def load(values, thresholds, words, position, t, training):
        numbers = load_row(values, 0, 1)
        if not training:
            return mean(Chances(None, numbers))
        return draw(Chances(load_row(thresholds, 0, 1), numbers), words, np.uint64(position), np.uint64(t))

    return inlined(load)
