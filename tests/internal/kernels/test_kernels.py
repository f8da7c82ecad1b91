"""Every shipped kernel, compiled for the devices of three generations: no spills, no stray float64.

What the kernels compute is tested in the simulator (tests/simulated) and on a GPU (tests/layers/test_gpu.py).
"""

import ast
import re
from pathlib import Path

import numpy as np
import pytest

import ptx_checks
from general_cells import GENERAL, NOISE_CELLS, SUM_CELLS
from numbarnn import kernels
from numbarnn.bench.planned import profile_for
from numbarnn.common import code_cache
from numbarnn.cuda import compiler
from numbarnn.kernels import catalog, grid
from numbarnn.kernels.persistent import backward, forward
from numbarnn.kernels.step import pointwise, stages, unit_sums
from planned_problems import persistent_kernels, shipped_kernels

DEVICES = [(8, 0), (9, 0), (10, 0)]
KERNELS = list(catalog.shipped_kernels())
PERSISTENT = (forward.__name__, backward.__name__)  # modules
REGISTERS = 65536  # of a multiprocessor
THREADS = 512  # of its 2048, that should at least fit


pytestmark = pytest.mark.usefixtures("toolchain")


def double_instructions(text):
    """Lines of a PTX text that touch float64, but for the declaration of registers that nothing uses."""
    return [line.strip() for line in text.splitlines() if ".f64" in line]


def least_threads(shipped, compiled):
    """How many a multiprocessor should hold: one block of those whose threads work together all along."""
    adds_up = shipped.function.__module__ in (pointwise.__name__, stages.__name__) and compiled.shared_bytes > 0
    return shipped.threads if adds_up or shipped.function.__module__ in PERSISTENT else THREADS


def everything():
    """Every kernel for every device. Every run compiles one of each kind, in dtypes in turn, and for other devices a
    persistent one; `full`: all."""
    for cc in DEVICES:
        kinds = {}
        for shipped in shipped_kernels(cc):
            kinds.setdefault(shipped.function.__qualname__, []).append(shipped)
        for place, (kind, of_kind) in enumerate(kinds.items()):
            usual = of_kind[place % len(of_kind)] if cc == (9, 0) else None
            if "persistent_forward" in kind:
                usual = of_kind[0]
            for shipped in of_kind:
                marks = [] if shipped is usual else [pytest.mark.full]
                yield pytest.param(shipped, cc, id=f"{shipped}-sm_{cc[0]}{cc[1]}", marks=marks)


@pytest.mark.parametrize("shipped, cc", list(everything()))
def test_compiles_without_spills_and_without_stray_float64(written_ptx, shipped, cc):
    compiled = shipped.compile(cc)
    assert compiled.cc == cc and compiled.cubin[:4] == b"\x7fELF"
    assert (compiled.spill_bytes, compiled.stack_bytes) == (0, 0)
    resident = REGISTERS // (compiled.registers * shipped.threads) * shipped.threads
    assert resident >= least_threads(shipped, compiled), f"{compiled.registers} registers: {resident} threads"
    assert compiled.shared_bytes + shipped.dynamic_shared_bytes <= profile_for(cc).shared_bytes
    (text,) = written_ptx
    assert f".target sm_{cc[0]}{cc[1]}" in text
    ptx_checks.require_aligned_shared_memory(text)
    ptx_checks.require_long_offsets(text)
    if shipped.function.__module__ in PERSISTENT:
        ptx_checks.require_exchange(text, shipped)
    if shipped.dtype != "float64":
        assert double_instructions(text) == []


def general_kernels():
    """Of hand-written general cells: what a user's own cell brings with it."""
    few = {"blend": ("float32", "float16"), "chain": ("float32",), "peephole": ("bfloat16",), "noisy": ("float32",)}
    few |= {"normed": ("bfloat16",), "ladder": ("float32",), "noisy_mean": ("float16",), "drawn": ("float32",)}
    for name, dtypes in few.items():
        cell = (GENERAL | SUM_CELLS | NOISE_CELLS)[name]
        for dtype in dtypes:
            yield from catalog.stage_kernels_of(cell, dtype)
            for masked in (False, True):
                yield from catalog.pointwise_kernels_of(cell, dtype, masked)


@pytest.mark.parametrize("shipped", [pytest.param(shipped, marks=[pytest.mark.full] if number % 23 else [])
                                     for number, shipped in enumerate(general_kernels())], ids=str)  # fmt: skip
def test_kernels_of_general_cells_compile_likewise(written_ptx, shipped):
    compiled = shipped.compile((9, 0))
    assert (compiled.spill_bytes, compiled.stack_bytes) == (0, 0)
    assert compiled.registers * least_threads(shipped, compiled) <= REGISTERS
    assert compiled.shared_bytes <= unit_sums.SHARED_BYTES
    (text,) = written_ptx
    assert double_instructions(text) == []


def test_stages_of_a_cell_are_kernels_of_their_own():
    """Their names differ, and what is compiled of them is kept apart: of each stage and of each way."""
    shipped = list(catalog.stage_kernels_of(GENERAL["chain"], "float32"))
    assert list(map(str, shipped)) == [
        f"chain_stage{stage}_{way}{masked}-float32"
        for stage in (0, 1) for masked in ("", "_masked") for way in ("forward", "backward")
    ]  # fmt: skip
    compiled = [one.compile((9, 0)).cubin for one in shipped if "masked" not in str(one)]
    assert len(set(compiled)) == len(compiled) == 2 * 2


def test_a_stray_double_would_be_found():
    """The same search finds float64 in a float64 kernel, so an empty list means something."""
    assert double_instructions(catalog.find("lstm_pointwise_backward-float64", KERNELS).ptx((9, 0)))


