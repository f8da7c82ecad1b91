"""The reference of the layer-norm RNN: against finite differences, and what its random parts are."""

import numpy as np
import pytest

from numbarnn.reference import layer_norm_rnn, philox
from reference_problem import central_differences

T, B, INPUT, HIDDEN = 4, 3, 3, (4, 3)
STEP, LIMIT = 1e-5, 1e-7


def draws(D, random):
    """Masks between layers, dropped weights, kept states."""
    return {
        "masks": [random.choice([0.0, 2.0], size=(T, B, D * H)) for H in HIDDEN[:-1]],
        "dropped": [[random.choice([0.0, 1.5], size=(H, H)) for _ in range(D)] for H in HIDDEN],
        "kept": [[random.choice([0.0, 1.0], size=(T, B, H)) for _ in range(D)] for H in HIDDEN],
    }


@pytest.mark.parametrize("training, D", [(False, 1), (True, 2)])
def test_backward_against_finite_differences(training, D):
    random = np.random.default_rng(D)
    parameters, width = {}, INPUT
    for layer, H in enumerate(HIDDEN):
        shapes = {"weight_ih": (H, width), "weight_hh": (H, H)} | dict.fromkeys(layer_norm_rnn.VECTORS, (H,))
        for suffix in ("", "_reverse")[:D]:
            parameters |= {f"{kind}_l{layer}{suffix}": random.normal(size=shape) for kind, shape in shapes.items()}
        width = D * H
    x, h0 = random.normal(size=(T, B, INPUT)), [random.normal(size=(D, B, H)) for H in HIDDEN]
    dy, dhy = random.normal(size=(T, B, D * HIDDEN[-1])), [random.normal(size=h.shape) for h in h0]
    options = {"lengths": np.array([4, 2, 0]), "resets": random.random((T, B)) < 0.4} if training else {}
    options |= draws(D, random) if training else {"kept": 0.7}

    def loss():
        result = layer_norm_rnn.forward(x, parameters, h0, **options)
        return np.sum(dy * result.y) + sum(np.sum(a * b) for a, b in zip(dhy, result.hy, strict=True))

    found = layer_norm_rnn.backward(layer_norm_rnn.forward(x, parameters, h0, **options), dy, dhy)
    pairs = [(x, found.dx), *zip(h0, found.dhx, strict=True), *((a, found.params[n]) for n, a in parameters.items())]
    for array, gradient in pairs:
        assert gradient == pytest.approx(central_differences(loss, array, STEP), rel=LIMIT, abs=LIMIT)


def test_what_is_drawn_differs_by_call_place_and_gate():
    kept = [philox.zoneout_kept(5, 3, 40, 0.2, 7, place, call) for place in (0, 1) for call in (0, 1)]
    dropped = philox.dropped_weights(3, 40, 0.25, 7, 0, 0, "float64")
    gates = np.split(dropped, 3)
    for arrays in (kept, gates, philox.dropout_masks([(5, 3, 40)] * 3, 0.3, 7, 0, "float64")):
        assert not any(np.array_equal(a, b) for k, a in enumerate(arrays) for b in arrays[:k])
    assert set(np.unique(dropped)) == {0.0, 1 / 0.75} and abs(np.mean(dropped == 0) - 0.25) < 0.03
    assert set(np.unique(kept)) == {0.0, 1.0} and abs(np.mean(kept) - 0.8) < 0.03
