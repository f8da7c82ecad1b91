"""What the machine code of a kernel tells of how it works, counted: for `numbarnn kernels --sass` and the tests.

Of a persistent kernel: how weights come to where they stay, what a step is made of, and how blocks exchange numbers.
Instructions are those of one lane; all lanes of a warp run them together.
"""

from dataclasses import dataclass

from numbarnn.cuda.machine_code import Instruction, Loop, widths

# Multiply-adds of one lane in one instruction of a kind; of the tensor cores those of the whole warp over its lanes.
MULTIPLY_ADDS = {"FFMA": 1, "FFMA2": 2, "DFMA": 1, "HMMA.16816": 16 * 8 * 16 // 32, "HMMA.1688": 16 * 8 * 8 // 32}
SPILLED = ("LDL", "STL")


@dataclass(frozen=True)
class Weights:
    """How a lane loads weights: by loads of memory that nobody writes during the kernel.

    Attributes:
        loads: bits of a load -> how many. words: of 32 bits, that they bring.
        instructions: how many the loop with these loads has; without a loop, the kernel up to the last load, but for
            its loops.
    """

    loads: dict
    words: float
    instructions: int

    @property
    def per_word(self):
        """Instructions per word."""
        return self.instructions / self.words


@dataclass(frozen=True)
class Steps:
    """The loop over the steps.

    Attributes:
        loop: the outermost loop in which blocks publish.
        waiting: the instructions of the loops in it that wait, a set.
        looks: the loads of 16 bytes that other blocks wrote, but for those in loops that wait.
        products: name -> number of the instructions that multiply and add, in the innermost loop that has most of them.
        instructions: how many that loop has, without those that wait.
    """

    loop: Loop
    waiting: frozenset
    looks: tuple
    products: dict
    instructions: int

    @property
    def per_multiply_add(self):
        """Instructions of a lane per multiply-add of it; None if there are none."""
        done = sum(MULTIPLY_ADDS[name] * number for name, number in self.products.items())
        return self.instructions / done if done else None

    def accesses(self, name, exchanges):
        """bits -> number of the loads or stores ("LDG", "STG") by which blocks exchange numbers, or of the others."""
        return widths((one for one in self.loop.instructions if one.exchanges == exchanges), name)


def _product(one: Instruction):
    """What MULTIPLY_ADDS calls an instruction; None for others."""
    name = f"HMMA.{one.modifiers[0]}" if one.name == "HMMA" else one.name
    return name if name in MULTIPLY_ADDS else None


def _products(instructions):
    """name -> number, of the instructions that multiply and add; of the tensor cores alone where there are any: others
    then belong to the cell."""
    names = [name for name in map(_product, instructions) if name]
    names = [name for name in names if name.startswith("HMMA")] or names
    return {name: names.count(name) for name in dict.fromkeys(names)}


def spills(code):
    """Instructions that move registers to local memory and back."""
    return sum(one.name in SPILLED for one in code.instructions)


def weights(code):
    """The Weights of a `MachineCode`; None if it loads none."""
    found = [one for one in code.instructions if one.name == "LDG" and "CONSTANT" in one.modifiers]
    if not found:
        return None
    loops = [loop.instructions for loop in code.loops if found[0] in loop.instructions]
    if loops:
        counted = min(loops, key=len)
        found = [one for one in counted if one in found]
    else:
        in_loops = {one for loop in code.loops for one in loop.instructions}
        counted = [one for one in code.instructions if one.address <= found[-1].address and one not in in_loops]
    return Weights(widths(found, "LDG"), sum(one.bits for one in found) / 32, len(counted))


def steps(code):
    """The Steps of a persistent kernel's `MachineCode`; None if it has no loop in which blocks publish."""
    outer = [loop for loop in code.loops if any(one.name == "STG" and one.exchanges for one in loop.instructions)]
    if not outer:
        return None
    loop = max(outer, key=lambda one: len(one.instructions))
    inner = [one for one in code.loops if set(one.instructions) <= set(loop.instructions)]
    polls = frozenset(one for each in inner if _waits(each) for one in each.instructions)
    # The innermost loop that has most of the instructions that multiply.
    number = {each: sum(_products(each.instructions).values()) for each in inner}
    with_most = [each for each in inner if 2 * number[each] >= max(number.values())]
    most = min(with_most, key=lambda one: len(one.instructions))
    products, working = _products(most.instructions), set(most.instructions) - polls
    loads = (one for one in loop.instructions if one.name == "LDG" and one.exchanges and one.bits == 128)
    looks = tuple(one for one in loads if one not in polls)
    return Steps(loop, polls, looks, products, len(working))


def _waits(loop):
    """Whether a loop does nothing but look for what is missing: it sleeps, and stores nothing for others."""
    names = {one.name for one in loop.instructions}
    return "NANOSLEEP" in names and not {"STG", "HMMA", "BAR"} & names


# --------------------------------------------------------------------------------------------------- output
def describe(code):
    """The counts of a `MachineCode` as lines of text."""
    lines = [f"{len(code.instructions)} instructions, {spills(code)} of them load or store spilled registers"]
    loaded, looped = weights(code), steps(code)
    if loaded:
        lines.append(
            f"weights: {_sizes(loaded.loads, 'load')}; {loaded.per_word:.1f} instructions per word of 32 bits, "
            "of one lane, what comes before the loads included"
        )
    if looped:
        products = ", ".join(f"{number} {name}" for name, number in looped.products.items()) or "none"
        each = f", {looped.per_multiply_add:.2f} instructions per multiply-add" if looped.products else ""
        loop, waiting = looped.loop.instructions, looped.waiting
        lines += [
            f"the loop over the steps: {len(loop)} instructions, of which {len(waiting)} wait",
            f"products: {products} in a loop of {looped.instructions} instructions{each}, of one lane",
        ]
        for what, loads, stores in (
            ("exchanged by blocks", looped.accesses("LDG", True), looped.accesses("STG", True)),
            ("other accesses", looped.accesses("LDG", False), looped.accesses("STG", False)),
            ("of shared memory", *(widths(loop, name) for name in ("LDS", "STS"))),
        ):
            lines.append(f"{what} in a step: {_sizes(loads, 'load')}; {_sizes(stores, 'store')}")
    for loop in code.loops:
        lines.append(f"{'  ' * loop.depth}loop at {loop.first:#06x}: {len(loop.instructions)} instructions")
    return lines


def _sizes(found, what):
    """ "6 loads of 128 bits, 2 of 32"."""
    if not found:
        return f"no {what}s"
    first, *rest = [f"{number} of {bits}" for bits, number in found.items()]
    number, _, bits = first.split()
    return ", ".join([f"{number} {what}{'s' * (number != '1')} of {bits} bits", *rest])
