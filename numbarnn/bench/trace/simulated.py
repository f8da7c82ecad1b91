"""The record of a persistent kernel in the simulator: what its blocks do, seen from what they exchange.

Blocks of such a kernel meet only in the numbers that they hand each other (`numbarnn.kernels.persistent.exchange`): to
look at one is to wait for it, to store one is to publish it. The simulator tells of each such load and store
(`numbarnn.cuda.watching`). The number's place in its array says which layer, step and block it is of. Per block and
step that gives

    first look ... last look          it waits, if something was missing; else it goes on at once
    last look ... first store         it multiplies
    first store ... last store        it runs the cell's equations and publishes

Where the cell has sums over units, it multiplies until it stores the first word of its part of them, and adds them up
with the other blocks from there to its first store of the state; for whom it waits then is not told. Nor is it where
the cell has further products: waiting for what they multiply, and multiplying it, is part of what comes before
publishing.

These do not overlap: by barriers a block's threads look only when all have stored, and store only when all have looked.
What blocks exchange within a step, for the cell's stages, is not looked at: it is part of running the equations.
"""

import inspect
from collections import defaultdict
from dataclasses import dataclass, field

import numpy as np

import numbarnn
from numbarnn.bench.trace.record import Block, Event, Record, Step
from numbarnn.common.order import step_time
from numbarnn.cuda import simulator, watching
from numbarnn.kernels.persistent.columns import BLOCK, RECURRENT, STAGE, WARP
from numbarnn.schedules.persistent.schedule import SCHEDULE

KERNELS = ("persistent_forward_kernel", "persistent_backward_kernel")
STALLED_PATIENCE = 30  # turns of each thread in vain, after which a run that is meant to stall is over


@dataclass
class Phase:
    """A block's work on a step (of as many sequences as it multiplies at once).

    Attributes:
        begin: the turn of the first look or store. looked: of the last look; None: the block looks at nothing.
        missed: Step -> (array, index) of a number of it that was missing; the step that was missed last stands
            last.
        reads: the steps that the block looked at. stored: turns of the first and the last store so far.
        within: turns of the first and the last access to words of sums over units (`kernels.persistent.across`).
    """

    step: int
    begin: int
    looked: int | None = None
    missed: dict = field(default_factory=dict)
    reads: set = field(default_factory=set)
    stored: tuple[int, int] | None = None
    within: tuple[int, int] | None = None


@dataclass(frozen=True)
class Exchanged:
    """An array that blocks exchange: slots of rows, one for each sequence.

    Attributes:
        direction: None: numbers of both stand side by side in a row. hidden: H of the layer, of projections' h P.
        width: elements of a row. before: slots before the one of time 0.
    """

    layer: int
    direction: int | None
    hidden: int
    width: int
    before: int


