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

from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from numbarnn.common.philox import Origin
from numbarnn.passes import buffers
from numbarnn.passes.backward import ALL, BackwardPass, Given
from numbarnn.passes.executor import part_of_state, rows
from numbarnn.passes.forward import ForwardPass
from numbarnn.passes.recurrent_weights import RecurrentWeights
from numbarnn.passes.reserve import Reserving
from numbarnn.schedules.plan import BOTH


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
        own["flat_size"] = problem.space.size + problem.space.formed_size
        if chain.first > 0:
            own |= {"input_size": 2 * problem.output_sizes[chain.first - 1], "input_mode": "linear"}
        elif problem.input_mode == "given":
            own["input_size"] = problem.input_size // 2
    return replace(problem, **own)


def segment_problems(problem):
    """Return the different `Problem`s of a call's segments."""
    found = (
        segment_problem(problem, chain, end - time)
        for chain in chains_of(problem)
        for time, end in chain.segments(problem)
    )
    return list(dict.fromkeys(found))


class _Space(NamedTuple):
    """Where a chain's gradients stand in the flat buffer of all: as `BackwardPass` asks a `WeightSpace`."""

    whole: object
    chain: Chain

    def pseudo_layer(self, dw, layer, direction, d_formed):
        return self.whole.pseudo_layer(dw, self.chain.first + layer, self.chain.direction, d_formed)


def _allocator(engine):
    """A function as `Engine.allocate` returns it, of memory that no recording needs to find again."""
    return lambda name, shape, dtype: engine.empty(shape, dtype)


