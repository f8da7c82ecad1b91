"""Machine code of persistent kernels by NVIDIA's disassembler: what PTX does not tell. Nothing here needs a GPU.

Registers are spilled, accesses merged, and lanes parted after PTX is written.
"""

import re
from collections import Counter
from dataclasses import replace
from itertools import product
from typing import NamedTuple

import pytest

import ptx_checks
from numbarnn import cli
from numbarnn.bench import planned
from numbarnn.bench.shapes import SETS
from numbarnn.cuda import compiler
from numbarnn.cuda.machine_code import INSTRUCTION, disassembler, listing
from numbarnn.kernels.persistent.tile import M16
from numbarnn.schedules.persistent import planner

full = pytest.mark.full
ARCHS = {"sm_90": (9, 0), "sm_80": (8, 0), "sm_100": (10, 0)}
RECORDED = {  # one layer of recorded benchmarks: cell, dtype, H, B
    "lstm-float16": ("lstm", "float16", 768, 16),
    "lstm-float32": ("lstm", "float32", 512, 64),
    "gru-float16": ("gru", "float16", 512, 16),
    "gru-float32": ("gru", "float32", 256, 16),
}
LANES_MAY_PART = ("BRA", "BRX", "BSYNC", "CALL", "EXIT", "RET")  # after these not all lanes need be there


class Counts(NamedTuple):
    """What a listing has: words such as LDG.E.128.STRONG.GPU -> how many; products by tensor cores of a warp that may
    have parted."""

    opcodes: Counter
    parted: int

    @classmethod
    def of(cls, lines):
        opcodes, parted, together = Counter(), 0, False
        for opcode in (match[3] for match in map(INSTRUCTION.match, lines) if match):
            name = opcode.partition(".")[0]
            opcodes[opcode] += 1
            parted += name == "HMMA" and not together
            together = name == "WARPSYNC" or (together and name not in LANES_MAY_PART)
        return cls(opcodes, parted)

    def count(self, name, *words, but=()):
        """How many instructions have a name, these words and none of others."""
        each = ((opcode.split("."), number) for opcode, number in self.opcodes.items())
        return sum(number for (first, *more), number in each
                   if first == name and {*words} <= {*more} and not {*but} & {*more})  # fmt: skip


def require(launch, counts):
    """Assert that the kernel of a launch with aligned rows spills nothing and exchanges by accesses that others see."""
    tile = launch.tile
    assert counts.count("LDL") + counts.count("STL") == 0, "registers are spilled"
    assert counts.parted == 0, f"before {counts.parted} instructions of the tensor cores lanes may have parted"
    weak = counts.count("LDG", "128", but=("STRONG", "CONSTANT")) + counts.count("LDG", "128", "SM")
    assert weak == 0, f"{weak} loads of 16 bytes may miss what others wrote"
    looks = counts.count("LDG", "128", "STRONG", "GPU")
    assert looks >= 2 * tile.n8 * tile.chunks, f"{looks} loads of 16 bytes that others wrote; each looks again, too"
    assert counts.count("STG", "STRONG", "GPU", but=("64",)) > 0, "no word is stored that others see"
    if tile.math == "fma":
        assert counts.count("LDS", "128") and not counts.count("HMMA")
        return
    shape = "16816" if tile.math == "mma" else "1688"
    promised = tile.rows // M16 * tile.chunks * 2 * tile.n8 * (3 if tile.math == "tf32x3" else 1)
    products = counts.count("HMMA", shape)
    assert products >= promised and products == counts.count("HMMA"), f"{products} products, {promised} promised"
    if not tile.backward:
        assert counts.count("LDG", "CONSTANT") == counts.count("LDG", "CONSTANT", "128"), "weights by words"


@pytest.fixture(scope="module")
def disassembler_installed():
    """NVIDIA's disassembler, an optional part."""
    try:
        return disassembler()
    except RuntimeError as error:
        pytest.skip(str(error))


def launch_of(name, backward, cc=(9, 0)):
    """(Problem, Launch) of one of RECORDED, for a device."""
    cell, dtype, hidden, batch = RECORDED[name]
    problem = planned.problem(cell, dtype, (hidden,), batch)
    (launch,) = planner.plan_launches(problem, planned.profile_for(cc), backward)
    return problem, launch


@full
@pytest.mark.parametrize("backward", (False, True), ids=("forward", "backward"))
@pytest.mark.parametrize("name, arch", [*product(RECORDED, ARCHS)])
def test_persistent_kernels(disassembler_installed, toolchain, name, arch, backward):
    problem, launch = launch_of(name, backward, ARCHS[arch])
    require(launch, Counts.of(listing(planned.persistent_kernel(problem, launch).compile(ARCHS[arch]))))


TENSOR_CORES = {  # how tensor cores multiply -> dtype and options of the problem
    "mma": ("float16", {}),
    "tf32": ("float32", {"allow_tf32": True}),
    "tf32x3": ("float32", {"splits_tf32": True}),
}


