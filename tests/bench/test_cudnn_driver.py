"""The GPU of numbarnn.bench.peers.cudnn, against what it uses of CuPy made of the host's memory."""

import gc

import numpy as np
import pytest

from fake_cudnn import FakeCuda, device_of
from numbarnn.bench.peers.cudnn import driver


@pytest.fixture
def device():
    cuda = FakeCuda()
    yield device_of(cuda)
    gc.collect()
    assert cuda.entered == 0 and cuda.recording is None and not cuda.memory, "something is left behind"


def test_a_device_tells_what_it_is(device):
    assert (device.name, device.driver_version) == ("fake GPU 40", "13.1")


def test_no_gpu_is_said(monkeypatch):
    monkeypatch.setattr(driver.engines, "why_not", lambda name: f"no {name} today")
    with pytest.raises(RuntimeError, match="needs an NVIDIA GPU and its driver: no cuda today"):
        driver.Device()


@pytest.mark.parametrize("dtype", (np.float16, np.float32, np.float64))
def test_arrays_go_there_and_back_and_outputs_begin_as_nan(device, dtype):
    array = np.arange(6, dtype=dtype).reshape(2, 3)
    buffer = driver.copied(device, array.T)
    assert buffer.size == array.nbytes
    np.testing.assert_array_equal(buffer.read((3, 2), dtype), array.T, strict=True)
    assert driver.copied(device, None) is None and driver.address(None) is None
    found = driver.unwritten(device, (2, 3), dtype).read((2, 3), dtype)
    assert found.shape == (2, 3) and np.isnan(found).all()


def test_no_memory_is_said_with_the_cure(device):
    device._cuda.fail_after = 0
    with pytest.raises(RuntimeError, match="out of memory; free memory on the device"):
        driver.Buffer(device, 1 << 21)


def test_work_is_recorded_and_launched(device):
    buffer = driver.Buffer(device, 4).fill(1)
    graph = device.record(lambda stream: device.fill_on(stream, buffer.address, 2, 4))
    assert (buffer.read((4,), np.uint8) == 1).all(), "recording runs nothing"
    device.launch(graph)
    assert (buffer.read((4,), np.uint8) == 2).all()
    device.fill_on(None, buffer.address, 3, 4)
    assert (buffer.read((4,), np.uint8) == 3).all()


def test_work_that_fails_ends_the_recording(device):
    def work(stream):
        raise ZeroDivisionError("on purpose")

    with pytest.raises(ZeroDivisionError, match="on purpose"):
        device.record(work)
