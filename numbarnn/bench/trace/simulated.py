"""The record of a persistent kernel in the simulator: what its blocks do, seen from what they exchange.

Blocks of such a kernel meet only in the numbers that they hand each other (`numbarnn.kernels.persistent.exchange`): to
look at one is to wait for it, to store one is to publish it. The simulator tells of each such load and store
(`numbarnn.cuda.watching`). The number's place in its array says which layer, step and block it is of. Per block and
step that gives

    first look ... last look          it waits, if something was missing; else it goes on at once
    last look ... first store         it multiplies
    first store ... last store        it runs the cell's equations and publishes

Where blocks exchange something within the step, it multiplies until it stores the first number of its part of that:

    first store ... last look         it exchanges sums over units, or what a further product or a projection multiplies
    last look ... next first store    it multiplies that; sums over units it has added up by then

For whom it waits in adding up is not told. These do not overlap: barriers stand between them. Within an exchange some
warps of a block may look while others still store.
"""

import inspect
from collections import defaultdict
from dataclasses import dataclass, field
from operator import itemgetter
from typing import NamedTuple

import numpy as np

import numbarnn
from numbarnn.bench.trace.record import Event, Record, Step
from numbarnn.common.order import step_time
from numbarnn.cuda import simulator, watching
from numbarnn.kernels.persistent.columns import BLOCK, RECURRENT, STAGE, WARP
from numbarnn.schedules.persistent.schedule import SCHEDULE

SUMS = -1  # beside the kinds of products
KERNELS = ("persistent_forward_kernel", "persistent_backward_kernel")


@dataclass
class Inner:
    """What a block exchanges within a step: `SUMS` over units, or what a further product or a projection multiplies.

    begin, end: turns of the first and the last access. multiplies: the block has begun to look at what the product
    multiplies. missed: as of a Phase.
    """

    of: object
    begin: int
    end: int
    multiplies: bool = False
    missed: dict = field(default_factory=dict)


@dataclass
class Phase:
    """A block's work on a step (of as many sequences as it multiplies at once).

    begin: the turn of the first look or store. looked: of the last look; None: the block looks at nothing. missed: the
    Steps of which a number was missing; the one that was missed last stands last. reads: the steps that the block
    looked at. stored: turns of the first and the last store so far. inner: what it exchanges within the step, in order.
    """

    step: int
    begin: int
    looked: int | None = None
    missed: dict = field(default_factory=dict)
    reads: set = field(default_factory=set)
    stored: tuple[int, int] | None = None
    inner: list = field(default_factory=list)


class Exchanged(NamedTuple):
    """An array that blocks exchange: slots of rows, one for each sequence.

    direction: None: numbers of both stand side by side in a row. hidden: H of the layer, of projections' h P. width:
    elements of a row. before: slots before the one of time 0.
    """

    layer: int
    direction: int | None
    hidden: int
    width: int
    before: int