def kernels_in(source, module):
    """(module, qualified name) of a source's kernels: what `@cuda.jit` decorates, device functions aside."""

    def is_kernel(decorator):
        call = decorator if isinstance(decorator, ast.Call) else ast.Call(decorator, [], [])
        return ast.unparse(call.func) in ("cuda.jit", "jit", "kernel") and "device" not in [
            word.arg for word in call.keywords
        ]

    def walk(node, prefix):
        for child in ast.iter_child_nodes(node):
            if not isinstance(child, ast.FunctionDef):
                yield from walk(child, prefix)
                continue
            if any(map(is_kernel, child.decorator_list)):
                yield module, prefix + child.name
            yield from walk(child, f"{prefix}{child.name}.<locals>.")

    return set(walk(ast.parse(source), ""))


def test_catalog_has_every_kernel():
    """A kernel added to the package must be added to numbarnn/kernels/catalog.py, or to planned_problems.py."""
    folder, there = Path(kernels.__file__).parent, set()
    for path in folder.rglob("*.py"):
        module = ".".join(("numbarnn.kernels", *path.relative_to(folder).with_suffix("").parts))
        there |= kernels_in(path.read_text(encoding="utf-8"), module)
    listed = {(shipped.function.__module__, shipped.function.__qualname__) for shipped in shipped_kernels((9, 0))}
    assert listed == there
    assert ("numbarnn.kernels.arrays.copies", "make_copy.<locals>.copy_kernel") in there


def test_a_missing_kernel_would_be_found():
    source = """
@cuda.jit(device=True)
def helper(): ...

@cuda.jit
def plain(): ...

@kernel(launch_bounds=(256, 1))
def planned(): ...

def make(n):
    if n:
        @cuda.jit(max_registers=64)
        def kernel(): ...
"""
    assert kernels_in(source, "m") == {("m", "plain"), ("m", "planned"), ("m", "make.<locals>.kernel")}


def test_catalog_names_are_unique_and_in_order():
    names = list(map(str, KERNELS))
    assert len(set(names)) == len(names) == len({(shipped.dtype, shipped.signature) for shipped in KERNELS})
    assert names[0] == "lstm_pointwise_forward_training-float32"
    assert list(dict.fromkeys(shipped.dtype for shipped in KERNELS)) == list(catalog.DTYPES)


def test_find():
    assert str(catalog.find("add_column_sums", KERNELS)) == "add_column_sums-float32-contiguous"
    assert str(catalog.find("add_column_sums-float64-columns", KERNELS)) == "add_column_sums-float64-columns"
    with pytest.raises(ValueError, match=r"one of lstm_pointwise_forward_training, .*, copy, .* got 'kopy'"):
        catalog.find("kopy", KERNELS)


@pytest.mark.parametrize("cc", DEVICES, ids=lambda cc: f"sm_{cc[0]}{cc[1]}")
def test_planned_kernels_cover_what_there_is(cc):
    """Every dtype and cell's file, ways to multiply, places of weights, layers, directions, dropout or not, masks."""
    found = persistent_kernels(cc)
    names, words = [shipped.kernel.name for shipped in found], [shipped.layouts for shipped in found]
    assert len(set(map(str, found))) == len(found)
    assert {name.split("_persistent_")[0] for name in names} == {
        "lstm", "gru", "rnn_relu", "rnn_tanh", "peephole_lstm", "additive_network", "sru", "layer_norm_lstm",
        "layer_norm_gru", "gru_reset_before",
    }  # fmt: skip
    assert {name.split("_persistent_")[1] for name in names} == {"forward_training", "forward_inference", "backward"}
    assert {shipped.dtype for shipped in found} == set(catalog.DTYPES) - {"float64"}
    launches = [shipped.kernel.source_key for shipped in found]
    maths = "math='fma'", "math='mma'", "math='tf32x3'"
    for word in (*maths, " aligned=True", " aligned=False", "n8=1"):
        assert any(word in key for key in launches), word
    some = "[1-9][0-9]*"  # chunks: all in registers, some in shared memory, by the tensor cores and by FMA
    for shared, math in ((0, "mma"), (some, "mma"), (some, "fma")):
        pattern = f"math='{math}'.* shared_chunks={shared},"
        assert any(re.search(pattern, key) for key in launches), pattern
    for several, drops, masked in (
        (False, False, False),
        (True, False, False),
        (True, True, False),
        (False, False, True),
    ):
        assert any(key.endswith(f" {several} {drops} {masked}") for key in launches), (several, drops, masked)
    for word in ("bidirectional", "masked"):
        assert any(word in one for one in words), word


def test_second_use_compiles_nothing(written_ptx):
    shipped = KERNELS[0]
    shipped.compile((9, 0))
    written_ptx.clear()
    shipped.compile((9, 0))
    compiler._compiled.clear()  # as a new process
    shipped.compile((9, 0))
    assert written_ptx == [] and any(code_cache.directory().iterdir())


@pytest.mark.parametrize(
    "batch, hidden", [(1, 1), (1, 33), (3, 128), (64, 129), (70000, 2048)], ids=lambda size: str(size)
)
def test_launch_has_a_thread_for_every_unit(batch, hidden):
    config = grid.launch_config(batch, hidden)
    (grid_x, grid_y, _), (threads, *_) = config.grid, config.block
    assert threads % 32 == 0 and threads <= grid.THREADS_PER_BLOCK
    assert hidden <= grid_x * threads < hidden + threads
    assert grid_y == min(batch, 65535)
    assert np.prod(config.block) <= 1024