@full
@pytest.mark.parametrize("shape", SETS["schedules"], ids=str)
@pytest.mark.parametrize("cell, math", [*product(("lstm", "gru"), TENSOR_CORES)])
def test_warps_are_together_before_mma_at_recorded_sizes(disassembler_installed, toolchain, cell, math, shape):
    """All kernels that the planner chooses for an H200, forward and backward, have converged warps at each mma."""
    dtype, options = TENSOR_CORES[math]
    problem = planned.problem(cell, dtype, (shape.H,) * shape.L, shape.B, **options)
    problem, kernels = replace(problem, steps=shape.T), {}
    for backward in (False, True):
        for launch in planner.plan_launches(problem, planned.profile_for((9, 0)), backward):
            if launch.tile.math != "fma":  # 3xTF32 may be estimated to be slower than FMA
                kernels[launch.tile, planner.variant(problem, launch)] = launch
    assert kernels or math != "mma"
    for launch in kernels.values():
        counts = Counts.of(listing(planned.persistent_kernel(problem, launch).compile((9, 0))))
        assert counts.count("HMMA") > 0 and counts.parted == 0, launch


@pytest.fixture(scope="module")
def compiled(toolchain):
    """(Launch, kernel, what is compiled of it, its PTX) of one kernel, which is right."""
    problem, launch = launch_of("lstm-float16", False)
    with pytest.MonkeyPatch.context() as patch:
        texts, link = [], compiler._link
        patch.setattr(compiler, "_link", lambda text, *others: texts.append(text) or link(text, *others))
        shipped = planned.persistent_kernel(problem, launch)
        found = shipped.compile((9, 0))
    return launch, shipped, found, *texts


def test_a_persistent_kernel_is_as_it_was_written_to_be(compiled):
    _, shipped, found, text = compiled
    assert (found.spill_bytes, found.stack_bytes) == (0, 0)
    assert found.registers * shipped.threads <= planned.profile_for((9, 0)).registers
    ptx_checks.require_all(text, shipped)


LOAD, STORE = "ld.relaxed.gpu.global.v4.u32", "st.relaxed.gpu.global.u32"


@pytest.mark.parametrize("there, instead", [
    (LOAD, LOAD.replace("gpu", "cta")),
    (LOAD, "ld.global.nc.v4.u32"),
    (LOAD, "ld.global.v4.u32"),
    (LOAD, "ld.relaxed.gpu.global.v2.b64"),
    (STORE, STORE.replace("gpu", "cta")),
    (STORE, "st.global.u32"),
    (STORE, "st.volatile.global.u32"),
    ("fma.rn.f32", "fma.rn.f64"),
])  # fmt: skip
def test_other_accesses_in_its_ptx_are_found(compiled, there, instead):
    _, shipped, _, text = compiled
    wrong = text.replace(there, instead)
    assert wrong != text
    with pytest.raises(AssertionError, match=r"expected|only|float64"):
        ptx_checks.require_all(wrong, shipped)


LISTED = {  # a change of the listing -> what is said of it
    "a weak load": ("LDG.E.128.STRONG.GPU", "LDG.E.128", "may miss what others wrote"),
    "a load that only the block sees": ("LDG.E.128.STRONG.GPU", "LDG.E.128.STRONG.SM", "may miss"),
    "weak stores": ("STG.E.STRONG.GPU", "STG.E", "no word is stored that others see"),
    "lanes that part": ("WARPSYNC.ALL", "NOP", "before 24 instructions of the tensor cores lanes may have parted"),
    "a product left out": ("HMMA.16816.F32", "NOP", "23 products, 24 promised"),
    "another product": ("HMMA.16816.F32", "HMMA.1688.F32.TF32", "23 products, 24 promised"),
    "weights by words": ("LDG.E.128.CONSTANT", "LDG.E.CONSTANT", "weights by words"),
    "a spill": ("SHFL.BFLY", "LDL", "registers are spilled"),
}


@pytest.mark.parametrize("there, instead, message", LISTED.values(), ids=LISTED)
def test_other_machine_code_is_found(disassembler_installed, compiled, there, instead, message):
    """Of each kind the first one, or all where one alone is harmless."""
    launch, _, found, _ = compiled
    lines = listing(found)
    require(launch, Counts.of(lines))
    number = {"LDG.E.128.STRONG.GPU": 1, "HMMA.16816.F32": 1, "SHFL.BFLY": 1}.get(there, 0)
    wrong = re.sub(rf"{re.escape(there)}(?![.\w])", instead, "\n".join(lines), count=number)
    assert wrong != "\n".join(lines)
    with pytest.raises(AssertionError, match=message):
        require(launch, Counts.of(wrong.splitlines()))


# ------------------------------------------------------------------------------------------------------- the command
def test_printed(disassembler_installed, toolchain, capsys):
    assert cli.main(["kernels", "--sass", "dropout", "--arch", "sm_90"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert re.fullmatch(r"// dropout-float32, sm_90: \d+ registers", lines[0])
    assert re.match(r"\s+/\*0000\*/ ", lines[1]) and not any(line.startswith("//") for line in lines[1:])


def test_without_the_disassembler(monkeypatch, toolchain, capsys):
    import cuda.pathfinder

    monkeypatch.setattr(cuda.pathfinder, "find_nvidia_binary_utility", lambda name: None)
    assert cli.main(["kernels", "--sass", "dropout"]) == 1
    said = capsys.readouterr()
    assert said.out == "" and "nvdisasm, was not found. Install it: pip install" in said.err and "[sass]" in said.err
