"""What PTX and LLVM IR must say where blocks exchange numbers, warps work together, and 16 bytes are moved at once.

For kernels that no test runs as well; the emulated GPU (tests/fakes/emulator) holds those that run to the same rules,
by what their blocks really read.
"""

import inspect
import re

from emulator.program import Program, registers_of
from numbarnn.kernels.persistent import backward, forward
from numbarnn.kernels.persistent.context import WithinStep

PERSISTENT = (forward.__name__, backward.__name__)  # modules

# Bits of a number, as it is exchanged one by one.
_LETTERS = {"float16": "u16", "bfloat16": "u16", "float32": "f32"}
WORD = {"ld.relaxed.gpu.global.s64", "st.relaxed.gpu.global.s64"}  # of a call's error flag
_WIDE_SHARED = re.compile(r"\b(?:ld|st)\.shared\.v(?:4\.[ubf]32|2\.[ubf]64)\b")


def require_all(text, shipped):
    """Assert all that holds of a shipped kernel's PTX."""
    require_aligned_shared_memory(text)
    require_long_offsets(text)
    if shipped.function.__module__ in PERSISTENT:
        require_exchange(text, shipped)
    if shipped.dtype != "float64":
        require_no_double(text)


def require_no_double(text):
    """Assert that no line touches float64, but for the declaration of registers that nothing uses."""
    lines = [line.strip() for line in text.splitlines() if ".f64" in line]
    assert not lines, f"float64: {lines}"


def promised_accesses(dtype, aligned):
    """(loads, stores) that blocks exchange numbers by: sets of opcodes.

    Loads are 16 bytes where rows are aligned. Their elements are what is stored at once: two halves, one of the others.
    """
    one = _LETTERS[dtype]
    if not aligned:
        return {f"ld.relaxed.gpu.global.{one}"}, {f"st.relaxed.gpu.global.{one}"}
    return {"ld.relaxed.gpu.global.v4.u32"}, {f"st.relaxed.gpu.global.{'u32' if one == 'u16' else one}"}


def accesses(program, parameters):
    """Loads and stores through pointers that these parameters hold, in the order of the text.

    Args:
        program: emulator's Program.
        parameters: names of parameters.

    Returns:
        list of opcodes such as "ld.relaxed.gpu.global.u16".
    """
    pointers, instructions = set(), [each for block in program.blocks for each in block.instructions]
    while True:  # registers that such a pointer, or one that is moved, gets into, until there are no more
        found = set(pointers)
        for each in instructions:
            results, sources = registers_of(program, each)
            if each.name == "ld":
                is_pointer = each.modifiers[0] == "param" and each.operands[1].strip("[] ") in parameters
            else:
                is_pointer = each.name != "setp" and not found.isdisjoint(sources)
            if is_pointer:
                found |= {name for name in results if program.code_of(name) == "u8"}
        if found == pointers:
            break
        pointers = found
    through = []
    for each in instructions:
        if each.name in ("ld", "st", "atom", "red"):
            address = next(operand for operand in each.operands if isinstance(operand, str) and operand[0] == "[")
            if re.match(r"\[\s*([%\w]+)", address).group(1) in pointers:
                through.append(".".join([each.name, *each.modifiers]))
    return through


