"""LSTM, GRU, RNN: parameters, shapes, buffers, and the tape of saved activations."""

from numbarnn.layers.models import GRU, LSTM, RNN
from numbarnn.layers.recurrent import Gradients, Recurrent
from numbarnn.layers.stack import Stack, Tape

__all__ = ["GRU", "LSTM", "RNN", "Gradients", "Recurrent", "Stack", "Tape"]
