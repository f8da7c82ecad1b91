"""The tables that `numbarnn bench` prints; rows are dicts, as in records."""

from numbarnn.bench import console
from numbarnn.bench.cases.passes import BACKWARD_WEIGHTS, SHORT
from numbarnn.bench.cases.shapes import tf32_name
from numbarnn.bench.peers.peers import COMPILED
from numbarnn.bench.speed import trust
from numbarnn.bench.speed.lineup import TORCH, is_cudnn
from numbarnn.bench.speed.peak import work_of
from numbarnn.bench.speed.record import rival_of

WEIGHTS_ALONE = (
    "bwd weights: numbarnn goes back through the steps for them, too, which cuDNN's call has from backward data; "
    "bwd is about both together"
)
LABELS = {TORCH: "torch", "onnxruntime": "onnxrt", COMPILED: "compiled"}
ALGORITHMS = {"standard": "std", "persist_static": "static", "persist_dynamic": "dynamic",
              "persist_static_small_h": "small_h"}  # fmt: skip


def milliseconds(seconds):
    """A time for the table, with three digits that count."""
    if seconds is None:
        return "-"
    return f"{seconds * 1e3:.3f}" if seconds < 1e-2 else f"{seconds * 1e3:.1f}"


def print_timings(rows, where, doubt):
    """The table of times, refusals in their place, what was left out, and a summary line."""
    gpu = where.device == "cuda"
    columns, cells = (gpu_cells if gpu else cpu_cells)(rows)
    used, more = memory_cells(rows, ["numbarnn", *([] if gpu else cpu_rivals(rows))])
    cells = [[*own, *others] for own, others in zip(cells, more, strict=True)]
    clock = "the GPU's clock" if gpu else f"{where.threads} CPU threads"
    title = f"Milliseconds per call, {clock}; a ratio below 1: numbarnn is faster"
    title += "; call: by the host's clock" if gpu else "; us/step: numbarnn's call / T; GFLOP/s: of its products"
    title += "; TF32 is PyTorch's default" if any(row["tf32"] is True for row in rows) else ""
    print_rows(title, rows, [*columns, *used], cells, doubt)
    say_left_out(rows)
    say_compile_times(rows)
    if gpu and any(row["what"] == BACKWARD_WEIGHTS for row in rows):
        console.say(WEIGHTS_ALONE)
    say_verdict(rows, doubt)


def print_rows(title, rows, columns, cells, doubt):
    """Print a table of rows of a record, what is judged first, and below it why times are refused or in doubt.

    Args:
        columns, cells: headings of the numbers, and a list of them for each row. doubt: `trust.machine_doubt`.
    """
    results = [outcome(row, doubt) for row in rows]
    lines = [
        [result.partition(":")[0], *about(row), *own] for result, row, own in zip(results, rows, cells, strict=True)
    ]
    heading = ["result", "cell", "T,B,I,H,L", "dtype", "pass", "schedule"]
    console.print_table(title, [*heading, *columns], lines, right=columns)
    reasons = {}
    for result, row in zip(results, rows, strict=True):
        if result != "ok":
            reasons.setdefault(result, []).append(" ".join(about(row)))
    for result, cases in reasons.items():
        many = f"{cases[0]} and {len(cases) - 1} more rows" if len(cases) > 1 else cases[0]
        console.say(f"{many}: {result}")


def say_verdict(rows, doubt):
    """The last line; doubt: `trust.machine_doubt`."""
    refusals = sum(not row["ok"] for row in rows)
    doubted = sum(row["ok"] and bool(trust.doubts(row, judged(row), doubt)) for row in rows)
    verdict = f"{refusals} of {len(rows)} REFUSED" if refusals else f"all {len(rows)} agree with PyTorch"
    console.say(f"numbarnn bench: {verdict}{f'; {doubted} in doubt' if doubted else ''}")


def about(row):
    """What a row is about, as cells."""
    schedule, plan = row["schedule"], row["plan"]
    schedule = f"auto: {plan.split()[0]}" if schedule == "auto" and plan else schedule
    dtype = ", ".join(filter(None, [row["dtype"], tf32_name(row.get("tf32", False))]))
    sizes = ",".join(map(str, [*row["shape"].values(), *row.get("form", ())]))
    sizes += " skip" if row.get("input_mode") == "skip" else ""
    return row["cell"], sizes, dtype, SHORT[row["what"]], schedule


