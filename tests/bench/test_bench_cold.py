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


def test_each_layer_runs(monkeypatch):
    monkeypatch.setattr(cold, "_LAYERS", cold._LAYERS[:1])
    ((name, seconds),) = cold._first_calls().items()
    assert name == "LSTM" and seconds > 0


def test_info_prints_them(monkeypatch, capsys):
    monkeypatch.setattr(cold, "measure", lambda: [["LSTM", 9.87, 0.21]])
    cli.main(["info", "--cold"])
    (line,) = (line for line in capsys.readouterr().out.splitlines() if line.split()[:1] == ["LSTM"])
    assert line.split()[1:] == ["9.9", "0.2"]
