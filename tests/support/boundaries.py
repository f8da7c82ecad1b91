"""What the sizes of `numbarnn check` have to cross, as data: tiles, chunks, blocks, threads, launches of the engines.

A loop that is right within its first tile may be wrong in its second. So each of BOUNDARIES says which sizes go beyond
one, by the engines' own constants: where a constant grows beyond the quick cases, a test fails that names the boundary.
"""

from dataclasses import dataclass

import numpy as np

from numbarnn.bench.cases.cases import cell_of
from numbarnn.engines.cpu import cell_steps, panels, products
from numbarnn.engines.cpu import engine as cpu
from numbarnn.engines.cpu.vectors import MOST_ROWS
from numbarnn.engines.gpu import profiles
from numbarnn.kernels import grid
from numbarnn.kernels.arrays import column_sums, dropout
from numbarnn.kernels.persistent import tile
from numbarnn.kernels.step import unit_sums
from numbarnn.schedules import Problem, wavefront
from numbarnn.schedules.persistent import planner

LEVELS = 5  # of pairs in which the CPU adds up sums of rows: more than 2^5 blocks need a sixth


@dataclass(frozen=True)
class Layer:
    """One layer of a case: sizes as in the package's legend, I of this layer, P = H without projection."""

    case: object
    I: int  # noqa: E741 - the legend's letter
    H: int
    P: int

    @property
    def rows(self):
        """T B."""
        return self.case.T * self.case.B

    @property
    def G(self):
        """Number of gates."""
        return cell_of(self.case.cell).num_gates

    @property
    def recurrent_work(self):
        """Multiply-adds of all steps but those with W."""
        return self.rows * (self.G * self.H * self.P + (self.H * self.P if self.case.proj_size else 0))

    @property
    def weights_work(self):
        """Multiply-adds of the gradients of W and R."""
        return self.rows * self.G * self.H * (self.P + self.I)

    @property
    def alone(self):
        """Whether the CPU's loops over steps have one thread, however their threads would share them."""
        return self.recurrent_work < cpu.SERIAL_STEPS or self.recurrent_work < cpu.SERIAL_STEP * self.case.T

    @property
    def shares(self):
        """How many threads the CPU's loops over steps could have at most; 1 where there is too little work."""
        little = self.recurrent_work < cpu.SERIAL_WORK or self.recurrent_work < cpu.SERIAL_SHARE * self.case.T
        return 1 if little else self.P // products.UNITS


def layers(case):
    """The `Layer`s of a case."""
    return [
        Layer(case, case.layer_input_size(k), H, width)
        for k, (H, width) in enumerate(zip(case.hidden, case.outputs, strict=True))
    ]


def missing(plan, device):
    """Names of the device's boundaries that no case of a plan (pairs of a case and its schedules) crosses."""
    sizes = [layer for case, _ in plan for layer in layers(case)]
    return [name for name, crossed in BOUNDARIES[device].items() if not any(map(crossed, sizes))]


# ---- the CPU ----


def _few(rows):
    """Rows of a product that OpenBLAS gets in small pieces."""
    return 1 < rows <= products.PIECED_ROWS


def _packed(layer):
    """Whether R is in panels, forward and backward."""
    return layer.rows >= max(cpu.packed_from(layer.G * layer.H * layer.P, back) for back in (False, True))


def _lies(layer):
    """Whether it is in none, forward or backward."""
    return layer.rows < min(cpu.packed_from(layer.G * layer.H * layer.P, back) for back in (False, True))


def _tiles_of(rows):
    """A boundary of products with panels, of so many sequences on one thread: more than four panels, or more than
    a wide one, of which the last is not whole, forward and backward."""
    row, few = (panels.WIDE_ROW, 1) if max(rows) <= panels.FEW_ROWS else (panels.PANEL_ROW, 4)

    def crossed(layer):
        width = row // np.dtype(layer.case.dtype).itemsize
        partial = layer.H > few * width and layer.H % width and layer.P == layer.H
        return _packed(layer) and layer.alone and layer.case.B in rows and partial

    return crossed


