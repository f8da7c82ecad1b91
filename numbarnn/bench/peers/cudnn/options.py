"""cuDNN's options by name, and the numbers of its enums (cudnn_adv.h, cudnn_graph.h)."""

from dataclasses import dataclass

from numbarnn.common.precision import compute_dtype, is_half

CELLS = {"rnn_relu": 0, "rnn_tanh": 1, "lstm": 2, "gru": 3}  # cudnnRNNMode_t
GATES = {"rnn_relu": 1, "rnn_tanh": 1, "lstm": 4, "gru": 3}
BIAS_MODES = {"none": 0, "input": 1, "double": 2, "recurrent": 3}  # cudnnRNNBiasMode_t
INPUT_MODES = {"linear": 0, "skip": 1}  # cudnnRNNInputMode_t
ALGORITHMS = {"standard": 0, "persist_static": 1, "persist_dynamic": 2, "persist_static_small_h": 3}  # cudnnRNNAlgo_t
DTYPES = {"float32": 0, "float64": 1, "float16": 2, "bfloat16": 9}  # cudnnDataType_t
MATH_TYPES = {"default": 0, "tensor_op": 1, "tensor_op_allow_conversion": 2, "fma": 3}  # cudnnMathType_t
LAYOUTS = {"seq_major_unpacked": 0, "seq_major_packed": 1, "batch_major_unpacked": 2}  # cudnnRNNDataLayout_t
INFERENCE, TRAINING = 0, 1  # cudnnForwardMode_t
WGRAD_ADD = 0  # cudnnWgradMode_t
CLIP_NONE, CLIP_MINMAX = 0, 1  # cudnnRNNClipMode_t
NOT_PROPAGATE_NAN, PROPAGATE_NAN = 0, 1  # cudnnNanPropagation_t
PADDED_IO_DISABLED, PADDED_IO_ENABLED = 0, 1  # auxFlags


@dataclass(frozen=True)
class Options:
    """What one `Rnn` computes, and how. What cuDNN refuses by itself is left to it, to say it in its own words.

    Attributes:
        bias: True or "double", False or "none", "input" (only b_w), "recurrent" (only b_r).
        input_mode: "linear", or "skip": layer 0 has no W.
        cell_clip: None, (lclip, rclip), or a number c for (-c, c).
        clip_propagate_nan: whether a NaN stays one when c is clipped.
        dropout: the probability that an element between two layers is dropped, in training.
        seed: of cuDNN's own generator; its masks are not numbarnn's.
        math_type: a name of MATH_TYPES; None for "tensor_op" in halves, else "fma", which keeps TF32 away.
    """

    cell: str
    input_size: int
    hidden_size: int
    num_layers: int = 1
    bidirectional: bool = False
    bias: bool | str = True
    input_mode: str = "linear"
    proj_size: int = 0
    cell_clip: tuple | float | None = None
    clip_propagate_nan: bool = True
    dropout: float = 0.0
    seed: int = 0
    dtype: str = "float32"
    algorithm: str = "standard"
    math_type: str | None = None
    layout: str = "seq_major_unpacked"

    def __post_init__(self):
        for name in ("input_size", "hidden_size", "num_layers", "proj_size"):
            if isinstance(getattr(self, name), bool) or not isinstance(getattr(self, name), int):
                raise TypeError(f"{name} must be an int, got {getattr(self, name)!r}: cuDNN has one for all layers")
        for name, value, names in (
            ("cell", self.cell, CELLS),
            ("bias", self.bias_mode, BIAS_MODES),
            ("input_mode", self.input_mode, INPUT_MODES),
            ("dtype", self.dtype, DTYPES),
            ("algorithm", self.algorithm, ALGORITHMS),
            ("math_type", self.math, MATH_TYPES),
            ("layout", self.layout, LAYOUTS),
        ):
            if value not in names:
                raise ValueError(f"{name} must be one of {', '.join(names)}; got {value!r}")
        if self.input_mode == "skip" and self.input_size != self.hidden_size:
            raise ValueError(
                f"input_mode='skip' needs input_size == hidden_size, got {self.input_size} and {self.hidden_size}"
            )
        if self.proj_size < 0 or self.proj_size == self.hidden_size:
            raise ValueError(f"proj_size must be 0 (none) or less than hidden_size, got {self.proj_size}")
        if self.cell_clip is not None and self.cell != "lstm":
            raise ValueError(f"cell_clip is the LSTM's; got it for {self.cell}, where cuDNN would ignore it")

    @property
    def bias_mode(self):
        return {True: "double", False: "none"}.get(self.bias, self.bias)

    @property
    def math(self):
        return self.math_type or ("tensor_op" if is_half(self.dtype) else "fma")

    @property
    def precision(self):
        """The dtype in which cuDNN computes."""
        return compute_dtype(self.dtype)

    @property
    def clip_bounds(self):
        if self.cell_clip is None:
            return None
        bounds = self.cell_clip if isinstance(self.cell_clip, tuple | list) else (-self.cell_clip, self.cell_clip)
        lclip, rclip = map(float, bounds)
        return lclip, rclip

    @property
    def flags(self):
        return PADDED_IO_DISABLED if self.layout == "seq_major_packed" else PADDED_IO_ENABLED

    @property
    def gates(self):
        return GATES[self.cell]

    @property
    def directions(self):
        return 2 if self.bidirectional else 1

    @property
    def state_size(self):
        """Size of h: P where there is a projection, else H."""
        return self.proj_size or self.hidden_size

    @property
    def output_size(self):
        return self.directions * self.state_size

    @property
    def has_c(self):
        """Whether there is a cell state."""
        return self.cell == "lstm"