class Recorder(watching.Watcher):
    """Records the persistent launches of a pass: its `blocks` and `events`, as of a Record.

    Args:
        launches: the `planner.Launch`es, in their order.
        stalled: (layer, step) that the layer's first block is kept from publishing; None: all goes well.
    """

    def __init__(self, launches, stalled=None):
        self.blocks, self.events = [], []
        self._launches, self._stalled = iter(launches), stalled
        self._arrays, self._words, self._turns_before = {}, set(), 0

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
            self.blocks.append(Block(self._name(number, row, layer, direction)))
        exchanged = self._exchanged_backward if self._planned.backward else self._exchanged_forward
        self._arrays = {id(array): place for array, place in exchanged(given)}
        self._words = {id(array) for array in given["within_step"].words}

    def _name(self, number, row, layer, direction):
        """What a lane is called."""
        arrow = ("", f" {'→←'[direction]}")[self._directions > 1]
        units = f"units {row[BLOCK.unit]}–{row[BLOCK.unit] + row[BLOCK.units] - 1}" if row[BLOCK.units] else "no units"
        part = f", sequences {row[BLOCK.sequence]}–{row[BLOCK.end] - 1}" if self._planned.slices > 1 else ""
        return f"block {self._first_block + number}: layer {layer}{arrow}, {units}{part}"

    def _exchanged_forward(self, given):
        """(array, Exchanged) of h, of what is dropped out of it and of what a projection makes it of, all directions of
        a layer in one array."""
        units = {layer: len(self._owners[layer, 0]) for layer in self._planned.layer_range}
        kinds = (
            (given["h"], self._widths, 1),
            (given["dropped"], self._widths, 0),
            (given["within_step"].projected, units, 1),
        )
        for arrays, widths, before in kinds:
            for layer, array in zip(self._planned.layer_range, arrays, strict=False):  # the last drops nothing
                yield array, Exchanged(layer, None, widths[layer], self._directions * widths[layer], before)

    def _exchanged_backward(self, given):
        """(array, Exchanged) of the gradients of pre-activations, an array for each layer and direction."""
        for arrays in (given["dah"], given["dax"]):
            for (layer, direction), array in zip(self._planned.places, arrays, strict=bool(arrays)):
                hidden, width = len(self._owners[layer, direction]), len(array) // (self._steps * self._batch)
                yield array, Exchanged(layer, direction, hidden, width, 0)

    # -- of a load or store
    def loaded(self, array, index, count):
        if id(array) in self._words and (phases := self._phases[self._who()[0]]) and phases[-1].within:
            phases[-1].within = phases[-1].within[0], self._launch.turns
        place = self._arrays.get(id(array))
        if place is None:
            return
        block, warp = self._who()
        kind = self._warps[block, warp, WARP.kind]
        if kind >= STAGE:
            return
        source, t = self._source(place, index)
        direction = int(self._rows[block, BLOCK.direction])
        recurrent = kind == RECURRENT
        step = source.step + 1 if recurrent else self._step_of(t, direction)
        phase = self._phase(block, step, begins=lambda phase: phase.stored)
        phase.looked = self._launch.turns
        if source.step >= 0:  # not the initial state
            phase.reads.add(Step(*source.place))
        for at in range(index, index + count):
            if _unwritten(array, at):
                missing, _ = self._source(place, at)
                phase.missed.pop(missing, None)
                phase.missed[missing] = array, at

    def stored(self, array, index, count):
        if id(array) in self._words:
            phase = self._phase(self._who()[0], int(array[index]) >> 32, begins=lambda phase: phase.stored)
            phase.within = phase.within[0] if phase.within else self._launch.turns, self._launch.turns
        place = self._arrays.get(id(array))
        if place is None:
            return
        block, _ = self._who()
        source, _ = self._source(place, index)
        if self._stalled == (source.layer, source.step) and block == self._owners[source.layer, 0][0, 0]:
            _bits(array)[index : index + count] = np.iinfo(_bits(array).dtype).max  # nobody will see it
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
        begin, end = phase.begin, self._launch.turns + 1
        still = tuple(step for step, (array, at) in phase.missed.items() if _unwritten(array, at))
        if still:  # the launch has failed before it came
            self._add(block, "wait", begin, end, about, waits_for=still, open=True)
            return
        if phase.missed:
            self._add(block, "wait", begin, phase.looked, about, waits_for=tuple(phase.missed))
            begin = phase.looked
        if phase.looked is not None:
            # Backward's last product, for the initial state, is followed by no store.
            done = phase.stored[0] if phase.stored else phase.looked + 1
            done = phase.within[0] if phase.within else done
            reads = tuple(sorted(phase.reads, key=lambda step: step.place))
            self._add(block, "multiply", begin, done, about, reads=reads)
        if phase.within:
            done = phase.stored[0] if phase.stored else phase.within[1] + 1
            self._add(block, "exchange", phase.within[0], done, about)
        if phase.stored:
            self._add(block, "publish", phase.stored[0], phase.stored[1] + 1, about)

    def _add(self, block, kind, start, end, about, **more):
        before = self._turns_before
        self.events.append(Event(self._first_block + block, kind, before + start, before + end, **about, **more))


def _bits(array):
    """A flat array as the bits of its elements."""
    return array.view(f"u{array.itemsize}")


def _unwritten(array, index):
    """Whether nobody has stored array[index] yet."""
    bits = _bits(array)
    return bits[index] == np.iinfo(bits.dtype).max


def record(title, cell, shape, backward, directions=1, stalled=None):
    """The Record of a pass of the persistent schedule, in this process, which is the simulator's.

    Args:
        shape: T, B, I, H, L, as `numbarnn.bench.cases.shapes.Shape`.
        stalled: (layer, step) that one block never publishes; None: all goes well.
    """
    network = numbarnn.RNN(
        cell, shape.I, shape.H, shape.L, device="sim", schedule="persistent", seed=0, bidirectional=directions == 2
    )
    x = np.random.default_rng(0).standard_normal((shape.T, shape.B, shape.I)).astype(np.float32)
    recorder = Recorder(SCHEDULE.launches(network.stack.problem(shape.T, shape.B, backward), backward), stalled)
    call, error = (lambda: network(x)), None
    if backward:
        y, _, tape = network.forward(x)
        call = lambda: network.backward(tape, np.ones_like(y))  # noqa: E731
    patience = {"patience": STALLED_PATIENCE} if stalled else {}
    with simulator.schedule(**patience), watching.watched(recorder):
        try:
            call()
        except RuntimeError as raised:  # what was recorded up to there is worth seeing
            error = str(raised)
    if not recorder.events:
        raise RuntimeError(f"nothing to record: of {', '.join(KERNELS)} none was launched ({error})")
    about = (("seed of the threads' order", str(simulator.default_seed())),)
    return Record(
        title, "turns", "blocks", backward, shape.L, directions, shape.T, tuple(recorder.blocks),
        tuple(recorder.events), about, error,
    )  # fmt: skip
