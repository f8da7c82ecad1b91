"""The cases of `numbarnn check`: every option alone and with others, and a quick subset."""

from dataclasses import replace
from importlib.util import find_spec
from itertools import cycle, islice

import numpy as np

from numbarnn.bench.cases import ALL_CELLS, DTYPES, TRACED_CELLS, Case
from numbarnn.common import precision

CLIP = (-0.5, 0.25)
# Sets of options that differ from the default. Two sets with an option in common cannot be combined.
FEATURES = (
    {"bidirectional": True}, {"batch_first": True}, {"bias": False}, {"bias": "input"}, {"bias": "recurrent"},
    {"state": False}, {"dropout": 0.3}, {"accumulate": True}, {"input_mode": "skip"}, {"resets": True},
    {"lengths": "padded", "padding_value": -1.5}, {"lengths": "packed"}, {"gradients": "y"}, {"gradients": "state"},
)  # fmt: skip
LSTM_FEATURES = ({"proj_size": 2}, {"cell_clip": CLIP}, {"cell_clip": CLIP, "clip_propagate_nan": False})
LSTM_ALONE = tuple({"cell_clip": CLIP, "nan_state": True, "clip_propagate_nan": flag} for flag in (True, False))
# Hidden sizes, with odd and unequal ones. The simulator runs a case of a quick one in a second.
HIDDEN = ((33,), (9, 9), (33, 17, 5), (16,), (11, 11, 11), (7, 33), (5, 5, 3), (1,))
QUICK_HIDDEN = ((5, 3), (3, 3), (5,), (3, 3, 3), (5, 5))
TIMES_AND_BATCHES = ((7, 3), (7, 1), (1, 1), (2, 3), (1, 3), (2, 1))
QUICK_TIMES_AND_BATCHES = ((4, 3), (5, 1), (1, 1), (2, 3), (1, 3), (2, 1))
WHERE_T_MATTERS = ("dropout", "lengths", "resets", "cell_clip")  # quick cases with these have at least two steps
# Compiling each cell and dtype takes seconds, so quick cases have only these dtypes; the simulator compiles nothing.
QUICK_DTYPES = {
    "lstm": DTYPES, "gru": DTYPES, "rnn_tanh": ("float32",), "rnn_relu": ("float64",),
    "gru_reset_before": ("float32",), "traced_lstm": ("float32",), "layer_norm_rnn": ("float32",),
}  # fmt: skip
LONGER = ((25, 16, 64, (128,), {}), (100, 1, 32, (96,), {}), (30, 5, 32, (64, 48), {"bidirectional": True}))
# Larger sizes for several blocks, tiles and threads, in the quick check too.
LARGER = (
    Case("lstm", 5, 27, 5, (150,), lengths="padded"),
    Case("gru", 19, 2, 5, (137,), bidirectional=True, dtype="float64"),
    Case("rnn_tanh", 14, 43, 5, (128, 20), dropout=0.3),
    Case("gru_reset_before", 4, 7, 5, (262,)),
    Case("layer_norm_rnn", 4, 36, 5, (150,)),
)
LARGER_SIMULATED = (Case("lstm", 2, 11, 5, (9,), dtype="float16"), Case("rnn_tanh", 4, 17, 4, (5,)))


def combined(features, count):
    """Distribute features over `count` dicts of options."""
    sets = [{} for _ in range(count)]
    for feature in features:
        min((one for one in sets if not one.keys() & feature.keys()), key=len).update(feature)
    return sets


def option_sets(cell, size="full"):
    """Return the options of a cell's cases: "full" has each option alone, and three ways to combine them."""
    features, alone = [*FEATURES, *(LSTM_FEATURES if cell == "lstm" else ())], [*(LSTM_ALONE if cell == "lstm" else ())]
    if cell in TRACED_CELLS:  # each of their sums has one bias at most
        features = [one for one in features if not {"bias", "input_mode"} & one.keys()]
    if size == "quick":
        features = [one for one in features if "gradients" not in one]
        sets = combined(features, 2 if cell in TRACED_CELLS else 5)
    else:
        shuffled = [list(np.random.default_rng(seed).permutation(features)) for seed in range(3)]
        sets = [{}, *features, *(one for n, some in zip((8, 6, 5), shuffled, strict=True) for one in combined(some, n))]
    return [with_sizes(one, cell, number, size) for number, one in enumerate(sets + alone)]


def with_sizes(options, cell, number, size):
    """Return options with an input size and hidden sizes that they allow."""
    least = options.get("proj_size", 0), 1 + ("dropout" in options)  # H, and the number of layers
    turns = islice(cycle(QUICK_HIDDEN if size == "quick" else HIDDEN), number, None)
    hidden = next(one for one in turns if min(one) > least[0] and len(one) >= least[1])
    if cell == "layer_norm_rnn":  # of 3 numbers the variance may be so small that rounding errors grow
        hidden = tuple(H + 4 for H in hidden)
    bias = {"bias": "input"} if cell == "traced_lstm" else {}
    inputs = hidden[0] if "input_mode" in options else (3, 5, 1, 6)[number % 4]
    return {"input_size": inputs, "hidden": hidden} | bias | options


def spread_cases(cell, size="full", device="cpu"):
    """Return the float32 and float64 cases for one cell on one device.

    "full": every option set with every (T, B) and dtype, and some longer cases. "quick": a few option sets that
    together use every option; (T, B) and dtype take turns, in another order for each cell."""
    sets = option_sets(cell, size)
    if size == "full":
        bias = {"bias": "input"} if cell == "traced_lstm" else {}
        return [
            *(Case(cell, T, B, dtype=d, **options) for options in sets for T, B in TIMES_AND_BATCHES for d in DTYPES),
            *(Case(cell, *sizes, dtype=d, **options | bias) for *sizes, options in LONGER for d in DTYPES),
        ]
    start = ALL_CELLS.index(cell)
    sizes = islice(cycle(QUICK_TIMES_AND_BATCHES), start, None)
    dtypes = islice(cycle(DTYPES if device == "sim" else QUICK_DTYPES[cell]), start, None)
    least = [2 if any(name in options for name in WHERE_T_MATTERS) else 1 for options in sets]
    return [Case(cell, max(T, t), B, dtype=dtype, **options)
            for options, t, (T, B), dtype in zip(sets, least, sizes, dtypes, strict=False)]  # fmt: skip


def half_precision(cell, size="full"):
    """Return quick cases for one cell in float16 and, if ml_dtypes is installed, bfloat16, in turns.

    The ReLU has none: near 0, rounding decides whether its gradient is 0 or 1."""
    dtypes = [dtype for dtype in precision.HALVES if dtype != "bfloat16" or find_spec("ml_dtypes")]
    half_cases = [replace(case, dtype=dtypes[i % len(dtypes)]) for i, case in enumerate(spread_cases(cell, "quick"))]
    return [] if cell == "rnn_relu" else half_cases if size == "full" else half_cases[::3]


def all_cases(cell, size="full", device="cpu"):
    """Return `spread_cases`, `half_precision` and the larger cases of one cell."""
    larger = [case for case in (LARGER_SIMULATED if device == "sim" else LARGER) if case.cell == cell]
    return spread_cases(cell, size, device) + half_precision(cell, size) + larger
