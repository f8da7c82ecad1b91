"""What the machine code of a persistent kernel must be like; what its PTX must be like is in `ptx_checks`."""

import re
from dataclasses import dataclass
from math import gcd

from numbarnn.common.precision import is_half
from numbarnn.kernels.persistent.fma import SEQUENCES_AT_ONCE
from numbarnn.kernels.persistent.tile import M16
from numbarnn.schedules.persistent.planner import variant
from sass import Instruction, Loop, widths

# Most instructions of a lane per word of its weights, what a kernel begins with included: above what was counted of the
# planned kernels on 2026-11-23, 3 to 12, and far below the loop's that it was before, 49 to 208.
PER_WORD = 16
LANES_MAY_PART = ("BRA", "BRX", "BSYNC", "CALL", "EXIT", "RET")  # after these not all lanes need be there
REGISTER = re.compile(r"\bR(\d+)\b")


# ------------------------------------------------------------------------------------------------- what is counted
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


# ------------------------------------------------------------------------------------------------ what is required
def require(problem, launch, code, per_multiply_add):
    """Assert that the kernel of a problem's launch, with aligned rows and its weights in registers, is as it was
    written to be.

    Args:
        code: its `MachineCode`. per_multiply_add: most instructions of a lane per multiply-add of it.
    """
    tile = launch.tile
    spilled = spills(code)
    assert spilled == 0, f"{spilled} instructions move spilled registers"
    require_weights(tile, weights(code))
    looped = steps(code)
    assert looped is not None, "no loop publishes anything"
    require_products(tile, looped)
    found = looped.per_multiply_add
    assert found <= per_multiply_add, f"{found:.2f} instructions per multiply-add, at most {per_multiply_add}"
    require_exchange(tile, looped, _published(problem, launch))


def require_weights(tile, found):
    """Assert that a lane loads each of its words once, and as many at once as stand side by side."""
    assert found is not None, "weights are not loaded as what nobody writes"
    if tile.math == "fma":
        at_once = gcd(4, tile.rows // tile.row_lanes, tile.units) if tile.backward else 4
    else:
        at_once = 4 if not tile.backward else 1 if is_half(tile.dtype) else 2
    promised = {32 * at_once: tile.fragment_words // at_once}
    assert found.loads == promised, f"weights are loaded by {found.loads}, {promised} expected: bits and number"
    assert found.per_word <= PER_WORD, f"{found.per_word:.1f} instructions per word of weights, at most {PER_WORD}"


def require_products(tile, steps):
    """Assert that a step multiplies each word as often as there are sequences at once, by the promised instructions."""
    number = sum(steps.products.values())
    if tile.math == "fma":
        least = tile.fragment_words * SEQUENCES_AT_ONCE
        assert number >= least, f"{number} instructions multiply, at least {least} expected"
        assert 128 in widths(steps.loop.instructions, "LDS"), "nothing is loaded from shared memory 16 bytes at once"
    else:
        name = "HMMA.16816" if tile.math == "mma" else "HMMA.1688"
        promised = {name: tile.rows // M16 * tile.chunks * 2 * tile.n8 * (3 if tile.math == "tf32x3" else 1)}
        assert steps.products == promised, f"a step multiplies by {steps.products}, {promised} expected"
        found = dependent_products(steps)
        if tile.math != "tf32x3":
            promised = tile.dependent_products
            assert found == promised, f"{found} products wait for each other, {promised} expected"
        apart = parted(steps)
        assert apart == 0, f"before {apart} instructions of the tensor cores lanes may have parted"


def dependent_products(steps):
    """Return the most instructions of the tensor cores of which each adds to the sums of the one before it."""
    length = {}
    for one in steps.loop.instructions:
        if one.name == "HMMA":
            sums, *_, added = re.findall(r"\bR(?:\d+|Z)\b", one.operands)
            length[sums] = 1 + length.get(added, 0)
    return max(length.values())


def require_exchange(tile, steps, published):
    """Assert that what blocks exchange is seen by all of them: 16 bytes at once are loaded, those of the next group
    before anything is done with this one's, and a word is stored for each of the `published` numbers of a unit, or two.
    """
    others, of_group = steps.accesses("LDG", False), tile.n8 * tile.gathered
    found, promised = len(steps.looks), tile.n8 * tile.chunks
    assert found == promised, f"{found} loads of 16 bytes that others wrote, {promised} expected"
    asked = [of_group * min(tile.groups, group + 1 + tile.groups_ahead) for group in range(tile.groups)]
    promised = [number for number in asked for _ in range(of_group)]
    found = sorted(asked_for_before_use(steps))
    assert found == promised, f"loads of 16 bytes before each is used: {found}, {promised} expected"
    again = steps.accesses("LDG", True)[128] - len(steps.looks)
    promised = tile.n8 * sum(
        tile.gathered * (1 + min(tile.groups_ahead, tile.groups - 1 - group)) for group in range(tile.groups)
    )
    assert again == promised, f"{again} loads of 16 bytes look again, {promised} expected"
    assert 128 not in others, f"{others[128]} loads of 16 bytes may miss what others wrote"
    found = steps.accesses("STG", True).get(32, 0)
    assert found >= published, f"{found} stores of a word that others see, at least {published} expected"


def _published(problem, launch):
    """Numbers that a block publishes for each unit and sequence."""
    cell, (_, drops, *_) = problem.cell, variant(problem, launch)
    if not launch.backward:
        return 1 + drops
    return cell.num_recurrent + (0 if cell.same_gradient else cell.num_gates)


def parted(steps):
    """Instructions of the tensor cores before which not all lanes of the warp are known to have come together."""
    count, together = 0, False
    for one in steps.loop.instructions:
        if one.name == "WARPSYNC":
            together = True
        elif one.name in LANES_MAY_PART:
            together = False
        elif one.name == "HMMA":
            count += not together
    return count


def asked_for_before_use(steps):
    """For each of `looks`, how many of them stand before the first instruction that does something with what it loads;
    what waits and looks again does not count."""
    working = [one for one in steps.loop.instructions if one not in steps.waiting]
    uses = [_first_use(working, one) for one in steps.looks]
    return [sum(one.address < use for one in steps.looks) for use in uses]


def _first_use(instructions, load):
    """The address of the first instruction after a load of 16 bytes that names one of its four registers."""
    first = int(REGISTER.search(load.operands).group(1))
    for one in instructions:
        named = map(int, REGISTER.findall(one.operands))
        if one.address > load.address and any(first <= number < first + 4 for number in named):
            return one.address
    raise AssertionError(f"nothing is done with what {load} loads")
