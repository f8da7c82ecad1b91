"""The loops over time, directions and layers around a cell's step (`cells.py`), forward and backward.

Backward is backpropagation through time (Werbos 1990, doi 10.1109/5.58337).
"""

from dataclasses import dataclass

import numpy as np

from .cells import Cell
from .sequences import cut, read_lengths, read_resets
from .shapes import (
    Network,
    Options,
    Weights,
    read_array,
    read_cell_state,
    read_hidden_state,
    read_input,
    read_masks,
    read_network,
)


@dataclass(frozen=True)
class Tape:
    """The data of `forward` that `backward` needs.

    Attributes:
        network: the cell and its parameters. inputs: each layer's input, (T, B, I_k), after dropout.
        masks: dropout mask after each layer but the last, (T, B, D*H_l), or None.
        pieces: pieces[direction] is a list of `Piece`s.
        walks: walks[layer][direction][piece][t] is a dict of step t of the piece: h_before, the state before the step,
            saved, the values saved by the cell, and the vectors v and m.
    """

    network: Network
    inputs: list
    masks: list
    pieces: list
    walks: list


@dataclass(frozen=True)
class Result:
    """Outputs of `forward`, float64. With a projection, P stands for H in y and hy (not in cy).

    Attributes:
        y: (T, B, D*H_last)
        hy, cy: final states, a list with one (D, B, H_l) per layer; cy is None unless the cell is the LSTM.
        tape: the `Tape` for `backward`.
    """

    y: np.ndarray
    hy: list
    cy: list | None
    tape: Tape


@dataclass(frozen=True)
class Gradients:
    """Derivatives of the loss, float64.

    Attributes:
        dx: (T, B, I)
        dhx, dcx: of the initial states, with the shapes of hy and cy; dcx is None unless the cell is the LSTM.
        params: a dict with the names and shapes of the parameters.
    """

    dx: np.ndarray
    dhx: list
    dcx: list | None
    params: dict


def forward(cell, x, parameters, h0=None, c0=None, **options):
    """Run a stack of recurrent layers over a sequence.

    Args:
        cell: "lstm", "gru", "gru_reset_before", "rnn_tanh" or "rnn_relu".
        x: (T, B, I)
        parameters: dict of arrays by PyTorch's names, such as weight_ih_l0_reverse, which determine the number and
            sizes of layers and directions. A missing bias_ih or bias_hh is zero. Without weight_ih_l0 the input is skip
            input: every gate of layer 0 gets x itself, with I = H. With weight_hr (P, H) an LSTM's h is projected:
            h = W_hr (o * tanh(c)), of size P.
        h0, c0: initial states: None (zeros), a list with one (D, B, H_l) per layer, or one (L*D, B, H) array if all
            layers have the same H; c0 only for the LSTM. With a projection h0 has P in place of H.
        options: masks, lengths, resets, padding_value, cell_clip, clip_propagate_nan: see `Options`.

    Work is done in float64, or in longdouble if all arrays are longdouble. On its last axis, y[t] has the forward
    direction's h[t], then the reverse direction's. The reverse direction ends at t = 0 with its final state.
    """
    options = Options(**options)
    network = read_network(cell, parameters, options)
    x = read_input(x, network)
    T, B, _ = x.shape
    h0 = read_hidden_state("h0", h0, network, B)
    c0 = read_cell_state("c0", c0, network, B)
    masks = read_masks(options.masks, network, T, B)
    lengths, resets = read_lengths(options.lengths, T, B), read_resets(options.resets, T, B)
    pieces = [cut(T, B, lengths, resets, direction) for direction in range(network.num_directions)]

    inputs, walks, hy, cy = [], [], [], []
    for layer in range(network.num_layers):
        inputs.append(x)
        runs = [
            _direction_forward(lane, x, h0[layer][d], c0[layer][d], options.padding_value)
            for d, lane in enumerate(_lanes(network, layer, pieces))
        ]
        ys, h_last, c_last, saved = zip(*runs, strict=True)
        y = np.concatenate(ys, axis=2)
        walks.append(saved)
        hy.append(np.stack(h_last))
        cy.append(np.stack(c_last))
        if layer < network.num_layers - 1:
            x = y if masks[layer] is None else y * masks[layer]
    return Result(y, hy, cy if network.cell.has_c else None, Tape(network, inputs, masks, pieces, walks))


