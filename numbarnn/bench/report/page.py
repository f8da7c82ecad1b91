"""The page of `numbarnn report`."""

from html import escape

from numbarnn.bench import pages
from numbarnn.bench.report import plots
from numbarnn.bench.report.rows import keys_of
from numbarnn.bench.speed.speed_table import milliseconds, three_digits

LEGEND = (
    "A time is the median over rounds; a ratio is the median over rounds of numbarnn's time divided by the peer's in "
    "the same round, so that a slow moment of the machine hits both. Below 1 numbarnn is faster. In doubt, by the "
    "benchmark's own rule: ? in tables, hollow in pictures."
)
TRAFFIC = (
    "Operations are those of the matrix products. The bytes are those of weights, x, y and, in training, their "
    "gradients and what is saved, each moved once. Above the line is only what stays in the caches from call to call."
)
STEPS = (
    "Median / 99th percentile of single calls, the state carried from one to the next. Ratios are the stepper's median "
    "of a round divided by the peer's in the same round, the median over rounds."
)
CALLERS = {
    "stepper": "stepper", "numbarnn": "call", "torch": "PyTorch", "torch cell": "PyTorch's cell",
    "torch.compile": "torch.compile", "onnxruntime": "onnxruntime",
}  # fmt: skip


def html(results):
    """The page of some `rows.Result`s, as text."""
    parts = ["<h1>numbarnn report</h1>", f"<p>{escape(LEGEND)}</p>"]
    keys = keys_of(results)
    for device in dict.fromkeys(result.record["device"] for result in results):
        there = [result for result in results if result.record["device"] == device]
        own = [key for key in keys if any(key in result.entries for result in there)]
        clock, kind = ("the GPU's clock", "GPU") if device == "cuda" else ("the host's clock", "CPU")
        if any(entry.ratios for result in there for entry in result.entries.values()):
            parts += [f"<h2>{kind}: ratios</h2>", plots.ratios(there, own)]
        if own:
            parts += [f"<h2>Milliseconds by {clock}</h2>", times(there, own)]
        if taken := keys_of(there, "steps"):
            parts += [f"<h2>{kind}: one step at a time, microseconds of single calls</h2>"]
            parts += [f"<p>{escape(STEPS)}</p>", steps(there, taken)]
    for result in results:
        pictures = [(dtype, plots.roofline(result, dtype)) for dtype in ("float32", "float64")]
        for dtype, picture in pictures:
            if picture:
                parts += [f"<h2>Under the machine's ceilings: {escape(result.name)}, {dtype}</h2>", picture]
                parts += [f"<p>{escape(TRAFFIC)}</p>"]
    for result in results:
        parts += [f"<h2>{escape(result.name)}</h2>", where(result.record)]
        parts += [f"<p>{escape(circumstances(result.record))}</p>"]
    return pages.document("numbarnn report", "\n".join(parts), pages.STYLE)


def where(record):
    """The machine and the software of a record, as HTML. In older records some of it stands elsewhere."""
    known = {"commit": record["commit"], "driver": record.get("driver"), "gpus": []}
    return pages.about(known | record["environment"])


def times(results, keys):
    """The table of times and ratios, results side by side."""
    columns = ["problem"]
    for result in results:
        prefix = f"{result.name}: " if len(results) > 1 else ""
        columns += [f"{prefix}{heading}" for heading in ("ms", "ratios", "GFLOP/s", "of peak", *used(result))]
    rows = [[str(key), *(cell for result in results for cell in cells(result, key))] for key in keys]
    return pages.table(columns, rows)


def used(result):
    """Heading -> (field of an `rows.Entry`, unit) of what calls use besides time, as far as a result has it."""
    kinds = {"MB": ("peak_bytes", 1e6), "mJ": ("energy_j", 1e-3)}
    return {
        heading: kind for heading, kind in kinds.items() if any(getattr(e, kind[0]) for e in result.entries.values())
    }


def cells(result, key):
    """A problem's cells of one result."""
    entry, more = result.entries.get(key), used(result)
    if entry is None:
        return [""] * (4 + len(more))
    if entry.seconds is None:
        return ["-", entry.refusal, "", "", *[""] * len(more)]
    peak = result.record["method"].get("peak_flops", {}).get(key.dtype)
    compiled = {peer: f" (compiled in {seconds:.0f} s)" for peer, seconds in entry.compile_s.items()}
    ratios = ", ".join(f"{ratio:.2f} {peer}{compiled.get(peer, '')}" for peer, ratio in entry.ratios.items())
    share = f"{entry.flops / peak:.0%}" if peak else ""
    found = [milliseconds(entry.seconds) + "?" * bool(entry.doubts), ratios, f"{entry.flops / 1e9:.1f}", share]
    for field, unit in more.values():
        # numbarnn's, which comes first, needs no name
        named = [f"{three_digits(one / unit)} {name}" for name, one in getattr(entry, field).items()]
        found.append(", ".join(named).replace(" numbarnn", "", 1))
    return found


def steps(results, keys):
    """The table of single steps: a row for each problem and result."""
    several, lines = len(results) > 1, []
    for key in keys:
        for result in (one for one in results if key in one.steps):
            step = result.steps[key]
            mark = "?" * bool(step.doubts)
            shown = [
                f"{step.median[name] * 1e6:.1f} / {step.p99[name] * 1e6:.1f}{mark}" if name in step.median else ""
                for name in CALLERS
            ]
            ratios = ", ".join(f"{ratio:.2f} {peer}" for peer, ratio in step.ratios.items())
            lines.append([str(key), *([result.name] if several else []), *shown, step.refusal or ratios])
    columns = ["problem", *(["result"] if several else []), *CALLERS.values(), "ratios"]
    return pages.table(columns, lines, CALLERS.values())


def circumstances(record):
    """How a record was taken, in a sentence."""
    method, commit = record["method"], record["commit"]
    commit = f" at commit {commit[:8]}" if record["clean"] is not None else ""
    changed = ", with changes that were not committed" if record["clean"] is False else ""
    said = f"Recorded {record['date'][:10]}{commit}{changed}; {method['rounds']} rounds"
    said += f", {method['threads']} threads" if method.get("threads") and record["device"] == "cpu" else ""
    for kind in ("memory", "energy"):
        said += f". {kind.capitalize()}: {method[kind]}" if kind in method else ""
    return said + (f". The machine was busy: {record['doubt']}." if record["doubt"] else ".")
