"""R as steps multiply with it, where that is not the parameter itself: blocks on the diagonal, or some weights dropped.

With `Cell.heads` = n the parameter is (A*H, P/n), P the width of h (H but for projections): row g H + j multiplies the
numbers of head j div (H/n) alone. Engines multiply with a dense R (A*H, P), zero outside of the blocks; persistent
kernels multiply what of it is in the blocks, where theirs suit (`schedules.persistent.shares.sources`). In training
`Cell.drop_connect` drops weights of the parameter out first, with one mask per gate for all steps. The gradient of the
parameter is that of the blocks, dropped out by the same masks.
"""

from math import prod

from numbarnn.common.philox import drop_connect_words


class RecurrentWeights:
    """The R of all layers and directions of a forward program, made before its first step and kept for backward.

    Args:
        forward: the `Forward`, with the parameters. drops: some weights are dropped.

    Attributes:
        array: all R, one after the other; with launches, whose kernels know weights by their places in one array, after
            all parameters.
        words: (L*D, A, 6) uint64: what `Engine.dropout` needs to know of each gate's mask; None if nothing is dropped.
        scales: per gate what the others are multiplied by.
    """

    def __init__(self, forward, drops):
        problem = forward.problem
        self._cell, self._weights, self._flat = problem.cell, forward.weights, forward.flat
        sizes = zip(problem.hidden_sizes, problem.output_sizes, strict=True)
        shapes = [(problem.cell.num_ah * H, P) for H, P in sizes for _ in range(problem.directions)]
        places = [(layer, d) for layer in range(problem.layers) for d in range(problem.directions)]
        self._shapes = dict(zip(places, shapes, strict=True))
        size, self._joined = sum(map(prod, shapes)), forward.plan.has_launches
        if self._joined:
            self.array = forward.new("all_weights", (forward.flat.size + size,))
        else:
            self.array = forward.new("R", (size,))
        self.words, self.scales, self._dropped = None, (), None
        if drops:
            self.words = forward.input("drop_words", (len(places), problem.cell.num_ah, 6), "uint64")
            self.scales = [drop_connect_words(rate, 0, 0, 0, 0)[0] for rate in problem.cell.drop_connect]
            if problem.cell.heads > 1:  # a parameter before it is spread
                self._dropped = forward.new("R_dropped", (max(map(prod, shapes)) // problem.cell.heads,))

    @classmethod
    def made_for(cls, forward):
        """Return those of a `Forward`; None where R is the parameter."""
        cell = forward.problem.cell
        drops = forward.problem.training and any(cell.drop_connect)
        return cls(forward, drops) if cell.num_ah and (cell.heads > 1 or drops) else None

    def start(self, place):
        """Where the R of a place (layer, direction) begins in `array`."""
        before = list(self._shapes).index(place)
        return self.array.size - sum(map(prod, list(self._shapes.values())[before:]))

    def R(self, place):
        """(A*H, P)."""
        rows, columns = self._shapes[place]
        return self.array[self.start(place) :][: rows * columns].reshape(rows, columns)

    def fill(self, program):
        """Emit what makes all R."""
        heads = self._cell.heads
        if self._joined:
            program.emit("copy", self.array[: self._flat.size], self._flat)
        for place in self._shapes:
            R, used = self.R(place), self._weights[place[0]][place[1]].R
            if self.words is not None:
                parameter, used = used, R if heads == 1 else self._dropped[: used.size].reshape(used.shape)
                self.drop(program.emit, used, parameter, place)
            if heads > 1:
                program.emit("spread_blocks", R, used, self._cell.num_ah)

    def drop(self, emit, out, x, place):
        """Emit out = x with weights dropped, gate by gate; both laid out as the parameter."""
        number = list(self._shapes).index(place)
        for words, own, scale in self.gates_of(number, len(x)):
            emit("dropout", out[own], x[own], words, scale)

    def gates_of(self, number, rows):
        """(words, rows of the parameter, scale) of each gate of a place."""
        size = rows // self._cell.num_ah
        for gate, scale in enumerate(self.scales):
            yield self.words[number, gate], slice(gate * size, (gate + 1) * size), scale

    def gradient(self, emit, dw, scratch, dah, per_unit, place, accumulate, allow_tf32):
        """Emit dw (A*H, P/n) (+)= the gradient of the parameter, block by block.

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
                emit("multiply", out[rows], dah[:, rows], vector[:, columns], **options)
        if self.words is not None:
            self.drop(emit, out, out, place)
        if scratch is not None:
            emit("sum_gates", dw, scratch, 1, True)


def drop_connect_masks(problem, seed, call, first_place):
    """(L*D, A, 6) uint64, `RecurrentWeights.words` of a call.

    Args:
        first_place: number of the problem's first place in the whole call.
    """
    rates = list(enumerate(problem.cell.drop_connect))
    return [
        [drop_connect_words(rate, seed, first_place + n, gate, call)[1:] for gate, rate in rates]
        for n in range(problem.layers * problem.directions)
    ]
