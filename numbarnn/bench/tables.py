"""The tables that `numbarnn bench` prints; rows are those of records."""

from numbarnn.bench import console
from numbarnn.bench.peers.torch_peer import COMPILED, TORCH
from numbarnn.bench.record import doubts, is_cudnn, judged, work_of
from numbarnn.bench.shapes import BACKWARD_WEIGHTS, SHORT, tf32_name

WEIGHTS_ALONE = (
    "bwd weights: numbarnn goes back through the steps for them, too, which cuDNN's call has from backward data; "
    "bwd is about both together"
)
LABELS = {TORCH: "torch", "onnxruntime": "onnxrt", COMPILED: "compiled", "lstm": "LSTM", "loop": "loop"}
ALGORITHMS = {"standard": "std", "persist_static": "static", "persist_dynamic": "dynamic",
              "persist_static_small_h": "small_h"}  # fmt: skip
CALLERS = {"numbarnn": "call", "stepper": "stepper", TORCH: "torch", "torch cell": "torch cell", COMPILED: "compiled",
           "onnxruntime": "onnxrt"}  # of single steps  # fmt: skip


def milliseconds(seconds):
    """Return a time for the table, with three digits that count."""
    return "-" if seconds is None else f"{seconds * 1e3:.3f}" if seconds < 1e-2 else f"{seconds * 1e3:.1f}"


def quotient(ratio):
    """Return a ratio for the table."""
    return "-" if ratio is None else f"{ratio:.2f}" if ratio >= 0.1 else f"{ratio:.2g}"


def three_digits(number):
    """Return a number with three digits that count."""
    return f"{number:.0f}" if number >= 100 else f"{number:.3g}"


def timing_columns(rows, gpu):
    """Return heading -> function of a row that gives its text: times, ratios, memory where somebody tells."""
    rivals = {name: label for name, label in LABELS.items() if any(name in row["median_s"] for row in rows)}
    columns = gpu_columns(rows) if gpu else cpu_columns(rivals)
    if shown := [name for name in ("numbarnn", *([] if gpu else rivals)) if any(name in r["peak_bytes"] for r in rows)]:
        heading = " / ".join(["MB", *(LABELS[name] for name in shown[1:])])
        used = lambda sizes, name: three_digits(sizes[name] / 1e6) if name in sizes else "-"  # noqa: E731
        columns[heading] = lambda row: " / ".join(used(row["peak_bytes"], name) for name in shown)
    return columns


def stream_columns(rows):
    """Return heading -> function of a row of single steps that gives its text."""
    names = [name for name in CALLERS if any(name in row["median_s"] for row in rows)]
    both = lambda row, n: f"{row['median_s'][n] * 1e6:.1f} / {row['p99_s'][n] * 1e6:.1f}"  # noqa: E731
    columns = {CALLERS[n]: lambda row, n=n: both(row, n) if n in row["median_s"] else "-" for n in names}
    return columns | {f"/ {CALLERS[n]}": lambda row, n=n: quotient(row["stepper_ratio"].get(n))
                      for n in names if n not in ("numbarnn", "stepper")}  # fmt: skip


def print_timings(rows, where, doubt):
    """Print the table of times, refusals in their place, what was left out, and a summary line."""
    gpu = where.device == "cuda"
    title = f"Milliseconds per call, {'the GPU' if gpu else f'{where.threads} CPU threads'}; a ratio below 1: "
    title += "numbarnn is faster"
    title += "; call: by the host's clock" if gpu else "; us/step: numbarnn's call / T; GFLOP/s: of its products"
    title += "; TF32 is PyTorch's default" if any(row["tf32"] is True for row in rows) else ""
    print_rows(title, rows, timing_columns(rows, gpu), doubt)
    if gpu and any(row["what"] == BACKWARD_WEIGHTS for row in rows):
        console.say(WEIGHTS_ALONE)


def print_streams(rows, where, doubt):
    """Print the table of single calls, and a summary line."""
    title = f"Microseconds of single steps, median / 99th percentile of {max(row['calls'] for row in rows)} calls, the "
    title += f"host's clock, {where.threads} CPU threads" if where.device == "cpu" else "host's clock, to an idle GPU"
    print_rows(f"{title}; a ratio of the stepper's below 1: it is faster", rows, stream_columns(rows), doubt)


def print_rows(title, rows, columns, doubt):
    """Print a table of rows of a record, what is judged first; below it what is in doubt, left out and compiled.

    columns: heading -> function of a row that gives the number's text. doubt: `record.machine_doubt`.
    """
    found = [doubts(row, judged(row), doubt) if row["ok"] else [] for row in rows]
    lines, told = [], {}
    for row, own in zip(rows, found, strict=True):
        result = "ok" if row["ok"] and not own else "in doubt" if row["ok"] else "REFUSED"
        lines.append([result, *about(row), *(text(row) for text in columns.values())])
        if result != "ok":
            told.setdefault(f"{result}: {row['refusal'] or '; '.join(own)}", []).append(" ".join(about(row)))
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
    console.say(f"numbarnn bench: {verdict}{f'; {sum(map(bool, found))} in doubt' if any(found) else ''}")


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
            found.setdefault((name, words), {})[" ".join(about(row)[:4])] = True
    for (name, words), cases in found.items():
        console.say(f"{name}, {len(cases)} cases such as {next(iter(cases))}: {words}")


def cpu_columns(labels):
    """Return heading -> text of a row, by the host's clock; labels: peer -> its heading."""
    own = lambda row: row["median_s"].get("numbarnn")  # noqa: E731
    rate = lambda row: (work := work_of(row)) and own(row) and f"{work / own(row) / 1e9:.1f}"  # noqa: E731
    return {
        "numbarnn": lambda row: milliseconds(own(row)),
        **{f"/ {label}": lambda row, n=name: quotient(row["ratio"].get(n)) for name, label in labels.items()},
        **{label: lambda row, n=name: milliseconds(row["median_s"].get(n)) for name, label in labels.items()},
        "us/step": lambda row: f"{own(row) * 1e6 / row['shape']['T']:.1f}" if own(row) else "-",
        "GFLOP/s": lambda row: rate(row) or "-",
    }


def gpu_columns(rows):
    """Return heading -> text of a row, by the GPU's clock, every algorithm of cuDNN's in a column of its own."""
    names = dict.fromkeys(name for row in rows for name in row["device_median_s"] if is_cudnn(name))
    others = {name: label for name, label in LABELS.items()
              if name != TORCH and any(name in row["device_median_s"] for row in rows)}  # fmt: skip
    times = {"numbarnn": "numbarnn", TORCH: "PyTorch's choice"} | {name: label(name) for name in names} | others
    columns = {text: lambda row, n=name: milliseconds(row["device_median_s"].get(n)) for name, text in times.items()}
    ratios = {"/ best cuDNN": lambda row: quotient(row["device_ratio"].get(row["best_cudnn"]))}
    ratios |= {
        f"/ {times[name]}": lambda row, n=name: quotient(row["device_ratio"].get(n)) for name in (TORCH, *others)
    }
    calls = {"numbarnn": "call", TORCH: "PyTorch's call"}
    calls = {text: lambda row, n=name: milliseconds(row["median_s"].get(n)) for name, text in calls.items()}
    return {"numbarnn": columns.pop("numbarnn")} | ratios | columns | calls


def label(name):
    """Return a column's heading for one of cuDNN's algorithms."""
    _, algorithm, *math = name.split()
    return f"cuDNN {ALGORITHMS.get(algorithm, algorithm)}" + (", to float16" if math else "")
