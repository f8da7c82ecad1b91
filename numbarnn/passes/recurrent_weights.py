"""R as steps multiply with it, where that is not the parameter itself: blocks on the diagonal, or some weights dropped.

With `Cell.heads` = n the parameter is (A*H, P/n), P the width of h (H but for projections): row g H + j multiplies the
numbers of head j div (H/n) alone. Engines multiply with a dense R (A*H, P), zero outside of the blocks; persistent
kernels multiply what of it is in the blocks, where theirs suit (`schedules.persistent.shares.sources`). In training
`Cell.drop_connect` drops weights of the parameter out first, with one mask per gate for all steps. The gradient of the
parameter is that of the blocks, dropped out by the same masks.
"""

import weakref
from functools import partial
from math import prod

import numpy as np

from numbarnn.common.philox import drop_connect_words


class RecurrentWeights:
    """The R of all layers and directions of a forward pass, to be made before its first step; kept for backward.

    Its arrays are buffers of the pass: `R` or `all_weights`, `drop_words`, `R_dropped`.

    Attributes:
        words: (L*D, A, 6) uint64, of the engine: what `Engine.dropout` needs to know of each gate's mask; None if
            nothing is dropped. scales: per gate what the others are multiplied by.
    """

    def __init__(self, work, drops):
        # The pass holds this object: held back, its arrays would return to the pool only when Python looks for circles.
        problem, self._work, self._joined = work.problem, weakref.proxy(work), False
        self._engine, self._cell = work.engine, problem.cell
        sizes = zip(problem.hidden_sizes, problem.output_sizes, strict=True)
        shapes = [(problem.cell.num_ah * H, P) for H, P in sizes for _ in range(problem.directions)]
        places = [(layer, d) for layer in range(problem.layers) for d in range(problem.directions)]
        self._shapes = dict(zip(places, shapes, strict=True))
        self.words, self.scales = None, ()
        if drops:
            rates = list(enumerate(problem.cell.drop_connect))
            masks = [
                [drop_connect_words(rate, work.seed, work.origin.place + n, gate, work.call) for gate, rate in rates]
                for n in range(len(places))
            ]
            self.scales = [scale for scale, *_ in masks[0]]
            words = np.array([[words for _, *words in gates] for gates in masks], np.uint64)
            self.words = work.drop_words = work.from_host("drop_words", words)

    @classmethod
    def made_for(cls, work):
        """Those of a `ForwardPass`; None where R is the parameter."""
        cell = work.problem.cell
        drops = work.problem.training and any(cell.drop_connect)
        return cls(work, drops) if cell.num_ah and (cell.heads > 1 or drops) else None

    # ------------------------------------------------------------------------------------------------------- arrays
    def join(self):
        """Let `array` begin with all parameters, for kernels that know weights by their places in one array."""
        self._joined = True

    @property
    def array(self):
        """All R, one after the other."""
        name = "all_weights" if self._joined else "R"
        self._work.allocate(name)
        return getattr(self._work, name)

    @property
    def _dropped(self):
        """Scratch for the parameter of any place with weights dropped, where it is then spread."""
        self._work.allocate("R_dropped")
        return self._work.R_dropped

    def allocate(self):
        """Make its arrays."""
        _ = self.array, self._dropped

    def start(self, place):
        """Where the R of a place (layer, direction) begins in `array`."""
        before = list(self._shapes).index(place)
        return self.array.size - sum(map(prod, list(self._shapes.values())[before:]))

    def R(self, place):
        """(A*H, P)."""
        rows, columns = self._shapes[place]
        return self.array[self.start(place) :][: rows * columns].reshape(rows, columns)

    def parameter(self, place):
        """(A*H, P/n)."""
        layer, direction = place
        return self._work.weights[layer][direction].R

    # ------------------------------------------------------------------------------------------------------ functions
    def fill(self):
        """The functions that make all R."""
        engine, heads = self._engine, self._cell.heads
        if self._joined:
            flat = self._work.flat
            yield partial(engine.copy, self.array[: flat.size], flat)
        for place in self._shapes:
            R, used = self.R(place), self.parameter(place)
            if self.words is not None:
                parameter, used = used, R if heads == 1 else self._dropped[: used.size].reshape(used.shape)
                yield from self.drop(used, parameter, place)
            if heads > 1:
                yield partial(engine.spread_blocks, R, used, self._cell.num_ah)

    def drop(self, out, x, place):
        """The functions for out = x with weights dropped, gate by gate; both laid out as the parameter."""
        words, size = self.words[list(self._shapes).index(place)], len(x) // self._cell.num_ah
        for gate, scale in enumerate(self.scales):
            own = slice(gate * size, (gate + 1) * size)
            yield partial(self._engine.dropout, out[own], x[own], words[gate], scale)

    def gradient(self, dw, scratch, dah, per_unit, place, accumulate, allow_tf32):
        """The functions for dw (A*H, P/n) (+)= the gradient of the parameter, block by block.

        Args:
            scratch: like dw, for what is dropped before it is added; None if nothing is dropped, or not added.
            dah: (T*B, A*H). per_unit: for each gate what it multiplied, (T*B, P). Rows at any stride.
        """
        heads, out = self._cell.heads, dw if scratch is None else scratch
        options = {"transpose_a": True, "accumulate": accumulate and scratch is None, "allow_tf32": allow_tf32}
        size = len(dw) // len(per_unit) // heads
        for gate, vector in enumerate(per_unit):
            width = vector.shape[1] // heads
            for head in range(heads):
                rows, columns = (slice(number * n, (number + 1) * n) for number, n in
                                 ((gate * heads + head, size), (head, width)))  # fmt: skip
                yield partial(self._engine.multiply, out[rows], dah[:, rows], vector[:, columns], **options)
        if self.words is not None:
            yield from self.drop(out, out, place)
        if scratch is not None:
            yield partial(self._engine.sum_gates, dw, scratch, 1, True)