def backward(result, dy=None, dhy=None, dcy=None):
    """Return the `Gradients` of a loss from its derivatives with respect to y, hy and cy of `forward`.

    Args:
        dy: (T, B, D*H_last), or None for zeros; not read in padding.
        dhy, dcy: in either form of h0 and c0, or None for zeros.
    """
    tape = result.tape
    network = tape.network
    _, B, _ = result.y.shape
    dy = np.zeros_like(result.y) if dy is None else read_array("dy", dy, result.y.shape)
    dhy = read_hidden_state("dhy", dhy, network, B)
    dcy = read_cell_state("dcy", dcy, network, B)

    dhx, dcx, params = [], [], {}
    for layer in reversed(range(network.num_layers)):
        x = tape.inputs[layer]
        if layer < network.num_layers - 1 and tape.masks[layer] is not None:
            dy = dy * tape.masks[layer]
        dx, dh_first, dc_first = np.zeros_like(x), [], []
        dys = np.split(dy, network.num_directions, axis=2)  # [forward, reverse]
        for d, lane in enumerate(_lanes(network, layer, tape.pieces)):
            walks = tape.walks[layer][d]
            dx_part, dh, dc, dweights = _direction_backward(lane, x, walks, dys[d], dhy[layer][d], dcy[layer][d])
            dx += dx_part  # both directions read the same x
            dh_first.append(dh)
            dc_first.append(dc)
            params.update({name: dweights.by_kind()[kind] for kind, name in network.names[layer][d].items()})
        dhx.insert(0, np.stack(dh_first))
        dcx.insert(0, np.stack(dc_first))
        dy = dx  # the layer's input is the output of the layer below
    return Gradients(dx, dhx, dcx if network.cell.has_c else None, params)


# ------------------------------------------------------------------------------ one layer in one direction: all pieces
@dataclass(frozen=True)
class Lane:
    """One layer in one direction (0 forward, 1 reverse): cell, weights, and pieces of the batch."""

    cell: Cell
    weights: Weights
    pieces: list
    direction: int

    def times(self, T):
        """Return the T steps in the direction's order."""
        return range(T) if self.direction == 0 else range(T)[::-1]


def _lanes(network, layer, pieces):
    return [Lane(network.cell, weights, pieces[d], d) for d, weights in enumerate(network.weights[layer])]


def _direction_forward(lane, x, h0, c0, padding_value):
    """Run one layer in one direction on x (T, B, I_k), h0 (B, H or P), c0 (B, H).

    Return y (T, B, H or P), the final h and c, and the tape's walks, one per piece.
    """
    T, B, _ = x.shape
    y = np.full((T, B, h0.shape[1]), padding_value, x.dtype)
    hy, cy, walks = np.full(h0.shape, np.nan, x.dtype), np.full(c0.shape, np.nan, x.dtype), []
    for piece in lane.pieces:
        times, rows = piece.times, piece.rows
        h, c = (h0[rows], c0[rows]) if piece.initial else (np.zeros_like(h0[rows]), np.zeros_like(c0[rows]))
        y[times, rows], h, c, walk = _walk_forward(lane, x[times, rows], h, c)
        walks.append(walk)
        if piece.final:
            hy[rows], cy[rows] = h, c
    return y, hy, cy, walks


def _direction_backward(lane, x, walks, dy, dhy, dcy):
    """Backward of `_direction_forward` for dy (T, B, H or P), dhy (B, H or P), dcy (B, H).

    Return dx (T, B, I_k), zero in padding, dh and dc of the initial state, and the gradients of the weights.
    """
    zeros = [None if array is None else np.zeros_like(array) for array in lane.weights.by_kind().values()]
    dx, dweights = np.zeros_like(x), Weights(*zeros)
    dhx, dcx = np.zeros(dhy.shape, x.dtype), np.zeros(dcy.shape, x.dtype)
    for piece, walk in zip(lane.pieces, walks, strict=True):
        times, rows = piece.times, piece.rows
        dh, dc = (dhy[rows], dcy[rows]) if piece.final else (np.zeros_like(dhy[rows]), np.zeros_like(dcy[rows]))
        dx[times, rows], dh, dc = _walk_backward(lane, dweights, x[times, rows], walk, dy[times, rows], dh, dc)
        if piece.initial:
            dhx[rows], dcx[rows] = dh, dc
    return dx, dhx, dcx, dweights


