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
    """One call of a stack of layers: every setting that affects its results, but no arrays. Plans and CUDA graphs
    depend on it.

    Attributes:
        engine: "cpu", "cuda" or "sim". dtype: of x, the weights and the output.
        input_size: I. hidden_sizes: H of each layer, as kernels see it.
        units: units of each layer's h, if another state has more and so makes `hidden_sizes` wider
            (`numbarnn.weights.space.sizes_of_layers`); else empty.
        directions, steps, batch: D, T, B. training: whether to keep what backward needs, and to apply dropout.
        dropout: probability of dropout between layers in training.
        bias: which biases exist, one of `numbarnn.weights.BIAS_MODES`.
        projection: P, the width of h = W_hr m for the cell's output m; 0 without projection.
        input_mode: "linear"; or for layer 0 "skip" (x itself replaces W x, in each gate) or "given" (x is W x).
        padded: whether sequences may be shorter than T. x is not read beyond a length, and y gets the padding value.
        resets: whether sequences may restart. batch_major: whether x, y, dy and dx are (B, T, ...).
        keeps_states: whether the last layer's cell states of every step are results.
        fuses_input: whether steps compute x Wᵀ themselves (`Engine.fuses_input`).
        allow_tf32: whether tensor cores may compute float32 products with operands rounded to TF32 (GPUs only).
        splits_tf32: whether persistent kernels may compute a float32 product as three TF32 products, with errors like
            float32's (GPUs only). cuBLAS has no such mode and computes in float32.
        profile: the planners' description of the device (`Engine.profile`), or None.
        checkpoint_every: k, if training keeps only the states of every k-th step; 0: it keeps all that backward reads.
        segment_of: number of steps of the call that contains this segment; 0 for a whole call. Segments pass cell
            states and gradients of states to each other in `state_dtype`.
        flat_size: for keys alone: size of the buffer of all weights if it has other layers too, else 0.
        copied: `copied_gates` of a segment that has only some of the layers; None: they follow from the other
            attributes.
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
        """Return L, the number of layers."""
        return len(self.hidden_sizes)

    @property
    def dropping(self):
        """Return whether this call has dropout between layers."""
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
        """Return whether kernels find weights by their offset in one array, as on GPUs."""
        return self.engine != "cpu"

    @cached_property
    def input_products(self):
        """The layers whose x Wᵀ is a separate task: if steps multiply x, only a layer 0 without W; else all."""
        return range(int(self.input_mode in WITHOUT_W) if self.fuses_input else self.layers)

    @cached_property
    def copied_gates(self):
        """Return, for each layer, how many gates of x Wᵀ (the last ones) equal x, if kernels have as many units as x.
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
        """Return whether some steps are skipped or reset (`numbarnn.common.order`)."""
        return self.padded or self.resets

    @property
    def is_segment(self):
        return self.segment_of > 0

    @cached_property
    def has_checkpoints(self):
        """Return whether a training call runs in segments between checkpoints (`numbarnn.programs.checkpoints`)."""
        return bool(self.training and self.checkpoint_every and self.checkpoint_every < self.steps)

    @cached_property
    def copies_x(self):
        """Return whether tasks read a copy of x, time-major and with zeros beyond sequences, which a tape keeps."""
        return self.batch_major or (self.padded and self.training)

    @property
    def x_shape(self):
        """The shape of the caller's x: (T, B, I), or (B, T, I)."""
        outer = (self.batch, self.steps) if self.batch_major else (self.steps, self.batch)
        return (*outer, self.input_size)

    @cached_property
    def state_dtype(self):
        """Return the dtype in which states accumulate."""
        return compute_dtype(self.dtype)

    @cached_property
    def chances(self):
        """Return the `Chances` of the cell's random numbers; None without random numbers."""
        noise, number = self.cell.noise, np.dtype(self.state_dtype).type
        if not noise:
            return None
        if not self.training:
            return Chances(None, tuple(number(one.mean) for one in noise))
        return Chances(tuple(np.uint64(one.threshold) for one in noise), tuple(number(one.kept) for one in noise))

    @cached_property
    def output_sizes(self):
        """Return the width of h of each layer: P with projection, else H."""
        return tuple(self.projection or hidden for hidden in self.hidden_sizes)


_all_fields = attrgetter(*(item.name for item in fields(Problem)))


def state_shapes(sizes, directions, batch):
    """Return the shape of a state of layers of these sizes: (L * D, B, H), or a list of (D, B, H) if sizes differ."""
    if len(set(sizes)) == 1:
        return (len(sizes) * directions, batch, sizes[0])
    return [(directions, batch, size) for size in sizes]
