"""What is computed on every engine, as data: cells x options x schedules x dtypes, for test_conformance.py.

    matrix.points("cpu")        -> [Point(case, schedule, threads), ...]

By default every pair of values of two options meets in at least one point of an engine (`all_pairs`), and every cell is
there once. What costs is compiling: points are chosen so that they need few kernels or loops (`compiled`), as sizes,
rates and lengths are free. With `full`, every combination of what chooses code is there; the other options take turns.
"""

from dataclasses import dataclass, replace
from functools import cache
from itertools import combinations, product

import numpy as np

import equations
from cases import BUILT_IN, CELLS, Case
from numbarnn.common.precision import is_half
from numbarnn.engines.gpu.profiles import SIMULATOR

ENGINES = ("cpu", "sim", "cuda")
SIZES = {  # (T, B, sizes of layers, lengths, lengths of packed sequences, which are in no order and none is 0)
    "cpu": (7, 4, ((5,), (5, 5), (33, 5, 4)), (3, 0, 6, 7), (3, 1, 6, 7)),
    "sim": (3, 3, ((5,), (4, 3)), (2, 0, 3), (2, 1, 3)),
    "cuda": (4, 4, ((33,), (5, 3, 4), (3, 130)), (2, 0, 3, 4), (2, 1, 3, 4)),
}
ON_GPU = ("sim", "cuda")
SCHEDULES = {"cpu": ("stepwise", "wavefront"), **dict.fromkeys(ON_GPU, ("stepwise", "wavefront", "persistent"))}
DTYPES = dict.fromkeys(("cpu", *ON_GPU), ("float32", "float64", "float16", "bfloat16"))
SELECTING = ("cell", "dtype", "schedule", "sequences", "resets", "projection", "clip", "R")  # these choose code
NO_PARTS = {"R": ("heads", "drop", "both")}
OF_LSTM_ONLY = tuple(cell for cell in BUILT_IN if cell != "lstm")
EXCLUDED = (  # values that do not go together: layers or schedules do not have that
    ({"masked": (False,)}, {"sequences": ("ragged", "packed")}),  # so that each cell has plain steps too
    ({"masked": (False,)}, {"resets": (True,)}),
    ({"projection": (True,)}, {"cell": OF_LSTM_ONLY}),
    ({"clip": ("one", "two")}, {"cell": OF_LSTM_ONLY}),
    (NO_PARTS, {"cell": ("gru", "rnn_relu")}),  # the library's have other parameters or nothing of their own
    (NO_PARTS, {"clip": ("one", "two")}),
    (NO_PARTS, {"bias": ("double", "recurrent", "none")}),  # their equations say which they have
    ({"schedule": ("persistent",)}, {"dtype": ("float64",)}),  # it is refused: test_persistent.py
    ({"cell": ("rnn_relu",)}, {"dtype": ("float16", "bfloat16")}),  # many numbers of 16 bits are never all off its kink
)


@dataclass(frozen=True)
class Point:
    """A case, the schedule that runs it, and how many threads do on the CPU."""

    case: Case
    schedule: str
    threads: int = 1

    def __str__(self):
        return "-".join([str(self.case), self.schedule, *([f"{self.threads}threads"] if self.threads > 1 else [])])


# ------------------------------------------------------------------------------------------------- built-in cells
def factors(engine):
    """Option -> its values."""
    return {
        "cell": BUILT_IN,
        "bias": ("double", "input", "recurrent", "none"),
        "input_mode": ("linear", "skip"),
        "sequences": ("equal", "ragged", "packed"),
        "resets": (False, True),
        "masked": (False, True),
        "sizes": tuple(range(len(SIZES[engine][2]))),
        "directions": (1, 2),
        "projection": (False, True),
        "clip": ("none", "one", "two"),
        "R": ("whole", "heads", "drop", "both"),
        "dropout": (0.0, 0.4),
        "batch_first": (False, True),
        "state": (True, False),
        "dtype": DTYPES[engine],
        "schedule": SCHEDULES[engine],
        "threads": (1, 3) if engine == "cpu" else (1,),
    }


def conflicts():
    """Every two (option, value) that exclude each other."""
    return {
        frozenset(two)
        for pair in EXCLUDED
        for two in product(*([(name, v) for name, values in part.items() for v in values] for part in pair))
    }


