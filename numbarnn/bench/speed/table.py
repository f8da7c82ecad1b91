"""The tables that `numbarnn bench` prints; rows are those of records."""

from numbarnn.bench import console
from numbarnn.bench.cases.shapes import BACKWARD_WEIGHTS, SHORT, tf32_name
from numbarnn.bench.peers.torch_peer import COMPILED, TORCH
from numbarnn.bench.speed import trust
from numbarnn.bench.speed.peak import work_of
from numbarnn.bench.speed.record import is_cudnn, judged

WEIGHTS_ALONE = (
    "bwd weights: numbarnn goes back through the steps for them, too, which cuDNN's call has from backward data; "
    "bwd is about both together"
)
LABELS = {TORCH: "torch", "onnxruntime": "onnxrt", COMPILED: "compiled", "lstm": "LSTM", "loop": "loop"}
ALGORITHMS = {"standard": "std", "persist_static": "static", "persist_dynamic": "dynamic",
              "persist_static_small_h": "small_h"}  # fmt: skip
CALLERS = {  # of single steps
    "numbarnn": "call", "stepper": "stepper", TORCH: "torch", "torch cell": "torch cell", COMPILED: "compiled",
    "onnxruntime": "onnxrt",
}  # fmt: skip


def milliseconds(seconds):
    """Return a time for the table, with three digits that count."""
    if seconds is None:
        return "-"
    return f"{seconds * 1e3:.3f}" if seconds < 1e-2 else f"{seconds * 1e3:.1f}"


def quotient(ratio):
    """Return a ratio for the table."""
    return "-" if ratio is None else f"{ratio:.2f}" if ratio >= 0.1 else f"{ratio:.2g}"


def three_digits(number):
    """Return a number with three digits that count."""
    return f"{number:.0f}" if number >= 100 else f"{number:.3g}"


def print_timings(rows, where, doubt):
    """Print the table of times, refusals in their place, what was left out, and a summary line."""
    gpu = where.device == "cuda"
    rivals = {name: label for name, label in LABELS.items() if any(name in row["median_s"] for row in rows)}
    columns, cells = gpu_cells(rows) if gpu else cpu_cells(rows, rivals)
    used, more = memory_cells(rows, ["numbarnn", *([] if gpu else rivals)])
    cells = [[*own, *others] for own, others in zip(cells, more, strict=True)]
    title = f"Milliseconds per call, {'the GPU' if gpu else f'{where.threads} CPU threads'}; a ratio below 1: "
    title += "numbarnn is faster"
    title += "; call: by the host's clock" if gpu else "; us/step: numbarnn's call / T; GFLOP/s: of its products"
    title += "; TF32 is PyTorch's default" if any(row["tf32"] is True for row in rows) else ""
    print_rows(title, rows, [*columns, *used], cells, doubt)
    if gpu and any(row["what"] == BACKWARD_WEIGHTS for row in rows):
        console.say(WEIGHTS_ALONE)


def print_streams(rows, where, doubt):
    """Print the table of single calls, and a summary line."""
    names = [name for name in CALLERS if any(name in row["median_s"] for row in rows)]
    rivals = [name for name in names if name not in ("numbarnn", "stepper")]
    columns = [CALLERS[name] for name in names] + [f"/ {CALLERS[name]}" for name in rivals]
    cells = []
    for row in rows:
        middle, tail = row["median_s"], row["p99_s"]
        times = [f"{middle[n] * 1e6:.1f} / {tail[n] * 1e6:.1f}" if n in middle else "-" for n in names]
        cells.append([*times, *(quotient(row["stepper_ratio"].get(name)) for name in rivals)])
    calls = max(row["calls"] for row in rows)
    title = f"Microseconds of single steps, median / 99th percentile of {calls} calls, the host's clock"
    title += f", {where.threads} CPU threads" if where.device == "cpu" else ", until the GPU is idle"
    title += "; a ratio of the stepper's below 1: it is faster"
    print_rows(title, rows, columns, cells, doubt)


