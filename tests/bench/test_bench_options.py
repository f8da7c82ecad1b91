"""The problems that `numbarnn check` runs: every option is there, peers agree with the reference, mistakes fail."""

from dataclasses import replace

import numpy as np
import pytest

from numbarnn.bench.cases import cases, sequences, spreads
from numbarnn.bench.check import accuracy, expected
from numbarnn.bench.check import command as check
from numbarnn.bench.peers import peers, torch_peer
from stub_layer import StubLayer, use_stub

PLAIN = cases.Case("lstm", 7, 3, 5, (9, 9), bidirectional=True)
LENGTHS = replace(PLAIN, lengths="padded", padding_value=-1.5)


# ---- the spreads ----


@pytest.mark.parametrize("size", ("full", "quick"))
@pytest.mark.parametrize("cell", cases.CELLS)
def test_every_option_is_in_every_spread(cell, size):
    chosen = spreads.spread(cell, size)
    used = {option for case in chosen for option in case.uses}
    lacking = set() if cell == "lstm" else {"proj_size", "cell_clip", "clip_propagate_nan"}
    lacking |= {"gradients"} if size == "quick" else set()
    assert used == set(cases.OPTIONS) - lacking
    assert {case.bias for case in chosen} == {True, False, "input", "recurrent"}
    assert {case.lengths for case in chosen} == {None, "padded", "packed"}
    assert {case.dtype for case in chosen} == set(cases.DTYPES if size == "full" else spreads.QUICK_DTYPES[cell])
    assert {case.L for case in chosen} >= {1, 2, 3}
    for flag in ("masked", "equal_layers"):
        assert {getattr(case, flag) for case in chosen} == {True, False}, flag
    assert {case.gradients for case in chosen} == {"y and state", "y", "state"} or size == "quick"
    assert len(set(chosen)) == len(chosen)


def test_a_case_names_every_option_that_it_uses():
    """Options that differ are told apart in the tables; what is told is what is used."""
    assert cases.Case("gru", 1, 1, 1, (1,)).uses == ()
    for cell in cases.CELLS:
        told = {}
        for case in spreads.spread(cell):
            assert told.setdefault(case.options, case) == case
    assert LENGTHS.uses == ("bidirectional", "lengths", "padding_value")


def test_half_precision_compares_no_gradient_that_jumps():
    clipped = [case for case in spreads.half_precision("lstm") if case.cell_clip]
    assert clipped and all(case.forward_only for case in clipped)
    assert not any(case.forward_only and not case.nan_state for case in spreads.spread("lstm"))


# ---- problems ----


def test_lengths_are_unsorted_and_reach_from_nothing_to_all():
    random = np.random.default_rng(0)
    found = [sequences.random_lengths(random, 7, 5, "padded") for _ in range(20)]
    assert all(lengths.min() == 0 and lengths.max() == 7 for lengths in found)
    assert any(np.any(np.diff(lengths) > 0) and np.any(np.diff(lengths) < 0) for lengths in found)
    assert sequences.random_lengths(random, 7, 5, "packed").min() >= 1
    assert sequences.random_lengths(random, 7, 1, "padded").tolist() == [6]
    assert sequences.random_lengths(random, 1, 1, "padded").tolist() == [1]


@pytest.mark.parametrize("lengths", ([3, 1, 4, 4], [2], [1, 1]))
def test_packing_is_pytorchs(lengths):
    torch = pytest.importorskip("torch")
    lengths = np.array(lengths)
    array = np.random.default_rng(0).standard_normal((5, len(lengths), 2))
    packed = torch.nn.utils.rnn.pack_padded_sequence(torch.from_numpy(array), lengths, enforce_sorted=False)
    by_length, places, batch_sizes = sequences.order(lengths)
    np.testing.assert_array_equal(batch_sizes, packed.batch_sizes)
    np.testing.assert_array_equal(array[:, by_length][:, places], array)
    # where lengths are equal, PyTorch's order is its own
    rows = sequences.pack(array, lengths)
    assert sorted(map(tuple, rows)) == sorted(map(tuple, packed.data.numpy()))
    back = sequences.unpack(rows, lengths, 5, value=7.0)
    padding = sequences.padding(lengths, 5, len(lengths))
    np.testing.assert_array_equal(back, np.where(padding[..., None], 7.0, array))


def test_padding_of_x_and_dy_is_nan_and_nothing_else():
    problem = cases.make_instance(LENGTHS)
    assert problem.padding.any() and not problem.padding.all()
    for array in (problem.x, problem.dy):
        np.testing.assert_array_equal(np.isnan(array).all(axis=2), problem.padding)
        np.testing.assert_array_equal(np.isnan(array).any(axis=2), problem.padding)


@pytest.mark.parametrize("case", [case for cell in cases.ALL_CELLS for case in spreads.spread(cell, "quick")], ids=str)
def test_parameters_are_those_of_the_layer(case):
    layer = cases.make_layer(case, "cpu", cases.make_instance(case).parameters)
    assert {name: array.shape for name, array in layer.state_dict().items()} == cases.parameter_shapes(case)


def test_resets_stand_behind_the_ends_of_sequences():
    """Where nothing may come of them."""
    quick = [case for cell in cases.ALL_CELLS for case in spreads.spread(cell, "quick")]
    problems = [cases.make_instance(case) for case in quick if case.resets and case.lengths and case.bidirectional]
    assert {problem.case.cell for problem in problems} == set(cases.ALL_CELLS)
    for problem in problems:
        over = problem.lengths < problem.case.T
        assert over.any() and problem.resets[problem.lengths[over], over].all()