def cpu_cells(rows):
    """(columns, cells of each row) by the host's clock."""
    labels = cpu_rivals(rows)
    columns = ["numbarnn", *(f"/ {label}" for label in labels.values()), *labels.values(), "us/step", "GFLOP/s"]
    cells = []
    for row in rows:
        own = [milliseconds(row["median_s"].get("numbarnn"))]
        own += [quotient(row["ratio"].get(name)) for name in labels]
        own += [milliseconds(row["median_s"].get(name)) for name in labels]
        if row["ok"]:
            seconds, work = row["median_s"]["numbarnn"], work_of(row)
            own += [f"{seconds * 1e6 / row['shape']['T']:.1f}", f"{work / seconds / 1e9:.1f}"]
        cells.append(own if row["ok"] else [*own, "-", "-"])
    return columns, cells


def cpu_rivals(rows):
    """Peer -> its heading, of those that have times."""
    return {name: label for name, label in LABELS.items() if any(name in row["median_s"] for row in rows)}


def memory_cells(rows, names):
    """(columns, cells of each row) of the memory of some contenders, by slashes, where somebody tells."""
    shown = [name for name in names if any(name in row.get("peak_bytes", ()) for row in rows)]
    if not shown:
        return [], [[] for _ in rows]
    columns, peaks = [" / ".join(["MB", *(LABELS[name] for name in shown[1:])])], [row["peak_bytes"] for row in rows]
    return columns, [
        [" / ".join(three_digits(found[name] / 1e6) if name in found else "-" for name in shown)] for found in peaks
    ]


def three_digits(number):
    return f"{number:.0f}" if number >= 100 else f"{number:.3g}"


def say_compile_times(rows):
    """Says how long first calls took that compile."""
    for name in dict.fromkeys(name for row in rows for name in row["compile_s"]):
        took = [row["compile_s"][name] for row in rows if name in row["compile_s"]]
        span = f"{min(took):.1f} to {max(took):.1f} s"
        console.say(f"{name}: first calls, which compile, took {span}; no time has them in it")


def gpu_cells(rows):
    """(columns, cells of each row) by the GPU's clock, every algorithm of cuDNN's in a column of its own."""
    names = dict.fromkeys(name for row in rows for name in row["device_median_s"] if is_cudnn(name))
    columns = ["numbarnn", "/ best cuDNN", "/ PyTorch's choice", "PyTorch's choice", *map(label, names)]
    columns += ["call", "PyTorch's call"]
    compiled = any(COMPILED in row["device_median_s"] for row in rows)
    columns += ["compiled", "/ compiled"] if compiled else []
    cells = []
    for row in rows:
        device, call, ratio = row["device_median_s"], row["median_s"], row["device_ratio"]
        own = [milliseconds(device.get("numbarnn")), quotient(ratio.get(row["best_cudnn"])), quotient(ratio.get(TORCH))]
        own += [milliseconds(device.get(name)) for name in (TORCH, *names)]
        own += [milliseconds(call.get("numbarnn")), milliseconds(call.get(TORCH))]
        own += [milliseconds(device.get(COMPILED)), quotient(ratio.get(COMPILED))] if compiled else []
        cells.append(own)
    return columns, cells


def label(name):
    """A column's heading for one of cuDNN's algorithms."""
    _, algorithm, *math = name.split()
    return f"cuDNN {ALGORITHMS.get(algorithm, algorithm)}" + (", to float16" if math else "")


def quotient(ratio):
    return "-" if ratio is None else f"{ratio:.2f}" if ratio >= 0.1 else f"{ratio:.2g}"


def judged(row):
    """The contenders whose times a row's main ratios are made of."""
    rivals = [rival_of(row)] if row["device_seconds"] else [name for name in row["seconds"] if name != "numbarnn"]
    return ["numbarnn", *(name for name in rivals if name)]


def outcome(row, doubt):
    """ok, what speaks against the times, or why there are none."""
    if not row["ok"]:
        return f"REFUSED: {row['refusal']}"
    doubts = trust.doubts(row, judged(row), doubt)
    return f"in doubt: {'; '.join(doubts)}" if doubts else "ok"


def say_left_out(rows):
    """Says which peers have no times and why, and which are not called as one CUDA graph."""
    found = {}
    for row in rows:
        notes = {name: note for name, note in row.get("notes", {}).items() if is_cudnn(name) and "cannot" in note}
        for name, words in (row["left_out"] | notes).items():
            found.setdefault((name, words), []).append(" ".join(about(row)[:4]))
    for (name, words), cases in found.items():
        cases = list(dict.fromkeys(cases))
        console.say(f"{name}, {len(cases)} cases such as {cases[0]}: {words}")
