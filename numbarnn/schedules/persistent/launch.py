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
        slices: of the batch: so many blocks have the same units, each for one slice of the sequences.
        sequences: most sequences of a block. shared_bytes: dynamic shared memory of each block.
        estimate: of one step; None while tilings are compared. steps: T.
        directions: D. backward: whether it is of the backward pass.
        chain_us: of one step, by which it is compared with other tilings: see `costs.StepChain`.
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
        """Estimated time of the launch."""
        load = calibration.LOAD_US[self.backward] * self.tile.words_per_lane
        steps = self.steps_in_all + self.backward  # backward one more, which carries the gradient to the initial state
        return calibration.LAUNCH_US + load + steps * self.estimate.step

    @property
    def layer_range(self):
        """Its layers, as a range."""
        return range(self.first, self.last)

    @cached_property
    def places(self):
        """The (layer, direction) pairs of its layers, in order."""
        return [(layer, direction) for layer in self.layer_range for direction in range(self.directions)]

    @property
    def layers(self):
        """Its layers, as text."""
        return f"layer {self.first}" if self.last == self.first + 1 else f"layers {self.first} to {self.last - 1}"

    @property
    def home(self):
        """Where the weights are during the steps, as text; with several places how much of a block's is in each."""
        tile = self.tile
        places = {"registers": tile.register_chunks, "shared memory": tile.shared_chunks}
        if tile.resident in ("registers", "shared"):
            return "registers" if tile.register_chunks else "shared memory"
        kib = tile.warps * tile.rows * CHUNK_BYTES / 1024
        return " and ".join(f"{place} ({count * kib:.3g} KiB)" for place, count in places.items())

    @property
    def steps_in_all(self):
        """Steps that follow each other."""
        return steps_in_all(self.steps, self.last - self.first, self.directions)

    @property
    def _given(self):
        """A note, as text, if its blocks multiply the input of its first layer; else ""."""
        return f", {GIVEN.format(self.first)}" if self.tile.given else ""

    @property
    def details(self):
        """Its tiling and the expected time of a step, as text."""
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