def compiled(choice):
    """What has to be compiled for a choice."""
    of_cell = choice["cell"], choice["dtype"], choice["projection"], choice["clip"] != "none", choice["R"] != "whole"
    return *of_cell, choice["sequences"] != "equal" or choice["resets"], choice["schedule"] == "persistent"


def point(engine, choice):
    """The `Point` of a choice."""
    T, B, sizes, ragged, packed = SIZES[engine]
    options = {name: choice[name] for name in ("bias", "input_mode", "directions", "dropout", "batch_first", "state")}
    hidden, heads = sizes[choice["sizes"]], 2 if choice["R"] in ("heads", "both") else 1
    if heads > 1:
        hidden = tuple(size + size % 2 + 2 for size in hidden)
    if choice["projection"]:
        options["proj_size"] = 2
    if choice["R"] in ("drop", "both"):
        options["drop"] = 0.3
    if choice["sequences"] == "ragged":
        options |= {"lengths": ragged, "padding_value": -0.5}
    elif choice["sequences"] == "packed":
        options |= {"lengths": packed, "packed": True}
    bounds = {"none": None, "one": 0.4, "two": (-0.3, 0.4)}[choice["clip"]]
    case = Case(choice["cell"], T, B, hidden=hidden, heads=heads, cell_clip=bounds, resets=choice["resets"], **options)
    if is_half(choice["dtype"]) and choice["clip"] != "none":  # of more numbers some are always too near to a bound
        lengths = None if case.lengths is None else tuple(min(length, 2) for length in case.lengths[:2])
        case = replace(case, T=2, B=2, hidden=(3,), lengths=lengths)
    return Point(replace(case, dtype=choice["dtype"]), choice["schedule"], choice["threads"])


def pairs(choice):
    """Every two values of a choice."""
    return {frozenset(two) for two in combinations(choice.items(), 2)}


@cache
def all_pairs(engine, tries=20):
    """Choices, option -> value each, so that every two values that may meet do so in one.

    Each begins with a pair that is still open; option by option it takes the value that closes most, and of `tries`
    with options in random orders the one is chosen that closes most for what it costs: of what is not compiled yet,
    more.
    """
    rng, chosen, options = np.random.default_rng(0), [], factors(engine)
    plain = product(CELLS, DTYPES[engine], (False,), (False,), (False,), (False,), (False,))
    known = set(plain)  # by test_layers.py
    excluded = conflicts()
    places = [(name, value) for name, values in options.items() for value in values]
    left = dict.fromkeys(frozenset(two) for two in combinations(places, 2) if two[0][0] != two[1][0])
    for pair in excluded:
        left.pop(pair, None)

    def complete(start):
        """A choice with the pair, and how many open pairs it closes."""
        places, closed = list(start), 1
        for name in rng.permutation([name for name in options if name not in dict(places)]).tolist():
            values = [(name, options[name][k]) for k in rng.permutation(len(options[name]))]
            values = [v for v in values if not any(frozenset((v, other)) in excluded for other in places)]
            if not values:
                return None, 0
            found = [sum(frozenset((value, other)) in left for other in places) for value in values]
            best = int(np.argmax(found))
            places.append(values[best])
            closed += found[best]
        choice = dict(places)
        return {name: choice[name] for name in options}, closed

    while left:
        candidates = [complete(next(iter(left))) for _ in range(tries)]
        best, _ = max(
            (one for one in candidates if one[0]), key=lambda one: one[1] / (1 if compiled(one[0]) in known else 5)
        )
        known.add(compiled(best))
        for met in pairs(best):
            left.pop(met, None)
        chosen.append(best)
    return chosen


def full_product(engine):
    """Every combination of what chooses code; the other options take turns."""
    every, turns, excluded = factors(engine), all_pairs(engine), conflicts()
    for number, values in enumerate(product(*(every[name] for name in SELECTING))):
        choice = turns[number % len(turns)] | dict(zip(SELECTING, values, strict=True))
        if choice["R"] != "whole":
            choice["bias"] = "input"
        if not pairs(choice) & excluded:
            yield point(engine, choice)


# ------------------------------------------------------------------------------------------------------- other cells
def options_in_turn(engine):
    """Options of cells that are not built in; those with sequences come second."""
    T, B, sizes, ragged, packed = SIZES[engine]
    return (
        dict(hidden=sizes[0], directions=2, T=T, B=2),
        dict(hidden=(9, 5), lengths=ragged, padding_value=-0.5, resets=True, directions=2, T=T, B=B),
        dict(hidden=(3, 4), directions=2, dropout=0.4, batch_first=True, T=T, B=2),
        dict(hidden=sizes[0], lengths=packed, packed=True, resets=True, T=T, B=B),
        dict(hidden=(9 if engine == "sim" else 130,), T=2, B=1, state=False),
        dict(hidden=sizes[0], input_mode="skip", T=2, B=2, directions=2),
    )