class Recorder(watching.Watcher):
    """Records the persistent launches of a pass, `planner.Launch`es in their order: its `blocks` and `events`."""

    def __init__(self, launches):
        self.blocks, self.events, self._launches = [], [], iter(launches)
        self._arrays, self._words, self._within, self._turns_before = {}, set(), {}, 0

    # -- of a launch
    def launched(self, launch, function, arguments):
        if function.__name__ not in KERNELS:
            return
        given = dict(zip(inspect.signature(function).parameters, arguments, strict=True))
        self._planned, self._launch = next(self._launches), launch
        self._rows, self._warps = given["tables"]
        self._directions, self._steps, self._batch, _ = map(int, given["sizes"])
        self._owners, self._first_block, self._phases = {}, len(self.blocks), defaultdict(list)
        self._widths = {self._planned.first + int(row[BLOCK.layer]): int(row[BLOCK.width]) for row in self._rows}
        for number, row in enumerate(self._rows):
            layer, direction = self._planned.first + int(row[BLOCK.layer]), int(row[BLOCK.direction])
            size = int(row[BLOCK.hidden]), self._batch
            owner = self._owners.setdefault((layer, direction), np.zeros(size, int))
            units = slice(row[BLOCK.unit], row[BLOCK.unit] + row[BLOCK.units])
            owner[units, row[BLOCK.sequence] : row[BLOCK.end]] = number
            self.blocks.append(self._name(number, row, layer, direction))
        self._arrays = {id(array): place for array, place in self._exchanged(given)}
        self._words = {id(array) for array in given["within_step"].words}
        self._within = self._columns_within(given)

    def _columns_within(self, given):
        """id of an array -> kind of a product within the step that multiplies some of its columns -> the first one."""
        names, within, found = ("dah", "dax") if self._planned.backward else ("h", "dropped"), given["within_step"], {}
        arrays = [array for name in names for array in given[name]]
        arrays += [*(() if self._planned.backward else within.v), *within.projected]  # as kernels number operands
        for warp in self._warps.reshape(-1, self._warps.shape[-1]):
            kind, column = int(warp[WARP.kind]), int(warp[WARP.column])
            if kind >= STAGE and warp[WARP.columns]:
                of_array = found.setdefault(id(arrays[warp[WARP.operand]]), {})
                of_array[kind] = min(of_array.get(kind, column), column)
        return found

    def _name(self, number, row, layer, direction):
        """What a lane is called."""
        arrow = ("", f" {'→←'[direction]}")[self._directions > 1]
        units = f"units {row[BLOCK.unit]}–{row[BLOCK.unit] + row[BLOCK.units] - 1}" if row[BLOCK.units] else "no units"
        part = f", sequences {row[BLOCK.sequence]}–{row[BLOCK.end] - 1}" if self._planned.slices > 1 else ""
        return f"block {self._first_block + number}: layer {layer}{arrow}, {units}{part}"

    def _exchanged(self, given):
        """Yield (array, Exchanged) of each array that blocks exchange.

        Forward: h, h after dropout and what a projection multiplies, all directions of a layer in one array; and what
        further products multiply, one for each direction. Backward: the gradients of pre-activations and of
        projections' h, an array for each layer and direction.
        """
        within, places = given["within_step"], self._planned.places
        if self._planned.backward:
            one_each = [arrays for arrays in (given["dah"], given["dax"], within.projected) if arrays]
        else:
            one_each, layers = [within.v], self._planned.layer_range
            units = {layer: len(self._owners[layer, 0]) for layer in layers}
            for arrays, widths, before in (
                (given["h"], self._widths, 1), (given["dropped"], self._widths, 0), (within.projected, units, 1),
            ):  # fmt: skip
                for layer, array in zip(layers, arrays, strict=False):  # the last drops nothing
                    yield array, Exchanged(layer, None, widths[layer], self._directions * widths[layer], before)
        for arrays in one_each:
            for (layer, direction), array in zip(places, arrays, strict=False):
                width = len(array) // (self._steps * self._batch)
                yield array, Exchanged(layer, direction, len(self._owners[layer, direction]), width, 0)

    # -- of a load or store
    def loaded(self, array, index, count):
        if id(array) in self._words and (phases := self._phases[self._who()[0]]) and phases[-1].inner:
            phases[-1].inner[-1].end = self._launch.turns
        place = self._arrays.get(id(array))
        if place is None:
            return
        block, warp = self._who()
        kind = self._warps[block, warp, WARP.kind]
        source, t = self._source(place, index)
        if kind >= STAGE:
            inner = self._inner(block, source.step, int(kind))
            inner.multiplies = True
            self._note_missed(inner, array, place, index, count)
            inner.missed = {step: at for step, at in inner.missed.items() if step.block != self._first_block + block}
            return
        direction = int(self._rows[block, BLOCK.direction])
        recurrent = kind == RECURRENT
        step = source.step + 1 if recurrent else self._step_of(t, direction)
        phase = self._phase(block, step, begins=lambda phase: phase.stored or phase.inner)
        phase.looked = self._launch.turns
        if source.step >= 0:  # not the initial state
            phase.reads.add(Step(*source.place))
        self._note_missed(phase, array, place, index, count)

    def _note_missed(self, phase, array, place, index, count):
        """Of `count` numbers that a block looks at those that are missing, to `missed` of a Phase or an Inner."""
        for at in range(index, index + count):
            if _unwritten(array, at):
                missing, _ = self._source(place, at)
                if missing.step < 0:  # the initial state: a record has no step before the first
                    continue
                phase.missed.pop(missing, None)
                phase.missed[missing] = True

    def stored(self, array, index, count):
        if id(array) in self._words:
            self._inner(self._who()[0], int(array[index]) >> 32, SUMS)
        place = self._arrays.get(id(array))
        if place is None:
            return
        block, _ = self._who()
        source, _ = self._source(place, index)
        if source.step < 0:  # the initial state, which it publishes as it loads its weights
            return
        within = [one for one in self._within.get(id(array), {}).items() if one[1] <= index % place.width]
        if within:
            self._inner(block, source.step, max(within, key=itemgetter(1))[0])
            return
        phase, turn = self._phase(block, source.step, begins=lambda phase: False), self._launch.turns
        phase.stored = phase.stored[0] if phase.stored else turn, turn

    def _who(self):
        """(block, warp) of the thread whose turn it is."""
        thread = self._launch.current
        return thread.block.index[0], thread.index[0] // 32

    def _phase(self, block, step, begins):
        """The block's phase at a step: its last one, or a new one if that is of another step or `begins` is true."""
        phases = self._phases[block]
        if not phases or phases[-1].step != step or begins(phases[-1]):
            phases.append(Phase(step, self._launch.turns))
        return phases[-1]

    def _inner(self, block, step, of):
        """What the block exchanges within a step now: its last `Inner` there, or a new one if that is of something
        else; noted as accessed."""
        turn, found = self._launch.turns, self._phase(block, step, begins=lambda phase: phase.stored).inner
        if not found or found[-1].of != of:
            found.append(Inner(of, turn, turn))
        found[-1].end = turn
        return found[-1]

    def _source(self, place, index):
        """(Step, time) of the number at an index of an exchanged array."""
        slot, rest = divmod(int(index), self._batch * place.width)
        b, column = divmod(rest, place.width)
        direction = column // place.hidden if place.direction is None else place.direction
        t = slot - place.before
        block = int(self._owners[place.layer, direction][column % place.hidden, b])
        return Step(place.layer, direction, self._step_of(t, direction), self._first_block + block), t

    def _step_of(self, t, direction):
        """The step of a time; where t is that of the initial state, -1."""
        return step_time(t, self._steps, direction, self._planned.backward)[0]

    # -- afterwards
    def ended(self, launch):
        if not self._arrays:
            return
        for block, phases in self._phases.items():
            row = self._rows[block]
            about = {"layer": self._planned.first + int(row[BLOCK.layer]), "direction": int(row[BLOCK.direction])}
            self._add(block, "load", 0, phases[0].begin, about)
            for phase in phases:
                self._add_phase(block, phase, about | {"step": phase.step})
        self._turns_before += launch.turns
        self._arrays = {}

    def _add_phase(self, block, phase, about):
        """The events of a phase."""
        begin = phase.begin
        if phase.missed:
            self._add(block, "wait", begin, phase.looked, about, waits_for=tuple(phase.missed))
            begin = phase.looked
        # When what comes next begins. Backward's last product, for the initial state, is followed by no store.
        starts = [inner.begin for inner in phase.inner] + ([phase.stored[0]] if phase.stored else [])
        if phase.looked is not None:
            reads = tuple(sorted(phase.reads, key=lambda step: step.place))
            self._add(block, "multiply", begin, starts[0] if starts else phase.looked + 1, about, reads=reads)
        for number, inner in enumerate(phase.inner):
            done = starts[number + 1] if number + 1 < len(starts) else inner.end + 1
            if inner.multiplies:
                self._add(block, "exchange", inner.begin, inner.end, about, waits_for=tuple(inner.missed))
                self._add(block, "multiply", inner.end, done, about)
            else:  # of what a projection multiplies a block without outputs needs nothing: its step is done
                last = inner is phase.inner[-1] and not phase.stored and inner.of != SUMS
                self._add(block, "publish" if last else "exchange", inner.begin, done, about)
        if phase.stored:
            self._add(block, "publish", phase.stored[0], phase.stored[1] + 1, about)

    def _add(self, block, kind, start, end, about, **more):
        before = self._turns_before
        self.events.append(Event(self._first_block + block, kind, before + start, before + end, **about, **more))