class CheckpointedForward(Reserving):
    """A forward call that keeps states alone; the tape that `CheckpointedBackward` reads.

    Args:
        call: the `Call`. schedule: that of the stack, asked for the plans of segments.

    Attributes:
        the buffers of `buffers.CHECKPOINTED`; what the call knows.
    """

    table = buffers.Table(buffers.CHECKPOINTED)

    def __init__(self, call, schedule):
        super().__init__(call, _allocator(call.engine))
        self._call, self.schedule = call, schedule
        if self.dropping:
            self.draw_masks()

    @classmethod
    def of_reserve(cls, call, schedule, x, reserve):
        """The tape of a forward call that is over, made again; x as it was."""
        self = cls(call, schedule)
        self.find_in(reserve)
        self.x = x
        return self

    x_copy = None  # segments copy what they need

    @property
    def recurrent(self):
        """R of the call where steps multiply with another one than the parameter: for who asks what was dropped."""
        return RecurrentWeights.made_for(self)

    def run(self, x, state, sequences):
        """All segments; returns (y, hy, cy), and all private states where the problem keeps them.

        Args:
            x, state: the caller's x and (hx, cx), as `ForwardPass` takes them.
            sequences: what has lengths, resets and padding_value.
        """
        problem = self.problem
        if self._call.reserves:
            self.keep_in(None)
        self.allocate("call")
        if problem.masked:
            self._fill_step_mask(sequences.lengths, sequences.resets)
        self.x = self.keep("x", x) if self._call.keeps else x
        if self.formed is not None:
            self.formed.form()
        for chain in chains_of(problem):
            for place in chain.places:
                self._begin(place, state)
            for number in range(len(chain.segments(problem))):
                self._keep(chain, number, self.segment(chain, number, sequences.padding_value))
        results = self.y, self.hy, self.cy
        return results if self.all_states is None else (*results, self.all_states)

    def _fill_step_mask(self, lengths, resets):
        engine, problem = self.engine, self.problem
        lengths = np.full(problem.batch, problem.steps, np.int32) if lengths is None else lengths
        resets = self.step_mask[0, :0] if resets is None else resets
        arrays = (engine.from_host(one) if isinstance(one, np.ndarray) else one for one in (lengths, resets))
        engine.fill_step_mask(self.step_mask, *arrays)

    def _begin(self, place, state):
        """The initial state of a layer and direction into its first slot."""
        layer, direction = place
        for slots, given in zip((self.h, self.c), state, strict=True):
            if place in slots and given is None:
                self.engine.zero(slots[place][0])
            elif place in slots:
                self.engine.copy(slots[place][0], part_of_state(self.problem, given, layer)[direction])

    def segment(self, chain, number, fill=0.0):
        """A chain's segment: its `ForwardPass`, run from the states that were kept."""
        time, end = chain.segments(self.problem)[number]
        problem, direction = segment_problem(self.problem, chain, end - time), chain.direction
        place = chain.first * self.problem.directions + direction
        call = self._call._replace(
            problem=problem,
            weights=self.read.of_chain(chain.places),
            keeps=False,
            reserves=False,
            origin=Origin(end - 1 if direction else time, place, direction == 1),
            step_mask=self.turned(chain, self.step_mask[direction, time : end + 2])[None] if problem.masked else None,
        )
        slot = slice(number, number + 1)
        states = ([known[at][slot] for at in chain.places] if known else None for known in (self.h, self.c))
        work = ForwardPass(call, self._input(chain, time, end), *states, fill=fill)
        work.run(self.schedule.pick(problem)[0].plan_forward(problem))
        return work

    def _input(self, chain, time, end):
        """(k, B, I), what the chain's first layer reads in a segment."""
        if chain.first == 0:
            x = self.time_major(self.x)[time:end]
            if self.problem.directions == 2 and self.problem.input_mode == "given":
                x = chain.columns(x)
            return self.turned(chain, x)
        x = self.outputs[chain.first - 1][time:end]
        if self.dropping:
            dropped = self.engine.empty(x.shape, x.dtype)
            self.engine.dropout(dropped, x, self.masks[chain.first - 1], self.scale, time * x[0].size)
            x = dropped
        return self.turned(chain, x)

    def turned(self, chain, array):
        """An array of times in the direction's order, contiguous."""
        return self.contiguous(array[::-1] if chain.direction else array)

    def contiguous(self, array):
        """An array, or a copy of it, of which no element is apart from the next one; None stays None."""
        if array is None or array.flags.c_contiguous:
            return array
        out = self.engine.empty(array.shape, array.dtype)
        self.engine.copy(out, array)
        return out

    def time_major(self, array):
        """A view of the caller's array with time first; None stays None."""
        return array.transpose(1, 0, 2) if array is not None and self.batch_major else array

    def of_segment(self, chain, number, array):
        """A view of a segment's part of an array (T, B, D * N), in the direction's order; None stays None."""
        if array is None:
            return None
        time, end = chain.segments(self.problem)[number]
        part = array[time:end] if self.problem.directions == 1 else chain.columns(array[time:end])
        return part[::-1] if chain.direction else part

    def _keep(self, chain, number, work):
        """What is kept of a segment that has run: states, y."""
        problem, engine = self.problem, self.engine
        segments, is_last = chain.segments(problem), chain.last == problem.layers
        y, h, c, *states = work.results()
        for layer, direction in chain.places:
            for slots, final, found in ((self.h, self.hy, h), (self.c, self.cy, c)):
                if found is None:
                    continue
                out = part_of_state(problem, final, layer)[direction]
                if number + 1 < len(segments):
                    out = slots[layer, direction][number + 1]
                engine.copy(out, part_of_state(work.problem, found, layer - chain.first)[0])
        outs = [self.time_major(self.y) if is_last else self.outputs[chain.last - 1]]
        outs += [self.time_major(self.all_states)] if states else []
        for out, found in zip(outs, (y, *states), strict=True):
            engine.copy(self.of_segment(chain, number, out), found)


