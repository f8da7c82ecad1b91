"""`numbarnn check` with cuDNN as a peer: here a fake one, made of the float64 reference (fake_cudnn.py)."""

from dataclasses import replace

import numpy as np
import pytest

from numbarnn import engines
from numbarnn.bench.cases import cases, sequences, spreads
from numbarnn.bench.check import accuracy, expected
from numbarnn.bench.check import command as check
from numbarnn.bench.peers import cudnn, cudnn_peer
from numbarnn.bench.peers.cudnn import CudnnError
from numbarnn.common import precision
from stub_layer import use_stub

CASE = cases.Case("lstm", 5, 3, 4, (6, 6), bidirectional=True)


@pytest.fixture
def made(session, monkeypatch):
    """The options of each network that the fake cuDNN was asked for."""
    found, network = [], cudnn.Rnn

    class Rnn(network):
        def __init__(self, *sizes, **chosen):
            super().__init__(*sizes, **chosen)
            found.append(self.options)

        def forward(self, x, *states, **options):
            assert not np.isnan(x).any(), "cuDNN is given no padding"
            self.padding = sequences.padding(options["lengths"], *x.shape[:2])
            return super().forward(x, *states, **options)

        def backward_data(self, *arguments):
            dx, *states = super().backward_data(*arguments)
            dx[self.padding] = np.nan  # as if nothing were written there
            return dx, *states

    monkeypatch.setattr(cudnn, "Rnn", Rnn)
    return found


@pytest.mark.parametrize("cell", cases.CELLS)
def test_cudnn_gets_the_problem_and_its_results_have_their_names(cell, made):
    """Every option: layers of one network or one each, masks, padding, states, names of parameters."""
    for options in spreads.option_sets(cell):
        case = cases.Case(cell, T=3, B=3, dtype="float64", **options)
        problem, masks = cases.make_instance(case), expected.dropout_masks(case, call=0)
        lacking = [word for word, lacks in (("resets", case.resets), (cell, cell not in cases.PEERS_CELLS)) if lacks]
        if lacking:
            with pytest.raises(cudnn_peer.Refused, match=f"it has no {', '.join(lacking)}"):
                cudnn_peer.cudnn_results(problem, masks)
            continue
        truth = expected.reference_results(problem, call=0)
        found = cudnn_peer.cudnn_results(problem, masks)
        assert found.keys() == truth.keys(), case
        for quantity, value in found.items():
            assert accuracy.shape_problem(value, truth[quantity], "float64") is None, (case, quantity)
            assert accuracy.error(value, truth[quantity]) < 1e-14, (case, quantity)


def test_layers_of_one_size_are_one_network(made):
    cudnn_peer.cudnn_results(cases.make_instance(CASE))
    assert [options.num_layers for options in made] == [2]
    skipping = replace(CASE, hidden=(4, 7), input_mode="skip")
    cudnn_peer.cudnn_results(cases.make_instance(skipping))
    assert [(o.num_layers, o.input_mode, o.input_size) for o in made[1:]] == [(1, "skip", 4), (1, "linear", 8)]


@pytest.mark.parametrize("dtype", precision.DTYPES)
def test_dtypes(dtype, made):
    if dtype == "bfloat16":
        pytest.importorskip("ml_dtypes")
    problem = cases.make_instance(replace(CASE, dtype=dtype, lengths="padded"))
    found = cudnn_peer.cudnn_results(problem)
    assert all(accuracy.shape_problem(value, value, dtype) is None for value in found.values())
    assert made[0].dtype == dtype and made[0].math != "default"


# ---- in the check ----


@pytest.fixture
def check_cuda(monkeypatch, command):
    """`numbarnn check --device cuda` with stub layers on an engine that calls itself so."""
    use_stub(monkeypatch)
    monkeypatch.setattr(engines, "available", lambda: ["cuda"], raising=False)

    def run(*arguments):
        rows = command("check", "--device", "cuda", "--quick", "--schedule", "stepwise", *arguments)
        return [accuracy.Comparison.from_row(row) for row in rows]

    return run


