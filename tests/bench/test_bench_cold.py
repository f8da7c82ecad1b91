"""`numbarnn info --cold`: what first calls take."""

import json
import os
from types import SimpleNamespace

from numbarnn import cli
from numbarnn.bench import cold


def test_first_calls_are_made_in_a_process_with_caches_of_its_own(monkeypatch):
    """Twice with the same caches, which nobody else has."""
    caches = []

    def run(command, env, **options):
        assert command[1:] == ["-m", "numbarnn.bench.cold"]
        caches.append((env["NUMBA_CACHE_DIR"], env["NUMBARNN_CACHE_DIR"]))
        return SimpleNamespace(stdout=json.dumps({"LSTM": 10.5 / len(caches)}))

    monkeypatch.setattr(cold.subprocess, "run", run)
    assert cold.measure() == [["LSTM", 10.5, 5.25]]
    assert caches[0] == caches[1] and caches[0][0] != os.environ.get("NUMBA_CACHE_DIR")


def test_many_cells_are_compiled_in_a_process_of_their_own(monkeypatch):
    commands = []

    def run(command, env, **options):
        assert env["NUMBARNN_CACHE_DIR"] != os.environ.get("NUMBARNN_CACHE_DIR")
        commands.append(command[1:])
        return SimpleNamespace(stdout='{"cells": 30}')

    monkeypatch.setattr(cold.subprocess, "run", run)
    assert cold.measure_many() == {"cells": 30} and commands == [["-m", "numbarnn.bench.cold", "30"]]


def test_as_many_cells_run_as_are_asked_for(monkeypatch):
    made, make = [], cold.numbarnn.RNN
    monkeypatch.setattr(
        cold.numbarnn, "RNN", lambda cell, *about, **more: made.append(cell) or make(cell, *about, **more)
    )
    found = cold._many_cells(3)
    assert found["cells"] == len({*made}) == 3 and found["seconds"] > 0
    assert found["peak_bytes"] is None or 3e7 < found["peak_bytes"] < 1e11
    every = [*cold.CELLS.values(), *(one for one in vars(cold.library).values() if isinstance(one, cold.cells.Cell))]
    assert len({*every}) >= cold.MANY


def test_each_layer_runs(monkeypatch):
    monkeypatch.setattr(cold, "_LAYERS", cold._LAYERS[:1])
    ((name, seconds),) = cold._first_calls().items()
    assert name == "LSTM" and seconds > 0


def test_info_prints_them(monkeypatch, capsys):
    monkeypatch.setattr(cold, "measure", lambda: [["LSTM", 9.87, 0.21]])
    monkeypatch.setattr(cold, "measure_many", lambda: {"cells": 30, "seconds": 41.3, "peak_bytes": 201_000_000})
    cli.main(["info", "--cold"])
    said = capsys.readouterr().out.splitlines()
    (line,) = (line for line in said if line.split()[:1] == ["LSTM"])
    assert line.split()[1:] == ["9.9", "0.2"]
    assert said[-1] == "30 cells in one process, nothing compiled yet: 41 s, 201 MB of memory at most"
