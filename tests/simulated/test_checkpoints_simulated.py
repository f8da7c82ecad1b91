"""Training with few states kept, with the real kernels: the times that segments draw for, and states in 16 bits."""

import pytest

from cases import Case
from comparing import check_checkpoints
from needs import check_needs

SEQUENCES = dict(lengths=(3, 0, 2), resets=True, padding_value=0.5)
full = pytest.mark.full
CASES = (
    (Case("lstm", T=3, hidden=(4, 3), dropout=0.5, dtype="float16"), ("stepwise", "wavefront", "persistent")),
    (Case("lstm", T=3, hidden=(3, 4), directions=2, dropout=0.5, **SEQUENCES), ("wavefront", "persistent")),
    (Case("lstm", T=3, hidden=(4,), directions=2, heads=2, drop=0.3, batch_first=True, bias="input"), ("persistent",)),
    (Case("lstm", T=3, hidden=(4, 4)), ("persistent",)),  # layers of one size in one launch, with states given
    (Case("noisy", T=3, B=2, hidden=(4,), directions=2), ("stepwise", "persistent")),
)


def points():
    for case, several in CASES:
        for schedule in several:
            slow = case.lengths and schedule == "persistent"
            yield pytest.param(case, schedule, id=f"{case}-{schedule}", marks=[full] if slow else [])


@pytest.mark.parametrize("case, schedule", points())
def test_agrees_with_float64(case, schedule):
    check_checkpoints(case, "sim", schedule)


@pytest.mark.parametrize("schedule", ["stepwise", pytest.param("persistent", marks=full)])
def test_what_is_needed_and_several_backward_passes(schedule):
    check_needs("dropped", "sim", schedule, checkpoint_every=2)
