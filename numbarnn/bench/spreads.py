"""Which cases `numbarnn check` runs: every option, options that meet each other, and a quick subset."""

from dataclasses import replace
from importlib.util import find_spec

from numbarnn.bench.cases import CELLS, DTYPES, Case
from numbarnn.cells import precision

TIMES_AND_BATCHES = ((7, 3), (7, 1), (1, 1), (2, 3), (1, 3), (2, 1))
# Every option at least once: odd and unequal hidden sizes, 1 to 3 layers, and options that meet each other.
OPTION_SETS = (
    {"input_size": 4, "hidden": (33,)},
    {"input_size": 1, "hidden": (1,)},
    {"input_size": 5, "hidden": (33, 33)},
    {"input_size": 5, "hidden": (33, 17, 5), "bidirectional": True},
    {"input_size": 3, "hidden": (5, 5), "bias": False},
    {"input_size": 6, "hidden": (16,), "batch_first": True},
    {"input_size": 4, "hidden": (7, 33), "batch_first": True, "bidirectional": True, "bias": False},
    {"input_size": 5, "hidden": (33,), "state": False},
    {"input_size": 5, "hidden": (9, 9), "state": False, "bidirectional": True, "gradients": "y"},
    {"input_size": 5, "hidden": (8, 33), "gradients": "state"},
    {"input_size": 5, "hidden": (33, 17), "dropout": 0.3},
    {"input_size": 5, "hidden": (11, 11, 11), "dropout": 0.5, "bidirectional": True},
    {"input_size": 5, "hidden": (33,), "accumulate": True},
    {"input_size": 5, "hidden": (6, 13), "accumulate": True, "bidirectional": True},
    {"input_size": 5, "hidden": (33,), "bias": "input"},
    {"input_size": 5, "hidden": (9, 9), "bias": "recurrent", "bidirectional": True},
    {"input_size": 33, "hidden": (33,), "input_mode": "skip"},
    {"input_size": 17, "hidden": (17, 5), "input_mode": "skip", "bidirectional": True, "bias": "recurrent"},
    {"input_size": 4, "hidden": (33,), "lengths": "padded"},
    {"input_size": 5, "hidden": (9, 9), "lengths": "packed", "bidirectional": True},
    {"input_size": 5, "hidden": (8, 11), "lengths": "padded", "padding_value": -1.5, "bidirectional": True,
     "batch_first": True},
    {"input_size": 5, "hidden": (13, 6), "lengths": "padded", "dropout": 0.3, "accumulate": True, "state": False},
    {"input_size": 5, "hidden": (7, 7), "lengths": "packed", "dropout": 0.5, "bias": "input"},
    {"input_size": 4, "hidden": (33,), "resets": True},
    {"input_size": 5, "hidden": (7, 9), "resets": True, "bidirectional": True, "batch_first": True, "bias": False},
    {"input_size": 6, "hidden": (6, 6), "resets": True, "lengths": "padded", "padding_value": 2.0,
     "bidirectional": True, "input_mode": "skip", "bias": "input"},
    {"input_size": 5, "hidden": (6, 5), "resets": True, "lengths": "packed", "dropout": 0.3, "accumulate": True},
)  # fmt: skip
# Options that only the LSTM has.
LSTM_OPTION_SETS = (
    {"input_size": 4, "hidden": (33,), "proj_size": 5},
    {"input_size": 5, "hidden": (9, 9), "proj_size": 4, "bidirectional": True, "bias": "recurrent"},
    {"input_size": 5, "hidden": (9, 9, 9), "proj_size": 7, "dropout": 0.3, "lengths": "padded", "batch_first": True},
    {"input_size": 8, "hidden": (8, 8), "proj_size": 3, "input_mode": "skip", "resets": True, "bidirectional": True,
     "bias": "input", "accumulate": True},
    {"input_size": 5, "hidden": (33,), "cell_clip": (-0.3, 0.25)},
    {"input_size": 5, "hidden": (9, 17), "cell_clip": (-0.25, 0.5), "bidirectional": True, "resets": True},
    {"input_size": 9, "hidden": (9, 9), "cell_clip": (-0.5, 0.25), "proj_size": 4, "input_mode": "skip",
     "lengths": "packed", "bidirectional": True, "bias": False},
    {"input_size": 5, "hidden": (9, 5), "cell_clip": (-0.5, 0.25), "lengths": "padded", "dropout": 0.3,
     "bias": "recurrent", "clip_propagate_nan": False},
    {"input_size": 5, "hidden": (9, 9), "cell_clip": (-0.5, 0.25), "clip_propagate_nan": False, "nan_state": True},
    {"input_size": 5, "hidden": (9,), "cell_clip": (-0.5, 0.25), "nan_state": True},
)  # fmt: skip
# A few sets that together still use every option; the largest layers stand where T is small in every cell.
QUICK_OPTION_SETS = (
    {"input_size": 4, "hidden": (7, 13), "batch_first": True, "bidirectional": True, "bias": False, "resets": True},
    {"input_size": 9, "hidden": (9,), "state": False, "input_mode": "skip", "bias": "input", "lengths": "padded",
     "padding_value": -1.5},
    {"input_size": 5, "hidden": (33, 17, 5), "bidirectional": True},
    {"input_size": 5, "hidden": (13, 17), "dropout": 0.3, "bias": "recurrent", "lengths": "packed"},
    {"input_size": 5, "hidden": (6, 6), "accumulate": True, "bidirectional": True, "lengths": "padded"},
)  # fmt: skip
QUICK_LSTM_OPTION_SETS = (
    {"input_size": 5, "hidden": (9, 9), "proj_size": 4, "bidirectional": True, "lengths": "padded"},
    {"input_size": 5, "hidden": (7,), "cell_clip": (-0.5, 0.25), "lengths": "padded"},
    {"input_size": 5, "hidden": (5,), "cell_clip": (-0.5, 0.25), "clip_propagate_nan": False, "nan_state": True},
)
LONGER = (
    {"T": 25, "B": 16, "input_size": 64, "hidden": (128,)},
    {"T": 100, "B": 1, "input_size": 32, "hidden": (96,)},
    {"T": 30, "B": 5, "input_size": 32, "hidden": (64, 48), "bidirectional": True},
    {"T": 25, "B": 16, "input_size": 64, "hidden": (64,), "lengths": "padded", "resets": True},
)
WHERE_T_MATTERS = ("dropout", "lengths", "resets", "cell_clip")  # a quick case with one of them has at least two steps


