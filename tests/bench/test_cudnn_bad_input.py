"""What cuDNN's binding refuses, and what it says: options, arrays, calls out of order."""

import numpy as np
import pytest

from cudnn_problem import Problem
from numbarnn.bench.peers import cudnn

BAD_OPTIONS = {
    "cell": (dict(cell="peephole"), "cell must be one of rnn_relu, .*; got 'peephole'"),
    "bias": (dict(bias="both"), "bias must be one of none, input, .*; got 'both'"),
    "math_type": (dict(math_type="tf32"), "math_type must be one of default, .*; got 'tf32'"),
    "dtype": (dict(dtype="float8"), "dtype must be one of float32"),
    "layout": (dict(layout="packed"), "layout must be one of seq_major_unpacked"),
    "hidden_size": (dict(hidden_size=(5, 5)), "hidden_size must be an int, got .*: cuDNN has one for all layers"),
    "skip": (dict(input_mode="skip"), "input_mode='skip' needs input_size == hidden_size, got 3 and 5"),
    "projection of all": (dict(proj_size=5), "proj_size must be 0 .* less than hidden_size, got 5"),
    "clip": (dict(cell="gru", cell_clip=1.0), "cell_clip is the LSTM's; got it for gru"),
}


@pytest.mark.parametrize("wrong, message", BAD_OPTIONS.values(), ids=BAD_OPTIONS)
def test_bad_options(session, wrong, message):
    chosen = {"cell": "lstm", "input_size": 3, "hidden_size": 5} | wrong
    with pytest.raises((ValueError, TypeError), match=message):
        cudnn.Rnn(**chosen, session=session)


def test_bad_arguments_of_forward(session):
    problem = Problem("gru", 3, 5)
    rnn, x, parameters = problem.rnn(session), problem.x, problem.parameters
    without = {name: value for name, value in parameters.items() if name != "bias_hh_l0"}
    for error, message, arguments in (
        (TypeError, "weights are missing", (x,)),
        (TypeError, "x must be float32, .*got float64", (x.astype(float), None, None, parameters)),
        (ValueError, "x must have 3 axes", (x[0], None, None, parameters)),
        (ValueError, r"x must have shape \(4, 3, 3\), got \(4, 3, 2\)", (x[:, :, :2], None, None, parameters)),
        (ValueError, r"hx must have shape \(1, 3, 5\)", (x, problem.h[:, :2], None, parameters)),
        (ValueError, "cx must be None: gru has no cell state", (x, None, problem.h, parameters)),
        (ValueError, "lengths must be 3 ints, .*got 2", (x, None, None, parameters, (1, 2))),
        (TypeError, "'float' object cannot be interpreted", (x, None, None, parameters, (1, 2.5, 3))),
        (ValueError, "missing bias_hh_l0; unexpected none", (x, None, None, without)),
        (ValueError, r"bias_hh_l0 \(3,\), expected \(15,\)", (x, None, None, without | {"bias_hh_l0": np.zeros(3)})),
        (TypeError, "must be float32, got bias_hh_l0 float64", (x, None, None, without | {"bias_hh_l0": np.zeros(15)})),
        (ValueError, r"weights must have shape", (x, None, None, np.zeros(3, np.float32))),
    ):
        with pytest.raises(error, match=message):
            rnn.forward(*arguments)
    with pytest.raises(cudnn.CudnnError, match="cudnnSetRNNDataDescriptor: CUDNN_STATUS_BAD_PARAM"):
        rnn.forward(x, None, None, parameters, (5, 1, 1))


def test_a_reserve_is_used_in_order(session):
    problem = Problem("gru", 3, 5)
    rnn = problem.rnn(session)
    reserve = rnn.forward(problem.x, weights=problem.parameters)[3]
    with pytest.raises(ValueError, match="call backward_data before backward_weights"):
        rnn.backward_weights(reserve)
    with pytest.raises(ValueError, match="made by another Rnn"):
        problem.rnn(session).backward_data(reserve)
    with pytest.raises(TypeError, match="reserve must be what forward returned in training, got a NoneType"):
        rnn.backward_data(None)
    rnn.backward_data(reserve)
    with pytest.raises(ValueError, match="already used by backward_data"):
        rnn.backward_data(reserve)


def test_packed_sequences_need_lengths(session):
    problem = Problem("gru", 3, 5, layout="seq_major_packed", lengths=(4, 2, 2))
    with pytest.raises(ValueError, match="lengths are missing: packed sequences need them"):
        problem.rnn(session).forward(problem.laid_out(problem.x), weights=problem.parameters)
    with pytest.raises(ValueError, match=r"x must have 2 axes with layout='seq_major_packed', got shape \(4, 3, 3\)"):
        problem.rnn(session).forward(problem.x, weights=problem.parameters, lengths=problem.lengths)