class CheckpointedBackward(buffers.Buffers):
    """A backward call, segment by segment.

    Args:
        tape: the `CheckpointedForward`. given, space, dw, need: as `BackwardPass` takes them; where the gradients of
            parameters are needed and there is no `dw` to add them to, it makes one.

    Attributes:
        the buffers of `buffers.CHECKPOINTED_BACKWARD`.
        dw: the gradients of all parameters; None if they are not needed.
    """

    table = buffers.Table(buffers.CHECKPOINTED_BACKWARD)

    def __init__(self, tape, given, space, dw=None, need=ALL):
        super().__init__(tape.engine, tape.problem, _allocator(tape.engine))
        self.tape, self.given, self.space, self.need, self.dw = tape, given, space, need, dw
        if need.weights and dw is None:
            self.allocate("dw")
            self.engine.zero(self.dw)

    def run(self):
        """All segments; returns dx as x was given, dhx, dcx."""
        tape, engine, problem = self.tape, self.engine, self.problem
        self.allocate("call")
        if tape.formed is not None:
            tape.formed.form()
            if self.dw is not None:
                self.allocate("d_formed")
                engine.zero(self.d_formed)
        for chain in reversed(chains_of(problem)):
            if chain.direction == problem.directions - 1 and (chain.first > 0 or self.need.x):  # the layer's first one
                self.allocate("input", chain.first, BOTH)
            dy = tape.time_major(self.given.y) if chain.last == problem.layers else self.dx[chain.last]
            self._run_chain(chain, dy)
            if chain.direction == 0:
                self.give_up("dx", chain.last)
                if chain.first > 0 and tape.dropping:
                    dx = self.dx[chain.first]
                    engine.dropout(dx, dx, tape.masks[chain.first - 1], tape.scale)
        if self.d_formed is not None:
            tape.formed.pull_back(self.dw, self.d_formed, True)
        dx = self.give_up("dx", 0)
        if dx is not None and problem.batch_major:
            self.allocate("dx_copy")
            engine.copy(tape.time_major(self.dx_copy), dx)
            dx, self.dx_copy = self.dx_copy, None
        self.release_all()
        return dx, self.dhx, self.dcx

    def _run_chain(self, chain, dy):
        """Backward through all segments of a chain.

        Args:
            dy: (T, B, D * P) of its last layer, or None.
        """
        every = self.tape.time_major(self.given.states) if chain.last == self.problem.layers else None
        for place in chain.places:
            self.allocate("steps", *place)
        h, c = self._of_final(chain, self.given.h, self.dh), self._of_final(chain, self.given.c, self.dc)
        for number in reversed(range(len(chain.segments(self.problem)))):
            outputs = (self.tape.contiguous(self.tape.of_segment(chain, number, one)) for one in (dy, every))
            h, c = self._run_segment(chain, number, Given(next(outputs), h, c, next(outputs)))
        for layer, direction in chain.places:
            for out, found in ((self.dhx, h), (self.dcx, c)):
                if out is not None:
                    own = found[layer - chain.first] if isinstance(found, list) else found[layer - chain.first :][:1]
                    self.engine.copy(part_of_state(self.problem, out, layer)[direction], own[0])
            self.release(layer, direction)

    def _run_segment(self, chain, number, given):
        """Backward through one; returns the gradients of the states before it. Its arrays are gone afterwards."""
        tape, dx = self.tape.segment(chain, number), self.dx.get(chain.first)
        # this tape is made again for each pass; layers have other numbers in it
        need = self.need._replace(x=dx is not None, again=False, frozen=frozenset())
        work = BackwardPass(tape, given, _Space(self.space, chain), self.dw, True, need)
        if self.d_formed is not None:
            work.borrow("d_formed", self.d_formed)
        schedule = self.tape.schedule.pick(tape.problem)[0]
        work.run(schedule.plan_backward(tape.problem, self.dw is not None, need.x))
        found, h, c = work.results()
        if dx is not None:
            self._put_dx(chain, number, dx, found)
        return h, c

    def _of_final(self, chain, state, parts):
        """A chain's part of the gradient of a final state, as it accumulates: one (1, B, N) per layer, in the arrays of
        `parts`; None stays None."""
        if state is None:
            return None
        for layer, direction in chain.places:
            self.engine.copy(parts[layer, direction][0], part_of_state(self.problem, state, layer)[direction])
        return [parts[place] for place in chain.places]

    def _put_dx(self, chain, number, dx, found):
        """A segment's gradient of its input to its place; that of a layer's second direction is added."""
        time, end = chain.segments(self.problem)[number]
        out, found = dx[time:end], self.tape.turned(chain, found)
        if self.problem.directions == 2 and self.problem.input_mode == "given" and chain.first == 0:
            self.engine.copy(chain.columns(out), found)
        elif chain.direction == self.problem.directions - 1:
            self.engine.copy(out, found)
        else:
            self.engine.sum_gates(rows(out), rows(found), 1, True)

    def add_weights(self, dw):
        """Add the gradients of all parameters to a flat buffer."""
        self.engine.sum_gates(dw[None], self.dw[None], 1, True)