WRITTEN = tuple(name for name in equations.WRITTEN if name != "drawn")
LIBRARY = (*equations.LIBRARY, *(f"{name} at random" for name in equations.AT_RANDOM))
# One of each structure: each takes the CPU's compiler a quarter of a minute. In the simulator all are run.
ON_CPU = {
    "blend", "ladder", "projected_lstm", "slstm", "multiplicative_lstm", "layer_norm_gru", "sru", "min_gru",
    "lstm at random", "softmax_lstm", "lsnn",
}  # fmt: skip


def written_points(engine, full):
    """The cells written by hand, in turn with options, dtypes, schedules; on the CPU each is compiled but once."""
    turns, dtypes = options_in_turn(engine), DTYPES[engine]
    for number, name in enumerate(WRITTEN):
        if engine == "cpu" and not (full or name in ON_CPU):
            continue
        biases = ("double", "input", "recurrent", "none")
        if engine == "cpu" and not full:
            chosen = turns[1:4:2]  # with sequences, which the others' do without
        else:
            few = range(2 if engine == "sim" else 4)
            chosen = turns if full else [turns[(number + 2 * k + k // 3) % len(turns)] for k in few]
        for turn, options in enumerate(chosen):
            dtype = dtypes[(number + turn) % len(dtypes)]
            if engine == "cpu" and not full:
                dtype = "float32" if name == "blend" else "float64"
            bias = biases[(number + turn) % 4]
            case = Case(name, **options, bias=bias, dtype=dtype)
            schedules = SCHEDULES[engine] if full else [SCHEDULES[engine][(number + turn) % len(SCHEDULES[engine])]]
            for schedule in schedules:
                yield as_run(engine, case, schedule, 3 if engine == "cpu" and turn % 2 else 1)


def library_points(engine, full):
    """Each cell of the library once, with options, dtypes and schedules in turn; each option with each, if `full`."""
    turns, dtypes = options_in_turn(engine), DTYPES[engine]
    for number, name in enumerate(LIBRARY):
        if engine == "cpu" and not (full or name in ON_CPU):
            continue
        for turn, options in enumerate(turns) if full else [(number, turns[number % 5])]:
            if name == "projected_lstm":  # all layers of one size, if that of the projection is not given
                options = options | {"hidden": options["hidden"][:1] * len(options["hidden"])}
            if "layer_norm" in name:  # of two units a norm leaves but signs
                options = options | {"hidden": tuple(size + 3 for size in options["hidden"])}
            if name == "slstm" and turn % 2:
                options = options | {"heads": 2, "hidden": tuple(size + size % 2 for size in options["hidden"])}
            case = Case(name, **options, dtype=dtypes[number % len(dtypes)])
            schedule = SCHEDULES[engine][turn % len(SCHEDULES[engine])]
            if has_kinks(name):  # few and no halves: see above
                case = replace(case, dtype=dtypes[(turn if "phased" in name else number) % 2])
            yield as_run(engine, case, schedule)


def as_run(engine, case, schedule, threads=1):
    """The Point; where persistent kernels refuse it, in float32 or by another schedule."""
    if schedule == "persistent" and too_many_products(engine, case):
        schedule = "stepwise"
    if schedule == "persistent" and case.dtype == "float64":
        case = replace(case, dtype="float32")
    return Point(case, schedule, threads)


def too_many_products(engine, case):
    """Whether persistent blocks of the simulator have fewer warps than a step has products; on a GPU they have more."""
    cell = case.definition
    products = cell.num_products + (cell.num_recurrent > 0) + cell.projected
    return engine == "sim" and products > max(SIMULATOR.warps)


def has_kinks(name):
    """Whether a function in the cell has some."""
    words = ("relu", "selu", "hard_sigmoid", "li_gru", "ind_rnn", "slstm", "spiking", "phased")
    return any(word in name for word in words)


def points(engine, full=False):
    """All of an engine, without repetition."""
    built_in = full_product(engine) if full else (point(engine, choice) for choice in all_pairs(engine))
    return list(dict.fromkeys([*built_in, *written_points(engine, full), *library_points(engine, full)]))
