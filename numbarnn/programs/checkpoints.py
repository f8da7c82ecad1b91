"""Process long sequences in little memory: keep the states of every k-th step and recompute the rest in backward.

Chen, Xu, Zhang and Guestrin 2016, "Training deep nets with sublinear memory cost", arXiv:1604.06174.

A call of T steps is cut into segments of k steps; the last one may be shorter. Each segment is an ordinary call of a
shorter problem. Forward keeps the states before each segment and frees what the segment saves. Backward goes through
the segments from last to first: it repeats the segment's forward from the kept states, then runs its backward. Memory
holds T / k states and the tape of k steps. The price is about the time of one more forward pass.

A segment draws the random numbers of its own time steps (`philox.Origin`). Cell states and gradients of states pass
between segments unrounded. So y and the states have the same bits as without checkpoints, if a matrix product computes
each row alike for any number of rows, as it does on the CPU. Gradients agree to rounding: BLAS may round dx differently
for fewer rows, and gradients of parameters are summed segment by segment.

With one direction, all layers form one `Chain`, and a segment needs the states of these layers only. With two, one
direction starts where the other ends. So each layer and direction is its own chain, and all steps of a layer's output
are kept. The second direction processes its segments in reverse.
"""

from collections import Counter
from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple


class Chain(NamedTuple):
    """Layers that are computed together, segment by segment, in one direction.

    Attributes:
        first, last: the layers [first, last). direction: 0 or 1.
    """

    first: int
    last: int
    direction: int = 0

    @property
    def places(self):
        """Return the (layer, direction) pairs."""
        return [(layer, self.direction) for layer in range(self.first, self.last)]

    def segments(self, problem):
        """Return (start, end) of each segment in time, in the direction's order."""
        T, k = problem.steps, problem.checkpoint_every
        segments = [(time, min(time + k, T)) for time in range(0, T, k)]
        return segments[::-1] if self.direction else segments

    def columns(self, array):
        """Return this direction's columns of an array (..., D*N)."""
        return array[..., array.shape[-1] // 2 :] if self.direction else array[..., : array.shape[-1] // 2]


@lru_cache(maxsize=1024)
def chains_of(problem):
    """Return the `Chain`s of a call, in the order of the forward pass."""
    if problem.directions == 1:
        return (Chain(0, problem.layers),)
    return tuple(Chain(layer, layer + 1, direction) for layer in range(problem.layers) for direction in (0, 1))


@lru_cache(maxsize=1024)
def segment_problem(problem, chain, steps):
    """Return the `Problem` of a segment of a chain with this number of steps."""
    fields = {"steps": steps, "batch_major": False, "checkpoint_every": 0, "segment_of": problem.steps}
    fields["keeps_states"] = problem.keeps_states and chain.last == problem.layers
    if problem.directions == 2:
        of_chain = slice(chain.first, chain.last)
        fields |= {"directions": 1, "dropout": 0.0, "copied": problem.copied_gates[of_chain]}
        fields |= {"hidden_sizes": problem.hidden_sizes[of_chain], "units": problem.units[of_chain]}
        fields["flat_size"] = problem.space.size + problem.space.derived_size
        if chain.first > 0:
            fields |= {"input_size": 2 * problem.output_sizes[chain.first - 1], "input_mode": "linear"}
        elif problem.input_mode == "given":
            fields["input_size"] = problem.input_size // 2
    return replace(problem, **fields)


def segments_of(problem):
    """Count a call's segments by their `Problem`; few problems differ."""
    return Counter(
        segment_problem(problem, chain, end - time)
        for chain in chains_of(problem)
        for time, end in chain.segments(problem)
    )


def checkpoint_buffers(problem):
    """Yield (name, shape, dtype) of what a training call with checkpoints keeps besides x and the weights. T and B may
    be symbolic."""
    p = problem
    T, B, D = p.steps, p.batch, p.directions
    segments = -(-T // p.checkpoint_every)
    if p.masked:
        yield "step_mask", (D, T + 2, B), "uint8"
    for layer, (H, P) in enumerate(zip(p.hidden_sizes, p.output_sizes, strict=True)):
        for direction in range(D):  # states before each segment, in the direction's order
            yield ("h", (layer, direction)), (segments, B, P), "storage"
            if p.cell.num_private:
                yield ("c", (layer, direction)), (segments, B, p.cell.num_private * H), "state"
        if D > 1 and layer + 1 < p.layers:  # the input of the layer above
            yield ("outputs", layer), (T, B, D * P), "storage"