def option_sets(cell, size="full"):
    """The options of the cases for one cell."""
    common, own = (OPTION_SETS, LSTM_OPTION_SETS) if size == "full" else (QUICK_OPTION_SETS, QUICK_LSTM_OPTION_SETS)
    return common + own if cell == "lstm" else common


def spread(cell, size="full"):
    """The cases for one cell.

    full    every option set with every (T, B) and dtype, and some longer problems
    quick   a few option sets that together use every option, (T, B) and dtype taking turns
    """
    if size == "full":
        cases = [
            Case(cell=cell, T=T, B=B, dtype=dtype, **options)
            for options in option_sets(cell)
            for T, B in TIMES_AND_BATCHES
            for dtype in DTYPES
        ]
        return cases + [Case(cell=cell, dtype=dtype, **sizes) for sizes in LONGER for dtype in DTYPES]
    cases = []
    # another (T, B) and dtype for the same options in each cell
    for turn, options in enumerate(option_sets(cell, "quick"), CELLS.index(cell)):
        T, B = TIMES_AND_BATCHES[turn % len(TIMES_AND_BATCHES)]
        T = max(T, 2) if any(name in options for name in WHERE_T_MATTERS) else T
        cases.append(Case(cell=cell, T=T, B=B, dtype=DTYPES[turn % 2], **options))
    return cases


def half_precision(cell):
    """The quick cases for one cell in float16 and, where it is installed, bfloat16, in turns.

    None for the ReLU: where its argument is nearer to 0 than a rounding to 16 bits, its gradient is all or nothing.
    """
    if cell == "rnn_relu":
        return []
    dtypes = [dtype for dtype in precision.HALVES if dtype != "bfloat16" or find_spec("ml_dtypes")]
    return [replace(case, dtype=dtypes[i % len(dtypes)]) for i, case in enumerate(spread(cell, "quick"))]
