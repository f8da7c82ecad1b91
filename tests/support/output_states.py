"""The private states of every step on any engine: what they are and their gradients, against the CPU engine's."""

import numpy as np

import numbarnn as nr
from numbarnn.cells import library

STEPS, BATCH, INPUT = 4, 3, 4
LAYERS = {
    "lstm": lambda **options: nr.LSTM(INPUT, [6, 5], bidirectional=True, **options),
    "first": lambda **options: nr.LSTM(INPUT, 6, proj_size=2, batch_first=True, **options),
    "sums": lambda **options: nr.RNN(library.layer_norm_lstm, INPUT, 6, **options),
    "products": lambda **options: nr.RNN(TWO_PRODUCTS, INPUT, 5, bidirectional=True, **options),
}


def two_products(x, h, c, n, p):
    """Two private states, and a product with what the step has made of h."""
    a = nr.tanh(p.W.a @ x + p.R.a @ h + p.b.a)
    g = nr.sigmoid(p.W.g @ x + p.R.g @ (a * h) + p.b.g)
    c_new = g * c + a
    return nr.tanh(c_new) * g, c_new, 0.5 * n + a


TWO_PRODUCTS = nr.cell(two_products, name="two_products")


def check_output_states(name, odd, device, schedule, calls=1):
    """Assert it for a layer; of several calls the later ones may be replays, with other numbers."""
    layers = [
        LAYERS[name](device=where, schedule=how, seed=1) for where, how in ((device, schedule), ("cpu", "stepwise"))
    ]
    rng = np.random.default_rng(0)
    options = {}
    if odd:
        resets = rng.random((STEPS, BATCH)) < 0.3
        options = {"lengths": [STEPS, 0, 2], "resets": resets.T if layers[0].batch_first else resets}
    outer = (BATCH, STEPS) if layers[0].batch_first else (STEPS, BATCH)
    for _ in range(calls):
        x, found = rng.normal(size=(*outer, INPUT)).astype("float32"), []
        seed = int(rng.integers(1 << 30))
        for layer in layers:
            engine, numbers = layer.engine, np.random.default_rng(seed)
            inference = layer(engine.from_host(x), output_states=True, **options)[2]
            y, _, states, tape = layer.forward(engine.from_host(x), output_states=True, **options)
            host = [engine.to_host(one) for one in (y, *states)]
            for one, other in zip(inference, host[1:], strict=True):
                np.testing.assert_array_equal(engine.to_host(one), other)
            dy, *given = (engine.from_host(numbers.normal(size=one.shape).astype("float32")) for one in host)
            for dstates in (tuple(given), None):
                grads = layer.backward(tape, dy, dstates=dstates, retain=dstates is not None)
                host += [engine.to_host(grads.x), engine.to_host(grads.weights)]
            found.append(host)
        for ours, expected in zip(*found, strict=True):
            np.testing.assert_allclose(ours, expected, rtol=2e-4, atol=2e-5)
        assert not np.allclose(found[0][-1], found[0][-3])  # dstates count
