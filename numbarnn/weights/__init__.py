"""Layouts of parameters: one flat buffer in cuDNN's order, and PyTorch's names for its parts."""

from numbarnn.weights.space import Parameter, WeightSpace

__all__ = ["Parameter", "WeightSpace"]