def print_rows(title, rows, columns, cells, doubt):
    """Print a table of rows of a record, what is judged first; below it what is in doubt, left out and compiled.

    Args:
        columns, cells: headings of the numbers, and a list of them for each row. doubt: `trust.machine_doubt`.
    """
    doubts = [trust.doubts(row, judged(row), doubt) if row["ok"] else [] for row in rows]
    lines, told = [], {}
    for row, found, own in zip(rows, doubts, cells, strict=True):
        result = "ok" if row["ok"] and not found else "in doubt" if row["ok"] else "REFUSED"
        lines.append([result, *about(row), *own])
        if result != "ok":
            told.setdefault(f"{result}: {row['refusal'] or '; '.join(found)}", []).append(" ".join(about(row)))
    heading = ["result", "cell", "T,B,I,H,L", "dtype", "pass", "schedule"]
    console.print_table(title, [*heading, *columns], lines, right=columns)
    for result, cases in told.items():
        console.say(f"{cases[0]}{f' and {len(cases) - 1} more rows' if len(cases) > 1 else ''}: {result}")
    say_left_out(rows)
    for name in dict.fromkeys(name for row in rows for name in row["compile_s"]):
        took = [row["compile_s"][name] for row in rows if name in row["compile_s"]]
        span = f"{min(took):.1f} to {max(took):.1f} s"
        console.say(f"{name}: first calls, which compile, took {span}; no time has them in it")
    refusals = sum(not row["ok"] for row in rows)
    verdict = f"{refusals} of {len(rows)} REFUSED" if refusals else f"all {len(rows)} agree with PyTorch"
    doubted = f"; {sum(map(bool, doubts))} in doubt" if any(doubts) else ""
    console.say(f"numbarnn bench: {verdict}{doubted}")


def about(row):
    """Return what a row is about, as cells."""
    schedule, plan = row["schedule"], row["plan"]
    schedule = f"auto: {plan.split()[0]}" if schedule == "auto" and plan else schedule
    dtype = ", ".join(filter(None, [row["dtype"], tf32_name(row["tf32"])]))
    sizes = ",".join(map(str, [*row["shape"].values(), *row["form"]])) + " skip" * (row["input_mode"] == "skip")
    return row["cell"], sizes, dtype, SHORT[row["what"]], schedule


def say_left_out(rows):
    """Say which peers have no times and why, and which are not called as one CUDA graph."""
    found = {}
    for row in rows:
        notes = {name: note for name, note in row["notes"].items() if is_cudnn(name) and "cannot" in note}
        for name, words in (row["left_out"] | notes).items():
            found.setdefault((name, words), []).append(" ".join(about(row)[:4]))
    for (name, words), cases in found.items():
        cases = list(dict.fromkeys(cases))
        console.say(f"{name}, {len(cases)} cases such as {cases[0]}: {words}")


def cpu_cells(rows, labels):
    """Return (columns, cells of each row) by the host's clock; labels: peer -> its heading."""
    columns = ["numbarnn", *(f"/ {label}" for label in labels.values()), *labels.values(), "us/step", "GFLOP/s"]
    cells = []
    for row in rows:
        seconds, work = row["median_s"].get("numbarnn"), work_of(row)
        own = [milliseconds(seconds), *(quotient(row["ratio"].get(name)) for name in labels)]
        own += [milliseconds(row["median_s"].get(name)) for name in labels]
        own += [f"{seconds * 1e6 / row['shape']['T']:.1f}" if seconds else "-"]
        cells.append([*own, f"{work / seconds / 1e9:.1f}" if seconds and work else "-"])
    return columns, cells


def gpu_cells(rows):
    """Return (columns, cells of each row) by the GPU's clock, every algorithm of cuDNN's in a column of its own."""
    names = dict.fromkeys(name for row in rows for name in row["device_median_s"] if is_cudnn(name))
    others = {name: label for name, label in LABELS.items()
              if name != TORCH and any(name in row["device_median_s"] for row in rows)}  # fmt: skip
    columns = ["numbarnn", "/ best cuDNN", "/ PyTorch's choice", "PyTorch's choice", *map(label, names)]
    columns += ["call", "PyTorch's call", *others.values(), *(f"/ {label}" for label in others.values())]
    cells = []
    for row in rows:
        device, call, ratio = row["device_median_s"], row["median_s"], row["device_ratio"]
        own = [milliseconds(device.get("numbarnn")), quotient(ratio.get(row["best_cudnn"])), quotient(ratio.get(TORCH))]
        own += [milliseconds(device.get(name)) for name in (TORCH, *names)]
        own += [milliseconds(call.get("numbarnn")), milliseconds(call.get(TORCH))]
        own += [milliseconds(device.get(name)) for name in others]
        cells.append([*own, *(quotient(ratio.get(name)) for name in others)])
    return columns, cells


def label(name):
    """Return a column's heading for one of cuDNN's algorithms."""
    _, algorithm, *math = name.split()
    return f"cuDNN {ALGORITHMS.get(algorithm, algorithm)}" + (", to float16" if math else "")


def memory_cells(rows, names):
    """Return (columns, cells of each row) of the memory of some contenders, by slashes, where somebody tells."""
    shown = [name for name in names if any(name in row["peak_bytes"] for row in rows)]
    if not shown:
        return [], [[] for _ in rows]
    columns, peaks = [" / ".join(["MB", *(LABELS[name] for name in shown[1:])])], [row["peak_bytes"] for row in rows]
    return columns, [
        [" / ".join(three_digits(found[name] / 1e6) if name in found else "-" for name in shown)] for found in peaks
    ]
