"""Cells from the literature, each a few lines of equations; for `RNN(cell, ...)` as a cell of one's own.

    standard      lstm, gru, gru_reset_before, rnn_tanh, rnn_relu: the built-in ones, derived
    lstms         peephole_lstm, lstm_with(...), coupled_lstm, projected_lstm, multiplicative_lstm, janet, slstm
    normed        layer_norm_lstm, layer_norm_gru
    gated         li_gru, minimal_gated_unit, ugrnn, fast_grnn, additive_network, highway_lstm, intersection
    light         ind_rnn, sru, qrnn, min_gru, min_lstm
    deep          recurrent_highway(depth)
    oscillators   cornn, lem, liquid_time_constant, lsnn
    memory        delta_rule, lmu
    clocked       phased_lstm
    ordered       on_lstm
    stable        antisymmetric, gated_antisymmetric
    typed         tgru, tlstm
    factored      low_rank_rnn, fast_rnn, low_rank_fast_grnn, structurally_constrained

In all of them W multiplies the input, R a state or what is made of it, and b is a bias. Where one has hyperparameters,
`cell(library.slstm, heads=4)` makes it anew with others.
"""

from numbarnn.cells.library.clocked import phased_lstm
from numbarnn.cells.library.deep import recurrent_highway
from numbarnn.cells.library.factored import fast_rnn, low_rank_fast_grnn, low_rank_rnn, structurally_constrained
from numbarnn.cells.library.gated import (
    additive_network,
    fast_grnn,
    highway_lstm,
    intersection,
    li_gru,
    minimal_gated_unit,
    ugrnn,
)
from numbarnn.cells.library.light import ind_rnn, min_gru, min_lstm, qrnn, sru
from numbarnn.cells.library.lstms import (
    coupled_lstm,
    janet,
    lstm_with,
    multiplicative_lstm,
    peephole_lstm,
    projected_lstm,
    slstm,
)
from numbarnn.cells.library.memory import delta_rule, lmu
from numbarnn.cells.library.normed import layer_norm_gru, layer_norm_lstm
from numbarnn.cells.library.ordered import on_lstm
from numbarnn.cells.library.oscillators import cornn, lem, liquid_time_constant, lsnn
from numbarnn.cells.library.stable import antisymmetric, gated_antisymmetric
from numbarnn.cells.library.standard import gru, gru_reset_before, lstm, rnn_relu, rnn_tanh
from numbarnn.cells.library.typed import tgru, tlstm

__all__ = [
    "additive_network", "antisymmetric", "cornn", "coupled_lstm", "delta_rule", "fast_grnn", "fast_rnn",
    "gated_antisymmetric", "gru", "gru_reset_before", "highway_lstm", "ind_rnn", "intersection", "janet",
    "layer_norm_gru", "layer_norm_lstm", "lem", "li_gru", "liquid_time_constant", "lmu", "low_rank_fast_grnn",
    "low_rank_rnn", "lsnn", "lstm", "lstm_with", "min_gru", "min_lstm", "minimal_gated_unit", "multiplicative_lstm",
    "on_lstm", "peephole_lstm", "phased_lstm", "projected_lstm", "qrnn", "recurrent_highway", "rnn_relu", "rnn_tanh",
    "slstm", "sru", "structurally_constrained", "tgru", "tlstm", "ugrnn",
]  # fmt: skip