# ------------------------------------------------------------------------------------- one piece: its steps, one by one
def _walk_forward(lane, x, h, c):
    """Run the steps of one piece on x (T, B, I_k), h (B, H or P), c (B, H), where T may be 0.

    Return y (T, B, H or P), the last h and c, and the tape's steps.
    """
    (T, B, _), cell, weights = x.shape, lane.cell, lane.weights
    y, steps = np.empty((T, B, h.shape[1]), x.dtype), [None] * T
    for t in lane.times(T):
        ax = _input_product(weights, x[t]) + weights.b_w
        ah, v = _state_product(cell, weights, ax, h)
        h_before = h
        m, c, saved = cell.forward(ax, ah, h, c)
        h = m if weights.W_hr is None else m @ weights.W_hr.T
        y[t] = h
        steps[t] = {"h_before": h_before, "v": v, "m": m, "saved": saved}
    return y, h, c, steps


def _walk_backward(lane, dweights, x, steps, dy, dh, dc):
    """Backward of `_walk_forward` for dy (T, B, H or P), and dh (B, H or P), dc (B, H) of the last state.

    Add to the arrays of dweights; return dx (T, B, I_k), and dh and dc of the first state.
    """
    dx, cell, weights = np.empty_like(x), lane.cell, lane.weights
    for t in reversed(lane.times(len(x))):
        dh = dh + dy[t]  # h is the output of this step as well as the state of the next
        dm = dh
        if weights.W_hr is not None:  # h = W_hr m
            dm = dh @ weights.W_hr
            dweights.W_hr[...] += dh.T @ steps[t]["m"]
        dax, dah, dh_prev, dc = cell.backward(dm, dc, steps[t]["saved"])
        dax, dah, dh_through_ah = _state_product_backward(cell, weights, dweights, steps[t], dax, dah)
        dh = dh_prev + dh_through_ah
        dx[t] = _input_product_backward(weights, dweights, x[t], dax)
        dweights.b_w[...] += dax.sum(axis=0)  # ax = W x + b_w
        dweights.b_r[...] += dah.sum(axis=0)  # ah = R h + b_r
    return dx, dh, dc


def _input_product(weights, x):
    """Return W x (B, G*H), or for skip input x (B, H) repeated for each gate."""
    if weights.W is None:
        return np.tile(x, (1, len(weights.b_w) // x.shape[1]))
    return x @ weights.W.T


def _input_product_backward(weights, dweights, x, dax):
    """Return dx (B, I_k) for dax (B, G*H); add to dweights.W."""
    if weights.W is None:
        return dax.reshape(len(x), -1, x.shape[1]).sum(axis=1)
    dweights.W[...] += dax.T @ x
    return dax @ weights.W


def _state_product(cell, weights, ax, h):
    """Return ah = R h + b_r (B, G*H), and v, which the last gate's rows of R multiply (h for cells without `Reset`)."""
    ah = h @ weights.R.T + weights.b_r
    if cell.reset is None:
        return ah, h
    H, v = h.shape[1], cell.reset.forward(ax, ah, h)
    return np.concatenate([ah[:, :-H], v @ weights.R[-H:].T + weights.b_r[-H:]], axis=1), v


def _state_product_backward(cell, weights, dweights, step, dax, dah):
    """Return the complete dax and dah, and the gradient of h through ah; add to dweights.R."""
    h = step["h_before"]
    if cell.reset is None:
        dweights.R[...] += dah.T @ h
        return dax, dah, dah @ weights.R
    H, v = h.shape[1], step["v"]
    dv = dah[:, -H:] @ weights.R[-H:]
    da_r, dh = cell.reset.backward(dv, step["saved"])
    dax, dah = (np.concatenate([da_r, da[:, H:]], axis=1) for da in (dax, dah))
    dweights.R[-H:] += dah[:, -H:].T @ v
    dweights.R[:-H] += dah[:, :-H].T @ h
    return dax, dah, dh + dah[:, :-H] @ weights.R[:-H]
