"""What cuDNN does where its documentation is silent or contradicts itself, as this package assumes it.

None of it has been seen yet: cuDNN has been called directly on no GPU. There `tests/bench/test_cudnn_calls.py` asks it,
in an experiment each (`experiments`), which fails where the answer is another one than here, and so does `numbarnn
prove`; then the cell, and what refers to this list, has to change. Where parameters stand in the weight space, and
which options each algorithm refuses, is no assumption: the library tells that without a GPU.
"""

#: What is asked -> the answer that this package is built on.
ASSUMED = {
    "recurrent bias of the GRU": "r * (R h + b)",  # CUDNN_RNN_SINGLE_REC_BIAS: b_n within the reset gate's product
    "input bias of the GRU": "r * (R h) + b",  # CUDNN_RNN_SINGLE_INP_BIAS
    "gradient of the clip": "zero",  # of what a clipped c was computed from (cudnnRNNSetClip)
    "gradient at a bound": "zero",  # where c was the bound before it was clipped
    "NaN, propagated": "NaN",  # when c is clipped
    "NaN, not propagated": "lclip",  # CUDNN_NOT_PROPAGATE_NAN
    "padding of x and dy": "not read",
    "padding of dx": "zero",
    "padding value of y": "filled",
    "sequences of length zero": "the state passes through",
    "unsorted lengths": "right",
    "everything is dropped": "zeros",  # dropout = 1
}
