"""What several threads use at once: one engine per device, constants, kept memory, one layer; none needs a GPU."""

import ctypes
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import numpy as np

import numbarnn
from gpu_stand_in import Pointer, UnownedMemory
from numbarnn import engines, functional
from numbarnn.cells import library
from numbarnn.engines.cpu import calls
from numbarnn.engines.cpu import engine as cpu
from numbarnn.engines.gpu.buffer_pool import BufferPool
from numbarnn.kernels.step.groups import States
from numbarnn.layers.stack import Stack

THREADS = 6


def at_once(function, count=THREADS):
    """[function(0), function(1), ...], called by as many threads at the same time, which take turns all the time."""
    start = threading.Barrier(count)

    def run(number):
        start.wait()
        return function(number)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(count) as pool:
            return [future.result() for future in [pool.submit(run, number) for number in range(count)]]
    finally:
        sys.setswitchinterval(interval)


def slowly(function):
    """The function, during which other threads go on."""

    def run(*arguments, **options):
        time.sleep(0.02)
        return function(*arguments, **options)

    return run


# ------------------------------------------------------------------------------------------------------ kept memory
def buffer_pool_of(limit):
    """A BufferPool of memory that is counted but not there."""
    stream = SimpleNamespace(ptr=0)
    cuda = SimpleNamespace(get_current_stream=lambda: stream, MemoryPointer=Pointer, UnownedMemory=UnownedMemory)
    cuda.alloc = lambda size: Pointer(UnownedMemory(0, size, None, 0), 0)
    return BufferPool(SimpleNamespace(cuda=cuda, ndarray=lambda shape, dtype, pointer: pointer), 0, limit)


def test_kept_memory_of_several_threads():
    """New kinds of calls in one thread count what is kept, while others get new arrays and let go of old ones."""
    buffer_pool, dtype = buffer_pool_of(limit=10_000), np.dtype("float32")

    def work(number):
        arrays = []
        for turn in range(400):
            buffers = buffer_pool.of_call((number, turn))
            arrays = arrays[-20:] + [buffers(name, (100,), dtype) for name in range(10)]
            if turn % 50 == 0:
                buffer_pool.clear()

    at_once(work)
    buffer_pool.clear()
    assert buffer_pool.kept_bytes() == 0


def test_default_streams_of_two_threads_share_no_memory():
    """They have one address, and no order among each other."""
    buffer_pool, found = buffer_pool_of(1 << 40), []

    def call():
        array = buffer_pool.of_call("kind")("name", (4,), np.dtype("float32"))
        found.append((buffer_pool.of_call("kind"), array))

    for _ in range(2):
        thread = threading.Thread(target=call)
        thread.start()
        thread.join()
    call()
    call()
    first, second, own, again = (buffers for buffers, _ in found)
    assert own is again and own not in (first, second)


def test_memory_comes_back_in_any_thread_at_any_time():
    """Even while its thread holds the buffer pool's lock, as collecting garbage may begin there."""
    buffer_pool = buffer_pool_of(1 << 40)
    array = buffer_pool.of_call("kind")("name", (4,), np.dtype("float32"))
    with buffer_pool._lock:
        done = threading.Thread(target=lambda: holder.clear(), daemon=True)
        holder = [array]
        del array
        done.start()
        done.join(timeout=5)
        assert not done.is_alive()
    assert buffer_pool.kept_bytes() == 16


# ---------------------------------------------------------------------------------------------------------- engines


def test_one_constant_for_equal_arrays(monkeypatch):
    """What one thread got, a recorded graph may refer to: no other thread's copy may take its place."""
    engine = cpu.CpuEngine()
    monkeypatch.setattr(engine, "from_host", slowly(engine.from_host), raising=False)
    found = at_once(lambda _: engine.constant(np.arange(3)))
    assert len({id(array) for array in found}) == 1
    assert found[0] is engine.constant(np.arange(3))


# ----------------------------------------------------------------------------------------------------------- layers
def slow_attribute(monkeypatch, name):
    """Let other threads go on after each look at an attribute of stacks, and after each change."""
    values, pause = {}, slowly(lambda value: value)
    get, put = (lambda stack: pause(values[stack])), (lambda stack, value: pause(values.update({stack: value})))
    monkeypatch.setattr(Stack, name, property(get, put), raising=False)


def test_calls_of_one_layer_have_numbers_of_their_own(monkeypatch):
    """No two training calls drop out the same, none is left out."""
    slow_attribute(monkeypatch, "calls")
    layer = numbarnn.RNN(2, 3, num_layers=2, dropout=0.5, device="cpu", seed=0)
    x = np.ones((2, 1, 2), "float32")
    tapes = at_once(lambda _: layer.forward(x)[2])
    assert sorted(tape.forward.call.number for tape in tapes) == list(range(THREADS))
    assert layer.training_calls == THREADS


def test_weight_spaces_of_one_descriptor_in_several_threads(monkeypatch):
    """Each call computes with its own."""
    slow_attribute(monkeypatch, "_parts")
    rnn = functional.Descriptor("rnn_tanh", 2, 3, device="cpu")
    x = np.ones((1, 1, 2), "float32")
    spaces = [np.full(rnn.weight_space_size, 0.1 * (1 + number), "float32") for number in range(THREADS)]
    expected = [functional.forward_inference(rnn, x, w=w)[0] for w in spaces]
    results = at_once(lambda number: functional.forward_inference(rnn, x, w=spaces[number])[0])
    np.testing.assert_array_equal(results, expected)


def test_one_engine_per_device(monkeypatch):
    """Two of one GPU would launch kernels beside each other that must not run beside each other."""
    engines._make.cache_clear()
    try:
        monkeypatch.setattr(cpu.CpuEngine, "__init__", slowly(cpu.CpuEngine.__init__))
        assert len({id(engine) for engine in at_once(lambda _: engines.get("cpu"))}) == 1
    finally:
        engines._make.cache_clear()


def test_a_cells_functions_are_made_once(monkeypatch):
    """Calls have the address of its stages: where another thread made them too, those of one of both were gone."""
    cell, compiled_cell = library.layer_norm_gru, calls.CompiledCell
    engine, compiled, beside = cpu.CpuEngine(), compiled_cell(cell, "float32"), []
    make, buffers = compiled._make, SimpleNamespace(cell=cell, states=States(np.zeros(1, np.float32), None))

    def make_beside(kind):
        """Another thread does so before this one is done."""
        if not beside:
            beside.append(None)
            beside[0] = compiled.new_call(kind)
        return make(kind)

    compiled._make = make_beside
    call = compiled.new_call("infer")
    assert call.stages == beside[0].stages == ctypes.addressof(compiled._known["infer"][1])

    def compiled_beside(*about):
        if len(beside) == 1:
            beside.append(None)
            beside[1] = engine._compiled(buffers)
        return compiled_cell(*about)

    monkeypatch.setattr(cpu, "CompiledCell", compiled_beside)
    assert engine._compiled(buffers) is beside[1] is engine._compiled(buffers)
