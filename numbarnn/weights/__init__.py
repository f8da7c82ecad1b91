"""Layouts of parameters: one flat buffer in cuDNN's order, and PyTorch's names for its parts."""

from numbarnn.weights.space import BIAS_MODES, INPUT_MODES, WITHOUT_W, Parameter, WeightSpace, parameter_name

__all__ = ["BIAS_MODES", "INPUT_MODES", "WITHOUT_W", "Parameter", "WeightSpace", "parameter_name"]
