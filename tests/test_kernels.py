"""Every shipped kernel, compiled for the devices of three generations: no spills, no stray float64.

What the kernels compute is tested in the simulator (tests/simulated) and on a GPU (tests/test_gpu.py).
"""

import os
import re

import numpy as np
import pytest
from shipped_kernels import shipped_kernels

from numbarnn.kernels import compiler, cubin_cache, dropout, layout, pointwise, reduce
from numbarnn.kernels.arguments import Arguments, numba_types

DEVICES = [(8, 0), (9, 0), (10, 0)]
KERNELS = list(shipped_kernels())
REGISTERS = 65536  # of a multiprocessor; a quarter of its 2048 threads should at least fit
THREADS = {
    "dropout": dropout.THREADS_PER_BLOCK,
    "copy": layout.THREADS_PER_BLOCK,
    "add_row_sums": reduce.ROWS * reduce.COLUMNS,
}


@pytest.fixture(scope="module", autouse=True)
def toolchain(tmp_path_factory):
    """The CUDA compiler, with a cache of its own. It is in the `test` extra: in CI it must be there."""
    try:
        compiler.toolchain()
    except RuntimeError as error:
        if os.environ.get("CI"):
            pytest.fail(f"CI must compile the kernels: {error}")
        pytest.skip(str(error))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NUMBARNN_CACHE_DIR", str(tmp_path_factory.mktemp("cubins")))
        patch.setattr(compiler, "_compiled", {})
        yield


@pytest.fixture
def written_ptx(monkeypatch):
    """The PTX texts that are linked during a test."""
    texts, link = [], compiler._link

    def record(text, *arguments):
        texts.append(text)
        return link(text, *arguments)

    monkeypatch.setattr(compiler, "_link", record)
    return texts


def double_instructions(text):
    """Lines of a PTX text that touch float64, but for the declaration of registers that nothing uses."""
    return [line.strip() for line in text.splitlines() if ".f64" in line]


@pytest.mark.parametrize("cc", DEVICES, ids=lambda cc: f"sm_{cc[0]}{cc[1]}")
@pytest.mark.parametrize("shipped", KERNELS, ids=str)
def test_compiles_without_spills_and_without_stray_float64(written_ptx, shipped, cc):
    compiled = shipped.kernel.compile(cc, *shipped.arguments)
    assert compiled.cc == cc and compiled.cubin[:4] == b"\x7fELF"
    assert (compiled.spill_bytes, compiled.stack_bytes) == (0, 0)
    block = THREADS.get(shipped.kernel.name, pointwise.THREADS_PER_BLOCK)
    resident = REGISTERS // (compiled.registers * block) * block
    assert resident >= 512, f"{compiled.registers} registers: a multiprocessor holds {resident} threads"
    (text,) = written_ptx
    assert f".target sm_{cc[0]}{cc[1]}" in text
    if shipped.dtype == "float32":
        assert double_instructions(text) == []


def test_a_stray_double_would_be_found():
    """The same search finds float64 in a float64 kernel, so an empty list means something."""
    shipped = next(one for one in KERNELS if one.kernel.name == "lstm_pointwise_backward" and one.dtype == "float64")
    types = numba_types((*Arguments("k", shipped.arguments).signature, "int32", "int32"))
    assert double_instructions(compiler.ptx(shipped.kernel.dispatcher, types, (9, 0)))


def test_list_of_kernels_has_every_factory():
    """A kernel added to the package must be added to shipped_kernels.py."""
    modules = (dropout, layout, pointwise, reduce)
    factories = {name for module in modules for name in vars(module) if re.match(r"make_\w+$", name)}
    assert factories == {
        "make_add_row_sums", "make_copy", "make_dropout", "make_pointwise_backward", "make_pointwise_forward",
    }  # fmt: skip
    assert len({str(shipped) for shipped in KERNELS}) == len(KERNELS) == 2 * (4 * 3 + 2 + 1 + 4)


def test_second_use_compiles_nothing(written_ptx):
    shipped = KERNELS[0]
    shipped.kernel.compile((9, 0), *shipped.arguments)
    written_ptx.clear()
    shipped.kernel.compile((9, 0), *shipped.arguments)
    compiler._compiled.clear()  # as a new process
    shipped.kernel.compile((9, 0), *shipped.arguments)
    assert written_ptx == [] and any(cubin_cache.directory().iterdir())


@pytest.mark.parametrize(
    "batch, hidden", [(1, 1), (1, 33), (3, 128), (64, 129), (70000, 2048)], ids=lambda size: str(size)
)
def test_launch_has_a_thread_for_every_unit(batch, hidden):
    config = pointwise.launch_config(batch, hidden)
    (grid_x, grid_y, _), (threads, *_) = config.grid, config.block
    assert threads % 32 == 0 and threads <= pointwise.THREADS_PER_BLOCK
    assert hidden <= grid_x * threads < hidden + threads
    assert grid_y == min(batch, 65535)
    assert np.prod(config.block) <= 1024
