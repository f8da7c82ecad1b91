"""`numbarnn bench --beside`: calls on one thread and on all, beside processes that keep processors busy."""

import subprocess

import pytest

from numbarnn import cli, engines
from numbarnn.bench import info
from numbarnn.bench.speed import beside

pytest.importorskip("torch")  # which the command asks for
SMALL = ["bench", "--device", "cpu", "--shape", "3,2,4,5,1", "--rounds", "2", "--threads", "2"]


@pytest.fixture(autouse=True)
def short(monkeypatch, short_turns):
    engine = engines.get("cpu")
    before = engine.num_threads
    monkeypatch.setattr(beside, "TURN_S", 1e-3)
    yield
    engine.set_num_threads(before)


def test_both_are_timed_beside_each_number_of_processes(command, monkeypatch, capsys):
    """The fewest first, and all of them are ended."""
    started, alive, open_process, measure = [], [], subprocess.Popen, beside.measure

    def start(*arguments, **options):
        started.append(open_process(*arguments, **options))
        return started[-1]

    def count(*arguments):
        alive.append(sum(process.poll() is None for process in started))
        return measure(*arguments)

    monkeypatch.setattr(beside.subprocess, "Popen", start)
    monkeypatch.setattr(beside, "measure", count)
    rows = command(*SMALL, "--beside", "2,0", "--cell", "lstm")
    assert alive == [0, 0, 2, 2] and [row["beside"] for row in rows] == alive
    assert all(process.poll() is not None for process in started) and len(started) == 2
    for row in rows:
        assert row["threads"] == 2 and [len(found) for found in row["seconds"].values()] == [2, 2]
    assert "4 rows take more than 1.5" in capsys.readouterr().out


def test_each_turn_has_its_number_of_threads(monkeypatch, command):
    asked = []
    monkeypatch.setattr(beside, "one_turn", lambda contender: asked.append(engines.get("cpu").num_threads) or 1.0)
    [row, _] = command(*SMALL, "--beside", "0", "--cell", "gru")
    assert asked[:4] == [2, 1, 1, 2] and row["seconds"] == {"one": [1.0, 1.0], "all": [1.0, 1.0]}


def test_a_row_is_late_by_the_better_of_both():
    assert beside.ratio({"seconds": {"one": [2.0, 1.0, 1.0], "all": [1.0, 3.0, 2.0]}}) == 2.0


@pytest.mark.parametrize("more, said", [
    (["--beside", "x"], "whole number"), (["--beside", "1,1000"], "at most 64 processes"),
])  # fmt: skip
def test_numbers_of_processes_are_checked(more, said, capsys):
    with pytest.raises(SystemExit):
        cli.main([*SMALL, *more])
    assert said in capsys.readouterr().err


def test_what_it_cannot_do(cannot):
    assert "several threads with one" in cannot(*SMALL[:-1], "1", "--beside", "1")


def test_more_threads_than_could_ever_run_are_refused(cannot):
    """They would wait for each other: PyTorch's and the engine's."""
    most = 4 * info.core_count()
    assert f"take at most {most}" in cannot(*SMALL[:-1], str(most + 1))