def _by_sequences(layer):
    """Several threads that share sequences, however many threads there are."""
    return layer.shares > 1 and layer.case.B >= cpu.ROWS_OF_THREAD * layer.shares


def _by_units(layer):
    """Several threads that share units, two at least."""
    small = layer.G * layer.H * layer.P * np.dtype(layer.case.dtype).itemsize < cpu.SMALL_R
    return layer.shares > 1 and layer.case.B < 2 * (cpu.ROWS_OF_SMALL if small else cpu.ROWS_OF_THREAD)


def _shared(name, crossed):
    """A boundary of both ways in which threads share the loops over steps."""
    return {
        f"threads that share sequences{name}": lambda s: _by_sequences(s) and crossed(s),
        f"threads that share units{name}": lambda s: _by_units(s) and crossed(s),
    }


def _wavefront(layer):
    """Blocks of several steps, the last one shorter, in layers one above the other."""
    case = layer.case
    size = wavefront.block_steps(case.L, case.T)
    return case.L > 1 and size > 1 and case.T % size > 0


_CPU = {
    "units of a thread beyond a tile, in the loops over steps":
        lambda s: s.H > cell_steps.TILE and s.shares == 1,
    "terms of a sum over units beyond a tile":
        lambda s: s.H > cell_steps.TILE and s.case.cell == "layer_norm_rnn" and s.shares == 1,
    **_shared("", lambda s: s.case.cell in ("lstm", "gru", "rnn_tanh")),
    **_shared(", and steps that are skipped", lambda s: s.case.lengths is not None),
    **_shared(", and a projection", lambda s: s.case.proj_size > 0),
    **_shared(", and a second product within a step", lambda s: s.case.cell == "gru_reset_before"),
    "threads that share sequences, and sums over units":
        lambda s: _by_sequences(s) and s.case.cell == "layer_norm_rnn",
    "threads that share units, and sums over units":  # whole TILEs
        lambda s: _by_units(s) and s.case.cell == "layer_norm_rnn" and s.H > cell_steps.TILE,
    "R in panels, one sequence": _tiles_of((1,)),
    "R in panels, two sequences": _tiles_of((2,)),
    "R in panels, three sequences": _tiles_of((3,)),
    "R in panels, a tile of sequences": _tiles_of(range(4, MOST_ROWS + 1)),
    "R in panels, more sequences than a tile": _tiles_of(range(MOST_ROWS + 1, 1000)),
    "R in panels, h Rᵀ of a second chunk of terms":
        lambda s: _packed(s) and s.P > panels.CHAIN,
    "R in panels, da R of a second chunk of terms":
        lambda s: _packed(s) and s.G * s.H > panels.CHAIN,
    "W_hr in panels, of a second chunk of terms":
        lambda s: _packed(s) and s.case.proj_size > 0 and s.H > panels.CHAIN,
    "W_hr as it lies":
        lambda s: _lies(s) and s.case.proj_size > 0,
    "R as it lies, one sequence":
        lambda s: _lies(s) and s.case.B == 1 and s.case.T > 1,
    "R as it lies, h Rᵀ of a second piece of columns":
        lambda s: _lies(s) and _few(s.case.B) and s.H > 2 * products.UNITS,
    "R as it lies, da R of a second piece of columns":
        lambda s: _lies(s) and _few(s.case.B) and s.P > 4 * products.UNITS,
    "R as it lies, da R of a second chunk of terms":
        lambda s: _lies(s) and _few(s.case.B) and s.G * s.H > products.CHAIN,
    "x Wᵀ of few rows, a second chunk of terms":
        lambda s: _few(s.rows) and s.I > 8 * products.CHAIN,
    "x Wᵀ of many rows, a second chunk of terms":
        lambda s: s.rows > products.PIECED_ROWS and s.I > products.CHAIN,
    "da W of few rows, a second chunk of terms":
        lambda s: _few(s.rows) and s.G * s.H > products.CHAIN,
    "da W of many rows, a second chunk of terms":
        lambda s: s.rows > products.PIECED_ROWS and s.G * s.H > products.CHAIN,
    "gradients of W and R, a second chunk of rows":
        lambda s: s.rows > products.CHAIN,
    "several threads in the gradients of W and R":
        lambda s: s.weights_work >= cpu.SERIAL_WORK and s.G * s.H >= 2 * products.UNITS,
    "sums of rows, more blocks than five levels of pairs hold":
        lambda s: s.rows >= (2**LEVELS) * products.SUM_ROWS + 2,
    "several threads in dropout":
        lambda s: s.case.masked and 20 * s.rows * s.case.D * s.P >= cpu.SERIAL_WORK,
    "blocks of several steps in a wavefront, the last one shorter":
        _wavefront,
    "blocks of several steps in a wavefront, of two directions and with dropout":
        lambda s: _wavefront(s) and s.case.masked and s.case.bidirectional,
}  # fmt: skip


