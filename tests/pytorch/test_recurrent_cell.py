"""`RecurrentCell`: one step of any cell."""

import pytest
import torch

import numbarnn.torch as nrt
from numbarnn.cells import library


def as_tuple(state):
    return state if isinstance(state, tuple) else (state,)


@pytest.mark.parametrize("schedule", ["auto", "loop"])
@pytest.mark.parametrize("cell", ["lstm", "gru", library.slstm, library.phased_lstm])
def test_steps_are_one_call_of_all_with_their_gradients(cell, schedule):
    torch.manual_seed(0)
    layer, step = nrt.Recurrent(cell, 5, 6), nrt.RecurrentCell(cell, 5, 6, schedule=schedule)
    step.load_state_dict(layer.state_dict())
    x, state, outputs = torch.randn(7, 3, 5), None, []
    for one in x:
        state = step(one, state)
        outputs.append(as_tuple(state)[0])
    y, expected = layer(x)
    torch.testing.assert_close(torch.stack(outputs), y)
    for one, other in zip(as_tuple(state), as_tuple(expected), strict=True):
        torch.testing.assert_close(one, other[0])
    torch.stack(outputs).square().sum().backward()
    y.square().sum().backward()
    for one, other in zip(step.parameters(), layer.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad)


def test_one_sequence_and_what_does_not_fit():
    step = nrt.RecurrentCell(library.slstm, 5, 6)
    x = torch.randn(2, 5)
    many = step(x)
    for one, other in zip(step(x[1], step(x[1])), step(x, many), strict=True):
        assert one.shape == (6,)
        torch.testing.assert_close(one, other[1])
    assert repr(step) == "RecurrentCell(slstm, 5, 6)"
    with pytest.raises(ValueError, match="to be 1D or 2D, got 3D"):
        step(torch.zeros(1, 2, 5))
    with pytest.raises(TypeError, match=r"hx must be a tuple \(h, c, n, m\)"):
        step(x, many[0])
    with pytest.raises(TypeError, match=r"hx\[1\] must be a tensor, got NoneType"):
        step(x, (many[0], None, None, None))
    with pytest.raises(RuntimeError, match=r"Input batch size 2 doesn't match hidden0 batch size 3"):
        step(x, [torch.zeros(3, 6)] * 4)
    with pytest.raises(TypeError, match="RecurrentCell has no batch_first: it runs one step"):
        nrt.RecurrentCell("gru", 5, 6, batch_first=True)
