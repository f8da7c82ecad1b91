"""A launch of persistent kernels: its layers, their tiling, and its estimated time."""

from dataclasses import dataclass
from functools import cached_property

from numbarnn.common.words import counted
from numbarnn.kernels.persistent.tile import CHUNK_BYTES, Tile
from numbarnn.schedules import calibration
from numbarnn.schedules.persistent.costs import Estimate, steps_in_all

# Describes a launch whose blocks multiply the input of its first layer.
GIVEN = "with the input's product of layer {} in the steps"


@dataclass(frozen=True)
class Launch:
    """One cooperative launch.

    Attributes:
        first, last: layers [first, last). tile: the tile of every block. blocks: number of blocks.
        slices: number of parts of the batch; as many blocks share the same units, each with one part.
        sequences: the most sequences of a block. shared_bytes: dynamic shared memory of each block.
        estimate: of one step; None while tilings are compared. steps: T. directions: D.
        backward: whether it belongs to the backward pass.
        chain_us: microseconds of one step for comparing tilings, see `costs.StepChain`.
    """

    first: int
    last: int
    tile: Tile
    blocks: int
    slices: int
    sequences: int
    shared_bytes: int
    estimate: Estimate | None
    steps: int
    directions: int
    backward: bool
    chain_us: float

    @property
    def microseconds(self):
        load = calibration.LOAD_US[self.backward] * self.tile.words_per_lane
        steps = self.steps_in_all + self.backward  # backward one more, which carries the gradient to the initial state
        return calibration.LAUNCH_US + load + steps * self.estimate.step

    @property
    def layer_range(self):
        return range(self.first, self.last)

    @cached_property
    def places(self):
        """Return the (layer, direction) pairs of the launch's layers, in order."""
        return [(layer, direction) for layer in self.layer_range for direction in range(self.directions)]

    @property
    def layers(self):
        """Return the launch's layers as text."""
        return f"layer {self.first}" if self.last == self.first + 1 else f"layers {self.first} to {self.last - 1}"

    @property
    def home(self):
        """Return where the weights are during the steps, as text; for mixed tiles also how much each place has."""
        tile = self.tile
        places = {"registers": tile.register_chunks, "shared memory": tile.shared_chunks}
        if tile.resident in ("registers", "shared"):
            return "registers" if tile.register_chunks else "shared memory"
        kib = tile.warps * tile.rows * CHUNK_BYTES / 1024
        return " and ".join(f"{place} ({count * kib:.3g} KiB)" for place, count in places.items())

    @property
    def steps_in_all(self):
        return steps_in_all(self.steps, self.last - self.first, self.directions)

    @property
    def _given(self):
        """Return a note if the blocks multiply the input of the launch's first layer; else ""."""
        return f", {GIVEN.format(self.first)}" if self.tile.given else ""

    @property
    def details(self):
        """Return the tiling and the estimated time of a step as text."""
        tile, estimate = self.tile, self.estimate
        within = f"{counted(estimate.rounds, 'exchange')} within it {estimate.within:.2f}, " if estimate.rounds else ""
        return (
            f"{counted(self.blocks, 'block')} of {tile.threads} threads, each {tile.units} units of "
            f"{counted(self.sequences, 'sequence')}, by {tile.math}{self._given}; weights in "
            f"{self.home}, {self.shared_bytes / 1024:.3g} KiB of shared memory per block; a step: exchange "
            f"{estimate.exchange:.2f} µs, {within}read {estimate.read:.2f} for {estimate.read_bytes / 1024:.3g} KiB, "
            f"multiply {estimate.multiply:.2f}, add {estimate.add:.2f}; "
            f"{self.microseconds:.0f} µs in all"
        )

    def __str__(self):
        bound = "exchanges within it" if self.estimate.bound == "within" else self.estimate.bound
        return (
            f"{self.layers} in {counted(self.blocks, 'block')} of {self.tile.units} units and "
            f"{counted(self.sequences, 'sequence')}"
            f"{self._given}, {self.estimate.step:.2f} µs per step, most of it {bound}"
        )
