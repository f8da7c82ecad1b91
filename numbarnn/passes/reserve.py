"""The reserve: all that backward reads besides x and the weights, in one flat buffer, as cuDNN's reserve space is.

What is in it, and where, follows from the problem alone: the buffers of the forward pass that its steps fill and that
stay with the tape, one after another. Whoever keeps a call's x, weights, key of random numbers and this buffer can make
its tape again (`ForwardPass.of_reserve`).
"""

from functools import lru_cache
from math import prod
from typing import NamedTuple

from numbarnn.common.philox import dropout_masks
from numbarnn.common.precision import known_dtype
from numbarnn.passes.buffers import Buffers

LINE = 64  # bytes at whose multiples buffers begin: a line of a cache


class Layout(NamedTuple):
    """Where buffers stand.

    Attributes:
        size: bytes of the reserve.
        places: name of a buffer, or (name, its key) -> (bytes before it, shape, dtype).
    """

    size: int
    places: dict


def make_layout(table, problem):
    """The `Layout` of a problem, whose T and B may be numbers that are not known yet (PyTorch's SymInt).

    Args:
        table: the `buffers.Table` of the forward pass.
    """
    size, places = 0, {}
    for buffers in table.make_layout(problem)[1].values():
        for name, key, shape, dtype, within in buffers:
            full_name = name if key is None else (name, key)
            if name in table.reserved and within is None and full_name not in places:
                places[full_name] = size, shape, dtype
                size = size + (prod(shape) * dtype.itemsize + LINE - 1) // LINE * LINE
    return Layout(size, places)


layout_of = lru_cache(maxsize=1024)(make_layout)


class Reserve:
    """Allocates the buffers of a layout in one flat array, and others where `otherwise` does.

    Args:
        engine: whose array the memory is.
        layout: the `Layout`. memory: (layout.size,) uint8.
        otherwise: function (name, shape, dtype).
    """

    def __init__(self, engine, layout, memory, otherwise):
        self._engine, self._layout, self.memory, self._otherwise = engine, layout, memory, otherwise

    def __call__(self, name, shape, dtype):
        """The array of that name, with unspecified contents."""
        place = self._layout.places.get(name)
        if place is None:
            return self._otherwise(name, shape, dtype)
        return self._engine.part_of(self.memory, *place)


class Reserving(Buffers):
    """Buffers of a forward call, of which those that backward reads may be in a reserve.

    Args:
        call: the `forward.Call`.
        allocate: function (name, shape, dtype), see `Engine.allocate`.

    Attributes:
        what the call knows.
        reserve: (bytes,) uint8; None where they have memory of their own.
        scale: of dropout, what is not dropped is multiplied by; None without.
    """

    reserve = scale = None

    def __init__(self, call, allocate):
        super().__init__(call.engine, call.problem, allocate)
        self.read, self.seed, self.call, self.caller = call.weights, call.seed, call.number, call.caller
        self.weights_of_kind = call.weights.flat  # where calls of this kind have their weights
        self.origin, self.from_zero, self.keeps = call.origin, call.from_zero, call.keeps
        if call.keeps:
            self.read = self.read.of_copy(self.keep("weights", self.read.parameters), self._allocate)

    weights = property(lambda self: self.read.views, doc="[layer][direction] -> `Parameters`.")
    flat = property(lambda self: self.read.flat, doc="The buffer that they are views of.")
    formed = property(lambda self: self.read.formed, doc="The `FormedWeights` among them, or None.")
    steps = property(lambda self: self.problem.steps, doc="T.")
    batch = property(lambda self: self.problem.batch, doc="B.")
    dropping = property(lambda self: self.problem.dropping, doc="Whether there is dropout between layers.")
    batch_major = property(lambda self: self.problem.batch_major, doc="Whether x and y are (B, T, ...).")

    def keep(self, name, array):
        """Copy an array of the caller's that backward reads again: so a change before backward does not count."""
        if self.engine.records_jobs:
            return self.take(name, array, own=True)
        self._made[name] = copy = self._allocate(name, array.shape, array.dtype)
        copy[...] = array
        return copy

    def draw_masks(self):
        """What dropout between layers draws: masks for the steps from the call's origin on."""
        rows = self.origin.time * self.batch * self.problem.directions
        firsts = [rows * width for width in self.problem.output_sizes[:-1]]
        self.scale, masks = dropout_masks(self.problem.dropout, self.seed, self.call, firsts)
        self.masks = self.from_host("masks", masks)

    def keep_in(self, memory):
        """Let what backward reads be in one buffer, this one, or if it is None a new one; returns its layout."""
        layout = layout_of(self.table, self.problem)
        if memory is None:
            memory = self._allocate("reserve", (layout.size,), known_dtype("uint8"))
        self.reserve = self._made["reserve"] = memory
        self._new = Reserve(self.engine, layout, memory, self._allocate)
        return layout

    def find_in(self, memory):
        """Have the buffers that are in the reserve of a pass that is over."""
        own = vars(self)
        for full_name, (_, shape, dtype) in self.keep_in(memory).places.items():
            known, at = (own[full_name[0]], full_name[1]) if type(full_name) is tuple else (own, full_name)
            known[at] = self._made[full_name] = self._new(full_name, shape, dtype)
