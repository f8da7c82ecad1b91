"""The GPU of numbarnn.bench.peers.cudnn, against what it uses of CuPy made of the host's memory."""

import ctypes
import gc
from types import SimpleNamespace

import numpy as np
import pytest

from numbarnn.bench.peers.cudnn import driver

DEFAULT, OWN = 0, 0x5E  # streams


class Cuda:
    """`cupy.cuda` and its `runtime`.

    Attributes:
        blocks: address -> memory that is not freed. depth: how many contexts are entered. recording: the work of the
            graph that is being recorded, else None.
    """

    memcpyHostToDevice, memcpyDeviceToHost, CUDARuntimeError = 1, 2, RuntimeError

    def __init__(self):
        self.blocks, self.depth, self.recording, self.runtime = {}, 0, None, self
        self.Device = lambda index: SimpleNamespace(__enter__=self.enter, __exit__=self.leave)
        self.Stream = lambda non_blocking: SimpleNamespace(ptr=OWN, begin_capture=self.begin, end_capture=self.end)
        self.Stream.null = DEFAULT
        self.free, self.memset = self.blocks.__delitem__, ctypes.memset
        self.getDeviceProperties, self.driverGetVersion = lambda index: {"name": b"fake GPU 40"}, lambda: 13010

    def enter(self):
        self.depth += 1

    def leave(self, *exception):
        self.depth -= 1

    def malloc(self, size):
        if size > 1 << 20:
            raise self.CUDARuntimeError("cudaErrorMemoryAllocation: out of memory")
        block = ctypes.create_string_buffer(size)
        self.blocks[ctypes.addressof(block)] = block
        return ctypes.addressof(block)

    def memcpy(self, target, source, size, kind):
        assert (target if kind == self.memcpyHostToDevice else source) in self.blocks
        ctypes.memmove(target, source, size)

    def memsetAsync(self, address, byte, size, stream):
        assert stream == (DEFAULT if self.recording is None else OWN)
        if self.recording is None:
            self.memset(address, byte, size)
        else:
            self.recording.append((address, byte, size))

    def begin(self):
        self.recording = []

    def end(self):
        work, self.recording = self.recording, None
        return SimpleNamespace(launch=lambda stream: [self.memset(*one) for one in work if stream == DEFAULT])


@pytest.fixture
def device(monkeypatch):
    found = Cuda()
    monkeypatch.setattr(driver, "cupy", lambda: SimpleNamespace(cuda=found))
    monkeypatch.setattr(driver.engines, "why_not", lambda name: None)
    yield driver.Device()
    gc.collect()
    assert found.depth == 0 and found.recording is None and not found.blocks, "something is left behind"


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
