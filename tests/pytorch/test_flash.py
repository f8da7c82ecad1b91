"""`flashrnn` against a loop of its equations in PyTorch, written from the papers alone."""

import pytest

torch = pytest.importorskip("torch")

from numbarnn.torch.flash import GATES, STATES, flashrnn  # noqa: E402

BATCH, STEPS, UNITS = 3, 5, 4


def step(function, x, r, b, states):
    """New states, each (B, N, D), of one step; x, r (G, B, N, D): pre-activations, b (G, 1, N, D)."""
    sigmoid, tanh = torch.sigmoid, torch.tanh
    if function == "elman":
        return (tanh(x[0] + r[0] + b[0]),)
    if function == "gru":
        (h,), (g, of_r, of_z), (b_g, b_r, b_z, b_n) = states, r, b
        reset, update = sigmoid(x[0] + of_r + b_r), sigmoid(x[1] + of_z + b_z)
        return (update * h + (1 - update) * tanh(x[2] + b_n + reset * (g + b_g)),)
    i, f, z, o = x + r + b
    if function == "lstm":
        c = sigmoid(f) * states[1] + sigmoid(i) * tanh(z)
        return sigmoid(o) * tanh(c), c
    _, c, n, m = states
    log_f = torch.nn.functional.logsigmoid(f) + m
    new_m = torch.where(n == 0, i, torch.maximum(i, log_f))
    i, f = torch.exp(i - new_m), torch.exp(log_f - new_m)
    c, n = f * c + i * tanh(z), torch.clamp(f * n + i, min=1.0)
    return sigmoid(o) * c / n, c, n, new_m


def loop(Wx, R, b, states, function):
    """As `flashrnn`, step by step."""
    states, every = [state[:, 0] for state in states], []
    for t in range(Wx.shape[1]):
        r = torch.einsum("gndp,bnp->gbnd", R, states[0])
        states = step(function, Wx[:, t].movedim(1, 0), r, b[:, None], states)
        every.append(torch.stack(states))
    return torch.stack(every, dim=2), every[-1][:, :, None]


def problem(function, heads, dtype=torch.float64):
    torch.manual_seed(0)
    of_x, of_R, of_b = GATES[function]
    Wx = torch.randn(BATCH, STEPS, of_x, heads, UNITS, dtype=dtype)
    R, b = torch.randn(of_R, heads, UNITS, UNITS, dtype=dtype) / 2, torch.randn(of_b, heads, UNITS, dtype=dtype)
    states = torch.randn(STATES[function], BATCH, 1, heads, UNITS, dtype=dtype)
    if function == "slstm":
        states[2] = states[2].abs() + 1
    return [tensor.requires_grad_() for tensor in (Wx, R, b, states)]


@pytest.mark.parametrize("given", [False, True], ids=["zero", "given"])
@pytest.mark.parametrize("heads", [1, 3])
@pytest.mark.parametrize("function", GATES)
def test_states_and_gradients_are_those_of_a_loop(function, heads, given):
    Wx, R, b, states = problem(function, heads)
    initial = states if given else torch.zeros_like(states)
    expected = loop(Wx, R, b, initial, function)
    found = flashrnn(Wx, R, b, states if given else None, function=function)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-11, atol=1e-12)
    weights = [torch.randn_like(one) for one in expected]
    inputs = [Wx, R, b, *([states] if given else [])]
    gradients = [
        torch.autograd.grad(sum((one * w).sum() for one, w in zip(results, weights, strict=True)), inputs)
        for results in (found, expected)
    ]
    torch.testing.assert_close(*gradients, rtol=1e-9, atol=1e-10)


def test_compiled_and_other_arguments():
    Wx, R, b, _ = problem("lstm", 2)
    call = torch.compile(lambda Wx: flashrnn(Wx, R, b, function="lstm")[0], backend="aot_eager", fullgraph=True)
    every, last = flashrnn(Wx, R, b, None, "lstm", None, "cuda_fused", "bfloat16")
    torch.testing.assert_close(call(Wx), every)
    assert every.shape == (2, BATCH, STEPS, 2, UNITS) and torch.equal(every[:, :, -1:], last)


def test_what_does_not_fit_is_refused():
    Wx, R, b, states = problem("gru", 2)
    with pytest.raises(ValueError, match="function must be one of 'slstm', 'lstm', 'gru', 'elman', not 'LSTM'"):
        flashrnn(Wx, R, b, function="LSTM")
    with pytest.raises(ValueError, match="Wx must have the 4 gates of 'lstm'"):
        flashrnn(Wx, R, b, function="lstm")
    with pytest.raises(ValueError, match=r"b must have shape \(4, 2, 4\), but has \(3, 2, 4\)"):
        flashrnn(Wx, R, b[:3], function="gru")
    with pytest.raises(ValueError, match=r"states must have shape \(1, 3, 1, 2, 4\)"):
        flashrnn(Wx, R, b, states[:, :, 0], function="gru")
    with pytest.raises(ValueError, match="config must be None"):
        flashrnn(Wx, R, b, function="gru", config=object())
