"""What the machine code of a persistent kernel must be like; what its PTX must be like is in `ptx_checks`."""

import re
from math import gcd

from numbarnn.bench import machine_code
from numbarnn.common.precision import is_half
from numbarnn.cuda.machine_code import widths
from numbarnn.kernels.persistent.fma import SEQUENCES_AT_ONCE
from numbarnn.kernels.persistent.tile import M16
from numbarnn.schedules.persistent.planner import variant

# Most instructions of a lane per word of its weights, what a kernel begins with included: above what was counted of the
# planned kernels on 2026-11-23, 3 to 12, and far below the loop's that it was before, 49 to 208.
PER_WORD = 16
LANES_MAY_PART = ("BRA", "BRX", "BSYNC", "CALL", "EXIT", "RET")  # after these not all lanes need be there
REGISTER = re.compile(r"\bR(\d+)\b")


def require(problem, launch, code, per_multiply_add):
    """Assert that the kernel of a problem's launch, with aligned rows and its weights in registers, is as it was
    written to be.

    Args:
        code: its `MachineCode`. per_multiply_add: most instructions of a lane per multiply-add of it.
    """
    tile = launch.tile
    spilled = machine_code.spills(code)
    assert spilled == 0, f"{spilled} instructions move spilled registers"
    require_weights(tile, machine_code.weights(code))
    steps = machine_code.steps(code)
    assert steps is not None, "no loop publishes anything"
    require_products(tile, steps)
    found = steps.per_multiply_add
    assert found <= per_multiply_add, f"{found:.2f} instructions per multiply-add, at most {per_multiply_add}"
    require_exchange(tile, steps, _published(problem, launch))


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
