"""Arrays of other libraries on a GPU, without a GPU: what they are asked for, and who waits for whom."""

from types import SimpleNamespace

import numpy as np
import pytest

import numbarnn
from emulator.cupy_module import Device
from gpu_stand_in import Array, B, H, T, make_engine

LEGACY_DEFAULT_STREAM = 1  # as DLPack names it


class ByDLPack:
    """As PyTorch's tensors by DLPack: notes which stream it is told, and gives the array itself for a capsule."""

    refuses = None

    def __init__(self, array, log, kind=2):
        self.cupy_array, self.log, self.kind, self.requires_grad = array, log, kind, False

    def __dlpack_device__(self):
        return self.kind, 0

    def __dlpack__(self, *, stream):
        assert not self.requires_grad and stream != 0
        if self.refuses:
            raise self.refuses
        self.log.append(("waits", stream))
        return self.cupy_array


class ByInterface:
    """As arrays that have the CUDA array interface alone, of some version."""

    requires_grad = False

    def __init__(self, array, log, version):
        self.cupy_array, self.log, self.version = array, log, version

    @property
    def __cuda_array_interface__(self):
        if self.requires_grad:
            raise RuntimeError("Can't get __cuda_array_interface__ on Variable that requires grad.")
        self.log.append("interface")
        return {"version": self.version} | ({"stream": 5} if self.version >= 3 else {})


class Tensor(ByDLPack, ByInterface):
    """Both, as PyTorch's tensors; the interface of version 2."""

    version = 2


@pytest.fixture
def gpu(monkeypatch):
    """(engine, cupy, log of who waits): CuPy's two functions as CuPy 13 and 14 have them."""
    engine, counts, cupy = make_engine(monkeypatch)
    log, from_host = [], cupy.asarray

    def from_dlpack(value):
        assert value.__dlpack_device__()[0] in (2, 13)
        return value.__dlpack__(stream=cupy.cuda.get_current_stream().ptr or LEGACY_DEFAULT_STREAM)

    def asarray(value):
        if isinstance(value, np.ndarray):
            return from_host(value)
        interface = value.__cuda_array_interface__
        if interface.get("stream"):
            log.append(("host waits for", interface["stream"]))
        return value.cupy_array

    monkeypatch.setattr(cupy, "from_dlpack", from_dlpack, raising=False)
    monkeypatch.setattr(cupy, "asarray", asarray)
    return SimpleNamespace(engine=engine, cupy=cupy, log=log, counts=counts)


def test_the_stream_that_reads_waits_for_the_one_that_writes(gpu):
    """By DLPack, also where there is an interface that names no stream; the default stream by its name."""
    x = gpu.cupy.empty((T, B, H), "float32")
    stream = gpu.cupy.cuda.Stream()
    for make in (ByDLPack, Tensor):
        with stream:
            assert gpu.engine.asarray(make(x, gpu.log), "x") is x
        assert gpu.log == [("waits", stream.ptr)]
        gpu.log.clear()
    with stream:
        stream.ptr = 0
        gpu.engine.asarray(ByDLPack(x, gpu.log), "x")
    assert gpu.log == [("waits", LEGACY_DEFAULT_STREAM)]
    assert not gpu.counts["synchronize"]


def test_a_layer_takes_tensors(gpu):
    """Every argument of a call is asked for on the stream on which the call runs."""
    layer = numbarnn.LSTM(H, H, device="cuda", seed=0)
    sizes = ((T, B, H), (1, B, H), (1, B, H))
    x, h, c = (Tensor(gpu.cupy.empty(size, "float32"), gpu.log) for size in sizes)
    with gpu.cupy.cuda.Stream() as stream:
        tape = layer.forward(x, (h, c))[2]
        layer.backward(tape, x, (h, c))
    assert gpu.log == 6 * [("waits", stream.ptr)]


@pytest.mark.parametrize("version, waited", [(2, False), (3, True)])
def test_an_interface_without_a_stream_has_the_device_wait(gpu, version, waited):
    x = gpu.cupy.empty((T, B, H), "float32")
    assert gpu.engine.asarray(ByInterface(x, gpu.log, version), "x") is x
    assert (("host waits for", 5) in gpu.log) is waited and gpu.counts["synchronize"] == (not waited)


@pytest.mark.parametrize("error", (BufferError("per-thread default stream is not supported"), NotImplementedError()))
def test_what_dlpack_refuses_is_taken_when_all_is_done(gpu, monkeypatch, error):
    x = gpu.cupy.empty((T, B, H), "float32")
    monkeypatch.setattr(ByDLPack, "refuses", error)
    assert gpu.engine.asarray(Tensor(x, gpu.log), "x") is x and gpu.counts["synchronize"] == 1
    with pytest.raises(type(error)):
        gpu.engine.asarray(ByDLPack(x, gpu.log), "x")


@pytest.mark.parametrize("make", (ByDLPack, Tensor, lambda array, log: ByInterface(array, log, 2)))
def test_tensors_that_require_a_gradient_are_refused(gpu, make):
    tensor = make(gpu.cupy.empty((T, B, H), "float32"), gpu.log)
    tensor.requires_grad = True
    with pytest.raises(TypeError, match=r"^x requires a gradient.*: pass x\.detach\(\)"):
        gpu.engine.asarray(tensor, "x")


@pytest.mark.parametrize("kind", ("numpy", "list", "dlpack"))
def test_what_is_not_on_a_gpu_is_refused(gpu, kind):
    values = {"numpy": np.zeros(3), "list": [1.0], "dlpack": ByDLPack(np.zeros(3), gpu.log, kind=1)}
    with pytest.raises(TypeError, match=r"^x must be on the GPU.* copy it with cupy\.asarray\(x\)"):
        gpu.engine.asarray(values[kind], "x")


class OnAnother(Array):
    """An array on GPU 1."""

    device = property(lambda self: Device(1))

    @property
    def data(self):
        pointer = super().data
        pointer.device_id = 1
        return pointer


def test_arrays_on_another_gpu_are_refused(gpu):
    """Those of the right shape and dtype, too."""
    layer, arrays = numbarnn.GRU(H, H, device="cuda", seed=0), []
    for sizes in ((T, B, H), (1, B, H), (B, H)):
        arrays += [gpu.cupy.empty(sizes, "float32"), OnAnother(sizes, "float32")]
    x, far_x, h, far_h, frame, far_frame = arrays
    layer(x, h)
    step = layer.stepper(B)
    step(frame)
    for call, name in ((lambda: layer(far_x), "x"), (lambda: layer(x, far_h), "state"), (lambda: step(far_frame), "x")):
        with pytest.raises(ValueError, match=f"^{name}.* is on GPU 1, this layer on GPU 0$"):
            call()