def require_exchange(text, shipped):
    """Assert that a persistent kernel accesses the arrays that blocks exchange, and the error flag, as blocks must.

    Besides, it fills them with NaN where the call has failed; and forward it reads its own part of the final h, and at
    a skipped step of a projection of h of the step before.

    Args:
        text: its PTX.
        shipped: the ShippedKernel; its first two arguments are tuples of exchanged arrays, as are some fields of
            `context.WithinStep`; the last one is the error flag: each of them is 7 parameters, of which the fifth is
            the address.
    """
    program, constants = Program(text), inspect.getclosurevars(shipped.function).nonlocals
    exchanged = len(shipped.arguments[0]) + len(shipped.arguments[1])
    parameters = {name for name, _ in program.parameters[4 : 7 * exchanged : 7]}
    parameters |= _within(program, shipped, "v") | _within(program, shipped, "projected")
    aligned = re.search(r"\baligned=True", shipped.kernel.source_key) is not None  # not weights_aligned
    loads, stores = promised_accesses(shipped.dtype, aligned)
    found = accesses(program, parameters)
    promised = stores | (loads if constants["multiplies"] else set())
    assert promised <= set(found), f"{promised} expected, there are {set(found)}"
    allowed = {f"st.global.u{_LETTERS[shipped.dtype][1:]}"}
    if "forward" in shipped.kernel.name:
        allowed |= {f"ld.{_LETTERS[shipped.dtype]}", f"ld.global.{_LETTERS[shipped.dtype]}"}
    others = set(found) - promised - allowed
    assert not others, f"exchanged arrays are accessed by {others}, not only by {promised}"
    about_word = set(accesses(program, {program.parameters[4 - 7][0]}))
    assert about_word == WORD, f"the error flag is accessed by {about_word}"
    ordered = set(re.findall(r"\b(?:ld|st|atom|red)\.(?:volatile|relaxed|acquire|release)[\w.]*", text))
    others = ordered - promised - about_word
    assert not others, f"{others}: blocks exchange numbers by {promised} only"
    sums = set(accesses(program, _within(program, shipped, "words")))
    assert sums == (WORD if constants["has_sums"] else set()), f"words of sums over units are accessed by {sums}"


def _within(program, shipped, field):
    """Names of the parameters that are addresses of arrays of a field of `context.WithinStep`."""
    place, within = next(one for one in enumerate(shipped.arguments) if isinstance(one[1], WithinStep))
    before = _arrays(shipped.arguments[:place]) + _arrays(within[: within._fields.index(field)])
    return {name for name, _ in program.parameters[7 * before + 4 : 7 * (before + len(getattr(within, field))) : 7]}


def _arrays(argument):
    """Flat arrays in a kernel's argument."""
    return sum(map(_arrays, argument)) if isinstance(argument, tuple) else 1


def require_aligned_shared_memory(text):
    """Assert that dynamic shared memory which is accessed by 16 bytes at once begins at a multiple of 16 bytes."""
    alignments = {int(number) for number in re.findall(r"\.extern\s+\.shared\s+\.align\s+(\d+)", text)}
    if alignments and _WIDE_SHARED.search(text):
        assert alignments == {16}, f"dynamic shared memory is aligned to {alignments} bytes, 16 are moved at once"


def require_long_offsets(text):
    """Assert that no product of two numbers of 32 bits is part of an address of global memory: T * B * G * H may be
    more than 2^31 elements."""
    program = Program(text)
    instructions = [each for block in program.blocks for each in block.instructions]
    made_by = {}
    for each in instructions:
        results, sources = registers_of(program, each)
        for name in results:
            made_by.setdefault(name, []).append((each, sources))
    todo = [
        re.match(r"\[\s*([%\w]+)", operand).group(1)
        for each in instructions
        if each.name in ("ld", "st", "atom", "red") and not {"shared", "local", "param"} & set(each.modifiers)
        for operand in each.operands
        if isinstance(operand, str) and operand.startswith("[")
    ]
    seen = set()
    while todo:
        register = todo.pop()
        if register in seen:
            continue
        seen.add(register)
        for each, sources in made_by.get(register, ()):
            short = each.name in ("mul", "mad") and "wide" not in each.modifiers and program.code_of(register) == "u4"
            # NVVM divides numbers of 64 bits that have 32 as such; then the product is at most the dividend.
            of_quotient = any(one.name == "div" for name in sources for one, _ in made_by.get(name, ()))
            factors = [name for name in each.operands[1:3] if name in made_by]
            assert not (short and len(factors) == 2 and not of_quotient), f"32 bits of an address: {each.text}"
            if each.name != "ld":  # what is loaded is a number of its own
                todo += sources


def require_convergent(modules):
    """Assert that in LLVM IR all functions, and all assembly that a warp runs together, are convergent."""
    for text in modules:
        lines = text.splitlines()
        for line in lines:
            if line.startswith(("define ", "declare ")) or ("asm" in line and ".sync" in line):
                after = line[line.rindex(")") :]
                assert "convergent" in after.split(), f"not convergent: {line}"