def test_errors_of_cudnn_and_ratios_are_told(session, check_cuda, monkeypatch, capsys):
    rows = check_cuda()
    said = capsys.readouterr().out
    assert "against float64 and cuDNN" in said and "ratio" in said
    compared = [row for row in rows if row.compared and not row.quantity.startswith("dropout")]
    with_cudnn = [row for row in compared if row.cudnn_error is not None]
    assert with_cudnn and all(row.peer_error == row.cudnn_error for row in with_cudnn)
    assert {"proj_size", "cell_clip", "lengths", "input_mode"} <= {word for row in with_cudnn for word in row.uses}
    assert {row.cudnn_error is None for row in compared if "resets" in row.uses} == {True}
    assert "cuDNN" in said and "refuses: it has no resets" in said


def test_cudnn_is_the_peer_rather_than_pytorch(session, monkeypatch):
    """Twice cuDNN's error passes and no more, whatever PyTorch's is."""
    case, problem = CASE, cases.make_instance(CASE)
    right = cudnn_peer.cudnn_results(problem)
    off = 3 * accuracy.floor(case) * np.maximum(1, np.abs(right["y"]).max())
    monkeypatch.setattr(cudnn_peer, "cudnn_results", lambda *a: right | {"y": (right["y"] + off).astype("float32")})
    for times, ok in ((1.9, True), (2.1, False)):
        use_stub(monkeypatch, lambda name, a, t=times: (a + t * off).astype("float32") if name == "y" else a)
        rows = check.check_case(case, "cuda", with_cudnn=True)
        found = {row.mode: row for row in rows if row.quantity == "y"}
        assert {row.ok for row in found.values()} == {ok}
        assert found["training"].ratio == pytest.approx(times, rel=0.01)


def test_what_cudnn_says_is_told_and_fails_nothing(session, check_cuda, monkeypatch, capsys):
    def refuse(*sizes, **chosen):
        raise CudnnError("cudnnSetRNNDescriptor_v8", 3000, "CUDNN_STATUS_NOT_SUPPORTED", "no such thing")

    monkeypatch.setattr(cudnn, "Rnn", refuse)
    rows = check_cuda("--cell", "gru")
    said = capsys.readouterr().out
    notes = [row for row in rows if row.mode == accuracy.PEER]
    assert any("no such thing" in row.message for row in notes)
    assert "CUDNN_STATUS_NOT_SUPPORTED (3000): no such thing" in said and "against float64 and PyTorch" in said
    assert all(row.cudnn_error is None for row in rows)


def test_a_cudnn_that_computes_something_else_is_told(session, check_cuda, monkeypatch, capsys):
    class Other(cudnn.Rnn):
        def forward(self, *arguments, **options):
            y, hy, *rest = super().forward(*arguments, **options)
            return y, hy + 1, *rest

        def backward_data(self, *arguments):
            dx, dhx, dcx = super().backward_data(*arguments)
            return dx, dhx + 1, dcx

    monkeypatch.setattr(cudnn, "Rnn", Other)
    rows = check_cuda("--cell", "rnn_tanh")
    assert all(row.cudnn_error is None for row in rows if row.quantity in ("hy", "dhx"))
    assert "cuDNN" in capsys.readouterr().out
    assert any("computes something else" in row.message and "hy " in row.message for row in rows if row.message)


def test_without_cudnn_the_reason_is_told(check_cuda, monkeypatch, capsys):
    monkeypatch.setattr(cudnn, "why_not", lambda: "libcudnn.so.9 is nowhere")
    rows = check_cuda("--cell", "gru")
    assert "without cuDNN: libcudnn.so.9 is nowhere" in capsys.readouterr().out
    assert all(row.cudnn_error is None for row in rows)


@pytest.mark.gpu
@pytest.mark.parametrize("cell", cases.CELLS)
def test_the_cuda_engine_against_cudnn(cell):
    """Every option of the quick spread, every schedule: cuDNN's error and ours, as `numbarnn check --device cuda`."""
    if (reason := engines.why_not("cuda") or cudnn.why_not()) is not None:
        pytest.skip(reason)
    rows = []
    for case in spreads.spread(cell, "quick") + spreads.half_precision(cell):
        rows += check.check_case(case, "cuda", ("stepwise", "wavefront", "persistent"), with_cudnn=True)
    for row in rows:
        if row.mode == accuracy.PEER:
            print(row.cell, row.options, row.quantity, row.message)
    assert not [row for row in rows if not row.ok]
    assert any(row.cudnn_error is not None for row in rows)
