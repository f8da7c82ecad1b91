"""`numbarnn bench --beside`: calls on one thread and on all, beside processes that keep processors busy."""

import subprocess

import pytest

from numbarnn import cli, engines
from numbarnn.bench import info
from numbarnn.bench.cases.shapes import Shape, parse_shape
from numbarnn.bench.speed import beside, training_loop
from numbarnn.bench.speed.training_loop import LOOP, WITH_WORKERS

torch = pytest.importorskip("torch")  # which the command asks for
SMALL = ["bench", "--device", "cpu", "--shape", "3,2,4,5,1", "--rounds", "2", "--threads", "2"]


@pytest.fixture(autouse=True)
def short(monkeypatch, short_turns):
    engine = engines.get("cpu")
    before = engine.num_threads
    monkeypatch.setattr(beside, "TURN_S", 1e-3)
    monkeypatch.setattr(engine.thread_pool, "openmp", engine.thread_pool.openmp)  # loops make PyTorch's threads its own
    monkeypatch.setattr(training_loop, "BATCH_S", 1e-4)
    yield
    engine.set_num_threads(before)


def test_both_are_timed_beside_each_number_of_processes(command, monkeypatch, capsys):
    """The fewest first, and all of them are ended."""
    started, alive, open_process = [], [], subprocess.Popen

    def start(*arguments, **options):
        started.append(open_process(*arguments, **options))
        return started[-1]

    def counted(measure):
        def count(*arguments):
            alive.append(sum(process.poll() is None for process in started))
            return measure(*arguments)

        return count

    monkeypatch.setattr(beside.subprocess, "Popen", start)
    for name in ("measure", "measure_loop"):
        monkeypatch.setattr(beside, name, counted(getattr(beside, name)))
    rows = command(*SMALL, "--beside", "2,0", "--cell", "lstm")
    assert alive == [0, 0, 2, 2, 0, 2, 0, 0] and [row["beside"] for row in rows] == [*alive[:6], 0, 2]
    assert [row["what"] for row in rows[3:]] == ["forward+backward", *[LOOP] * 2, *[WITH_WORKERS] * 2]
    assert all(process.poll() is not None for process in started) and len(started) == 4
    for row in rows:
        assert row["threads"] == 2 and [len(found) for found in row["seconds"].values()] == [2, 2]
    printed = capsys.readouterr().out
    assert "of 8 rows take more than 1.5" in printed and "loop, workers" in printed


def test_each_turn_has_its_number_of_threads(monkeypatch, command):
    asked = []
    pool = engines.get("cpu").thread_pool
    monkeypatch.setattr(beside, "one_turn", lambda _: asked.append((pool.threads, torch.get_num_threads())) or 1.0)
    [row, *_] = command(*SMALL, "--beside", "0", "--cell", "gru")
    assert asked == 4 * [(2, 2), (1, 1), (1, 1), (2, 2)] and row["seconds"] == {"one": [1.0, 1.0], "all": [1.0, 1.0]}


def test_a_row_is_late_by_the_better_of_both():
    assert beside.ratio({"seconds": {"one": [2.0, 1.0, 1.0], "all": [1.0, 3.0, 2.0]}}) == 2.0


@pytest.mark.parametrize("more, said", [
    (["--beside", "0,x"], "expected whole numbers of processes with commas between, got '0,x'"),
    (["--beside", "1,1000"], "at most 64 processes"),
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


@pytest.mark.parametrize("workers", (0, 2, None))
def test_steps_of_a_training_loop(workers):
    """Each has a batch of its own if there are workers, and changes the weights; the workers end with it."""
    shape, seen = Shape(3, 2, 4, 5, 1), []
    with training_loop.steps("lstm", shape, workers) as contender:
        hook = torch.nn.modules.module.register_module_forward_hook(lambda module, x, y: seen.append((module, x[0])))
        try:
            contender.call()
            lstm, first = seen[0]
            before = lstm.weight_hh_l0.detach().clone()
            contender.call()
        finally:
            hook.remove()
        assert len(torch.multiprocessing.active_children()) == (workers or 0)
    assert first.shape == (3, 2, 4)
    assert all(torch.equal(first, x) == (workers is None) for module, x in seen[1:] if module is lstm)
    assert type(lstm).__module__ == "numbarnn.torch.modules" and not torch.equal(before, lstm.weight_hh_l0)
    assert not torch.multiprocessing.active_children()


@pytest.mark.parametrize("cell, words, dtype, expected", [
    ("lstm", "", "float32", True), ("gru", "", "float32", True), ("gru_reset_before", "", "float32", False),
    ("lstm", ",bidirectional", "float32", False), ("lstm", "", "float64", False),
])  # fmt: skip
def test_which_problems_have_a_loop(cell, words, dtype, expected):
    assert training_loop.runs(cell, parse_shape("3,2,4,5,1" + words), dtype) is expected
