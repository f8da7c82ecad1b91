"""LSTM, GRU, RNN: parameters, shapes, buffers, and the tape of saved activations."""

from numbarnn.layers.gradcheck import GradientCheck, gradcheck
from numbarnn.layers.models import GRU, LSTM, RNN
from numbarnn.layers.parameters import Gradients
from numbarnn.layers.planned import Tape
from numbarnn.layers.recurrent import Recurrent
from numbarnn.layers.sequences import PackedSequence, pack_padded_sequence, pad_packed_sequence
from numbarnn.layers.stack import Stack
from numbarnn.layers.stepper import Stepper

__all__ = [
    "GRU", "LSTM", "RNN", "GradientCheck", "Gradients", "PackedSequence", "Recurrent", "Stack", "Stepper", "Tape",
    "gradcheck", "pack_padded_sequence", "pad_packed_sequence",
]  # fmt: skip
