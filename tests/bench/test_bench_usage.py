"""Memory and energy of calls: what the system and the drivers tell, and nothing where they do not."""

import sys
from contextlib import contextmanager
from dataclasses import replace
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest

from numbarnn import engines
from numbarnn.bench.peers.contender import Contender
from numbarnn.bench.speed import energy, memory, speed_table, timing, usage
from numbarnn.engines.base import Engine

MB = 1_000_000
tells_memory = pytest.mark.skipif(memory.why_not("cpu") is not None, reason=str(memory.why_not("cpu")))


def contender(call, name="numbarnn"):
    return Contender(name, call, lambda found: found)


# -------------------------------------------------------------------------------------------------------------- memory
def usual_peak(make, runs=5):
    """Peak bytes of a call, the median of several: while one is taken, the system may take back pages of the process,
    as it does on a busy machine, or read some in."""
    return np.median([memory.peak_bytes(make, "cpu", engines.get("cpu")) for _ in range(runs)])


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


@tells_memory
def test_what_is_made_before_the_call_does_not_count():
    weights = []

    def make():
        weights[:] = [np.ones(20 * MB, np.uint8)]
        return contender(lambda: np.ones(3 * MB, np.uint8))

    assert 2.8 * MB < usual_peak(make) < 4 * MB


@tells_memory
def test_what_the_engine_keeps_counts_for_whoever_takes_it():
    engine = engines.get("cpu")

    def call():
        array = engine.empty((5 * MB,), "uint8")
        array[...] = 1

    call()  # the engine's pool keeps it now, as after each call
    assert usual_peak(lambda: contender(call)) > 4.5 * MB


def test_where_nobody_tells_it_is_absent(monkeypatch, tmp_path):
    monkeypatch.setattr(memory, "PROCESS", tmp_path / "none")
    assert "does not tell the peak" in memory.why_not("cpu")
    monkeypatch.setattr(memory, "_trim", lambda: None)
    assert "malloc_trim" in memory.why_not("cpu")
    monkeypatch.setattr(energy, "POWERCAP", tmp_path / "none")
    assert usage.measured({"numbarnn": contender(list)}, {"numbarnn": [1.0]}, "cpu") == {
        "peak_bytes": {},
        "energy_j": {},
    }
    said = usage.method("cpu")
    assert said["memory"].startswith("absent: ") and "absent: there is no" in said["energy"]


@tells_memory
def test_what_has_no_room_for_a_second_one_has_no_figure(monkeypatch, tmp_path):
    """And energy is told before, while what the engine keeps is still there."""
    monkeypatch.setattr(energy, "counter", lambda device: (energy.Rapl([]), None))
    order = []
    monkeypatch.setattr(energy, "joules_per_call", lambda *_: order.append("energy") or 2.0)
    monkeypatch.setattr(type(engines.get("cpu")), "give_back_memory", lambda self: order.append("memory"))

    def no_room():
        raise RuntimeError("out of memory")

    one, other = contender(list), replace(contender(list, "torch"), again=no_room)
    found = usage.measured({"numbarnn": one, "torch": other}, {"numbarnn": [1.0], "torch": [1.0]}, "cpu")
    assert set(found["peak_bytes"]) == {"numbarnn"} and found["energy_j"] == {"numbarnn": 2.0, "torch": 2.0}
    assert order == ["energy", "energy", "memory"]


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

    assert memory.why_not("cuda") is None
    assert memory.peak_bytes(make_ours, "cuda", engine) == 7 * MB
    assert memory.peak_bytes(make_theirs, "cuda", engine) == 7 * MB
    assert len(now.pools) == 2 and now.given_back == 4  # what lies in a contender's pool is not used again


def test_every_engine_gives_memory_back():
    engine = engines.get("cpu")
    engine.empty((MB,), "uint8")
    assert engine._memory._kept
    engine.give_back_memory()
    assert engine._memory._kept == 0 and not engine._memory._free
    assert Engine.give_back_memory(engine) is None


# -------------------------------------------------------------------------------------------------------------- energy
@pytest.fixture
def powercap(tmp_path):
    """A function that makes a zone of Linux' power capping framework, as /sys shows it: name, microjoules, range."""
    folder = tmp_path / "powercap"
    folder.mkdir()
    (folder / "intel-rapl").mkdir()  # the control type itself

    def zone(number, name, microjoules, most=262_143_328_850):
        one = folder / f"intel-rapl:{number}"
        one.mkdir(exist_ok=True)
        for file, content in (("name", name), ("energy_uj", microjoules), ("max_energy_range_uj", most)):
            (one / file).write_text(f"{content}\n")

    return folder, zone


def test_rapl_is_the_sum_of_packages_and_their_memory(powercap):
    folder, zone = powercap
    for number, name in (("0", "package-0"), ("0:0", "core"), ("0:1", "dram"), ("1", "package-1"), ("2", "psys")):
        zone(number, name, 1_000_000)
    meter, reason = energy.rapl_counter(folder)
    assert reason is None and "package-0, dram, package-1" in meter.about
    before = meter.read()
    for number, name, now in (("0", "package-0", 3_500_000), ("0:0", "core", 9_000_000), ("0:1", "dram", 1_250_000)):
        zone(number, name, now)
    assert meter.joules(before, meter.read()) == pytest.approx(2.75)


def test_a_counter_that_began_again_is_no_negative_energy(powercap):
    folder, zone = powercap
    zone("0", "package-0", 9_500_000, most=9_999_999)
    meter, _ = energy.rapl_counter(folder)
    before = meter.read()
    zone("0", "package-0", 500_000, most=9_999_999)
    assert meter.joules(before, meter.read()) == pytest.approx(1.0)


