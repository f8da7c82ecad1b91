"""The library's cells compiled for a GPU: generated code has no float64 in float32 kernels, and spills nothing."""

import pytest

pytest.importorskip("torch")
from equations import LIBRARY, cell_of
from numbarnn.kernels import catalog

pytestmark = pytest.mark.usefixtures("toolchain")


WITH_SINE = {"waving"}  # NVIDIA's sine of large numbers takes stack
USUAL = {"slstm"}  # a kernel of every function: tests/cells/test_special_values.py; stages and sums: test_kernels.py


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[] if name in USUAL else [pytest.mark.full])
        for name in LIBRARY
        if name not in WITH_SINE
    ],
)
def test_compiles_without_spills_and_without_stray_float64(written_ptx, name):
    cell = cell_of(name)
    kernels = [*catalog.pointwise_kernels_of(cell, "float32", False), *catalog.stage_kernels_of(cell, "float32")]
    kernels = [shipped for shipped in kernels if not {"masked", "inference"} & {*shipped.kernel.name.split("_")}]
    for shipped in kernels:
        compiled = shipped.compile((9, 0))
        assert (compiled.spill_bytes, compiled.stack_bytes) == (0, 0), shipped
    assert len(written_ptx) == len(kernels)
    assert not [line for text in written_ptx for line in text.splitlines() if ".f64" in line]