# ---- PyTorch and the reference ----


@pytest.mark.parametrize("cell", cases.PEERS_CELLS)
def test_pytorch_agrees_with_the_reference_in_float64(cell):
    pytest.importorskip("torch")
    seen = set()
    for options in spreads.option_sets(cell):
        case = cases.Case(cell, T=3, B=3, **options)
        problem = cases.make_instance(case).float64
        torch = peers.torch_results(problem)
        lacks = {option for option in torch_peer.LACKS if option in case.uses}
        assert (torch is None) == bool(lacks), case
        if torch is None:
            continue
        truth = expected.reference_results(problem)
        assert torch.keys() == truth.keys()
        for quantity, value in torch.items():
            assert accuracy.error(value, truth[quantity]) < 1e-13, (case, quantity)
        seen |= set(case.uses)
    assert {"lengths", "input_mode", "bias", "padding_value"} <= seen and ("proj_size" in seen) == (cell == "lstm")


def test_expectations_are_computed_once_for_each_call_that_draws(monkeypatch):
    calls = []
    monkeypatch.setattr(expected, "reference_results", lambda problem, call: calls.append(call) or {})
    monkeypatch.setattr(peers, "installed", lambda *modules: False)
    known = expected.Expected(cases.make_instance(PLAIN))
    assert known.results() is known.results(0) is known.results(1) and calls == [None]
    known = expected.Expected(cases.make_instance(replace(PLAIN, dropout=0.3)))
    assert known.results() is not known.results(0) is known.results(0) is not known.results(1)
    assert calls == [None, None, 0, 1]


def test_a_nan_in_the_reference_is_an_error_unless_it_was_brought(monkeypatch):
    problem = cases.make_instance(PLAIN)
    problem.x[0, 0, 0] = np.nan
    with pytest.raises(ArithmeticError, match="NaN in y"):
        expected.reference_results(problem)


def test_a_peer_that_computes_something_else_is_noted_and_widens_nothing(monkeypatch):
    pytest.importorskip("torch")
    right = peers.torch_results
    monkeypatch.setattr(peers, "torch_results", lambda *a: right(*a) | {"hy": [h + 1e-3 for h in right(*a)["hy"]]})
    use_stub(monkeypatch)
    case = cases.Case("gru", 2, 3, 4, (5,))
    rows = check.check_case(case, "cpu")
    (note,) = [row for row in rows if row.mode == accuracy.PEER]
    assert note.ok and not note.compared and note.quantity == "PyTorch" and "hy 1.0e-03" in note.message
    (hy,) = [row for row in rows if row.quantity == "hy" and row.mode == "training"]
    assert hy.ok and hy.torch_error is None and hy.limit == accuracy.floor(case)


def test_errors_where_nan_is_expected():
    nan = float("nan")
    expected_values = np.array([nan, 1.0, 2.0])
    assert accuracy.error(np.array([nan, 1.0, 2.5]), expected_values) == 0.25
    assert np.isnan(accuracy.error(np.array([0.0, 1.0, 2.0]), expected_values))
    assert np.isnan(accuracy.error(np.array([nan, nan, 2.0]), expected_values))
    assert accuracy.error(np.array([nan]), np.array([nan])) == 0.0


# ---- layers that do an option wrongly fail ----


class Careless(StubLayer):
    """A stub that takes one option for another: fields of its case, or arguments of its call."""

    def __init__(self, case, parameters, changes, options):
        super().__init__(case, parameters)
        self.changes, self.options = changes, options

    def _run(self, x, state, call, **options):
        own, self.case = self.case, replace(self.case, **self.changes)
        try:
            return super()._run(x, state, call, **options | {k: v for k, v in self.options.items() if k in options})
        finally:
            self.case = own


@pytest.mark.parametrize(
    "case, changes, options",
    [
        (LENGTHS, {}, {"padding_value": 0.0}),
        (replace(LENGTHS, T=5), {}, {"lengths": [5, 5, 5]}),
        (replace(PLAIN, resets=True), {}, {"resets": np.zeros((7, 3), bool)}),
        (replace(PLAIN, cell_clip=(-0.5, 0.25)), {"cell_clip": None}, {}),
        (replace(PLAIN, cell_clip=(-0.5, 0.25)), {"cell_clip": (-0.5, 0.26)}, {}),
        (
            replace(PLAIN, cell_clip=(-0.5, 0.25), clip_propagate_nan=False, nan_state=True),
            {"clip_propagate_nan": True},
            {},
        ),
        (replace(PLAIN, cell_clip=(-0.5, 0.25), nan_state=True), {"clip_propagate_nan": False}, {}),
    ],
    ids=("padding_value", "lengths", "resets", "no clip", "another bound", "nan kept", "nan clipped"),
)
def test_an_option_taken_wrongly_fails(case, changes, options, monkeypatch, stub):
    assert all(row.ok for row in check.check_case(case, "cpu"))
    careless = lambda case, device, parameters, *more: Careless(case, parameters, changes, options)  # noqa: E731
    monkeypatch.setattr(cases, "make_layer", careless)
    assert any(not row.ok for row in check.check_case(case, "cpu") if row.mode in ("inference", "training"))


def test_padding_of_dx_that_is_not_zero_fails(monkeypatch):
    problem = cases.make_instance(LENGTHS)
    use_stub(monkeypatch, lambda name, a: a + 1e-3 * problem.padding[..., None] if name == "dx" else a)
    failed = {row.quantity for row in check.check_case(LENGTHS, "cpu") if not row.ok}
    assert failed == {"dx"}
