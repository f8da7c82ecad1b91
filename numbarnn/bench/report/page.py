"""The page of `numbarnn report`."""

from html import escape

import numpy as np

from numbarnn.bench import pages
from numbarnn.bench.report import plots
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
    """The page of some `rows.Result`s, a section each, as text."""
    parts = ["<h1>numbarnn report</h1>", *(f'<p class="verdict">{escape(verdict(result))}</p>' for result in results)]
    parts.append(f"<p>{escape(LEGEND)}</p>")
    for result in results:
        parts += section(result)
    return pages.document("numbarnn report", "\n".join(parts), pages.STYLE)


def verdict(result):
    """What a result says, in a sentence: how often numbarnn is faster than whom, by the rows that can be trusted."""
    taken = {key: one for key, one in (result.entries | result.steps).items() if one.ratios}
    rows = [one for key, one in taken.items() if key.schedule == "auto"] or [*taken.values()]
    trusted = [one for one in rows if not one.doubts]
    where = f"{result.record['device_name']}, {result.record['date'][:10]}"
    said = []
    for peer in dict.fromkeys(peer for one in rows for peer in one.ratios):
        found = [one.ratios[peer] for one in trusted or rows if peer in one.ratios]
        if found:
            faster = f"faster than {peer} in {sum(ratio < 1 for ratio in found)} of {len(found)} passes"
            said.append(f"{faster} (median {np.median(found):.2f} of its time)")
    if not trusted and rows:
        said.append("all in doubt")
    elif len(trusted) < len(rows):
        said.append(f"{len(rows) - len(trusted)} more in doubt")
    return f"{where}: {', '.join(said) or 'no peer ran beside numbarnn'}."


def section(result):
    """The parts of the page about one result."""
    gpu, about = result.record["device"] == "cuda", result.record
    parts = [f"<h2>{escape(result.name)}: {escape(about['device_name'])}</h2>"]
    if any(entry.ratios for entry in result.entries.values()):
        parts += ["<h3>Ratios</h3>", plots.ratios(result)]
    if result.entries:
        parts += [f"<h3>Milliseconds by the {'GPU' if gpu else 'host'}'s clock</h3>", times(result)]
    if result.steps:
        parts += ["<h3>One step at a time, microseconds of single calls</h3>", f"<p>{escape(STEPS)}</p>", steps(result)]
    for dtype in ("float32", "float64"):
        if picture := plots.roofline(result, dtype):
            parts += [f"<h3>Under the machine's ceilings: {dtype}</h3>", picture, f"<p>{escape(TRAFFIC)}</p>"]
    return [*parts, "<h3>Where and how</h3>", where(about), f"<p>{escape(circumstances(about))}</p>"]


def where(record):
    """The machine and the software of a record, as HTML."""
    return pages.about(record["environment"])


def times(result):
    """The table of times and ratios."""
    columns = ["problem", "ms", "ratios", "GFLOP/s", "of peak", *(["MB"] if tells_memory(result) else [])]
    return pages.table(columns, [[str(key), *cells(result, key)] for key in result.entries])


def tells_memory(result):
    return any(entry.peak_bytes for entry in result.entries.values())


def cells(result, key):
    """A problem's cells."""
    entry, with_memory = result.entries[key], tells_memory(result)
    if entry.seconds is None:
        return ["-", entry.refusal, "", "", *[""] * with_memory]
    peak = result.record["method"].get("peak_flops", {}).get(key.dtype)
    compiled = {peer: f" (compiled in {seconds:.0f} s)" for peer, seconds in entry.compile_s.items()}
    ratios = ", ".join(f"{ratio:.2f} {peer}{compiled.get(peer, '')}" for peer, ratio in entry.ratios.items())
    share = f"{entry.flops / peak:.0%}" if peak else ""
    found = [milliseconds(entry.seconds) + "?" * bool(entry.doubts), ratios, f"{entry.flops / 1e9:.1f}", share]
    if with_memory:
        # numbarnn's, which comes first, needs no name
        named = [f"{three_digits(one / 1e6)} {name}" for name, one in entry.peak_bytes.items()]
        found.append(", ".join(named).replace(" numbarnn", "", 1))
    return found


def steps(result):
    """The table of single steps."""
    lines = []
    for key, step in result.steps.items():
        mark = "?" * bool(step.doubts)
        shown = [
            f"{step.median[name] * 1e6:.1f} / {step.p99[name] * 1e6:.1f}{mark}" if name in step.median else ""
            for name in CALLERS
        ]
        ratios = ", ".join(f"{ratio:.2f} {peer}" for peer, ratio in step.ratios.items())
        lines.append([str(key), *shown, step.refusal or ratios])
    return pages.table(["problem", *CALLERS.values(), "ratios"], lines, CALLERS.values())


def circumstances(record):
    """How a record was taken, in a sentence."""
    method, commit = record["method"], record["commit"]
    commit = f" at commit {commit[:8]}" if record["clean"] is not None else ""
    changed = ", with changes that were not committed" if record["clean"] is False else ""
    said = f"Recorded {record['date'][:10]}{commit}{changed}; {method['rounds']} rounds"
    said += f", {method['threads']} threads" if method.get("threads") and record["device"] == "cpu" else ""
    said += f". Memory: {method['memory']}" if "memory" in method else ""
    return said + (f". The machine was busy: {record['doubt']}." if record["doubt"] else ".")
