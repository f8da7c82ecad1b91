"""What calls on several streams and from several threads share, without a GPU: lanes, cuBLAS's work space, memory."""

import gc
import threading

import pytest

import numbarnn
from gpu_stand_in import Array, H, layer_and_input
from numbarnn.cuda import cublas, gemm


def test_a_call_in_a_capture_of_the_callers_is_refused(gpu, monkeypatch):
    """Before anything changes: the number of the training call, the tape that is used up."""
    _, counts, cupy = gpu
    layer, x, dy = layer_and_input(cupy, num_layers=2, dropout=0.5)
    dw = cupy.empty(layer.weights.shape, "float32")
    reserve_of = numbarnn.functional.Descriptor("lstm", H, H, device="cuda")
    gradients = reserve_of.zeros_weights()
    reserve = numbarnn.functional.forward_training(reserve_of, x, w=reserve_of.zeros_weights())[3]
    _, _, tape = layer.forward(x)
    ready = numbarnn.functional.forward_training(reserve_of, x, w=reserve.weights)[3]
    numbarnn.functional.backward_data(reserve_of, ready, dy, w=reserve.weights)
    calls = [
        lambda: layer(x),
        lambda: layer.forward(x),
        lambda: layer.backward(tape, dy),
        lambda: layer.backward(tape, dy, dw=dw),
        lambda: numbarnn.functional.backward_data(reserve_of, reserve, dy, w=reserve.weights),
        lambda: numbarnn.functional.backward_weights(reserve_of, ready, gradients),
    ]
    with cupy.cuda.Stream() as stream:
        stream.capturing = True
        counts.clear()
        for call in calls:
            with pytest.raises(RuntimeError, match="cannot be called while CuPy's current stream is captured"):
                call()
        assert not {"graph", "kernel", "product", "copy", "copy from host"} & set(counts)
    assert layer.training_calls == 1 and not tape.used and not reserve.used
    layer.backward(tape, dy)
    numbarnn.functional.backward_data(reserve_of, reserve, dy, w=reserve.weights)


@pytest.fixture
def handles(gpu, monkeypatch):
    """Stream -> handles of cuBLAS made for it, with products that ask for one as they should."""
    made = {}

    class Handle:
        def __init__(self, _, stream):
            made.setdefault(stream, []).append(self)
            self.closed = False

        def close(self):
            self.closed = True

    monkeypatch.setattr(cublas, "Handle", Handle)
    monkeypatch.setattr(cublas, "_handles", {})
    monkeypatch.setattr(gemm, "matmul", lambda *_, **__: cublas.handle())
    monkeypatch.setattr(gemm, "step_product", lambda *_, **__: lambda *_: cublas.handle())
    return made


def lanes(engine, made):
    return {lane for lane, stream in engine.streams._lanes.items() if stream.ptr in made}


def test_only_lanes_that_multiply_have_work_space(gpu, handles):
    """Not the one of copies, nor that of persistent kernels; and another thread has none of its own."""
    engine, _, cupy = gpu
    layer, x, dy = layer_and_input(cupy)
    assert not handles

    def train():
        for _ in range(3):
            layer.backward(layer.forward(x)[2], dy)

    train()
    other = threading.Thread(target=train)
    other.start()
    other.join()
    assert engine.streams.recordings >= 4
    assert lanes(engine, handles) == set(engine.streams._lanes) - {None, "copies", ("launches",)} != set()
    assert all(len(made) == 1 for made in handles.values())


def test_work_space_is_freed_with_the_buffer_pool(gpu, handles):
    """With the graphs that hold its address: calls after that begin anew."""
    engine, _, cupy = gpu
    layer, x, _ = layer_and_input(cupy, schedule="wavefront")
    for _ in range(3):
        layer(x)
    before = [handle for made in handles.values() for handle in made]
    engine.buffer_pool.clear()
    assert before and all(handle.closed for handle in before) and not cublas._handles
    recordings = engine.streams.recordings
    layer(x)
    assert engine.streams.recordings == recordings
    for _ in range(3):
        layer(x)
    assert engine.streams.recordings > recordings and len(cublas._handles) == len(handles)
    cupy.pool.room = 100  # so does a call that finds the device full
    with pytest.raises(MemoryError):
        layer(x[:-1])
    assert not cublas._handles


@pytest.mark.parametrize("what", ("x", "masks"))
def test_copies_wait_for_what_other_streams_do_with_the_memory(gpu, monkeypatch, what):
    """x of the next call comes to where the backward pass, on another stream, may still read that of the last."""
    _, _, cupy = gpu
    layer, x, dy = layer_and_input(cupy, num_layers=2, dropout=0.5)
    one, other, log = cupy.cuda.Stream(), cupy.cuda.Stream(), []
    with one:
        tape = layer.forward(x)[2]
    place = tape.forward.arrays[what].data.ptr
    with other:
        layer.backward(tape, dy)
    del tape
    gc.collect()
    monkeypatch.setattr(cupy.cuda.Stream, "wait_event", lambda *_: log.append("wait"))
    monkeypatch.setattr(cupy.cuda.MemoryPointer, "copy_from_device_async", lambda out, *_: log.append(out.ptr))
    monkeypatch.setattr(Array, "set", lambda array, *_: log.append(array.data.ptr))
    with one:
        layer.forward(x)
    assert log[0] == "wait" and place in log
