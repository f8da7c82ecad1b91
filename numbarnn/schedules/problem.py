"""Describe the problem that a schedule runs: sizes and options, no arrays."""

from dataclasses import dataclass, fields
from functools import cached_property
from operator import attrgetter
from typing import Any

import numpy as np

from numbarnn.cells import Cell
from numbarnn.cells.definition import Chances
from numbarnn.common.precision import compute_dtype
from numbarnn.weights import WITHOUT_W, WeightSpace
from numbarnn.weights.space import sizes_of_layers


@dataclass(frozen=True)
class Problem:
    """One call of a stack of layers, as plans and CUDA graphs depend on it: everything but arrays that affects results.

    Attributes:
        engine: "cpu", "cuda" or "sim". dtype: of x, the weights and the output.
        input_size: I. hidden_sizes: H of each layer, as kernels have it.
        units: units of each layer's h if another state has more, which makes `hidden_sizes` wider
            (`numbarnn.weights.space.sizes_of_layers`); else empty.
        directions, steps, batch: D, T, B. training: keep what backward needs, and apply dropout.
        dropout: its probability between layers in training.
        bias: which biases exist, one of `numbarnn.weights.BIAS_MODES`.
        projection: P, the width of h if it is W_hr m with the cell's output m; 0 without.
        input_mode: "linear"; in layer 0 "skip": x itself replaces W x, for each gate; "given": x is W x.
        padded: sequences may be shorter than T: numbers beyond their length are ignored in x, and filled in y.
        resets: sequences may be reset. batch_major: x, y, dy and dx have the axes of batch and time exchanged.
        keeps_states: the cell states of every step of the last layer are a result too.
        fuses_input: steps compute x Wᵀ themselves (`Engine.fuses_input`).
        allow_tf32: float32 products may be computed by tensor cores, which round their operands to TF32 (GPUs only).
        splits_tf32: persistent kernels may compute float32 products by tensor cores as three TF32 products each, with
            errors like float32's (GPUs only). cuBLAS has no such mode; its products stay float32.
        profile: the planners' description of the device (`Engine.profile`), or None.
        checkpoint_every: k: in training only the states at every k-th step are kept; 0: all that backward reads.
        segment_of: number of steps of the call that these steps are a segment of; 0: they are the whole call. Cell
            states and gradients of states pass between segments in `state_dtype`.
        flat_size: numbers of the buffer by which kernels find weights, if it also has other layers and directions; 0:
            it has these alone.
        copied: `copied_gates` of a segment of one of several layers, which depend on the layers below; None if they
            follow from the other attributes.
    """

    engine: str
    cell: Cell
    dtype: str
    input_size: int
    hidden_sizes: tuple[int, ...]
    directions: int
    steps: int
    batch: int
    training: bool
    dropout: float = 0.0
    bias: str = "double"
    projection: int = 0
    input_mode: str = "linear"
    padded: bool = False
    resets: bool = False
    allow_tf32: bool = False
    profile: Any = None
    batch_major: bool = False
    fuses_input: bool = False
    keeps_states: bool = False
    units: tuple[int, ...] = ()
    checkpoint_every: int = 0
    segment_of: int = 0
    flat_size: int = 0
    copied: tuple[int, ...] | None = None
    splits_tf32: bool = False

    def __hash__(self):
        return self._hash

    @cached_property
    def _hash(self):  # plans and graphs are looked up by problems at each call
        return hash(_all_fields(self))

    @property
    def layers(self):
        """L, the number of layers."""
        return len(self.hidden_sizes)

    @property
    def dropping(self):
        """Whether there is dropout between layers in this call."""
        return self.training and self.dropout > 0 and self.layers > 1

    @cached_property
    def space(self):
        """The `WeightSpace` of its parameters."""
        mode, cell = self.input_mode, self.cell
        return WeightSpace(
            cell.num_gates, self.input_size, self.units or self.hidden_sizes, self.directions, self.bias,
            self.projection, mode, num_ah=cell.num_ah, per_unit=cell.per_unit, heads=cell.heads, layout=cell.parameters,
        )  # fmt: skip

    @property
    def weights_in_one(self):
        """Whether kernels find weights by their places in one array, as on GPUs."""
        return self.engine != "cpu"

    @cached_property
    def input_products(self):
        """The layers whose x Wᵀ is a separate task: all, or if steps compute it only a first layer without W."""
        return range(int(self.input_mode in WITHOUT_W) if self.fuses_input else self.layers)

    @cached_property
    def copied_gates(self):
        """For each layer how many gates of x Wᵀ, the last ones, are x itself, if kernels have as many units as x.
        They are copied from x, not multiplied by the identity in W."""
        if self.copied is not None:
            return self.copied
        cell, units = self.cell, self.units or self.hidden_sizes
        products = cell.parameters.derived.get("W", ())
        count = sum(term.op == "eye" for term in products)
        layers = sizes_of_layers(cell.parameters, self.input_size, units, self.directions, self.projection)
        return tuple(count if sizes["I"] == wide["I"] == wide["H"] else 0 for sizes, wide in layers)

    @cached_property
    def masked(self):
        """Whether some steps are skipped or reset (`numbarnn.common.order`)."""
        return self.padded or self.resets

    @property
    def is_segment(self):
        """Whether the steps are a segment of a call's."""
        return self.segment_of > 0

    @cached_property
    def has_checkpoints(self):
        """Whether a training call runs in segments between checkpoints (`numbarnn.programs.checkpoints`)."""
        return bool(self.training and self.checkpoint_every and self.checkpoint_every < self.steps)

    @cached_property
    def copies_x(self):
        """Whether tasks read a copy of x, time-major and zero beyond sequences, that a tape keeps."""
        return self.batch_major or (self.padded and self.training)

    @property
    def x_shape(self):
        """The shape of the caller's x: (T, B, I), or (B, T, I)."""
        outer = (self.batch, self.steps) if self.batch_major else (self.steps, self.batch)
        return (*outer, self.input_size)

    @cached_property
    def state_dtype(self):
        """The dtype in which states accumulate."""
        return compute_dtype(self.dtype)

    @cached_property
    def chances(self):
        """The `Chances` of the cell's random numbers, as kernels take them; None without random numbers."""
        noise, number = self.cell.noise, np.dtype(self.state_dtype).type
        if not noise:
            return None
        if not self.training:
            return Chances(None, tuple(number(one.mean) for one in noise))
        return Chances(tuple(np.uint64(one.threshold) for one in noise), tuple(number(one.kept) for one in noise))

    @cached_property
    def output_sizes(self):
        """Width of h of each layer and direction: P with projection, else H."""
        return tuple(self.projection or hidden for hidden in self.hidden_sizes)


_all_fields = attrgetter(*(item.name for item in fields(Problem)))


def state_shapes(sizes, directions, batch):
    """Return the shape of a state of layers of these sizes: (L * D, B, H), or a list of (D, B, H) if sizes differ."""
    if len(set(sizes)) == 1:
        return (len(sizes) * directions, batch, sizes[0])
    return [(directions, batch, size) for size in sizes]
