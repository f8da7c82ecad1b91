"""The CPU engine's products as machine code of machines that are not at hand: compiled and read; and of lesser ones
that this one can be, run.

LLVM compiles for all of them. What is to be seen in the loops that take most of the time: instructions on whole
vectors, and all sums in registers.
"""

import platform
import re
import sys
from pathlib import Path

import pytest

from child import in_child
from numbarnn.engines.cpu import vectors

PROGRAM = """
    import sys
    import llvmlite.binding as llvm

    triple, cpu, features = sys.argv[1], sys.argv[2], sys.argv[3:]
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    llvm.get_process_triple = llvm.get_default_triple = lambda: triple
    llvm.get_host_cpu_name, llvm.get_host_cpu_features = lambda: cpu, lambda: llvm.FeatureMap.fromkeys(features, True)

    from numbarnn.compile import native, types

    options = dict(reloc="default", codemodel="jitdefault", jit=True)
    machine = llvm.Target.from_triple(triple).create_target_machine(cpu=cpu, features="", opt=3, **options)
    native._machine = lambda: (machine, None)

    from numbarnn.engines.cpu import panels, vectors

    print(vectors.MOST_ROWS, vectors.description())
    module = panels.panel_product.module("panel_product", (types.float32,))
    print(machine.emit_assembly(native.optimized(module)))
"""
# triple; LLVM's name of the processor, and what it has; a multiply-add of a vector of float32; a vector moved to
# the stack or from there; what `numbarnn info` says.
X86, FUSED, ON_STACK = "x86_64-unknown-linux-gnu", "fused multiply-add", r"mm.*%rsp|%rsp.*mm"
MACHINES = {
    "NEON": ("aarch64-unknown-linux-gnu", "generic", (), r"fmla\tv\d+\.4s", r"\tq\d+.*\bsp\b", f"128 bits, {FUSED}"),
    "SSE2": (X86, "x86-64", ("sse2",), r"mulps\t.*%xmm", ON_STACK, "128 bits"),
    "AVX2": (X86, "haswell", ("avx", "avx2", "fma"), r"vfmadd\d+ps\t.*%ymm", ON_STACK, f"256 bits, {FUSED}"),
    "AVX-512": (
        X86,
        "skylake-avx512",
        ("avx", "fma", "avx512f"),
        r"vfmadd\d+ps\t.*%zmm",
        ON_STACK,
        f"512 bits, {FUSED}",
    ),
}


def compiled_for(triple, cpu, features=()):
    """(most rows of a tile, what `numbarnn info` says, assembly) of `panels.panel_product` for another machine."""
    first, assembly = in_child(PROGRAM, triple, cpu, *features, paths=sys.path).split("\n", 1)
    rows, about = first.split(" ", 1)
    return int(rows), about, assembly


def inner_loops(assembly):
    """The lines of each loop that has no other one inside."""
    lines, labels, loops = assembly.splitlines(), {}, []
    for number, line in enumerate(lines):
        if label := re.match(r"(\.L\w+):", line):
            labels[label[1]] = number
        elif (jump := re.match(r"\t[a-z][\w.]*\t(?:.*[\s,])?(\.L\w+)$", line)) and jump[1] in labels:
            loops.append((labels[jump[1]], number))
    inside = [
        one for one in loops if not any(one != other and one[0] <= other[0] and other[1] <= one[1] for other in loops)
    ]
    return [lines[first : last + 1] for first, last in inside]


@pytest.mark.parametrize(
    "machine", [pytest.param(one, marks=[] if one in ("NEON", "AVX2") else pytest.mark.full) for one in MACHINES]
)
def test_products_keep_their_sums_in_vector_registers(machine):
    """In each loop over terms; that of the largest tile has two multiply-adds for each row, of one term or several."""
    triple, cpu, features, multiply_add, on_stack, said = MACHINES[machine]
    rows, about, assembly = compiled_for(triple, cpu, features)
    assert about.removeprefix("vectors of ").startswith(said)
    counts = []
    for loop in inner_loops(assembly):
        if count := sum(bool(re.search(multiply_add, line)) for line in loop):
            counts.append(count)
            if machine != "SSE2":  # without fused multiply-adds products need registers, too, and there are but 16
                assert not [line for line in loop if re.search(on_stack, line)], "\n".join(loop)
    assert max(counts) >= 2 * rows and max(counts) % (2 * rows) == 0


