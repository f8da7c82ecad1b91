"""The CUDA driver's binding of numbarnn.bench.peers.cudnn, against a driver on the host's memory (fake_driver.c)."""

import ctypes
import gc
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from numbarnn.bench.peers.cudnn import driver


@pytest.fixture(scope="module")
def fake(tmp_path_factory):
    """The compiled library."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None or sys.platform == "win32":
        pytest.skip("there is no C compiler for the fake driver")
    file = tmp_path_factory.mktemp("driver") / "libfake_driver.so"
    source = Path(__file__).parents[1] / "fakes" / "fake_driver.c"
    subprocess.run([compiler, "-shared", "-fPIC", "-Wall", "-Werror", "-o", file, source], check=True)
    return file


@pytest.fixture
def library(fake):
    return ctypes.CDLL(str(fake))


@pytest.fixture
def device(library, monkeypatch):
    """A device of the fake driver."""
    monkeypatch.setattr(driver.ctypes, "CDLL", lambda name: library)
    driver.load.cache_clear()
    yield driver.Device(0)
    driver.load.cache_clear()


def test_a_device_tells_what_it_is(device):
    assert (device.name, device.driver_version) == ("fake GPU 40", "13.1")


def test_contexts_are_put_back(device, library):
    with device:
        assert library.fake_depth() == 1
        device.synchronize()
    assert library.fake_depth() == 0


@pytest.mark.parametrize("dtype", (np.float16, np.float32, np.float64))
def test_arrays_go_there_and_back(device, dtype):
    array = np.arange(6, dtype=dtype).reshape(2, 3)
    buffer = driver.copied(device, array.T)
    assert buffer.size == array.nbytes
    np.testing.assert_array_equal(buffer.read((3, 2), dtype), array.T, strict=True)
    assert driver.copied(device, None) is None and driver.address(None) is None


@pytest.mark.parametrize("dtype", (np.float16, np.float32, np.float64))
def test_outputs_begin_as_nan(device, dtype):
    found = driver.unwritten(device, (2, 3), dtype).read((2, 3), dtype)
    assert found.shape == (2, 3) and np.isnan(found).all()


def test_memory_is_freed_with_its_buffer(device, library):
    gc.collect()
    before = library.fake_blocks()
    buffers = [driver.Buffer(device, size) for size in (0, 1, 1000)]
    assert library.fake_blocks() == before + 3
    del buffers
    gc.collect()
    assert library.fake_blocks() == before


def test_no_memory_is_said_with_the_cure(device):
    with pytest.raises(
        RuntimeError, match=r"cuMemAlloc_v2: CUDA_ERROR_OUT_OF_MEMORY \(2, out of memory\); free memory"
    ):
        driver.Buffer(device, 1 << 21)


def test_a_device_that_is_not_there_is_said(device):
    with pytest.raises(RuntimeError, match="there is no GPU 1: the driver finds 1"):
        driver.Device(1)


# -------------------------------------------------------------------------------------------------------------- graphs
def test_work_is_recorded_and_launched(device, library):
    buffer = driver.Buffer(device, 4).fill(1)
    graph = driver.Graph(device, lambda stream: device.fill_on(stream, buffer.address, 2, 4))
    assert (buffer.read((4,), np.uint8) == 1).all(), "recording runs nothing"
    before = library.fake_launches()
    graph.launch()
    assert library.fake_launches() == before + 1
    device.fill_on(None, buffer.address, 3, 4)
    assert (buffer.read((4,), np.uint8) == 3).all()
    del graph
    gc.collect()
    assert library.fake_streams() == library.fake_graphs() == library.fake_depth() == 0


def test_work_that_fails_ends_the_recording(device, library):
    def work(stream):
        raise ZeroDivisionError("on purpose")

    with pytest.raises(ZeroDivisionError, match="on purpose"):
        driver.Graph(device, work)
    assert library.fake_streams() == library.fake_graphs() == library.fake_depth() == 0
