"""Cells from the literature, each a few lines of equations; for `RNN(cell, ...)` as a cell of one's own.

    standard      lstm, gru, gru_reset_before, rnn_tanh, rnn_relu: the built-in ones, derived
    lstms         peephole_lstm, lstm_with(...), coupled_lstm, multiplicative_lstm, janet, slstm
    gated         li_gru, minimal_gated_unit, ugrnn, fast_grnn, additive_network
    light         ind_rnn, sru, qrnn, min_gru, min_lstm
    deep          recurrent_highway(depth)
    oscillators   cornn, lem

In all of them W multiplies the input, R a state or what is made of it, and b is a bias.
"""

from numbarnn.cells.library.deep import recurrent_highway
from numbarnn.cells.library.gated import additive_network, fast_grnn, li_gru, minimal_gated_unit, ugrnn
from numbarnn.cells.library.light import ind_rnn, min_gru, min_lstm, qrnn, sru
from numbarnn.cells.library.lstms import coupled_lstm, janet, lstm_with, multiplicative_lstm, peephole_lstm, slstm
from numbarnn.cells.library.oscillators import cornn, lem
from numbarnn.cells.library.standard import gru, gru_reset_before, lstm, rnn_relu, rnn_tanh

__all__ = [
    "additive_network",
    "cornn",
    "coupled_lstm",
    "fast_grnn",
    "gru",
    "gru_reset_before",
    "ind_rnn",
    "janet",
    "lem",
    "li_gru",
    "lstm",
    "lstm_with",
    "min_gru",
    "min_lstm",
    "minimal_gated_unit",
    "multiplicative_lstm",
    "peephole_lstm",
    "qrnn",
    "recurrent_highway",
    "rnn_relu",
    "rnn_tanh",
    "slstm",
    "sru",
    "ugrnn",
]
