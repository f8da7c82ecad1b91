"""Kernels of an emulated GPU, and the threads that run them."""

from functools import lru_cache

import numpy as np

from emulator.arithmetic import WARP, per_lane
from emulator.memory import BASE, JUNK, LOCAL, SHARED, views_of
from emulator.races import SharedAccesses
from emulator.translate import translate
from emulator.visibility import DeviceError, Stores

LANES = 1 << 15  # threads that run side by side, unless their blocks wait for each other
IDLE_ROUNDS = 20_000  # rounds without a store, after which threads that look for others' numbers wait in vain
PATIENCE = 1000  # turns of some threads without a store, after which they may be waiting for others in some other way


@lru_cache(maxsize=512)
def load(text):
    """The kernel of a PTX text, translated."""
    return Kernel(text)


class Kernel:
    """A translated kernel. Attributes: entry, its symbol; shared_bytes, static shared memory per block."""

    def __init__(self, text):
        self.program, self.functions, self.register_codes = translate(text)
        self.entry = self.program.entry
        self.places, sizes = {}, {"shared": 64, "local": 0}
        dynamic = []
        for name, (space, alignment, size, initial) in self.program.variables.items():
            if space in sizes:
                if size == 0:
                    dynamic.append(name)
                    continue
                sizes[space] += -sizes[space] % alignment
                self.places[name] = space, sizes[space]
                sizes[space] += size
            elif initial is not None:
                self.places[name] = space, initial
        if dynamic:  # begins where its alignment allows, and at no rounder address
            alignment = max(self.program.variables[name][1] for name in dynamic)
            sizes["shared"] += -sizes["shared"] % alignment
            sizes["shared"] += alignment * (sizes["shared"] // alignment % 2 == 0)
            self.places |= {name: ("shared", sizes["shared"]) for name in dynamic}
        self.shared_bytes, self.local_bytes = sizes["shared"], sizes["local"]
        self.targets = [_target(self.program, block) for block in self.program.blocks]
        self.is_collective = [block.is_collective for block in self.program.blocks]
        self.sees_others = [block.sees_others for block in self.program.blocks]

    def launch(self, memory, grid, block, parameters, dynamic_bytes=0, cooperative=False, order=None, seed=0):
        """Run all threads.

        Args:
            memory: Memory.
            grid, block: tuples of 3.
            parameters: one bytes object per parameter.
            cooperative: the blocks may wait for each other, so that all run side by side.
            order: None, or a numpy Generator that picks which of the threads that could go on do so.
            seed: of when blocks see what others stored, and of which block's shared memory is watched for races.
        """
        threads, blocks = int(np.prod(block)), int(np.prod(grid))
        at_once = blocks if cooperative else max(1, LANES // threads)
        stores = Stores(memory, blocks, seed)
        try:
            for first in range(0, blocks, at_once):
                numbers = np.arange(first, min(blocks, first + at_once))
                one = Grid(self, memory, stores, grid, block, numbers, parameters, dynamic_bytes, order)
                one.watch(seed % len(numbers))
                one.run()
        finally:
            stores.finish()


def _target(program, block):
    """(kind, number of the block jumped to or None) of the instruction that ends a block."""
    last = block.last
    if last is None:
        return "next", None
    if last.name == "bra":
        return "bra", program.labels[last.operands[-1]]
    if last.name in ("bar", "barrier"):
        return "barrier", None
    return "exit", None


class Clock:
    """A register that counts how often clocks were read: later is more."""

    count = 0

    def astype(self, code):
        Clock.count += 1
        return np.array(Clock.count, code)


class Grid:
    """Blocks of threads that run side by side; the first axis of all registers is the thread.

    Threads at the same instruction go on together, those that are furthest behind first. Those that look for numbers of
    others then wait until all the rest has come as far as it can.
    """

    def __init__(self, kernel, memory, stores, grid, block, numbers, parameters, dynamic_bytes, order):
        self.kernel, self.memory, self.stores, self.order = kernel, memory, stores, order
        self.threads, self.num_blocks = int(np.prod(block)), len(numbers)
        self.padded = -(-self.threads // WARP) * WARP  # warps are whole; threads beyond the block never run
        self.lanes = self.padded * self.num_blocks
        thread = np.tile(np.arange(self.padded), self.num_blocks)
        self.block_of = np.repeat(np.arange(self.num_blocks), self.padded)
        own = self.number_of = np.repeat(numbers, self.padded)  # of the thread's block in the launch
        self.special = {"%laneid": (thread % WARP).astype(np.uint32), "%dynamic_smem_size": np.uint32(dynamic_bytes)}
        self.special["%clock64"] = self.special["%globaltimer"] = Clock()
        for axis, name in enumerate("xyz"):
            self.special[f"%ntid.{name}"] = np.uint32(block[axis])
            self.special[f"%nctaid.{name}"] = np.uint32(grid[axis])
            inner, outer = int(np.prod(block[:axis])), int(np.prod(grid[:axis]))
            self.special[f"%tid.{name}"] = (thread // inner % block[axis]).astype(np.uint32)
            self.special[f"%ctaid.{name}"] = (own // outer % grid[axis]).astype(np.uint32)
        names = [name for name, _ in kernel.program.parameters]
        self._parameters = dict(zip(names, parameters, strict=True))
        self._shared_size = -(-(kernel.shared_bytes + dynamic_bytes) // 128) * 128
        self._shared = views_of(np.resize(JUNK, self._shared_size * self.num_blocks))
        self._local_size = max(16, -(-kernel.local_bytes // 16) * 16)
        self._local = views_of(np.resize(JUNK, self._local_size * self.lanes))
        self._constants = {}
        self.registers = [np.zeros(self.lanes, code) for code in kernel.register_codes]
        self.alive = thread < self.threads
        self.pc = np.zeros(self.lanes, np.int64)
        self.num_stores = 0

    def watch(self, block):
        """Look at the order in which threads of one of the blocks access shared memory."""
        first, start = block * self.padded, block * self._shared_size
        self.races = SharedAccesses(first, first + self.padded, start, self._shared_size)

    # ------------------------------------------------------------------------------------------------- threads
    def run(self):
        with np.errstate(all="ignore"):
            self._run()

    def _run(self):
        held = np.zeros(self.lanes, bool)  # at a barrier
        tired = np.zeros(self.lanes, bool)  # have looked for others' numbers
        idle, stored, turns, stored_before = 0, 0, 0, 0
        while self.alive.any():
            ready = self.alive & ~held & ~tired
            number, chosen = self._choose(ready)
            if chosen is None:
                if not tired.any():
                    self._stuck(held)
                idle = idle + 1 if self.num_stores == stored else 0
                stored = self.num_stores
                if idle > IDLE_ROUNDS:
                    raise DeviceError(f"{self.kernel.entry[:80]}: threads wait for numbers that nobody writes")
                tired[:] = False
                self.stores.round += 1
                continue
            kind, target = self.kernel.targets[number]
            everybody = chosen.all()
            merge = not everybody and bool((self.alive & ~chosen).any())
            condition = self.kernel.functions[number](self.registers, self, None if everybody else chosen, merge)
            if condition is None:
                jumping, staying = chosen, None
            else:
                jumping, staying = chosen & condition, chosen & ~condition
            if staying is not None or kind != "bra":
                self.pc[chosen] = number + 1
            if kind == "bra":
                self.pc[jumping] = target
            elif kind == "exit":
                self.alive &= ~jumping
            elif kind == "barrier":
                held |= jumping
            if held.any():
                self._release(held)
            turns, stored_before = (turns + 1 if self.num_stores == stored_before else 0), self.num_stores
            if self.kernel.sees_others[number] or turns > PATIENCE:
                tired, turns = tired | chosen, 0

    def _choose(self, ready):
        """(number of a block, the threads that run it now), or (None, None)."""
        if self.order is not None and ready.any():
            number, chosen = self._furthest_behind(ready & self._some_warps(ready))
            if chosen is not None:
                return number, chosen
        return self._furthest_behind(ready)

    def _furthest_behind(self, behind):
        """As `_choose`, of these threads; at an instruction of whole warps only whole warps."""
        while behind.any():
            number = int(self.pc[behind].min())
            chosen = behind & (self.pc == number)
            behind = behind & ~chosen
            if self.kernel.is_collective[number]:
                chosen &= np.repeat((chosen | ~self.alive).reshape(-1, WARP).all(axis=1), WARP)
                if not chosen.any():
                    continue
            return number, chosen
        return None, None

    def _some_warps(self, ready):
        """About half of the warps that could go on, at least one."""
        warps = ready.reshape(-1, WARP).any(axis=1)
        some = warps & (self.order.random(len(warps)) < 0.5)
        return np.repeat(some if some.any() else warps, WARP)

    def _release(self, held):
        """Let the blocks go on of which all threads have come to the barrier."""
        waits = (~self.alive | held).reshape(self.num_blocks, -1).all(axis=1)
        passing = held & np.repeat(waits, self.lanes // self.num_blocks)
        if passing.any():
            self.races.barrier(passing)
            held &= ~passing

    def _stuck(self, held):
        where = sorted({int(number) for number in self.pc[self.alive]})
        texts = [self.kernel.program.blocks[number].instructions[:1] for number in where[:5]]
        raise DeviceError(
            f"{self.kernel.entry[:80]}: {int(held.sum())} threads wait at a barrier, {int((self.alive & ~held).sum())} "
            f"for the rest of their warp, and nobody goes on: {[text[0].text for text in texts if text]}"
        )

    def both(self, mask, predicate):
        predicate = per_lane(predicate, self.lanes)
        return predicate.copy() if mask is None else mask & predicate

    # -------------------------------------------------------------------------------------------------- memory
    def parameter(self, name, code):
        name, _, offset = name.partition("+")
        return np.frombuffer(self._parameters[name], code, 1, int(offset or 0))[0]

    def address_of(self, name):
        """A variable's address in its own space."""
        space, place = self.kernel.places[name]
        if space in ("shared", "local"):
            return np.uint64(place)
        if name not in self._constants:
            address = self.memory.allocate(len(place))
            self.memory.array(address, np.uint8, len(place))[...] = np.frombuffer(place, np.uint8)
            self._constants[name] = address
        return np.uint64(self._constants[name])

    @staticmethod
    def to_generic(space, address):
        return address + np.uint64({"shared": SHARED, "local": LOCAL}.get(space, 0))

    @staticmethod
    def to_space(space, address):
        return address - np.uint64({"shared": SHARED, "local": LOCAL}.get(space, 0))

    def load(self, space, code, address, mask, opcode, count):
        views, places = self._places(space, code, address, mask, count, "reads")
        values = [views[code][places + number] for number in range(count)]
        if views is self.memory.views:
            size = int(code[1])
            for number in range(count):
                bytes_at = (places + number) * size
                values[number] = self.stores.load(opcode, bytes_at, self.number_of, values[number])
        elif views is self._shared:
            self.races.access(opcode, places * int(code[1]), count * int(code[1]), mask)
        return values

    def store(self, space, code, address, mask, opcode, *values):
        mask = per_lane(True, self.lanes) if mask is None else mask
        if not mask.any():
            return
        views, places = self._places(space, code, per_lane(address, self.lanes), mask, len(values), "writes")
        if views is self._shared:
            self.races.access(opcode, places * int(code[1]), len(values) * int(code[1]), mask)
        chosen = places[mask]
        for number, value in enumerate(values):
            if views is self.memory.views:
                old = views[code][chosen + number]
                self.stores.store(opcode, (chosen + number) * old.itemsize, self.number_of[mask], old)
            views[code][chosen + number] = per_lane(value, self.lanes)[mask]
        self.num_stores += 1

    def add(self, space, code, address, mask, opcode, value):
        """atom.add, one thread after another; what each found there before."""
        mask = per_lane(True, self.lanes) if mask is None else mask
        address, value = per_lane(address, self.lanes), per_lane(value, self.lanes)
        views, places = self._places(space, code, address, mask, 1, "adds to")
        found = np.zeros(self.lanes, code)
        for thread in np.flatnonzero(mask):
            found[thread] = views[code][places[thread]]
            if views is self.memory.views:
                one = slice(thread, thread + 1)
                at, block = places[one] * found.itemsize, self.number_of[one]
                self.stores.load(opcode, at, block, found[one])
                self.stores.store(opcode, at, block, found[one])
            views[code][places[thread]] = found[thread] + value[thread]
        self.num_stores += 1
        return found

    def fence(self, mask):
        """What the threads' blocks stored before shows before what they store later."""
        self.stores.fence(np.unique(self.number_of if mask is None else self.number_of[mask]))

    def _places(self, space, code, address, mask, count, doing):
        """(views of the memory, where the first of `count` numbers lies in the view of their code)."""
        size = int(code[1])
        if mask is not None:
            address = per_lane(address, self.lanes)
        if space == "generic":
            space, address = self._space_of(address, mask)
        base, room, views, start = self._room(space)
        place = address.astype(np.int64) - base
        inside = (place >= 0) & (place + size * count <= room) & (place % (size * count) == 0)
        if views is self.memory.views:
            clipped = np.where(inside, place, 0)
            inside = inside & self.memory.is_allocated[clipped] & self.memory.is_allocated[clipped + size * count - 1]
        wrong = ~inside if mask is None else mask & ~inside
        if np.any(wrong):
            self._complain(doing, size * count, space, per_lane(address, self.lanes), per_lane(wrong, self.lanes))
        if mask is not None:
            place = np.where(mask, place, 0)
        return views, (place + start) // size

    def _room(self, space):
        """(first address, bytes, views, where each thread's part begins) of a space."""
        if space == "shared":
            return 0, self._shared_size, self._shared, self.block_of * self._shared_size
        if space == "local":
            return 0, self._local_size, self._local, np.arange(self.lanes) * self._local_size
        return BASE, self.memory.size, self.memory.views, 0

    def _space_of(self, address, mask):
        taken = per_lane(address, self.lanes)[slice(None) if mask is None else mask]
        first = int(taken[0])
        for space, start in (("global", BASE), ("shared", SHARED), ("local", LOCAL)):
            if first >= start:
                if not (taken >> np.uint64(40) == np.uint64(start >> 40)).all():
                    raise NotImplementedError("one instruction on several memory spaces")
                return space, address - np.uint64(start if space != "global" else 0)
        return "global", address

    def _complain(self, doing, size, space, address, wrong):
        thread = int(np.flatnonzero(wrong)[0])
        raise DeviceError(
            f"{self.kernel.entry[:80]}: thread {thread % self.padded} of block {thread // self.padded} {doing} "
            f"{size} bytes at {int(address[thread]):#x} ({space}), which is misaligned or not allocated; "
            f"{int(wrong.sum())} threads do so"
        )
