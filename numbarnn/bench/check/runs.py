"""What `numbarnn check` lets a layer compute: a case in three modes, results as NumPy arrays by quantity (`peers`)."""

import numpy as np

from numbarnn.bench.peers import peers


def run_inference(layer, instance):
    """y, hy and cy of one call."""
    return peers.numbarnn_outputs(
        layer, instance, *layer(*peers.inputs(layer, instance)[:2], **peers.call_options(instance))
    )


def run_single_steps(layer, instance):
    """y, hy and cy of T calls of one step each; a sequence that is over has length 0 in its last calls."""
    x, state, _ = peers.inputs(layer, instance)
    axis, ys = int(instance.case.batch_first), []
    for t in range(instance.case.T):
        step = slice(t, t + 1)
        y, state = layer(x[:, step] if axis else x[step], state, **peers.call_options(instance, step))
        ys.append(peers.to_host(layer, y))
    y = layer.engine.from_host(np.concatenate(ys, axis=axis))
    return peers.numbarnn_outputs(layer, instance, y, state)


def run_training(layer, instance):
    """(results, masks): every result of forward and backward, and the dropout masks of each forward call, or None.

    There are two calls where the case draws random numbers or accumulates: the last is the one with results, to whose
    parameters' gradients those of the first are added where the case accumulates.
    """
    case, options = instance.case, peers.call_options(instance)
    x, state, dy = peers.inputs(layer, instance)
    dstate = peers.to_engine_state(layer, instance.dhy, instance.dcy)
    dw, masks = None, []
    for _ in range(case.training_calls):
        y, final, tape = layer.forward(x, state, **options)
        masks.append(layer.dropout_masks(tape) if case.masked else None)
        results = peers.numbarnn_outputs(layer, instance, y, final)
        if not case.forward_only:
            gradients = layer.backward(tape, dy, dstate, dw=dw)
            dw = gradients.weights if case.accumulate else None
            results |= peers.numbarnn_gradients(layer, instance, gradients)
    return results, masks
