"""Wrong persistent kernels are found: every function of them with one place changed by a pattern (support/mutants.py).

Of each module and pattern a sample. A mistake shows as wrong numbers, an index beyond an array, or a wait in vain that
ends; some change nothing that a result depends on (how long somebody waits, a barrier that few orders of threads need).
So what is held is how many are found, and that all are by which a block publishes nothing.
"""

import inspect
import signal
from contextlib import contextmanager

import numpy as np
import pytest

from cases import Case
from comparing import assert_close
from grouped_tiles import GroupedTile
from mutants import PATTERNS, altered, mutated, names_of, persistent_modules, sample, source_of, written_anew
from numbarnn.cuda import simulator
from numbarnn.engines.gpu import profiles
from problems import make_problem
from running import train_and_draw

pytestmark = pytest.mark.full
MOST = 2  # of a module and pattern
ENDLESS_S = 30  # of the processor: a kernel here takes two
SEQUENCES = dict(lengths=(2, 3), resets=True)
PLAIN = [
    (Case("lstm", T=3, B=2, hidden=(5, 5), directions=2, dropout=0.5), {}),
    (Case("gru", T=3, B=3, hidden=(6,), **(SEQUENCES | {"lengths": (2, 0, 3)})), {}),
]
WITHIN = [
    (Case("chain", T=3, B=2, hidden=(9,)), {"warps": (4,)}),
    (Case("gru_reset_before", T=3, B=2, hidden=(9,), **SEQUENCES), {"warps": (4,)}),
]
SUMS = [(Case("normed", T=3, B=2, hidden=(9,)), {})]
PROJECTION = [(Case("lstm", proj_size=5, T=3, B=2, hidden=(8, 8), dropout=0.4, lengths=(0, 3)), {"warps": (4,)})]
GROUPS = {
    "mma": [(GroupedTile(Case("rnn_tanh", T=2, B=2, hidden=(72,), dtype="float16"), "mma", where, 36), {})
            for where in ("registers", "shared")]
    + [(GroupedTile(Case("rnn_tanh", T=2, B=2, hidden=(40,)), "tf32x3", "registers", 20), {})],
    "fma": [(GroupedTile(Case("rnn_tanh", T=2, B=2, hidden=(40,)), "fma", where, 20), {})
            for where in ("shared", "registers")],
}  # fmt: skip
PER_UNIT = [(Case("peephole", T=3, B=2, hidden=(5, 6)), {})]
CASES = {
    "block": [*PLAIN, *SUMS, *PER_UNIT],
    "across": SUMS,
    "projection": PROJECTION,
    "within": [*WITHIN, *SUMS],
    "within_forward": [*PLAIN, *WITHIN, *SUMS],
    "within_backward": [*PLAIN, *WITHIN, *SUMS],
    "mma": GROUPS["mma"],
    "weights": GROUPS["mma"],
    "fma": GROUPS["fma"],
    "exchange": [*PLAIN, *GROUPS["mma"]],
}
MODULES = {module.__name__.rpartition(".")[2]: module for module in persistent_modules()}
for _of_plans in ("columns", "tile"):  # names, and what plans compute of them
    del MODULES[_of_plans]
LEAST, OF_WAITING = 0.4, 0.2  # share of a module's mutants that is found; of those by which blocks look and wait


@contextmanager
def no_endless_loop():
    """A loop without end that waits for nobody is an error, too."""

    def end(*_):
        raise RuntimeError("a loop without end")

    before = signal.signal(signal.SIGVTALRM, end)
    signal.setitimer(signal.ITIMER_VIRTUAL, ENDLESS_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


def symptom(case):
    """How training shows that kernels are wrong; None: it does not."""
    problem = make_problem(case)
    layer = problem.layer("sim", schedule="persistent")
    for seed in range(2):
        try:
            with no_endless_loop(), simulator.schedule(seed), np.errstate(all="ignore"):
                found, drawn = train_and_draw(layer, problem)
                assert_close(case, found, problem.expected(drawn))
        except (AssertionError, RuntimeError) as error:
            if "NameError" in str(error):  # a mutant that does not even run proves nothing
                raise
            return str(error).partition("\n")[0]
    return None


def missed(module, function, pattern, number, cases, change, monkeypatch):
    """Whether no case shows the mutant."""
    text = mutated(source_of(module, function), pattern, number)
    for case, device in cases:
        with monkeypatch.context() as patched:
            if isinstance(case, GroupedTile):
                case.choose(patched, "sim", profiles.SIMULATOR)
                case = case.case
            else:
                change(**device)
            with altered({(module, function): written_anew(module, function, text)}):
                if symptom(case):
                    return False
    return True


def functions(module):
    """Names of the functions that a module defines."""
    found = {name: inspect.unwrap(one) for name, one in vars(module).items() if callable(one)}
    return [name for name, one in found.items() if inspect.isfunction(one) and one.__module__ == module.__name__]


def mutants_of(module, pattern):
    """(function, number) of the module's mutants by a pattern."""
    every = [(name, number) for name in functions(module)
             for one, number in names_of(source_of(module, name)) if one == pattern]  # fmt: skip
    return sample(every, MOST)


@pytest.mark.parametrize("name", MODULES)
def test_wrong_kernels_are_found(change, monkeypatch, name):
    module, cases, left, made = MODULES[name], CASES.get(name, PLAIN), [], 0
    for pattern in PATTERNS:
        for function, number in mutants_of(module, pattern):
            made += 1
            if missed(module, function, pattern, number, cases, change, monkeypatch):
                left.append(f"{function}: {pattern} {number}")
    least = OF_WAITING if name in ("exchange", "block") else LEAST
    assert len(left) <= (1 - least) * made, left
    assert not [mutant for mutant in left if "never" in mutant], left


def test_kernels_that_are_right_show_nothing(change, monkeypatch):
    for case, device in PLAIN:
        change(**device)
        assert symptom(case) is None