def test_without_a_counter_there_is_a_reason(powercap, monkeypatch):
    folder, zone = powercap
    assert energy.rapl_counter(folder) == (None, f"{folder} has no counter of a package")
    zone("0", "package-0", "what")
    assert "cannot be read" in energy.rapl_counter(folder)[1]
    zone("0", "package-0", 1)
    read = type(folder).read_text

    def refuse(path, *arguments, **options):
        if path.name == "energy_uj":
            raise PermissionError
        return read(path, *arguments, **options)

    monkeypatch.setattr(type(folder), "read_text", refuse)
    assert "may not be read" in energy.rapl_counter(folder)[1]


def fake_nvml(monkeypatch, readings):
    """cuda.bindings.nvml with these readings, millijoules or an error, of the GPU at 0000:3B:00.0."""
    nvml = ModuleType("cuda.bindings.nvml")
    nvml.init_v2 = lambda: None
    nvml.device_get_handle_by_pci_bus_id_v2 = {"0000:3B:00.0": 7}.__getitem__

    def total(device):
        assert device == 7
        if isinstance(readings[0], Exception):
            raise readings[0]
        return readings.pop(0)

    nvml.device_get_total_energy_consumption = total
    bindings = ModuleType("cuda.bindings")
    bindings.nvml = nvml
    for name, module in (("cuda", ModuleType("cuda")), ("cuda.bindings", bindings), ("cuda.bindings.nvml", nvml)):
        monkeypatch.setitem(sys.modules, name, module)
    runtime = SimpleNamespace(getDevice=lambda: 1, deviceGetPCIBusId=["", "0000:3B:00.0"].__getitem__)
    monkeypatch.setattr("numbarnn.cuda.driver.cupy", lambda: SimpleNamespace(cuda=SimpleNamespace(runtime=runtime)))


def test_nvml_counts_millijoules_of_cupys_device(monkeypatch):
    fake_nvml(monkeypatch, [5, 1000, 3500])
    meter, reason = energy.counter("cuda")
    assert reason is None and "board" in meter.about
    assert meter.joules(meter.read(), meter.read()) == pytest.approx(2.5)


def test_a_driver_that_does_not_tell_gives_the_reason(monkeypatch):
    fake_nvml(monkeypatch, [RuntimeError("Not Supported")])
    assert energy.counter("cuda") == (None, "the driver does not tell: RuntimeError: Not Supported")
    monkeypatch.delattr(sys.modules["cuda.bindings"], "nvml")
    monkeypatch.delitem(sys.modules, "cuda.bindings.nvml")
    assert "cuda-bindings has no NVML" in energy.counter("cuda")[1]


def test_energy_is_that_of_a_call_of_many(monkeypatch):
    monkeypatch.setattr(timing, "GAP_S", 0.0)
    calls = []
    meter = SimpleNamespace(read=lambda: 3.0 * len(calls), joules=lambda before, after: after - before)
    one = contender(lambda: calls.append(1))
    assert energy.joules_per_call(meter, one, energy.SECONDS["cpu"] / 49.5, "cpu") == pytest.approx(3.0)
    assert len(calls) == 51  # 50 and one before
    assert energy.joules_per_call(meter, one, 100.0, "cpu") == pytest.approx(3.0) and len(calls) == 53


# ------------------------------------------------------------------------------------------------- in rows and on pages
def test_both_are_in_the_record_the_table_and_the_page(command, page, monkeypatch, powercap, capsys, short_turns):
    pytest.importorskip("torch")
    monkeypatch.setitem(energy.SECONDS, "cpu", 1e-3)
    folder, zone = powercap
    zone("0", "package-0", 0)
    energies = iter(range(0, 10**9, 50_000))
    monkeypatch.setattr(energy.Rapl, "read", lambda self: [next(energies)])
    monkeypatch.setattr(energy, "POWERCAP", folder)
    sizes = {"numbarnn": 2 * MB, "torch": 30 * MB}
    monkeypatch.setattr(memory, "why_not", lambda device: None)
    monkeypatch.setattr(memory, "peak_bytes", lambda make, device, engine: sizes.get(make().name.split()[0], 5 * MB))
    found = command("bench", "--device", "cpu", "--shape", "3,2,4,5,1", "--rounds", "3", "--cell", "gru")
    assert "package-0" in found["method"]["energy"] and "VmHWM" in found["method"]["memory"]
    for row in found["results"]:
        assert set(row["peak_bytes"]) == set(row["energy_j"]) == set(row["seconds"])
        assert row["peak_bytes"]["numbarnn"] == 2 * MB and row["peak_bytes"]["torch"] == 30 * MB
        assert all(joules > 0 for joules in row["energy_j"].values())
    said = capsys.readouterr().out
    assert "MB / torch" in said and "mJ / torch" in said
    text = page(found)
    assert "2, 30 PyTorch" in text and "<th>mJ</th>" in text and "RAPL" in text
    for row in found["results"]:
        row["peak_bytes"], row["energy_j"] = {}, {}
    assert "<th>mJ</th>" not in page(found)


def test_columns_are_there_where_somebody_tells():
    rows = [
        {"peak_bytes": {"numbarnn": 2_345_678, "torch": 123_456_789}, "energy_j": {}},
        {"peak_bytes": {}, "energy_j": {}},
    ]
    assert speed_table.usage_cells(rows, ["numbarnn", "torch"]) == (["MB / torch"], [["2.35 / 123"], ["- / -"]])
    assert speed_table.usage_cells(rows[1:], ["numbarnn"]) == ([], [[]])
