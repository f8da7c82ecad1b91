"""Which cases `numbarnn check` runs: every option, options that meet each other, and a quick subset."""

from dataclasses import replace
from importlib.util import find_spec

from numbarnn.bench.cases import ALL_CELLS, DTYPES, TRACED_CELLS, Case
from numbarnn.common import precision


def of(input_size, *hidden, **options):
    """Fields of a `Case`, but for the cell, T and B: I, the layers' sizes, and options."""
    return {"input_size": input_size, "hidden": hidden} | options


TIMES_AND_BATCHES = ((7, 3), (7, 1), (1, 1), (2, 3), (1, 3), (2, 1))
# Every option at least once: odd and unequal hidden sizes, 1 to 3 layers, and options that meet each other.
OPTION_SETS = (
    of(4, 33),
    of(1, 1),
    of(5, 33, 33),
    of(5, 33, 17, 5, bidirectional=True),
    of(3, 5, 5, bias=False),
    of(6, 16, batch_first=True),
    of(4, 7, 33, batch_first=True, bidirectional=True, bias=False),
    of(5, 33, state=False),
    of(5, 9, 9, state=False, bidirectional=True, gradients="y"),
    of(5, 8, 33, gradients="state"),
    of(5, 33, 17, dropout=0.3),
    of(5, 11, 11, 11, dropout=0.5, bidirectional=True),
    of(5, 33, accumulate=True),
    of(5, 6, 13, accumulate=True, bidirectional=True),
    of(5, 33, bias="input"),
    of(5, 9, 9, bias="recurrent", bidirectional=True),
    of(33, 33, input_mode="skip"),
    of(17, 17, 5, input_mode="skip", bidirectional=True, bias="recurrent"),
    of(4, 33, lengths="padded"),
    of(5, 9, 9, lengths="packed", bidirectional=True),
    of(5, 8, 11, lengths="padded", padding_value=-1.5, bidirectional=True, batch_first=True),
    of(5, 13, 6, lengths="padded", dropout=0.3, accumulate=True, state=False),
    of(5, 7, 7, lengths="packed", dropout=0.5, bias="input"),
    of(4, 33, resets=True),
    of(5, 7, 9, resets=True, bidirectional=True, batch_first=True, bias=False),
    of(6, 6, 6, resets=True, lengths="padded", padding_value=2.0, bidirectional=True, input_mode="skip", bias="input"),
    of(5, 6, 5, resets=True, lengths="packed", dropout=0.3, accumulate=True),
)
# Options that only the LSTM has.
LSTM_OPTION_SETS = (
    of(4, 33, proj_size=5),
    of(5, 9, 9, proj_size=4, bidirectional=True, bias="recurrent"),
    of(5, 9, 9, 9, proj_size=7, dropout=0.3, lengths="padded", batch_first=True),
    of(8, 8, 8, proj_size=3, input_mode="skip", resets=True, bidirectional=True, bias="input", accumulate=True),
    of(5, 33, cell_clip=(-0.3, 0.25)),
    of(5, 9, 17, cell_clip=(-0.25, 0.5), bidirectional=True, resets=True),
    of(9, 9, 9, cell_clip=(-0.5, 0.25), proj_size=4, input_mode="skip", lengths="packed", bidirectional=True,
       bias=False),
    of(5, 9, 5, cell_clip=(-0.5, 0.25), lengths="padded", dropout=0.3, bias="recurrent", clip_propagate_nan=False),
    of(5, 9, 9, cell_clip=(-0.5, 0.25), clip_propagate_nan=False, nan_state=True),
    of(5, 9, cell_clip=(-0.5, 0.25), nan_state=True),
)  # fmt: skip
# Cells that are written as equations: each of their sums has one bias at most.
TRACED_OPTION_SETS = {
    "traced_lstm": (
        of(4, 33, bias="input", batch_first=True),
        of(5, 7, 9, bias="input", bidirectional=True, lengths="padded", resets=True),
        of(5, 6, 6, bias="input", dropout=0.3, accumulate=True, lengths="packed"),
        of(5, 9, 5, 7, bias="input", state=False, gradients="y"),
    ),
    "layer_norm_rnn": (
        of(4, 33, batch_first=True),
        of(5, 7, 6, accumulate=True, bidirectional=True, lengths="padded", resets=True),
        of(5, 6, 6, dropout=0.3, lengths="packed"),
        of(5, 9, 5, 7, state=False, gradients="state"),
    ),
}
# A few sets that together still use every option; sizes that a simulator runs in a second: it has 4 units in a block.
QUICK_OPTION_SETS = (
    of(4, 5, 3, batch_first=True, bidirectional=True, bias=False, resets=True, lengths="padded"),
    of(5, 5, state=False, input_mode="skip", bias="input", lengths="padded", padding_value=-1.5),
    of(5, 3, 3, bidirectional=True),
    of(3, 3, 5, 3, dropout=0.3, bias="recurrent", lengths="packed"),
    of(5, 5, 5, accumulate=True, bidirectional=True, lengths="padded"),
)
QUICK_LSTM_OPTION_SETS = (
    of(5, 6, 6, proj_size=5, bidirectional=True, lengths="padded"),
    of(5, 7, cell_clip=(-0.5, 0.25), clip_propagate_nan=False, lengths="padded", dtype="float32"),
    of(5, 5, cell_clip=(-0.5, 0.25), clip_propagate_nan=False, nan_state=True, dtype="float32"),
    of(5, 5, cell_clip=(-0.5, 0.25), nan_state=True),
)
QUICK_HALVES = (0, 3, 5, 6)  # which of a cell's quick cases also have 16 bits
QUICK_TRACED_OPTION_SETS = {
    "traced_lstm": (
        of(5, 5, 3, bias="input", bidirectional=True, lengths="padded", resets=True),
        of(5, 3, 3, bias="input", dropout=0.3, accumulate=True, lengths="packed"),
    ),
    "layer_norm_rnn": TRACED_OPTION_SETS["layer_norm_rnn"][1:3],
}
QUICK_TIMES_AND_BATCHES = ((4, 3), (5, 1), (1, 1), (2, 3), (1, 3), (2, 1))
# Where each cell and dtype is compiled for seconds, the quick cases have these alone; the simulator compiles nothing.
QUICK_DTYPES = {
    "lstm": DTYPES, "gru": DTYPES, "rnn_tanh": ("float32",), "rnn_relu": ("float64",),
    "gru_reset_before": ("float32",), "traced_lstm": ("float32",), "layer_norm_rnn": ("float32",),
}  # fmt: skip
LONGER = (
    {"T": 25, "B": 16} | of(64, 128),
    {"T": 100, "B": 1} | of(32, 96),
    {"T": 30, "B": 5} | of(32, 64, 48, bidirectional=True),
    {"T": 25, "B": 16} | of(64, 64, lengths="padded", resets=True),
)
# Larger sizes, of the quick check too: several blocks, tiles and threads. The simulator, where one block has 4 units,
# has smaller ones.
LARGER = (
    Case("lstm", 5, 27, 5, (150,), lengths="padded"),
    Case("gru", 19, 2, 5, (137,), bidirectional=True, dtype="float64"),
    Case("rnn_tanh", 14, 43, 5, (128, 20), dropout=0.3),
    Case("gru_reset_before", 4, 7, 5, (262,)),
    Case("layer_norm_rnn", 4, 36, 5, (150,)),
)
LARGER_SIMULATED = (Case("lstm", 2, 11, 5, (9,), dtype="float16"), Case("rnn_tanh", 4, 17, 4, (5,)))
WHERE_T_MATTERS = ("dropout", "lengths", "resets", "cell_clip")  # a quick case with one of them has at least two steps


