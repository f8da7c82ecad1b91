"""`numbarnn check` with cuDNN as a peer: here a fake one, made of the float64 reference (fake_cudnn.py)."""

import numpy as np
import pytest

from numbarnn import engines
from numbarnn.bench import accuracy, cases, check, expected, spreads
from numbarnn.bench.peers import cudnn, cudnn_peer
from stub_layer import use_stub

CASE = cases.Case("lstm", 5, 3, 4, (6, 6), bidirectional=True)


@pytest.fixture
def made(either, monkeypatch):
    """The options of each network that cuDNN was asked for."""
    found, network = [], cudnn.Rnn

    class Rnn(network):
        def __init__(self, *sizes, **chosen):
            super().__init__(*sizes, **chosen)
            found.append(self.options)

        def call(self, x, states, weights, gradients=None, *, lengths, padding_value):
            assert self.options.cell_clip or not np.isnan(x).any(), "cuDNN is given no padding"
            call = super().call(x, states, weights, gradients, lengths, padding_value)
            if gradients is not None:  # as if nothing were written into the padding of dx
                call.buffers["dx"][cases.padding(lengths, *x.shape[:2])] = np.nan
            return call

    monkeypatch.setattr(cudnn, "Rnn", Rnn)
    return found


@pytest.mark.parametrize("cell", cases.CELLS)
def test_cudnn_gets_the_problem_and_its_results_have_their_names(cell, made):
    """Every option: layers of one network or one each, masks, padding, states, names of parameters."""
    for options in spreads.option_sets(cell):
        case = cases.Case(cell, T=3, B=3, dtype="float64", **options)
        problem, masks = cases.make_instance(case), expected.masks_of_case(case, call=0)
        lacks = (
            ("resets", case.resets),
            (cell, cell not in cases.PEERS_CELLS),
            ("given dropout masks", masks is not None),
        )
        lacks = *lacks, ("layers of different sizes", not case.equal_layers)
        lacking = [word for word, there in lacks if there]
        if lacking:
            with pytest.raises(cudnn_peer.Refused, match=f"it has no {', '.join(lacking)}"):
                cudnn_peer.cudnn_results(problem, masks)
            continue
        truth = expected.reference_results(problem, call=0)
        found = cudnn_peer.cudnn_results(problem, masks)
        assert found.keys() == truth.keys(), case
        for quantity, value in found.items():
            assert accuracy.shape_problem(value, truth[quantity], "float64") is None, (case, quantity)
            assert accuracy.error(value, truth[quantity]) < 8 * accuracy.floor(case), (case, quantity)


# ---- in the check ----


@pytest.fixture
def check_cuda(monkeypatch, command):
    """`numbarnn check --device cuda` with stub layers on an engine that calls itself so."""
    use_stub(monkeypatch)
    monkeypatch.setattr(engines, "available", lambda: ["cuda"], raising=False)

    def run(*arguments):
        return command("check", "--device", "cuda", "--quick", "--schedule", "stepwise", *arguments)

    return run


def test_errors_of_cudnn_and_ratios_are_told(session, check_cuda, monkeypatch, capsys):
    rows = check_cuda()
    said = capsys.readouterr().out
    assert "against float64 and cuDNN" in said and "ratio" in said
    with_cudnn = [row for row in rows if row["cudnn_error"]]
    ratios = {row["ratio"]: row["error"] / row["cudnn_error"] for row in with_cudnn if row["error"]}
    assert ratios and all(ratio == pytest.approx(expected) for ratio, expected in ratios.items())
    assert {"proj_size", "cell_clip", "lengths", "input_mode"} <= {word for row in with_cudnn for word in row["uses"]}
    assert {row["cudnn_error"] for row in rows if "resets" in row["uses"]} == {None}


def test_cudnn_is_the_peer_rather_than_pytorch(session, monkeypatch):
    """Twice cuDNN's error passes and no more, whatever PyTorch's is."""
    case, problem = CASE, cases.make_instance(CASE)
    right = cudnn_peer.cudnn_results(problem)
    off = 3 * accuracy.floor(case) * np.maximum(1, np.abs(right["y"]).max())
    monkeypatch.setattr(cudnn_peer, "cudnn_results", lambda *a: right | {"y": (right["y"] + off).astype("float32")})
    for times, ok in ((1.9, True), (2.1, False)):
        use_stub(monkeypatch, lambda name, a, t=times: (a + t * off).astype("float32") if name == "y" else a)
        rows = check.check_case(case, "cuda", with_cudnn=True)
        found = {row["mode"]: row for row in rows if row["quantity"] == "y"}
        assert {row["ok"] for row in found.values()} == {ok}
        assert found["training"]["ratio"] == pytest.approx(times, rel=0.01)