def _unwritten(array, index):
    """Whether nobody has stored array[index] yet."""
    bits = array.view(f"u{array.itemsize}")
    return bits[index] == np.iinfo(bits.dtype).max


def record(title, cell, shape, backward, directions=1, about=()):
    """Return the Record of a pass of the persistent schedule, in this process, which is the simulator's.

    Args:
        shape: a `numbarnn.bench.shapes.Shape`. about: more to tell, pairs of words.
    """
    network = numbarnn.RNN(
        cell, shape.I, shape.H, shape.L, device="sim", schedule="persistent", seed=0, bidirectional=directions == 2
    )
    x = np.random.default_rng(0).standard_normal((shape.T, shape.B, shape.I)).astype(np.float32)
    recorder = Recorder(SCHEDULE.launches(network.stack.problem(shape.T, shape.B, backward), backward))
    call, error = (lambda: network(x)), None
    if backward:
        y, _, tape = network.forward(x)
        call = lambda: network.backward(tape, np.ones_like(y))  # noqa: E731
    with simulator.schedule(), watching.watched(recorder):
        try:
            call()
        except RuntimeError as raised:  # what was recorded up to there is worth seeing
            error = str(raised)
    if not recorder.events:
        raise RuntimeError(f"nothing to record: of {', '.join(KERNELS)} none was launched ({error})")
    about = (*about, ("seed of the threads' order", str(simulator.default_seed())))
    sizes, found = (shape.L, directions, shape.T), (tuple(recorder.blocks), tuple(recorder.events))
    return Record(title, "turns", backward, *sizes, *found, about, error)