@pytest.mark.parametrize("triple, cpu", [
    ("s390x-unknown-linux-gnu", "generic"),
    *(pytest.param(*one, marks=pytest.mark.full) for one in (
        ("powerpc64le-unknown-linux-gnu", "ppc64le"), ("riscv64-unknown-linux-gnu", "generic-rv64"))),
])  # fmt: skip
def test_other_architectures_have_the_same_source(triple, cpu):
    _, about, assembly = compiled_for(triple, cpu)
    assert "panel_product" in assembly
    assert about.startswith("vectors of 128 bits")


# ------------------------------------------------------------------------------------------ run here
@pytest.mark.parametrize("feature, width", [pytest.param("", 16, marks=pytest.mark.full), ("avx", 32), ("avx512f", 64)])
def test_vectors_of_other_machines(feature, width, tmp_path):
    """The same source for short and long vectors: LLVM makes two instructions of what is too long for one."""
    if width == vectors.VECTOR_BYTES:
        pytest.skip("this machine's: test_panels.py")
    run_elsewhere(f"""
        import llvmlite.binding as llvm
        here, llvm.get_host_cpu_features = llvm.get_host_cpu_features, lambda: dict.fromkeys([{feature!r}], True)
        from numbarnn.engines.cpu import vectors
        llvm.get_host_cpu_features = here
        assert vectors.VECTOR_BYTES == {width}
        import test_panels
        from numbarnn.engines.cpu import panels
        test_panels.check_product("float32", 257, (1, 2, 3, 6, 13))
        test_panels.check_product("float64", 7, (0, 1, 4, 5))
        test_panels.check_product("float32", 3 * panels.KC + 1, (1, 2, 3), "wide")
        test_panels.check_product("float32", 27, (1, 2, 3, 4), "rows")
        test_panels.check_product("float64", 27, (1, 2, 3, 4), "columns")
    """, tmp_path)  # fmt: skip


@pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="of x86-64, which this machine runs too")
@pytest.mark.parametrize("known", (pytest.param(True, marks=pytest.mark.full), False), ids=("known", "unknown"))
def test_a_machine_without_avx(known, tmp_path):
    """Nor fused multiply-add, or one that LLVM does not know: all is compiled for what every x86-64 has, products and
    cells."""
    run_elsewhere(f"""
        import llvmlite.binding as llvm

        def features():
            if not {known}:
                raise RuntimeError("failed to get host cpu features.")
            return llvm.FeatureMap(sse2=True, avx=False)

        llvm.get_host_cpu_name, llvm.get_host_cpu_features = (lambda: "x86-64" if {known} else "generic"), features
        import numpy as np
        import numbarnn as nr
        import test_panels
        from numbarnn.engines.cpu import vectors
        assert vectors.description().startswith("vectors of 128 bits")
        assert "slower" in vectors.description()
        test_panels.check_product("float32", 257, (1, 2, 3, 4, 5, 6, 13))
        from numbarnn import reference
        x = np.random.default_rng(0).standard_normal((9, 5, 20), np.float32)
        layer, dy = nr.LSTM(20, 33, device="cpu", seed=0), np.ones((9, 5, 33), np.float32)
        found = reference.forward("lstm", x, layer.state_dict())
        expected = reference.backward(found, dy)
        y, _, tape = layer.forward(x)
        np.testing.assert_allclose(y, found.y, rtol=0, atol=1e-5)
        for name, value in layer.backward(tape, dy).params.items():
            wanted = expected.params[name]
            np.testing.assert_allclose(value, wanted, rtol=0, atol=1e-5 * np.abs(wanted).max())
    """, tmp_path)  # fmt: skip


def run_elsewhere(program, folder):
    """Run a program that sees the tests, in a process of its own, and a folder for compiled code."""
    tests = Path(__file__).parents[1]
    in_child(program, paths=(tests.parent, tests / "engines", tests / "support"), NUMBARNN_CACHE_DIR=str(folder))