def option_sets(cell, size="full"):
    """Return the options of the cases for one cell."""
    if cell in TRACED_CELLS:
        return (TRACED_OPTION_SETS if size == "full" else QUICK_TRACED_OPTION_SETS)[cell]
    common, own = (OPTION_SETS, LSTM_OPTION_SETS) if size == "full" else (QUICK_OPTION_SETS, QUICK_LSTM_OPTION_SETS)
    return common + own if cell == "lstm" else common


def spread(cell, size="full", device="cpu"):
    """Return the cases for one cell on one device, but those of 16 bits and the larger ones.

    In full every option set with every (T, B) and dtype, and some longer ones; quick: a few option sets that together
    use every option, (T, B) and dtype taking turns, another turn in each cell.
    """
    if size == "full":
        cases = [
            Case(cell=cell, T=T, B=B, dtype=dtype, **options)
            for options in option_sets(cell)
            for T, B in TIMES_AND_BATCHES
            for dtype in DTYPES
        ]
        bias = {"bias": "input"} if cell == "traced_lstm" else {}
        return cases + [Case(cell=cell, dtype=dtype, **bias, **sizes) for sizes in LONGER for dtype in DTYPES]
    cases, dtypes = [], DTYPES if device == "sim" else QUICK_DTYPES[cell]
    for turn, options in enumerate(option_sets(cell, "quick"), ALL_CELLS.index(cell)):
        T, B = QUICK_TIMES_AND_BATCHES[turn % len(QUICK_TIMES_AND_BATCHES)]
        T = max(T, 2) if any(name in options for name in WHERE_T_MATTERS) else T
        cases.append(Case(**{"cell": cell, "T": T, "B": B, "dtype": dtypes[turn % len(dtypes)]} | options))
    return cases


def half_precision(cell, size="full"):
    """Return the quick cases for one cell in float16 and, where it is installed, bfloat16, in turns; quick: some.

    None for the ReLU: where its argument is nearer to 0 than a rounding to 16 bits, its gradient is all or nothing.
    """
    if cell == "rnn_relu":
        return []
    dtypes = [dtype for dtype in precision.HALVES if dtype != "bfloat16" or find_spec("ml_dtypes")]
    halves = [replace(case, dtype=dtypes[i % len(dtypes)]) for i, case in enumerate(spread(cell, "quick"))]
    return halves if size == "full" else [case for i, case in enumerate(halves) if i in QUICK_HALVES]


def all_cases(cell, size="full", device="cpu"):
    """Return `spread`, `half_precision` and the larger cases of one cell."""
    larger = [case for case in (LARGER_SIMULATED if device == "sim" else LARGER) if case.cell == cell]
    return spread(cell, size, device) + half_precision(cell, size) + larger
