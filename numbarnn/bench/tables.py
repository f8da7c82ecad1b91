"""Print the table of `numbarnn bench` from rows of `record`. `numbarnn report` has the same columns."""

from numbarnn.bench import console
from numbarnn.bench.peers.torch_peer import TORCH
from numbarnn.bench.record import doubts, is_cudnn, judged, work_of
from numbarnn.bench.shapes import BACKWARD_WEIGHTS, SHORT, STEP, with_tf32

WEIGHTS_ALONE = (
    "bwd weights: numbarnn goes back through the steps for them, too, which cuDNN's call has from backward data; "
    "bwd is about both together"
)
LABELS = {"onnxruntime": "onnxrt", "lstm": "LSTM"}
ALGORITHMS = {"standard": "std", "persist_static": "static", "persist_dynamic": "dynamic",
              "persist_static_small_h": "small_h"}  # fmt: skip


def milliseconds(seconds):
    return "-" if seconds is None else f"{seconds * 1e3:.3f}" if seconds < 1e-2 else f"{seconds * 1e3:.1f}"


def quotient(ratio):
    return "-" if ratio is None else f"{ratio:.2f}" if ratio >= 0.1 else f"{ratio:.2g}"


def table_columns(rows, gpu):
    """Return heading -> f(row) -> text, for times, ratios, and memory if it is known."""
    step = any(row["what"] == STEP for row in rows)
    clock = "device_" if gpu and not step else ""
    names = dict.fromkeys(["numbarnn", *(name for row in rows for name in row[f"{clock}median_s"])])
    labels = {name: LABELS.get(name, name) for name in names} | {n: cudnn_label(n) for n in names if is_cudnn(n)}

    def time(row, name, clock=clock):
        middle = row[f"{clock}median_s"].get(name)
        if step and middle is not None:
            return f"{middle * 1e6:.1f} / {row['p99_s'][name] * 1e6:.1f}"
        return milliseconds(middle)

    peers = [name for name in labels if name != "numbarnn"]
    columns = {"numbarnn": lambda row: time(row, "numbarnn")}
    if clock:
        labels |= {TORCH: "PyTorch's choice"} if TORCH in labels else {}
        columns["/ best cuDNN"] = lambda row: quotient(row["device_ratio"].get(row["best_cudnn"]))
    shown = [name for name in peers if not is_cudnn(name)]
    columns |= {f"/ {labels[n]}": lambda row, n=n: quotient(row[f"{clock}ratio"].get(n)) for n in shown}
    columns |= {labels[n]: lambda row, n=n: time(row, n) for n in peers}
    if clock:
        columns |= {"call": lambda row: time(row, "numbarnn", ""), "PyTorch's call": lambda row: time(row, TORCH, "")}
    elif not step:
        ours = lambda row: row["median_s"].get("numbarnn")  # noqa: E731
        rate = lambda row: ours(row) and (work := work_of(row)) and f"{work / ours(row) / 1e9:.1f}"  # noqa: E731
        columns["us/step"] = lambda row: f"{ours(row) * 1e6 / row['shape']['T']:.1f}" if ours(row) else "-"
        columns["GFLOP/s"] = lambda row: rate(row) or "-"
    if measured := [name for name in names if not is_cudnn(name) and any(name in row["peak_bytes"] for row in rows)]:
        size = lambda row, name: three_digits(row["peak_bytes"].get(name))  # noqa: E731
        heading = " / ".join(["MB", *(labels[name] for name in measured[1:])])
        columns[heading] = lambda row: " / ".join(size(row, name) for name in measured)
    return columns


def three_digits(size):
    return "-" if size is None else f"{size / 1e6:.0f}" if size >= 1e8 else f"{size / 1e6:.3g}"


def cudnn_label(name):
    _, algorithm, *math = name.split()
    return f"cuDNN {ALGORITHMS.get(algorithm, algorithm)}" + (", to float16" if math else "")


def sizes_text(row):
    """Return a row's sizes and form as text."""
    return ",".join(map(str, [*row["shape"].values(), *row["form"]])) + " skip" * (row["input_mode"] == "skip")


def about(row):
    """Return the cells that identify a row."""
    schedule, plan = row["schedule"], row["plan"]
    schedule = f"auto: {plan.split()[0]}" if schedule == "auto" and plan else schedule
    return row["cell"], sizes_text(row), with_tf32(row["dtype"], row["tf32"], ", "), SHORT[row["what"]], schedule


def print_rows(rows, where, doubt, steps):
    """Print the table of times, then refusals, doubts, missing peers and a summary.

    doubt: from `record.machine_doubt`. steps: number of single steps of each contender; 0 for whole calls."""
    gpu, threads = where.device == "cuda", f"{where.threads} CPU threads"
    if steps:
        title = f"Microseconds of single steps, median / 99th percentile of {steps} calls, the host's clock, "
        title += "to an idle GPU" if gpu else threads
    else:
        title = f"Milliseconds per call, {'the GPU; call: by the host`s clock' if gpu else threads}".replace("`", "'")
        title += "" if gpu else "; us/step: numbarnn's call / T; GFLOP/s: of its products"
    title += "; a ratio below 1: numbarnn is faster"
    title += "; TF32 is PyTorch's default" if any(row["tf32"] is True for row in rows) else ""
    row_doubts = [doubts(row, judged(row), doubt) if row["ok"] else [] for row in rows]
    lines, messages, columns = [], {}, table_columns(rows, gpu)
    for row, reasons in zip(rows, row_doubts, strict=True):
        result = "ok" if row["ok"] and not reasons else "in doubt" if row["ok"] else "REFUSED"
        lines.append([result, *about(row), *(text(row) for text in columns.values())])
        if result != "ok":
            messages.setdefault(f"{result}: {row['refusal'] or '; '.join(reasons)}", []).append(" ".join(about(row)))
    heading = ["result", "cell", "T,B,I,H,L", "dtype", "pass", "schedule"]
    console.print_table(title, [*heading, *columns], lines, right=columns)
    for result, cases in messages.items():
        console.say(f"{cases[0]}{f' and {len(cases) - 1} more rows' if len(cases) > 1 else ''}: {result}")
    for (name, words), cases in left_out(rows).items():
        console.say(f"{name}, {len(cases)} cases such as {next(iter(cases))}: {words}")
    if gpu and any(row["what"] == BACKWARD_WEIGHTS for row in rows):
        console.say(WEIGHTS_ALONE)
    refusals = sum(not row["ok"] for row in rows)
    verdict = f"{refusals} of {len(rows)} REFUSED" if refusals else f"all {len(rows)} agree with PyTorch"
    console.say(f"numbarnn bench: {verdict}{f'; {sum(map(bool, row_doubts))} in doubt' if any(row_doubts) else ''}")


def left_out(rows):
    """Return (peer, why it has no times or is no CUDA graph) -> cases."""
    cases = {}
    for row in rows:
        notes = {name: note for name, note in row["notes"].items() if is_cudnn(name) and "cannot" in note}
        for name, words in (row["left_out"] | notes).items():
            cases.setdefault((name, words), {})[" ".join(about(row)[:4])] = True
    return cases
