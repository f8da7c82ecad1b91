"""Make the R that steps multiply with, for cells with heads or dropped weights.

With `Cell.heads` = n, the parameter is (A*H, P/n) for A gates and the width P of h. Row g H + j multiplies only head
j div (H/n) of h. Engines multiply with a dense R (A*H, P) that is zero outside these blocks. Persistent
kernels skip the zeros where their tiles fit the blocks (`schedules.persistent.shares.sources`). In training,
`Cell.drop_connect` first drops weights of the parameter, with one mask per gate for all steps. The parameter's gradient
is the gradient of the blocks, with the same masks applied.
"""

from math import prod

from numbarnn.common.philox import drop_connect_words


class RecurrentWeights:
    """The R of all layers and directions of a forward program, made before the first step and kept for backward.

    Args:
        forward: the `Forward`, with the parameters. drops: whether weights are dropped.

    Attributes:
        array: all R, one after another. With launches, they follow all parameters in one array, because kernels find
            weights by their offset in it.
        words: (L*D, A, 6) uint64, the mask of each gate as `Engine.dropout` takes it; None if nothing is dropped.
        scales: for each gate, the factor of the weights that are kept.
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
        """Make the `RecurrentWeights` of a `Forward`; None if steps multiply with the parameter itself."""
        cell = forward.problem.cell
        drops = forward.problem.training and any(cell.drop_connect)
        return cls(forward, drops) if cell.num_ah and (cell.heads > 1 or drops) else None

    def start(self, place):
        """Return the position in `array` of the R of a place (layer, direction)."""
        before = list(self._shapes).index(place)
        return self.array.size - sum(map(prod, list(self._shapes.values())[before:]))

    def R(self, place):
        """Return the R of a place, (A*H, P)."""
        rows, columns = self._shapes[place]
        return self.array[self.start(place) :][: rows * columns].reshape(rows, columns)

    def fill(self, program):
        """Emit the operations that make all R."""
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
        """Emit out = x with weights dropped, gate by gate; both have the parameter's layout."""
        number = list(self._shapes).index(place)
        for words, rows, scale in self.gates_of(number, len(x)):
            emit("dropout", out[rows], x[rows], words, scale)

    def gates_of(self, number, rows):
        """Yield (words, rows of the parameter, scale) for each gate of a place."""
        size = rows // self._cell.num_ah
        for gate, scale in enumerate(self.scales):
            yield self.words[number, gate], slice(gate * size, (gate + 1) * size), scale

    def gradient(self, emit, dw, scratch, dah, multiplied, place, accumulate, allow_tf32):
        """Emit dw (A*H, P/n) (+)= the parameter's gradient, block by block.

        Args:
            scratch: an array like dw for a gradient that is masked before it is added; None if none is.
            dah: (T*B, A*H). multiplied: each gate's vector that R multiplied, (T*B, P). Rows may have any stride.
        """
        heads, out = self._cell.heads, dw if scratch is None else scratch
        options = {"transpose_a": True, "accumulate": accumulate and scratch is None, "allow_tf32": allow_tf32}
        size = len(dw) // len(multiplied) // heads
        for gate, vector in enumerate(multiplied):
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
    """Return `RecurrentWeights.words` of a call, (L*D, A, 6) uint64; first_place: number of the problem's first (layer,
    direction) in the whole call."""
    rates = list(enumerate(problem.cell.drop_connect))
    return [
        [drop_connect_words(rate, seed, first_place + n, gate, call)[1:] for gate, rate in rates]
        for n in range(problem.layers * problem.directions)
    ]
