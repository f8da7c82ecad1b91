"""Memory of calls: what the system and the drivers tell, and nothing where they do not."""

from contextlib import contextmanager
from types import SimpleNamespace

import numpy as np
import pytest

from numbarnn import engines
from numbarnn.bench import memory
from numbarnn.bench.peers.contender import Contender

MB = 1_000_000
tells_memory = pytest.mark.skipif(not memory.tells("cpu"), reason="the system does not tell")


def contender(call, name="numbarnn"):
    return Contender(name, call, lambda found: found)


def usual_peak(make, runs=5):
    """Peak bytes of a call, the median of several: while one is taken, the system may take back pages of the process,
    as it does on a busy machine, or read some in."""
    return np.median([memory._on_cpu(make, engines.get("cpu")) for _ in range(runs)])


@tells_memory
@pytest.mark.parametrize("size", [2 * MB, 80 * MB])  # halves that the C library keeps, and such as it gives back
def test_what_a_call_writes_is_its_peak(size):
    """Also where it is freed within the call, and where the first of two halves is freed before the second is made.
    What an earlier call left to the C library counts again."""
    half = size // 2

    def call():
        np.ones(half, np.uint8)
        both = np.ones(half, np.uint8), np.ones(half, np.uint8)
        return both[0]

    assert size * 0.95 < usual_peak(lambda: contender(call)) < size * 1.1 + 0.5 * MB


def test_where_nobody_tells_it_is_absent(monkeypatch, tmp_path):
    monkeypatch.setattr(memory, "PROCESS", tmp_path / "none")
    assert not memory.tells("cpu") and memory.peaks({"numbarnn": contender(list)}, "cpu") == {}


@pytest.fixture
def fake_gpu(monkeypatch):
    """(a `SimpleNamespace` that says what is allocated where, an engine): CuPy and PyTorch without a GPU."""
    now = SimpleNamespace(pools=[], torch=10 * MB, peak=0, given_back=0)

    class MemoryPool:
        def __init__(self):
            self.bytes = 0
            now.pools.append(self)

        def malloc(self, size):
            self.bytes += size

        def total_bytes(self):
            return self.bytes

    @contextmanager
    def using_allocator(malloc):
        now.malloc = malloc
        yield
        del now.malloc

    torch = pytest.importorskip("torch")
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda: setattr(now, "peak", now.torch))
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda: now.torch)
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda: now.peak)
    cupy = SimpleNamespace(cuda=SimpleNamespace(MemoryPool=MemoryPool, using_allocator=using_allocator))
    monkeypatch.setattr("numbarnn.cuda.driver.cupy", lambda: cupy)
    engine = SimpleNamespace(give_back_memory=lambda: setattr(now, "given_back", now.given_back + 1))
    return now, engine


def test_on_a_gpu_the_pools_tell(fake_gpu):
    now, engine = fake_gpu

    def make_ours():
        now.malloc(3 * MB)  # weights
        return contender(lambda: now.malloc(4 * MB))

    def make_theirs():
        now.torch += 5 * MB
        return contender(lambda: setattr(now, "peak", now.torch + 2 * MB), "torch")

    assert memory._on_gpu(make_ours, engine) == memory._on_gpu(make_theirs, engine) == 7 * MB
    assert len(now.pools) == 2 and now.given_back == 4  # what lies in a contender's pool is not used again


# ------------------------------------------------------------------------------------------------- in rows and on pages
def test_memory_is_in_the_record_the_table_and_the_page(command, page, monkeypatch, capsys, short_turns):
    pytest.importorskip("torch")
    sizes = {"numbarnn": 2 * MB, "torch": 30 * MB}
    monkeypatch.setattr(memory, "tells", lambda device: True)
    monkeypatch.setattr(memory, "_on_cpu", lambda make, engine: sizes.get(make().name.split()[0], 5 * MB))
    found = command("bench", "--device", "cpu", "--shape", "3,2,4,5,1", "--rounds", "3", "--cell", "gru")
    assert "VmHWM" in found["method"]["memory"]
    for row in found["results"]:
        assert set(row["peak_bytes"]) == set(row["seconds"])
        assert row["peak_bytes"]["numbarnn"] == 2 * MB and row["peak_bytes"]["torch"] == 30 * MB
    assert "MB / torch" in capsys.readouterr().out
    text = page(found)
    assert "2 / 30" in text and "<th>MB / torch" in text and "VmHWM" in text
    for row in found["results"]:
        row["peak_bytes"] = {}
    assert "<th>MB" not in page(found)
