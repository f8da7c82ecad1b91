"""schedule="loop": the same results as the engines for every cell and option, and what these cannot do."""

import io

import numpy as np
import pytest
import torch

import numbarnn as nr
import numbarnn.torch as nrt
from cases import Case
from equations import AT_RANDOM, BUILT_IN_TOO, LIBRARY
from numbarnn.cells import library
from torch_modules import tensors, trained

T, B, I, H = 5, 3, 6, 6  # noqa: E741
ENDS = {"lengths": [5, 0, 3], "resets": np.arange(T * B).reshape(T, B) % 4 == 0, "padding_value": 2.0}


def both(cell, *sizes, **options):
    """The module by the engine and by the loop, with the same parameters, in float64."""
    torch.manual_seed(0)
    ours = nrt.Recurrent(cell, *sizes, **options).double()
    loop = nrt.Recurrent(cell, *sizes, **options, schedule="loop").double()
    loop.load_state_dict(ours.state_dict())
    return ours, loop


def assert_equal(ours, loop, *inputs, **options):
    for found, expected in zip(trained(loop, *inputs, **options), trained(ours, *inputs, **options), strict=True):
        for one, other in zip(found, expected, strict=True):
            one, other = (torch.zeros(()) if a is None else a for a in (one, other))
            assert (one - other).abs().max() <= 1e-12 * max(1.0, float(other.abs().max()))


@pytest.mark.parametrize("name", [*LIBRARY, *BUILT_IN_TOO, *(f"{name} at random" for name in AT_RANDOM)])
def test_every_cell_equals_the_engine(name):
    first = name.removesuffix(" at random")
    cell = Case(first).definition if first == name else nr.cell(getattr(library, first), **AT_RANDOM[first])
    x = torch.randn(T, B, I, dtype=torch.float64)
    assert_equal(*both(cell, I, H), x)
    square = not nr.cells.get(cell).parameters.equal  # else a layer above may not have its sizes
    assert_equal(*both(cell, I, H, num_layers=1 + square, bidirectional=True), x, **ENDS)


@nr.cell
def previous(x, h, before, p):
    return nr.tanh(p.W.h @ x + p.P @ before + p.R.h @ h + p.b.h), x


@pytest.mark.parametrize(
    "cell, sizes, options",
    [
        ("lstm", (I, 7), dict(proj_size=4, num_layers=2, bidirectional=True)),
        ("lstm", (I, 7), dict(cell_clip=0.05)),
        ("gru", (I, 7), dict(bias="input")),
        ("rnn_tanh", (I, 7), dict(bias=False)),
        ("lstm", (I, I), dict(input_mode="skip", num_layers=2, bidirectional=True)),
        ("lstm", (8 * 3, 3), dict(input_mode="given", num_layers=2, bidirectional=True)),
        ("lstm", (I, [7, 3]), dict(bidirectional=True)),
        ("lstm", (I, 7), dict(num_layers=3, dropout=0.4)),
        ("gru", (I, 7), dict(num_layers=2, batch_first=True)),
        (previous, (I, 7), dict(bidirectional=True)),
    ],
)
def test_options_equal_the_engine(cell, sizes, options):
    x = torch.randn(T, B, sizes[0], dtype=torch.float64)
    assert_equal(*both(cell, *sizes, **options), x.transpose(0, 1) if options.get("batch_first") else x)
    ours, loop = both(cell, *sizes, **options | {"batch_first": False})
    assert_equal(ours, loop, torch.nn.utils.rnn.pack_padded_sequence(x, [2, 5, 4], enforce_sorted=False))
    state = ours(x)[1]
    assert_equal(ours, loop, x, state, output_states=ours.cell.num_private > 0)


def test_derivatives_of_third_order():
    loop, x = both("lstm", 3, 2)[1], torch.randn(2, 1, 3, dtype=torch.float64, requires_grad=True)

    def gradient(x):
        return torch.autograd.grad(loop(x)[0].pow(3).sum(), x, create_graph=True)[0]

    assert torch.autograd.gradgradcheck(gradient, (x,))


@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning", "ignore::DeprecationWarning")
@pytest.mark.parametrize("cell", ["lstm", library.slstm])
def test_traced_exported_and_compiled(cell):
    loop, x = nrt.Recurrent(cell, I, H, num_layers=2, bidirectional=True, schedule="loop").eval(), torch.randn(T, B, I)
    expected = loop(x)[0].detach()
    assert torch.jit.trace(loop, (x,))(x)[0].equal(expected)
    assert torch.compile(loop, backend="eager", fullgraph=True)(x)[0].equal(expected)
    runtime = pytest.importorskip("onnxruntime")
    file = io.BytesIO()
    torch.onnx.export(loop, (x,), file, dynamo=False)
    session = runtime.InferenceSession(file.getvalue())
    (y, *_) = session.run(None, {session.get_inputs()[0].name: x.numpy()})
    np.testing.assert_allclose(y, expected, atol=1e-5)


def test_runs_where_no_engine_is():
    y, state = nrt.GRU(I, H, schedule="loop", device="meta")(torch.empty(T, B, I, device="meta"))
    assert y.shape == (T, B, H) and [one.is_meta for one in tensors((y, state))] == [True, True]


def test_a_schedule_that_there_is_not_names_it_too():
    with pytest.raises(ValueError, match=r"'loop' of numbarnn\.torch"):
        nrt.LSTM(I, H, schedule="lop")


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_drops_and_draws_as_the_engine(dtype):
    def noisy(x, h, p):
        return nr.tanh(p.W @ x + nr.drop_connect(p.R, 0.5) @ h + 0.1 * nr.normal())

    ours, loop = (one.to(dtype) for one in both(nr.cell(noisy), I, H))
    x = torch.randn(T, B, I, dtype=dtype)
    torch.manual_seed(1)
    expected = ours(x)[0]
    torch.manual_seed(1)
    torch.testing.assert_close(loop(x)[0], expected, rtol=0, atol=0.03)
