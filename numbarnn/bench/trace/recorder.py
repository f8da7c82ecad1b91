"""Record what the blocks of a persistent kernel do in the simulator, by watching the numbers that they exchange.

Blocks communicate only through arrays (`numbarnn.kernels.persistent.exchange`): a block loads a number until another
block has stored it. The simulator reports each load ("look") and store (`simulator.Watcher`). A number's index gives
its layer, step and block. So each block and step has three intervals, which barriers separate:

    first look ... last look          the block waits for missing numbers
    last look ... first store         it multiplies, and exchanges numbers within the step if the cell needs that
    first store ... last store        it runs the cell's equations and publishes their results

A record is a dict, as `numbarnn trace --json` writes it:

    title, backward, layers, directions, steps    what was run
    blocks    [{"name": "block 0"}, ...], known by their place in this list
    events    [{"block": 0, "kind": "wait", "start": 10, "end": 25, "layer": 0, "direction": 0, "step": 3,
                "waits_for": [{"block": 1, "layer": 0, "direction": 0, "step": 2}], "reads": []}, ...]
    seed      of the order in which threads take turns; error: how the run failed, or None

Times are in turns of threads. Step 0 is the first to run, in a backward pass the last in time. `waits_for` lists the
missing steps; the one that arrives last stands last. `reads` lists the steps whose numbers a product multiplies.
"""

import inspect
from collections import defaultdict
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

import numbarnn
from numbarnn.common.order import step_time
from numbarnn.cuda import simulator
from numbarnn.kernels.persistent.columns import BLOCK, RECURRENT, STAGE, WARP
from numbarnn.schedules.persistent.schedule import SCHEDULE

KERNELS = ("persistent_forward_kernel", "persistent_backward_kernel")


class Step(NamedTuple):
    """A step of a layer and direction, or the part of it that one block computes."""

    layer: int
    direction: int
    step: int
    block: int


@dataclass
class Phase:
    """A block's work on a step, for the sequences that it multiplies at once.

    begin, looked: turns of the first look or store, and of the last look, or None. missed: the `Step`s of missing
    numbers, in the order of their last look. reads: (layer, direction, step) of the numbers that the block looked at.
    stored: turns of the first and the last store so far.
    """

    step: int
    begin: int
    looked: int | None = None
    missed: dict = field(default_factory=dict)
    reads: set = field(default_factory=set)
    stored: tuple[int, int] | None = None


class Exchanged(NamedTuple):
    """An array that blocks exchange: a slot per step, with a row per sequence.

    direction: None: a row holds both directions side by side. hidden: units per direction. width: elements per row.
    before: slots before time 0.
    """

    layer: int
    direction: int | None
    hidden: int
    width: int
    before: int


