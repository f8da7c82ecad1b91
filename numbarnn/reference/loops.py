"""The loops around a cell's step: over time, over directions, over layers; forward and backward.

Backpropagation through time (Werbos 1990, doi 10.1109/5.58337) is the same walk the other way round: what the
forward loop adds up or passes on, the backward loop sends back along the same paths. The equations of a step
are in cells.py.
"""

from dataclasses import dataclass

import numpy as np

from .shapes import (
    Network,
    Weights,
    parameter_names,
    read_array,
    read_cell_state,
    read_input,
    read_masks,
    read_network,
    read_state,
)


@dataclass(frozen=True)
class Tape:
    """What `backward` needs from `forward`.

    network   the cell and its parameters
    inputs    input of each layer, (T, B, I_k), after dropout
    masks     dropout mask after each layer but the last, (T, B, D*H_l), or None
    steps     steps[layer][direction][t]: a dict with h_before (B, H), the state before step t, and saved,
              what the cell's forward step saved
    """

    network: Network
    inputs: list
    masks: list
    steps: list


@dataclass(frozen=True)
class Result:
    """Outputs of `forward`, float64.

    y        (T, B, D*H_last)
    hy, cy   final states, a list with one (D, B, H_l) per layer; cy is None unless the cell is the LSTM
    tape     for `backward`
    """

    y: np.ndarray
    hy: list
    cy: list | None
    tape: Tape


@dataclass(frozen=True)
class Gradients:
    """Derivatives of the loss, float64.

    dx         (T, B, I)
    dhx, dcx   of the initial states, a list with one (D, B, H_l) per layer; dcx is None unless the cell is
               the LSTM
    params     a dict with the names and shapes of the parameters
    """

    dx: np.ndarray
    dhx: list
    dcx: list | None
    params: dict


def forward(cell, x, parameters, h0=None, c0=None, *, masks=None):
    """Run a stack of recurrent layers over a sequence.

    cell         "lstm", "gru", "rnn_tanh" or "rnn_relu"
    x            (T, B, I)
    parameters   dict of arrays by PyTorch's names, weight_ih_l0 and so on (suffix _reverse for the reverse
                 direction); they say how many layers and directions there are, the size of each layer, and
                 whether there is a bias
    h0, c0       initial states: None (zeros), a list with one (D, B, H_l) per layer, or one (L*D, B, H)
                 array if all layers have the same H; c0 for the LSTM only
    masks        dropout: None, or a list of L-1 arrays (T, B, D*H_l), already scaled by 1/(1-p), multiplied
                 into the output of layer l on its way to layer l+1 (never into x, y or the states)

    Any float dtype is taken, and all work is in float64, or in longdouble where all arrays are longdouble.
    The reverse direction walks from t = T-1 to 0; y[t] holds the forward direction's h[t], then the reverse
    direction's, on the last axis; a final state is the state after the last step walked, which for the
    reverse direction is t = 0.
    """
    network = read_network(cell, parameters)
    x = read_input(x, network)
    T, B, _ = x.shape
    h0 = read_state("h0", h0, network, B)
    c0 = read_cell_state("c0", c0, network, B)
    masks = read_masks(masks, network, T, B)

    inputs, steps, hy, cy = [], [], [], []
    for layer, directions in enumerate(network.weights):
        inputs.append(x)
        runs = [
            _direction_forward(
                network.cell, weights, x, h0[layer][direction], c0[layer][direction], _times(T, direction)
            )
            for direction, weights in enumerate(directions)
        ]
        ys, h_last, c_last, saved = zip(*runs, strict=True)
        y = np.concatenate(ys, axis=2)
        steps.append(saved)
        hy.append(np.stack(h_last))
        cy.append(np.stack(c_last) if network.cell.has_c else None)
        if layer < network.num_layers - 1:
            x = y if masks[layer] is None else y * masks[layer]
    return Result(y, hy, cy if network.cell.has_c else None, Tape(network, inputs, masks, steps))


