"""Long sequences in little memory: states are kept at every k-th step, what lies between is computed again.

Chen, Xu, Zhang and Guestrin 2016, "Training deep nets with sublinear memory cost", arXiv:1604.06174.

A call of T steps is cut into segments of k steps; the last one may have fewer. Each is an ordinary pass of a shorter
problem. Forward keeps the states before each segment, and lets go of what the segment saves. Backward takes the
segments from the last to the first: it runs each forward once more, from the states that were kept, and then backward.
So states of T / k steps and all of k steps are kept, where it was all of T steps, for about one forward pass more.

A segment draws the random numbers of its own times (`philox.Origin`). Private states and the gradients of states pass
from one segment to the next as they accumulate, not rounded. So on the CPU, and wherever else a product's rows do not
depend on how many there are, y and the states have the same bits as without checkpoints. Gradients agree to rounding:
the BLAS may round dx differently with fewer rows, and the parameters' gradients are summed segment by segment.

Layers of one direction are one stack: a segment needs no more than the states of all of them. With two directions one
begins where the other ends. So each layer and direction is a stack of its own then (a `Chain`), and what a layer hands
to the next one is kept for all steps. For the direction that goes back in time, arrays are turned around.
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
        """The (layer, direction) pairs."""
        return [(layer, self.direction) for layer in range(self.first, self.last)]

    def segments(self, problem):
        """(time, end) of each, in the direction's order."""
        T, k = problem.steps, problem.checkpoint_every
        found = [(time, min(time + k, T)) for time in range(0, T, k)]
        return found[::-1] if self.direction else found

    def columns(self, array):
        """The direction's columns of an array (..., D * N) with those of both."""
        return array[..., array.shape[-1] // 2 :] if self.direction else array[..., : array.shape[-1] // 2]


@lru_cache(maxsize=1024)
def chains_of(problem):
    """The `Chain`s of a call, in the order of the forward pass."""
    if problem.directions == 1:
        return (Chain(0, problem.layers),)
    return tuple(Chain(layer, layer + 1, direction) for layer in range(problem.layers) for direction in (0, 1))


@lru_cache(maxsize=1024)
def segment_problem(problem, chain, steps):
    """The `Problem` of so many steps of a chain."""
    own = {"steps": steps, "batch_major": False, "checkpoint_every": 0, "segment_of": problem.steps}
    own["keeps_states"] = problem.keeps_states and chain.last == problem.layers
    if problem.directions == 2:
        of_chain = slice(chain.first, chain.last)
        own |= {"directions": 1, "dropout": 0.0, "copied": problem.copied_gates[of_chain]}
        own |= {"hidden_sizes": problem.hidden_sizes[of_chain], "units": problem.units[of_chain]}
        own["flat_size"] = problem.space.size + problem.space.derived_size
        if chain.first > 0:
            own |= {"input_size": 2 * problem.output_sizes[chain.first - 1], "input_mode": "linear"}
        elif problem.input_mode == "given":
            own["input_size"] = problem.input_size // 2
    return replace(problem, **own)


def segments_of(problem):
    """The different `Problem`s of a call's segments -> how many segments have each: few are different."""
    return Counter(
        segment_problem(problem, chain, end - time)
        for chain in chains_of(problem)
        for time, end in chain.segments(problem)
    )


def checkpoint_buffers(problem):
    """(name, shape, dtype) of what a training call with checkpoints keeps besides x and the weights. T and B may be
    numbers that are not known yet."""
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
