"""The machine code of a compiled kernel (NVIDIA calls it SASS), taken apart with NVIDIA's disassembler; without a GPU.

    code = sass.read(shipped.compile((9, 0)))
    code.instructions      # in the order of their addresses
    code.loops             # the outer ones before those in them

What PTX says is not what runs: the assembler unrolls, merges and moves. Names of instructions are in "CUDA Binary
Utilities", "Instruction Set Reference".
"""

import re
from collections import Counter
from dataclasses import dataclass
from functools import cached_property

from numbarnn.cuda.machine_code import INSTRUCTION, LABEL, text_of

_TARGET = re.compile(r"`\((\.L\w+)\)")
_BARRIER = re.compile(r"\bB\d+\b")  # of the registers in which lanes that part are noted


@dataclass(frozen=True)
class Instruction:
    """One instruction.

    Attributes:
        address: in bytes from the kernel's first one.
        predicate: "P0", "!P0"; "" if it is always done.
        name: "LDG".
        modifiers: ("E", "128", "STRONG", "GPU").
        operands: text.
    """

    address: int
    predicate: str
    name: str
    modifiers: tuple[str, ...]
    operands: str

    @property
    def bits(self):
        """Of a load or store: how many a lane moves."""
        sizes = {"U8": 8, "S8": 8, "U16": 16, "S16": 16, "64": 64, "128": 128}
        return next((sizes[word] for word in self.modifiers if word in sizes), 32)

    @property
    def exchanges(self):
        """Whether it is a load or store that all blocks of the device see."""
        return {"STRONG", "GPU"} <= set(self.modifiers)


@dataclass(frozen=True)
class Loop:
    """A loop: what runs again after a jump back.

    Attributes:
        instructions: of it and of the loops in it, by their addresses.
        depth: 0 for one that is in no other.
    """

    instructions: tuple[Instruction, ...]
    depth: int

    @property
    def first(self):
        """The address where it begins."""
        return self.instructions[0].address


class MachineCode:
    """A kernel's instructions.

    Args:
        text: what the disassembler prints of the kernel.

    Attributes:
        instructions: tuple of `Instruction`.
    """

    def __init__(self, text):
        self.text, found, labels, self._at = text, [], [], {}
        for line in text.splitlines():
            label, instruction = LABEL.match(line), INSTRUCTION.match(line)
            if label:
                labels.append(label.group(1))
            elif instruction:
                address, predicate, opcode, operands = instruction.groups()
                name, *modifiers = opcode.split(".")
                self._at |= dict.fromkeys(labels, len(found))
                labels = []
                found.append(Instruction(int(address, 16), predicate or "", name, tuple(modifiers), operands))
        self.instructions = tuple(found)

    def _successors(self, number):
        """Numbers of the instructions that may run after this one. A call of something outside of the kernel counts as
        one instruction."""
        one, after = self.instructions[number], [number + 1] if number + 1 < len(self.instructions) else []
        target = _TARGET.search(one.operands)
        if "DIV" in one.modifiers:  # what is done where lanes have parted takes longer, and is left out
            return after
        if one.name == "BRA" and target:
            maybe = one.predicate or not one.operands.startswith("`")  # BRA P3, `(.L_x_1)
            return [self._at[target.group(1)], *(after if maybe else [])]
        if one.name == "CALL" and target:  # how lanes leave a loop on some devices
            return [self._at[target.group(1)], *after]
        if one.name in ("EXIT", "RET", "BRX"):
            return after if one.predicate else []
        if one.name == "BSYNC":  # lanes meet again where the last BSSY of the same register said
            register = _BARRIER.search(one.operands).group()
            for earlier in reversed(self.instructions[:number]):
                if earlier.name == "BSSY" and _BARRIER.search(earlier.operands).group() == register:
                    return [self._at[_TARGET.search(earlier.operands).group(1)], *(after if one.predicate else [])]
        return after

    @cached_property
    def loops(self):
        """All `Loop`s, an outer one before those in it, else by address.

        As compilers find them: a jump back to what dominates it, that is, stands on every way to it from the first
        instruction; the loop is what leads from there to the jump.
        """
        following = [self._successors(number) for number in range(len(self.instructions))]
        order = _depth_first(following)
        before = {number: [] for number in order}
        for number in order:
            for after in following[number]:
                before[after].append(number)
        dominators = {order[0]: 1 << order[0]}  # of each instruction, as bits
        changed = True
        while changed:
            changed = False
            for number in order[1:]:
                common = -1
                for one in before[number]:
                    common &= dominators.get(one, -1)
                own = common | 1 << number
                if dominators.get(number) != own:
                    dominators[number], changed = own, True
        bodies = {}
        for number in order:
            for header in following[number]:
                if dominators[number] >> header & 1:
                    bodies.setdefault(header, {header}).update(_leading_to(number, header, before))
        loops = []
        for body in bodies.values():
            depth = sum(body < other for other in bodies.values())
            loops.append(Loop(tuple(self.instructions[number] for number in sorted(body)), depth))
        return tuple(sorted(loops, key=lambda loop: (loop.first, loop.depth)))


def _depth_first(following):
    """Numbers of the instructions that can be reached, each before those that it leads to but for jumps back."""
    seen, finished, stack = {0}, [], [(0, iter(following[0]))]
    while stack:
        number, rest = stack[-1]
        after = next((one for one in rest if one not in seen), None)
        if after is None:
            finished.append(number)
            stack.pop()
        else:
            seen.add(after)
            stack.append((after, iter(following[after])))
    return finished[::-1]


def _leading_to(number, header, before):
    """Numbers of the instructions from which `number` is reached without passing the header."""
    found, todo = {header}, [number]
    while todo:
        one = todo.pop()
        if one not in found:
            found.add(one)
            todo += before[one]
    return found


def widths(instructions, name):
    """bits -> how many of the instructions of that name ("LDG", "STS") move so many per lane, the widest first."""
    found = Counter(one.bits for one in instructions if one.name == name)
    return dict(sorted(found.items(), reverse=True))


def read(compiled):
    """The `MachineCode` of a `compiler.CompiledKernel`."""
    return MachineCode(text_of(compiled))
