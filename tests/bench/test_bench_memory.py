"""Memory of calls: what the system and the drivers tell, and nothing where they do not."""

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
