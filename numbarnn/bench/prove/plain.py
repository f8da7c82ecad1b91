"""Correctness, by what `numbarnn check` has: the recorded problems at their full sizes, or every cell and option.

Where cuDNN is found it runs the same problems, and its own error counts as the measure; PyTorch, which would compute
them on the CPU, is asked only where there is no cuDNN.
"""

from contextlib import nullcontext
from importlib.util import find_spec
from itertools import product

from numbarnn.bench.cases import cases
from numbarnn.bench.cases.shapes import SETS
from numbarnn.bench.check import command as check
from numbarnn.bench.check import summary
from numbarnn.bench.check.accuracy import Comparison
from numbarnn.bench.peers import cudnn, peers
from numbarnn.schedules import SCHEDULES

DTYPES = ("float16", "float32", "bfloat16", "float64")  # the most valuable first
CELLS = ("lstm", "gru", "rnn_tanh")
WIDEST_IN_FLOAT64 = 512  # units: beyond, float64 tells little more, and takes long
SMALL = {"lstm": ("float32",), "gru": ("float16",)}
ROWS_TOLD = 5  # of what went wrong


def answer(name, asked, of="recorded"):
    """Every comparison of a case by its schedules."""
    case, schedules = questions(asked, of)[name]
    with_cudnn = asked.device == "cuda" and cudnn.why_not() is None
    with nullcontext() if with_cudnn else peers.torch_threads(1):  # which imports PyTorch
        found = check.check_case(case, asked.device, schedules, with_cudnn, with_torch=not with_cudnn)
    rows = [comparison.as_row() for comparison in found]
    return {"ok": all(comparison.ok for comparison in found), "cudnn": with_cudnn, "comparisons": rows}


def questions(asked, of="recorded"):
    """Name -> (case, schedules)."""
    if of == "options":
        chosen = ("lstm",) if asked.small else cases.ALL_CELLS
        todo = check.plan_cases(asked.device, chosen, list(SCHEDULES), True)
        todo = todo[:2] if asked.small else todo
    elif asked.small:
        todo = [(cases.Case(cell, 4, 3, 5, (9, 7), dtype=dtype), list(SCHEDULES))
                for cell, dtypes in SMALL.items() for dtype in dtypes]  # fmt: skip
    else:
        todo = [(case, list(SCHEDULES)) for case in _recorded()]
    found = {}
    for case, schedules in todo:
        name = f"{case.cell} {case.options}"
        found[name] = case, list(dict.fromkeys(found.get(name, (case, []))[1] + list(schedules)))
    return found


def _recorded():
    """The recorded sizes; in dtypes and cells that were not timed only those of one layer."""
    dtypes = [dtype for dtype in DTYPES if dtype != "bfloat16" or find_spec("ml_dtypes")]
    for dtype, cell, shape in product(dtypes, CELLS, SETS["schedules"]):
        usual = dtype in DTYPES[:2] and cell in CELLS[:2]
        if usual or (shape.L == 1 and shape.T < 1000 and (dtype != "float64" or shape.H <= WIDEST_IN_FLOAT64)):
            sizes = shape.T, shape.B, shape.I, (shape.H,) * shape.L
            yield cases.Case(cell, *sizes, gradients="y", dtype=dtype)


def told(answers):
    """How many comparisons there were, the one nearest to its limit by dtype, and what is wrong."""
    found = [Comparison.from_row(row) for answer in answers for row in answer.get("comparisons", ())]
    compared = [comparison for comparison in found if comparison.compared]
    if not compared:
        return []
    wrong = [comparison for comparison in found if not comparison.ok]
    refused = sum(comparison.refused for comparison in found)
    against = "cuDNN" if any(one.cudnn_error is not None for one in compared) else "no cuDNN"
    lines = [f"{len(compared)} comparisons, {len(wrong)} of them wrong; {refused} cases refused; {against}"]
    for dtype in dict.fromkeys(map(summary.dtype_of, compared)):
        worst = max((one for one in compared if summary.dtype_of(one) == dtype), key=lambda one: one.share)
        peer = "" if worst.peer_error is None else f", the peer's {worst.peer_error:.1e}"
        error = "no number" if worst.error is None else f"{worst.error:.1e} of {worst.limit:.1e}"
        lines.append(f"{dtype}: nearest to its limit {error}{peer} ({worst.cell} {worst.options}, {worst.schedule}, "
                     f"{worst.mode} {worst.quantity})")  # fmt: skip
    for peer, said, where in summary.notes(found)[:ROWS_TOLD]:
        lines.append(f"{peer}, {len(where)} cases such as {where[0]}: {said}")
    for one in wrong[:ROWS_TOLD]:
        lines.append("wrong: " + "; ".join(map(str, summary.failure_row(one))))
    return lines + ([f"... {len(wrong) - ROWS_TOLD} more"] if len(wrong) > ROWS_TOLD else [])
