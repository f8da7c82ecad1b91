"""Every option of the layers with the real kernels, in the simulator: alone and with every other, in every dtype and by
every schedule, against the float64 reference."""

import pytest
from persistent_setup import few_threads

from numbarnn.cuda import simulator
from option_cases import OptionCase, assert_matches, check_options, infer, make_problem, pairwise_choices, train

RAGGED = (2, 0, 3)  # of B = 3 sequences with T = 3 steps
PACKED = (2, 1, 3)

COMMON = {
    "bias": ("double", "input", "recurrent", "none"),
    "input_mode": ("linear", "skip"),
    "sequences": (dict(), dict(lengths=RAGGED, padding_value=-0.5), dict(lengths=PACKED, packed=True)),
    "resets": (False, True),
    "sizes": (dict(hidden=(5,)), dict(hidden=(3, 2))),
    "directions": (1, 2),
    "dropout": (0.0, 0.4),
    "batch_first": (False, True),
    "dtype": ("float32", "float64", "float16", "bfloat16"),
    "schedule": ("stepwise", "wavefront", "persistent"),
}
LSTM_ONLY = {"proj_size": (0, 1), "cell_clip": (None, (-0.3, 0.4))}


@pytest.fixture(autouse=True)
def small(monkeypatch):
    return few_threads(monkeypatch)


def paired_cases():
    """For each cell. Two products in a step are nothing for the persistent schedule: see below."""
    for cell in ("lstm", "gru", "gru_reset_before", "rnn_tanh"):
        for choice in pairwise_choices(COMMON | (LSTM_ONLY if cell == "lstm" else {})):
            schedule = choice.pop("schedule")
            if schedule == "persistent":
                choice.pop("proj_size", None)
                schedule = "stepwise" if cell == "gru_reset_before" else schedule
            case = OptionCase(cell, T=3, B=3, **choice.pop("sequences"), **choice.pop("sizes"), **choice)
            yield pytest.param(case, schedule, id=f"{case}-{schedule}")


@pytest.mark.parametrize(("case", "schedule"), list(paired_cases()))
def test_agrees_with_reference(case, schedule):
    check_options(case, "sim", schedule, calls=1)


EDGES = [
    OptionCase("rnn_relu", T=2, B=2, hidden=(3,), bias="input", input_mode="skip", lengths=(2, 0), resets=True),
    OptionCase("gru", T=1, B=1, hidden=(1,), bias="recurrent", lengths=(0,)),
    OptionCase("lstm", T=1, B=2, hidden=(2,), cell_clip=0.2, clip_propagate_nan=False, lengths=(0, 1), packed=False),
    OptionCase("lstm", T=3, B=2, hidden=(5, 2), directions=2, lengths=(1, 2), resets=True),  # nothing at t = T - 1
]


@pytest.mark.parametrize("schedule", ("stepwise", "wavefront", "persistent"))
@pytest.mark.parametrize("case", EDGES, ids=str)
def test_edges_agree_with_reference(case, schedule):
    check_options(case, "sim", schedule)


REFUSED = [
    (OptionCase("lstm", T=2, B=1, hidden=(5,), proj_size=2), "proj"),
    (OptionCase("gru_reset_before", T=2, B=1, hidden=(5,)), "reset"),
]


@pytest.mark.parametrize(("case", "reason"), REFUSED, ids=str)
def test_persistent_refuses_two_products_in_a_step(case, reason):
    problem = make_problem(case)
    layer = problem.layer("sim", schedule="persistent")
    for run in (infer, train):
        with pytest.raises(RuntimeError, match=reason):
            run(layer, problem)


@pytest.mark.parametrize("seed", range(3))
def test_every_order_of_the_threads_gives_the_same(seed):
    case = OptionCase("lstm", T=3, B=3, hidden=(5, 2), directions=2, cell_clip=0.4, lengths=RAGGED, resets=True)
    with simulator.schedule(seed):
        check_options(case, "sim", "persistent", calls=1)


@pytest.mark.parametrize("schedule", ("stepwise", "wavefront", "persistent"))
def test_one_layer_with_other_lengths_and_resets_at_every_call(schedule):
    """What was recorded of an earlier call is right for the later ones."""
    options = dict(T=3, B=3, hidden=(5, 2), directions=2, resets=True)
    problems = [
        make_problem(OptionCase("gru", lengths=lengths, **options)) for lengths in (RAGGED, (3, 3, 1), (0, 1, 2))
    ]
    layer = problems[0].layer("sim", schedule=schedule)  # all have the parameters that the same seed gives
    for problem in problems * 2:
        assert_matches(problem.case, train(layer, problem)[0], problem.expected())
