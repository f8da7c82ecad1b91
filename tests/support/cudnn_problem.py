"""The weight space and the cases of cuDNN's options."""

from cases import Case
from numbarnn.weights import WeightSpace


def weight_space(o):
    """The `WeightSpace` of `cudnn.Options`."""
    return WeightSpace(
        o.gates, o.input_size, (o.hidden_size,) * o.num_layers, o.directions, o.bias_mode, o.proj_size, o.input_mode
    )


def case_of(o, T, B, **options):
    """The `Case` of `cudnn.Options`, and of what these do not say."""
    return Case(
        o.cell, T, B, o.input_size, (o.hidden_size,) * o.num_layers, o.directions, o.bias_mode, o.input_mode,
        o.proj_size, o.clip_bounds, o.clip_propagate_nan, **options,
    )  # fmt: skip