# ---- kernels: on a GPU and, with tiny blocks, in the simulator ----


def _grid_stride(layer):
    """More units than the threads along x, or more sequences than the blocks along y."""
    config = grid.launch_config(layer.case.B, layer.H)
    return config.grid[0] * config.block[0] < layer.H and config.grid[1] < layer.case.B


_KERNELS = {
    "sums of rows, more rows than the threads of a block add up at once":
        lambda s: s.rows > column_sums.ROWS * column_sums.SUM_ROWS,
    "sums of rows, several blocks":
        lambda s: s.G * s.H > column_sums.COLUMNS,
    "sums over units, more than one for each thread":
        lambda s: s.case.cell == "layer_norm_rnn" and s.H > unit_sums.THREADS_PER_BLOCK,
}  # fmt: skip
_CUDA = _KERNELS | {
    "units of several blocks":
        lambda s: s.H > grid.THREADS_PER_BLOCK,
    "dropout of several blocks":
        lambda s: s.case.masked and s.rows * s.case.D * s.P > 4 * dropout.THREADS_PER_BLOCK,
}  # fmt: skip


def _launches(case, backward):
    """The persistent launches of a case in the simulator."""
    cell = cell_of(case.cell)
    options = {"padded": case.lengths is not None, "resets": case.resets, "projection": case.proj_size}
    sizes = case.input_size, case.hidden, case.D, case.T, case.B
    problem = Problem("sim", cell, case.dtype, *sizes, True, case.dropout, profile=profiles.SIMULATOR, **options)
    # Persistent kernels do not compute in float64.
    return () if case.dtype == "float64" else planner.plan_launches(problem, profiles.SIMULATOR, backward)


def _launched(crossed):
    """A boundary that launches have to cross, both of some forward and of some backward pass of the same case."""
    return lambda layer: all(
        any(crossed(launch, layer.case) for launch in _launches(layer.case, backward)) for backward in (False, True)
    )


_SIM = _KERNELS | {
    "more units and sequences than the grid has threads and blocks for":
        _grid_stride,
    "several blocks for a layer and direction":
        _launched(lambda launch, case: launch.blocks > (launch.last - launch.first) * case.D * launch.slices),
    "a block whose last units are none":
        _launched(lambda launch, case: any(H % launch.tile.units for H in case.hidden[launch.first : launch.last])),
    "several layers in a launch":
        _launched(lambda launch, case: launch.last > launch.first + 1),
    "several layers in a launch, with dropout between them":
        _launched(lambda launch, case: launch.last > launch.first + 1 and case.masked),
    "several launches, one after the other":
        _launched(lambda launch, case: launch.last - launch.first < case.L),
    "products on tensor cores":
        _launched(lambda launch, case: launch.tile.math == "mma"),
    "products on tensor cores, more sequences than a tile":
        _launched(lambda launch, case: launch.tile.math == "mma" and case.B > tile.N8),
    "products by multiply-adds, more sequences than a tile":
        _launched(lambda launch, case: launch.tile.math == "fma" and case.B > tile.N8),
}  # fmt: skip

#: Device -> name of each boundary -> whether a `Layer` crosses it.
BOUNDARIES = {"cpu": _CPU, "cuda": _CUDA, "sim": _SIM}
