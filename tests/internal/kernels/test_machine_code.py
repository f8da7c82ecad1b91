"""Machine code, read with NVIDIA's disassembler: what is counted in it, and what persistent kernels' must be like.

PTX does not tell: registers are spilled, loops unrolled and accesses merged after it. Nothing here needs a GPU.
"""

import re
from dataclasses import replace
from itertools import product

import pytest

import machine_code_checks as checks
import ptx_checks
from numbarnn import cli
from numbarnn.bench import planned
from numbarnn.bench.shapes import SETS
from numbarnn.cuda import compiler
from numbarnn.cuda.machine_code import disassembler
from numbarnn.schedules.persistent import planner
from sass import MachineCode, read, widths

full = pytest.mark.full
ARCHS = {"sm_90": (9, 0), "sm_80": (8, 0), "sm_100": (10, 0)}
# One layer of recorded benchmarks: cell, dtype, H, B; most instructions per multiply-add, a tenth above those of
# 2026-11-23. By the tensor cores those of the rest of a step count most: the fewer the more a block multiplies.
RECORDED = {
    "lstm-float16": ("lstm", "float16", 768, 16, 0.5),
    "lstm-float32": ("lstm", "float32", 512, 64, 2.5),
    "gru-float16": ("gru", "float16", 512, 16, 0.9),
    "gru-float32": ("gru", "float32", 256, 16, 5.2),
}


# ------------------------------------------------------------------------------------------------------- reading it
TEXT = """
	.section	.text.kernel,"ax",@progbits
        /*0000*/                   LDG.E.128.CONSTANT R4, desc[UR8][R2.64] ;
        /*0010*/                   LDG.E.128.CONSTANT R8, desc[UR8][R2.64+0x40] ;
.L_x_4:
        /*0020*/                   IADD3 R0, R0, 0x1, RZ ;
        /*0030*/                   LDG.E.128.STRONG.GPU R12, desc[UR8][R16.64] ;
        /*0040*/                   BSSY B0, `(.L_x_2) ;
        /*0050*/               @P1 BRA `(.L_x_1) ;
.L_x_0:
        /*0060*/                   NANOSLEEP 0x64 ;
        /*0070*/                   LDG.E.128.STRONG.GPU R12, desc[UR8][R16.64] ;
        /*0080*/              @!P2 BRA `(.L_x_0) ;
.L_x_1:
        /*0090*/                   BSYNC B0 ;
        /*00a0*/                   MOV R1, 0x1 ;
.L_x_2:
        /*00b0*/                   BRA.DIV ~URZ, `(.L_x_3) ;
        /*00c0*/                   WARPSYNC.ALL ;
        /*00d0*/                   HMMA.16816.F32 R20, R4, R12, RZ ;
        /*00e0*/                   HMMA.16816.F32 R20, R8, R14, R20 ;
        /*00f0*/                   STG.E.STRONG.GPU desc[UR8][R18.64], R20 ;
        /*0100*/                   STG.E.U16 desc[UR8][R18.64], R20 ;
        /*0110*/                   LDS.64 R24, [R1] ;
        /*0120*/               @P0 BRA P3, `(.L_x_4) ;
        /*0130*/              @!P0 CALL.REL.NOINC `(.L_x_3) ;
        /*0140*/                   BRA `(.L_x_4) ;
.L_x_3:
        /*0150*/                   EXIT ;
.L_x_5:
        /*0160*/                   BRA `(.L_x_5) ;
        /*0170*/                   NOP ;
"""  # after the jump at 0x90 nothing comes to 0xa0, and nothing to the last loop


def test_instructions():
    code = MachineCode(TEXT)
    assert [one.address for one in code.instructions] == list(range(0, 0x180, 0x10))
    first, jump = code.instructions[0], code.instructions[5]
    assert (first.name, first.modifiers, first.bits, first.exchanges) == ("LDG", ("E", "128", "CONSTANT"), 128, False)
    assert (jump.predicate, jump.name, jump.operands) == ("P1", "BRA", "`(.L_x_1)")
    assert widths(code.instructions, "STG") == {32: 1, 16: 1} and widths(code.instructions, "LDS") == {64: 1}


def test_loops():
    outer, inner = MachineCode(TEXT).loops
    assert (outer.first, outer.depth, inner.first, inner.depth) == (0x20, 0, 0x60, 1)
    assert [one.address for one in inner.instructions] == [0x60, 0x70, 0x80]
    assert [one.address for one in outer.instructions] == [*range(0x20, 0xA0, 0x10), *range(0xB0, 0x150, 0x10)]


