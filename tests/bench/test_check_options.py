"""The problems that `numbarnn check` runs: every option is there, peers agree with the reference, mistakes fail."""

from dataclasses import replace

import numpy as np
import pytest

from numbarnn.bench import accuracy, cases, check, expected, spreads
from numbarnn.bench.peers import torch_peer
from stub_layer import StubLayer, use_stub

PLAIN = cases.Case("lstm", 7, 3, 5, (9, 9), bidirectional=True)
LENGTHS = replace(PLAIN, lengths="padded", padding_value=-1.5)


# ---- the spreads ----


@pytest.mark.parametrize("size", ("full", "quick"))
@pytest.mark.parametrize("cell", cases.CELLS)
def test_every_option_is_in_every_spread(cell, size):
    chosen = spreads.spread_cases(cell, size)
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


# ---- PyTorch and the reference ----


@pytest.mark.parametrize("cell", cases.PEERS_CELLS)
def test_pytorch_agrees_with_the_reference_in_float64(cell):
    pytest.importorskip("torch")
    seen = set()
    for options in spreads.option_sets(cell):
        case = cases.Case(cell, T=3, B=3, **options)
        problem = cases.make_instance(case).float64
        torch = torch_peer.torch_results(problem)
        lacks = any(option in case.uses for option in torch_peer.LACKS) or not case.equal_layers
        assert (torch is None) == (lacks or case.lengths == "padded"), case
        if torch is None:
            continue
        truth = expected.reference_results(problem)
        assert torch.keys() == truth.keys()
        for quantity, value in torch.items():
            assert accuracy.error(value, truth[quantity]) < 1e-13, (case, quantity)
        seen |= set(case.uses)
    assert {"lengths", "input_mode", "bias", "bidirectional"} <= seen and ("proj_size" in seen) == (cell == "lstm")


def test_a_peer_that_computes_something_else_widens_nothing(monkeypatch):
    pytest.importorskip("torch")
    right = torch_peer.torch_results
    monkeypatch.setattr(torch_peer, "torch_results", lambda *a: right(*a) | {"hy": [h + 1e-3 for h in right(*a)["hy"]]})
    use_stub(monkeypatch)
    case = cases.Case("gru", 2, 3, 4, (5,))
    rows = check.check_case(case, "cpu")
    (hy,) = [row for row in rows if row["quantity"] == "hy" and row["mode"] == "training"]
    assert hy["ok"] and hy["torch_error"] is None and hy["limit"] == accuracy.floor(case)


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
    assert all(row["ok"] for row in check.check_case(case, "cpu"))
    careless = lambda case, device, parameters, *more: Careless(case, parameters, changes, options)  # noqa: E731
    monkeypatch.setattr(cases, "make_layer", careless)
    assert any(not row["ok"] for row in check.check_case(case, "cpu") if row["mode"] in ("inference", "training"))


def test_padding_of_dx_that_is_not_zero_fails(monkeypatch):
    problem = cases.make_instance(LENGTHS)
    use_stub(monkeypatch, lambda name, a: a + 1e-3 * problem.padding[..., None] if name == "dx" else a)
    failed = {row["quantity"] for row in check.check_case(LENGTHS, "cpu") if not row["ok"]}
    assert failed == {"dx"}
