"""ONNX' LSTM, GRU and RNN by their specification, as loops over time in float64, with every attribute.

https://onnx.ai/onnx/operators/onnx__LSTM.html, likewise GRU, RNN. `clip` bounds what goes into activations; h, the last
activation of the LSTM, is such a one.
"""

import numpy as np

ACTIVATIONS = {
    "Relu": lambda x, a, b: np.maximum(x, 0),
    "Tanh": lambda x, a, b: np.tanh(x),
    "Sigmoid": lambda x, a, b: 1 / (1 + np.exp(-x)),
    "Affine": lambda x, a, b: a * x + b,
    "LeakyRelu": lambda x, a, b: np.where(x >= 0, x, a * x),
    "ThresholdedRelu": lambda x, a, b: np.where(x >= a, x, 0),
    "ScaledTanh": lambda x, a, b: a * np.tanh(b * x),
    "HardSigmoid": lambda x, a, b: np.clip(a * x + b, 0, 1),
    "Elu": lambda x, a, b: np.where(x >= 0, x, a * np.expm1(np.minimum(x, 0))),
    "Softsign": lambda x, a, b: x / (1 + np.abs(x)),
    "Softplus": lambda x, a, b: np.logaddexp(x, 0),
}


def direction(operator, functions, x, W, R, B=None, P=None, h=None, c=None, *, clip=np.inf, input_forget=0,
              linear_before_reset=0, lengths=None, reverse=False, clip_c=True):  # fmt: skip
    """(y (T, B, H), h, c) of one direction; functions: [(name, alpha, beta)]; of a GRU or RNN c is None."""
    x, W, R = (np.float64(one) for one in (x, W, R))
    T, batch, H = *x.shape[:2], R.shape[1]
    gates = len(R) // H
    Wb, Rb = np.zeros((2, gates * H)) if B is None else np.float64(B).reshape(2, -1)
    p = np.zeros((3, H)) if P is None else np.float64(P).reshape(3, H)
    h = np.zeros((batch, H)) if h is None else np.float64(h)
    c = np.zeros((batch, H)) if c is None else np.float64(c)
    lengths = np.full(batch, T) if lengths is None else np.asarray(lengths)

    def called(number, value, bound=True):
        name, alpha, beta = functions[number]
        return ACTIVATIONS[name](np.clip(value, -clip, clip) if bound else value, alpha, beta)

    y = np.zeros((T, batch, H))
    for step in range(T):
        times = np.where(step < lengths, lengths - 1 - step if reverse else step, 0)
        own = x[times, np.arange(batch)]
        a, r = (own @ W.T).reshape(batch, gates, H), (h @ R.T).reshape(batch, gates, H)
        wb, rb = Wb.reshape(gates, H), Rb.reshape(gates, H)
        new_c = c
        if operator == "LSTM":  # i o f c; P i o f
            i = called(0, a[:, 0] + r[:, 0] + p[0] * c + wb[0] + rb[0])
            f = 1 - i if input_forget else called(0, a[:, 2] + r[:, 2] + p[2] * c + wb[2] + rb[2])
            new_c = f * c + i * called(1, a[:, 3] + r[:, 3] + wb[3] + rb[3])
            o = called(0, a[:, 1] + r[:, 1] + p[1] * new_c + wb[1] + rb[1])
            new_h = o * called(2, new_c, clip_c)
        elif operator == "GRU":  # z r h
            z = called(0, a[:, 0] + r[:, 0] + wb[0] + rb[0])
            reset = called(0, a[:, 1] + r[:, 1] + wb[1] + rb[1])
            if linear_before_reset:
                n = called(1, a[:, 2] + reset * (r[:, 2] + rb[2]) + wb[2])
            else:
                n = called(1, a[:, 2] + (reset * h) @ R[2 * H :].T + rb[2] + wb[2])
            new_h = (1 - z) * n + z * h
        else:
            new_h = called(0, a[:, 0] + r[:, 0] + wb[0] + rb[0])
        there = (step < lengths)[:, None]
        h, c = np.where(there, new_h, h), np.where(there, new_c, c)
        y[times[there[:, 0]], np.flatnonzero(there)] = new_h[there[:, 0]]
    return y, h, c