class Recorder(simulator.Watcher):
    """Record `blocks` and `events` of a pass; launches: its `persistent.launch.Launch`es, in order."""

    def __init__(self, launches):
        self.blocks, self.events, self._launches = [], [], iter(launches)
        self._arrays, self._turns_before = {}, 0

    # -- of a launch
    def launched(self, launch, function, arguments):
        if function.__name__ not in KERNELS:
            return
        named_arguments = dict(zip(inspect.signature(function).parameters, arguments, strict=True))
        self._planned, self._launch = next(self._launches), launch
        self._rows, self._warps = named_arguments["tables"]
        self._directions, self._steps, self._batch, _ = map(int, named_arguments["sizes"])
        self._owners, self._first_block, self._phases = {}, len(self.blocks), defaultdict(list)
        self._widths = {self._planned.first + int(row[BLOCK.layer]): int(row[BLOCK.width]) for row in self._rows}
        for number, row in enumerate(self._rows):
            layer, direction = self._planned.first + int(row[BLOCK.layer]), int(row[BLOCK.direction])
            size = int(row[BLOCK.hidden]), self._batch
            owner = self._owners.setdefault((layer, direction), np.zeros(size, int))
            units = slice(row[BLOCK.unit], row[BLOCK.unit] + row[BLOCK.units])
            owner[units, row[BLOCK.sequence] : row[BLOCK.end]] = number
            self.blocks.append({"name": self._name(number, row, layer, direction)})
        self._arrays = {id(array): place for array, place in self._exchanged(named_arguments)}

    def _name(self, number, row, layer, direction):
        arrow = ("", f" {'→←'[direction]}")[self._directions > 1]
        units = f"units {row[BLOCK.unit]}–{row[BLOCK.unit] + row[BLOCK.units] - 1}" if row[BLOCK.units] else "no units"
        part = f", sequences {row[BLOCK.sequence]}–{row[BLOCK.end] - 1}" if self._planned.slices > 1 else ""
        return f"block {self._first_block + number}: layer {layer}{arrow}, {units}{part}"

    def _exchanged(self, named_arguments):
        """Yield (array, Exchanged) of each array that blocks exchange from step to step.

        These are h and h after dropout, one array per layer; in backward the gradients of pre-activations, one array
        per layer and direction."""
        if self._planned.backward:
            for arrays in (named_arguments["dah"], named_arguments["dax"]):
                for (layer, direction), array in zip(self._planned.places, arrays, strict=False):
                    width = len(array) // (self._steps * self._batch)
                    yield array, Exchanged(layer, direction, len(self._owners[layer, direction]), width, 0)
            return
        for arrays, before in ((named_arguments["h"], 1), (named_arguments["dropped"], 0)):
            for layer, array in zip(self._planned.layer_range, arrays, strict=False):  # the last drops nothing
                width = self._widths[layer]
                yield array, Exchanged(layer, None, width, self._directions * width, before)

    # -- of a load or store
    def loaded(self, array, index, count):
        place = self._arrays.get(id(array))
        if place is None:
            return
        thread = self._launch.current
        block, kind = thread.block.index[0], self._warps[thread.block.index[0], thread.index[0] // 32, WARP.kind]
        if kind >= STAGE:  # a product within the step
            return
        source, t = self._source(place, index)
        direction = int(self._rows[block, BLOCK.direction])
        step = source.step + 1 if kind == RECURRENT else self._step_of(t, direction)
        phase = self._phase(block, step, begins=lambda phase: phase.stored)
        phase.looked = self._launch.turns
        if source.step >= 0:  # not the initial state
            phase.reads.add(source[:3])
        for at in range(index, index + count):
            missing, _ = self._source(place, at)
            if _unwritten(array, at) and missing.step >= 0:
                phase.missed.pop(missing, None)
                phase.missed[missing] = True

    def stored(self, array, index, count):
        place = self._arrays.get(id(array))
        if place is None:
            return
        source, _ = self._source(place, index)
        if source.step >= 0:  # a block publishes the initial state as it loads its weights
            block, turn = self._launch.current.block.index[0], self._launch.turns
            phase = self._phase(block, source.step, begins=lambda phase: False)
            phase.stored = phase.stored[0] if phase.stored else turn, turn

    def _phase(self, block, step, begins):
        """Return the block's current phase, or start one if the step is new or `begins(phase)` is true."""
        phases = self._phases[block]
        if not phases or phases[-1].step != step or begins(phases[-1]):
            phases.append(Phase(step, self._launch.turns))
        return phases[-1]

    def _source(self, place, index):
        """Return the `Step` and time of the number at an index of an exchanged array."""
        slot, rest = divmod(int(index), self._batch * place.width)
        b, column = divmod(rest, place.width)
        direction = column // place.hidden if place.direction is None else place.direction
        t = slot - place.before
        block = int(self._owners[place.layer, direction][column % place.hidden, b])
        return Step(place.layer, direction, self._step_of(t, direction), self._first_block + block), t

    def _step_of(self, t, direction):
        return step_time(t, self._steps, direction, self._planned.backward)[0]

    # -- afterwards
    def ended(self, launch):
        if not self._arrays:
            return
        for block, phases in self._phases.items():
            row = self._rows[block]
            fields = {"layer": self._planned.first + int(row[BLOCK.layer]), "direction": int(row[BLOCK.direction])}
            self._add(block, "load", 0, phases[0].begin, fields)
            for phase in phases:
                self._add_phase(block, phase, fields | {"step": phase.step})
        self._turns_before += launch.turns
        self._arrays = {}

    def _add_phase(self, block, phase, fields):
        """Add the events of a phase."""
        begin = phase.begin
        if phase.missed:
            waits_for = [step._asdict() for step in phase.missed]
            self._add(block, "wait", begin, phase.looked, fields | {"waits_for": waits_for})
            begin = phase.looked
        if phase.looked is not None:  # no store follows backward's last product, for the initial state
            reads = [dict(zip(Step._fields, step, strict=False)) for step in sorted(phase.reads)]
            end = phase.stored[0] if phase.stored else phase.looked + 1
            self._add(block, "multiply", begin, end, fields | {"reads": reads})
        if phase.stored:
            self._add(block, "publish", phase.stored[0], phase.stored[1] + 1, fields)

    def _add(self, block, kind, start, end, fields):
        start, end = self._turns_before + start, self._turns_before + end
        event = {"block": self._first_block + block, "kind": kind, "start": start, "end": end}
        self.events.append(event | {"waits_for": [], "reads": []} | fields)


def _unwritten(array, index):
    bits = array.view(f"u{array.itemsize}")
    return bits[index] == np.iinfo(bits.dtype).max


def record(title, cell, shape, backward, directions=1):
    """Return the record of a pass of the persistent schedule. shape: a `numbarnn.bench.shapes.Shape`."""
    options = {"device": "sim", "schedule": "persistent", "seed": 0, "bidirectional": directions == 2}
    network = numbarnn.RNN(cell, shape.I, shape.H, shape.L, **options)
    x = np.random.default_rng(0).standard_normal((shape.T, shape.B, shape.I)).astype(np.float32)
    recorder = Recorder(SCHEDULE.launches(network.stack.problem(shape.T, shape.B, backward), backward))
    call, error = (lambda: network(x)), None
    if backward:
        y, _, tape = network.forward(x)
        call = lambda: network.backward(tape, np.ones_like(y))  # noqa: E731
    with simulator.schedule(), simulator.watched(recorder):
        try:
            call()
        except RuntimeError as raised:  # the record ends here
            error = str(raised)
    if not recorder.events:
        raise RuntimeError(f"nothing to record: of {', '.join(KERNELS)} none was launched ({error})")
    sizes = {"backward": backward, "layers": shape.L, "directions": directions, "steps": shape.T}
    details = {"blocks": recorder.blocks, "events": recorder.events, "seed": simulator.default_seed(), "error": error}
    return {"title": title} | sizes | details
