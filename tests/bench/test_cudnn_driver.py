"""The GPU of numbarnn.bench.peers.cudnn, on the emulated one."""

import gc

import numpy as np
import pytest

from emulator import cupy_module
from emulator.cupy_module import device_memory
from fake_cudnn import emulated_device
from numbarnn.bench.peers.cudnn import driver


@pytest.fixture
def device():
    gc.collect()
    used, found = device_memory.used, emulated_device()
    yield found
    gc.collect()
    assert found._device.entered == 0 and device_memory.used == used, "something is left behind"
    assert not cupy_module.get_current_stream().is_capturing()


def test_a_device_tells_what_it_is(device):
    assert (device.name, device.driver_version) == ("emulated GPU", "13.0")


def test_no_gpu_is_said(monkeypatch):
    monkeypatch.setattr(driver.engines, "why_not", lambda name: f"no {name} today")
    with pytest.raises(RuntimeError, match="needs an NVIDIA GPU and its driver: no cuda today"):
        driver.Device()


@pytest.mark.parametrize("dtype", (np.float16, np.float32, np.float64))
def test_arrays_go_there_and_back_and_outputs_begin_as_nan(device, dtype):
    array = np.arange(6, dtype=dtype).reshape(2, 3)
    np.testing.assert_array_equal(device.read(device.copied(array.T)), array.T, strict=True)
    assert device.copied(None) is None and driver.address(None) is None
    found = device.read(device.unwritten((2, 3), dtype))
    assert found.shape == (2, 3) and np.isnan(found).all()


def test_no_memory_is_said_with_the_cure(device):
    with pytest.raises(RuntimeError, match="has no room for 1099511627776 bytes; free memory on the device"):
        device.empty(1 << 40, np.uint8)


def test_work_is_recorded_and_launched(device):
    array = device.copied(np.full(4, 1, np.uint8))
    graph = device.record(lambda stream: device.fill(array, 2, stream))
    assert (device.read(array) == 1).all(), "recording runs nothing"
    device.launch(graph)
    assert (device.read(array) == 2).all()
    device.fill(array, 3)
    assert (device.read(array) == 3).all()


def test_work_that_fails_ends_the_recording(device):
    def work(stream):
        raise ZeroDivisionError("on purpose")

    with pytest.raises(ZeroDivisionError, match="on purpose"):
        device.record(work)