def test_counts():
    code = MachineCode(TEXT)
    loaded, steps = checks.weights(code), checks.steps(code)
    assert (loaded.loads, loaded.words, loaded.instructions, loaded.per_word) == ({128: 2}, 8, 2, 0.25)
    assert steps.loop == code.loops[0] and len(steps.waiting) == 3
    assert (steps.products, steps.instructions, steps.per_multiply_add) == ({"HMMA.16816": 2}, 15, 15 / 128)
    assert [one.address for one in steps.looks] == [0x30] and checks.asked_for_before_use(steps) == [1]
    assert steps.accesses("LDG", True) == {128: 2} and steps.accesses("LDG", False) == {}
    assert steps.accesses("STG", True) == {32: 1} and steps.accesses("STG", False) == {16: 1}
    assert (checks.parted(steps), checks.spills(code)) == (0, 0)


# -------------------------------------------------------------------------------------------------- persistent kernels
@pytest.fixture(scope="module")
def disassembler_installed():
    """NVIDIA's disassembler, an optional part."""
    try:
        return disassembler()
    except RuntimeError as error:
        pytest.skip(str(error))


def launch_of(name, backward, cc=(9, 0)):
    """(Problem, Launch) of one of RECORDED, for a device."""
    cell, dtype, hidden, batch, _ = RECORDED[name]
    problem = planned.problem(cell, dtype, (hidden,), batch)
    (launch,) = planner.plan_launches(problem, planned.profile_for(cc), backward)
    return problem, launch


def code_of(name, backward, cc=(9, 0)):
    """(Problem, Launch, MachineCode, most instructions per multiply-add)."""
    problem, launch = launch_of(name, backward, cc)
    return problem, launch, read(planned.persistent_kernel(problem, launch).compile(cc)), RECORDED[name][-1]


@full
@pytest.mark.parametrize("backward", (False, True), ids=("forward", "backward"))
@pytest.mark.parametrize("name, arch", [*product(RECORDED, ARCHS)])
def test_persistent_kernels(disassembler_installed, toolchain, name, arch, backward):
    checks.require(*code_of(name, backward, ARCHS[arch]))


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
        steps = checks.steps(read(planned.persistent_kernel(problem, launch).compile((9, 0))))
        assert sum(steps.products.values()) > 0 and checks.parted(steps) == 0, launch


@pytest.fixture(scope="module")
def compiled(toolchain):
    """(Problem, Launch, kernel, what is compiled of it, its PTX) of one kernel, which is right."""
    problem, launch = launch_of("lstm-float16", False)
    with pytest.MonkeyPatch.context() as patch:
        texts, link = [], compiler._link
        patch.setattr(compiler, "_link", lambda text, *others: texts.append(text) or link(text, *others))
        shipped = planned.persistent_kernel(problem, launch)
        found = shipped.compile((9, 0))
    return problem, launch, shipped, found, *texts


@pytest.fixture(scope="module")
def forward(disassembler_installed, compiled):
    """As `code_of`, of that kernel."""
    problem, launch, _, found, _ = compiled
    return problem, launch, read(found), RECORDED["lstm-float16"][-1]


def test_a_persistent_kernel_is_as_it_was_written_to_be(compiled):
    _, _, shipped, found, text = compiled
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
    _, _, shipped, _, text = compiled
    wrong = text.replace(there, instead)
    assert wrong != text
    with pytest.raises(AssertionError, match=r"expected|only|float64"):
        ptx_checks.require_all(wrong, shipped)


LISTED = {  # a change of the text -> what is said of it
    "a weak load": ("LDG.E.128.STRONG.GPU", "LDG.E.128", r"\d+ loads of 16 bytes"),
    "a load that only the block sees": ("LDG.E.128.STRONG.GPU", "LDG.E.128.STRONG.SM", r"\d+ loads of 16 bytes"),
    "weak stores": ("STG.E.STRONG.GPU", "STG.E", "0 stores of a word that others see, at least 1"),
    "lanes that part": ("WARPSYNC.ALL", "NOP", "before 24 instructions of the tensor cores lanes may have parted"),
    "a product left out": ("HMMA.16816.F32", "NOP", r"a step multiplies by \{'HMMA.16816': 23\}"),
    "another product": ("HMMA.16816.F32", "HMMA.1688.F32.TF32", "a step multiplies by"),
    "weights by words": ("LDG.E.128.CONSTANT", "LDG.E.CONSTANT", r"weights are loaded by \{32: 24\}, \{128: 24\}"),
    "a spill": ("SHFL.BFLY", "LDL", "1 instructions move spilled registers"),
}


@pytest.mark.parametrize("there, instead, message", LISTED.values(), ids=LISTED)
def test_other_machine_code_is_found(forward, there, instead, message):
    """In the listing: of each kind the first one, or all where one alone is harmless."""
    problem, launch, code, limit = forward
    checks.require(*forward)
    text = code.text
    number = {"LDG.E.128.STRONG.GPU": 1, "HMMA.16816.F32": 1, "SHFL.BFLY": 1}.get(there, 0)
    wrong = re.sub(rf"{re.escape(there)}(?![.\w])", instead, text, count=number)
    assert wrong != text
    with pytest.raises(AssertionError, match=message):
        checks.require(problem, launch, MachineCode(wrong), limit)


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
    assert said.out == "" and "nvdisasm, was not found; install it: pip install" in said.err and "[sass]" in said.err
