"""`numbarnn report FILE...`: write a page with tables and pictures of results of `numbarnn bench`.

Without a file it shows the newest results of each device that come with numbarnn.
"""

import io
import itertools
from collections import namedtuple
from html import escape
from pathlib import Path

import numpy as np

from numbarnn.bench import console, record
from numbarnn.bench.shapes import SHORT, STEP, with_tf32
from numbarnn.bench.tables import sizes_text, table_columns

COLORS = ("tab:blue", "tab:orange", "tab:green", "tab:purple", "tab:brown", "tab:red")
MARKERS = {"PyTorch": "o", "onnxruntime": "D", "cuDNN": "s"}
LEGEND = (
    "A time is the median over rounds, of single steps with the 99th percentile; a ratio is the median over rounds of "
    "numbarnn's time divided by the peer's in the same round, so that a slow moment of the machine hits both. Below 1 "
    "numbarnn is faster. In doubt, by the benchmark's own rule: ? in tables, hollow in pictures."
)
STYLE = """
body { font: 15px/1.45 system-ui, sans-serif; margin: 2em auto; max-width: 76em; padding: 0 1em; color: #222; }
table { border-collapse: collapse; font-size: 13px; margin: 0.5em 0 1.5em; }
th, td { text-align: left; border-bottom: 1px solid #ddd; padding: 2px 10px 2px 0; vertical-align: top; }
.verdict { font-size: 18px; }
svg { max-width: 100%; height: auto; }
.table { overflow-x: auto; }
@media (prefers-color-scheme: dark) {
  :root { color-scheme: dark; }
  body { background: #0f141a; color: #e6edf3; }
  svg { filter: invert(0.93) hue-rotate(180deg); }
}
"""


def add_arguments(parser):
    """Add the options of `numbarnn report`."""
    about = "Results of `numbarnn bench --json FILE`. Default: from the results that come with numbarnn, "
    parser.add_argument("files", nargs="*", type=Path, metavar="FILE", help=about + "the newest of each device.")
    about, page = "Page to write. Default: numbarnn_report.html.", Path("numbarnn_report.html")
    parser.add_argument("--html", type=console.json_path, default=page, metavar="FILE", help=about)


def run(args):
    """Write the page; return 0."""
    results = list(map(read_result, args.files)) or newest()
    text = html(results)
    for result in results:
        console.say(f"{result.name}: {verdict(result)}")
    console.write_bytes(args.html, text.encode())
    console.say(f"written: {args.html}")
    return 0


# -------------------------------------------------------------------------------------------------------------- results
# A row of a record, its ratios by peer (cuDNN is its fastest algorithm), and the doubts about its times.
Entry = namedtuple("Entry", "row ratios doubts")
# A record, the name of its file, and the Entry of each of its rows by `key_of`.
Result = namedtuple("Result", "name record entries")


def key_of(row):
    """Return a row's name: "lstm 25,16,512,512,1 float32 fwd"."""
    words = [row["cell"], sizes_text(row), with_tf32(row["dtype"], row["tf32"]), SHORT[row["what"]]]
    return " ".join([*words, *([row["schedule"]] if row["schedule"] != "auto" else [])])


def result_of(name, data):
    """Return the `Result` of a record."""
    entries = {}
    for row in data["results"]:
        ratios, doubts = {}, []
        if row["ok"]:
            doubts = record.doubts(row, record.judged(row), data["doubt"])
            for peer, ratio in record.ratios(row["device_seconds"] or row["seconds"]).items():
                if not record.is_cudnn(peer) or peer == row["best_cudnn"]:
                    ratios["cuDNN" if record.is_cudnn(peer) else {"torch": "PyTorch"}.get(peer, peer)] = ratio
        entries[key_of(row)] = Entry(row, ratios, doubts)
    return Result(name, data, entries)


def newest():
    """Return the newest `Result` that comes with numbarnn for each device and set of timed rows."""
    records = [(file.stem, one) for file in record.RESULTS.glob("*.json") if (one := record.read(file))]
    newest_of = {}
    for name, one in sorted(records, key=lambda pair: pair[1]["date"], reverse=True):
        timed = frozenset((row["cell"], row["dtype"], row["what"]) for row in one["results"])
        newest_of.setdefault((one["device_name"], timed), (name, one))
    return [result_of(*one) for one in newest_of.values()]


def read_result(file):
    """Read the `Result` of a file. Raise WrongArguments if it holds something else."""
    try:
        return result_of(file.stem, record.read(file))
    except Exception as error:  # a file of another format may raise anything
        said = f"FILE {file} is no result of numbarnn bench: {type(error).__name__}: {error}"
        raise console.WrongArguments(said) from error


# ----------------------------------------------------------------------------------------------------------- the page
def html(results):
    parts = ["<h1>numbarnn report</h1>", *(f'<p class="verdict">{escape(verdict(result))}</p>' for result in results)]
    parts.append(f"<p>{escape(LEGEND)}</p>")
    return console.document("numbarnn report", "\n".join(itertools.chain(parts, *map(section, results))), STYLE)