def backward(result, dy=None, dhy=None, dcy=None):
    """Gradients of a loss from its derivatives with respect to y, hy and cy of `forward`.

    dy         (T, B, D*H_last), or None for zeros
    dhy, dcy   in either form of h0 and c0, or None for zeros

    The result is left unchanged and can be used again.
    """
    tape = result.tape
    network = tape.network
    T, B, _ = result.y.shape
    dy = np.zeros_like(result.y) if dy is None else read_array("dy", dy, result.y.shape)
    dhy = read_state("dhy", dhy, network, B)
    dcy = read_cell_state("dcy", dcy, network, B)

    dhx, dcx, params = [], [], {}
    for layer in reversed(range(network.num_layers)):
        x = tape.inputs[layer]
        if layer < network.num_layers - 1 and tape.masks[layer] is not None:
            dy = dy * tape.masks[layer]
        dx, dh_first, dc_first = np.zeros_like(x), [], []
        # y is [forward, reverse] on its last axis, and so is dy
        for direction, dy_part in enumerate(np.split(dy, network.num_directions, axis=2)):
            dx_part, dh, dc, dweights = _direction_backward(
                network.cell,
                network.weights[layer][direction],
                x,
                tape.steps[layer][direction],
                dy_part,
                dhy[layer][direction],
                dcy[layer][direction],
                _times(T, direction),
            )
            dx += dx_part  # both directions read the same x
            dh_first.append(dh)
            dc_first.append(dc)
            names = parameter_names(layer, direction, network.bias)
            values = [dweights.W, dweights.R, dweights.b_w, dweights.b_r]
            params.update(zip(names, values, strict=False))  # without bias: two names
        dhx.insert(0, np.stack(dh_first))
        dcx.insert(0, np.stack(dc_first) if network.cell.has_c else None)
        dy = dx  # the layer's input is the output of the layer below
    return Gradients(dx, dhx, dcx if network.cell.has_c else None, params)


def _times(T, direction):
    """Steps in the order in which a direction walks them."""
    return range(T) if direction == 0 else range(T)[::-1]


def _direction_forward(cell, weights, x, h, c, times):
    """One layer in one direction.

    Reads x (T, B, I_k) and h, c (B, H) of the initial state. Returns y (T, B, H), h and c of the final
    state, and the steps for the tape.
    """
    T, B, _ = x.shape
    y = np.empty((T, B, h.shape[1]), x.dtype)
    steps = [None] * T
    for t in times:
        ax = x[t] @ weights.W.T + weights.b_w
        ah = h @ weights.R.T + weights.b_r
        h_before = h
        h, c, saved = cell.forward(ax, ah, h, c)
        y[t] = h
        steps[t] = {"h_before": h_before, "saved": saved}
    return y, h, c, steps


def _direction_backward(cell, weights, x, steps, dy, dh, dc, times):
    """Backward of `_direction_forward`: the same steps, last first.

    Reads dy (T, B, H) and dh, dc (B, H) of the final state. Returns dx (T, B, I_k), dh and dc of the
    initial state, and the gradients of the weights, added up over the steps.
    """
    dx = np.empty_like(x)
    dW, dR = np.zeros_like(weights.W), np.zeros_like(weights.R)
    db_w, db_r = np.zeros_like(weights.b_w), np.zeros_like(weights.b_r)
    for t in reversed(times):
        dh = dh + dy[t]  # h is the output of this step as well as the state of the next
        dax, dah, dh_prev, dc = cell.backward(dh, dc, steps[t]["saved"])
        # ax = W x + b_w
        dx[t] = dax @ weights.W
        dW += dax.T @ x[t]
        db_w += dax.sum(axis=0)
        # ah = R h + b_r
        dh = dh_prev + dah @ weights.R
        dR += dah.T @ steps[t]["h_before"]
        db_r += dah.sum(axis=0)
    return dx, dh, dc, Weights(dW, dR, db_w, db_r)