def verdict(result):
    """Say in a sentence how often numbarnn is faster than each peer, by times without doubts."""
    compared = [one for one in result.entries.values() if one.ratios]
    rows = [one for one in compared if one.row["schedule"] == "auto"] or compared
    trusted, said = [one for one in rows if not one.doubts], []
    for peer in dict.fromkeys(peer for one in rows for peer in one.ratios):
        if ratios := [one.ratios[peer] for one in trusted or rows if peer in one.ratios]:
            faster = f"faster than {peer} in {sum(ratio < 1 for ratio in ratios)} of {len(ratios)} passes"
            said.append(f"{faster} (median {np.median(ratios):.2f} of its time)")
    if len(trusted) < len(rows):
        said.append(f"{len(rows) - len(trusted)} more in doubt" if trusted else "all in doubt")
    where = f"{result.record['device_name']}, {result.record['date'][:10]}"
    return f"{where}: {', '.join(said) or 'no peer ran beside numbarnn'}."


def section(result):
    """Return the section of one result, as HTML parts."""
    data, entries, gpu = result.record, result.entries, result.record["device"] == "cuda"
    parts = [f"<h2>{escape(result.name)}: {escape(data['device_name'])}</h2>"]
    if any(entry.ratios for entry in entries.values()):
        parts += ["<h3>Ratios</h3>", ratios_picture(entries)]
    steps = any(entry.row["what"] == STEP for entry in entries.values())
    title = "One step at a time, microseconds" if steps else f"Milliseconds by the {'GPU' if gpu else 'host'}'s clock"
    columns = table_columns([entry.row for entry in entries.values()], gpu)
    rows = [
        [key + " ?" * bool(entry.doubts), *(text(entry.row) for text in columns.values())]
        if entry.row["ok"] else [key, entry.row["refusal"], *[""] * (len(columns) - 1)]
        for key, entry in entries.items()
    ]  # fmt: skip
    parts += [f"<h3>{title}</h3>", table(["problem", *columns], rows)]
    return [*parts, "<h3>Where and how</h3>", table((), machine(data))]


def ratios_picture(entries):
    """Return an SVG of ratios: a line per problem, a color and mark per peer, hollow if in doubt."""
    figure = console.figure("the page of numbarnn report", figsize=(9.5, 1.3 + 0.23 * len(entries)))
    axis = figure.subplots()
    peers = list(dict.fromkeys(peer for entry in entries.values() for peer in entry.ratios))
    for color, peer in zip(itertools.cycle(COLORS), peers):
        style = {"marker": MARKERS.get(peer, "^"), "color": color, "linestyle": "none", "markersize": 5}
        for line, entry in enumerate(entries.values()):
            if peer in entry.ratios:
                axis.plot(entry.ratios[peer], line, markerfacecolor="none" if entry.doubts else color, **style)
        axis.plot([], [], label=f"against {peer}", **style)
    axis.axvline(1.0, color="black", linewidth=1)
    axis.set(xscale="log", ylim=(len(entries) - 0.4, -0.6))
    axis.set_yticks(range(len(entries)), list(entries), fontsize=8)
    axis.set_xlabel("numbarnn's time / the peer's (left of 1: numbarnn is faster)")
    ticks = [tick for tick in (0.05, 0.1, 0.2, 0.5, 1, 2, 5) if axis.get_xlim()[0] <= tick <= axis.get_xlim()[1]]
    axis.set_xticks(ticks, list(map(str, ticks)))
    axis.set_xticks([], minor=True)
    axis.grid(axis="x", color="#dddddd", linewidth=0.6)
    figure.legend(loc="outside upper left", ncols=4, frameon=False, fontsize=8)
    stream = io.StringIO()
    figure.savefig(stream, format="svg", metadata=dict.fromkeys(("Creator", "Date", "Format", "Type")))
    return stream.getvalue()[stream.getvalue().index("<svg") :]


def table(columns, rows):
    lines = ["".join(f"<{tag}>{escape(str(cell))}</{tag}>" for cell in line)
             for tag, some in (("th", [columns] if columns else []), ("td", rows)) for line in some]  # fmt: skip
    return "\n".join(['<div class="table"><table>', *(f"<tr>{line}</tr>" for line in lines), "</table></div>"])


def machine(data):
    """Return the table rows about a record's machine, software and method."""
    environment, method = data["environment"], data["method"]
    changed = ", with changes that were not committed" if data["clean"] is False else ""
    versions = ", ".join(f"{name} {version}" for name, version in environment["versions"].items() if version)
    return [
        ["recorded", f"{data['date'][:10]}: {method['rounds']} rounds, {method['threads']} threads"],
        ["doubt", f"the machine was busy: {data['doubt']}" if data["doubt"] else "none of the machine"],
        *(["memory", method[name]] for name in ("memory",) if name in method),
        ["numbarnn", f"{environment['numbarnn']}, commit {environment['commit']}{changed}"],
        ["CPU", f"{environment['cpu']['model']}, {environment['cpu']['cores']} cores"],
        *(["GPU", gpu["name"]] for gpu in environment["gpus"]),
        ["driver", environment["driver"] or "none"],
        ["versions", f"Python {environment['python']}, {versions}"],
    ]
