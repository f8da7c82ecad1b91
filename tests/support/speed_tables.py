"""What README.md and notebooks/speed.md say about speed, written from the newest records in `numbarnn/bench/results`:

    python tests/support/speed_tables.py

It replaces what stands between <!-- table: NAME --> and <!-- end of table -->. A time that the benchmark's own rule
doubts has a "?".
"""

import re
import textwrap
from functools import partial
from pathlib import Path

import numbarnn
from numbarnn.bench import record
from numbarnn.bench.peers.torch_peer import TORCH
from numbarnn.bench.shapes import FORWARD, SETS, TRAINING, Shape, with_tf32

ROOT = Path(numbarnn.__file__).parents[1]
PART = re.compile(r"(<!-- table: (\w+) -->)(.*?)(<!-- end of table -->)", re.DOTALL)
PASSES, WIDTH, NAMES = (FORWARD, TRAINING), 120, {"lstm": "LSTM", "gru": "GRU"}
LETTERS = {"standard": "s", "persist_static": "p", "persist_dynamic": "d", "persist_static_small_h": "h"}
WORDS = {  # device -> what stands before its table
    "cuda": (
        "On one {device_name} (driver {driver}, cuDNN {versions[cuDNN]}, PyTorch {versions[PyTorch]}): milliseconds of "
        "`auto` by the GPU's clock and, in brackets, relative to the fastest of cuDNN's algorithms, called directly as "
        "a CUDA graph (s: standard, p: persistent static, d: persistent dynamic, h: persistent for small H); I = H; "
        "float32 without TF32 where it does not say TF32 (PyTorch's own default is with). "
    ),
    "cpu": (
        "On {method[threads]} threads of an {cpu[model]} (OpenBLAS kernels for {cpu[openblas_core]}): milliseconds of "
        "`auto` by the host's clock and, in brackets, relative to PyTorch {versions[PyTorch]} and, forward, "
        "onnxruntime {versions[onnxruntime]} in the same run. "
    ),
}
BELOW = "`?`: not to be trusted by the benchmark's own rule, where it stands at the milliseconds with the ratios."
HEADLINES = {  # device -> (cell, dtype, shape) of the headline
    "cpu": ("lstm", "float32", Shape(25, 16, 512, 512, 1)),
    "cuda": ("lstm", "float16", Shape(1024, 16, 768, 768, 1)),
}


def newest(device):
    """Return the newest record of the kind of device, "cpu" or "cuda"."""
    records = [one for one in map(record.read, record.RESULTS.glob("*.json")) if one and one["device"] == device]
    return max(records, key=lambda one: one["date"])


def find(one, case, shape, what):
    """Return the row of a case (cell, dtype, TF32) and pass; None where a record has none with times."""
    for row in one["results"]:
        same = (row["cell"], row["dtype"], row["tf32"]) == case and Shape(
            **row["shape"], form=tuple(row["form"])
        ) == shape
        if same and row["what"] == what and row["schedule"] == "auto" and row["input_mode"] == "linear" and row["ok"]:
            return row
    return None


def milliseconds(seconds):
    return f"{seconds * 1e3:.3g}" if seconds < 0.1 else f"{seconds * 1e3:.0f}"


def times_of(row):
    """Return (contender -> its median, the peers in order)."""
    times = row["device_seconds"] or row["seconds"]
    return record.medians(times), [name for name in (row["best_cudnn"], TORCH, "onnxruntime") if name and name in times]


def entry(row, doubt):
    """Return a cell of the table: milliseconds, and in brackets the ratios."""
    if row is None:
        return "-"
    middle, peers = times_of(row)
    ratio, own = record.ratios(row["device_seconds"] or row["seconds"]), record.doubts(row, ["numbarnn"], doubt)
    marks = {name: "?" * bool(not own and record.doubts(row, [name])) for name in peers}
    letters = {name: LETTERS[name.split()[1]] if record.is_cudnn(name) else "" for name in peers}
    shown = [f"{ratio[name]:.2f}{letters[name]}{marks[name]}" for name in peers]
    return f"{milliseconds(middle['numbarnn'])}{'?' * bool(own)} ({', '.join(shown)})"


def changed(one):
    """Return whether the kernels have changed since a record."""
    return one["kernels"] != record.kernels_digest(one["device"])


def table(device, shapes):
    """Return a table with a row per shape, two columns per cell and dtype, and what is to be said before and after."""
    one, square = newest(device), all(s.I == s.H for s in shapes)
    rows = [row for row in one["results"] if row["schedule"] == "auto"]
    cases = sorted(
        {(row["cell"], row["dtype"], row["tf32"]) for row in rows}, key=lambda c: (list(NAMES).index(c[0]), c)
    )
    heads = ["T, B, H, layers" if square else "T, B, I, H, layers"]
    for cell, dtype, tf32 in cases:
        heads += [f"{NAMES[cell]} {with_tf32(dtype, tf32)} forward", "with backward"]
    lines = [f"| {' | '.join(heads)} |", f"|{' --- |' * len(heads)}"]
    for shape in shapes:
        sizes = [shape.T, shape.B, *([] if square else [shape.I]), shape.H, shape.L]
        cells = [entry(find(one, case, shape, what), one["doubt"]) for case in cases for what in PASSES]
        lines.append(f"| {' | '.join([', '.join(map(str, sizes)), *cells])} |")
    found = [row for case in cases for shape in shapes for what in PASSES if (row := find(one, case, shape, what))]
    first = [record.ratios(row["device_seconds"] or row["seconds"])[times_of(row)[1][0]] for row in found]
    kernels = f"{'with other kernels: ' if changed(one) else 'at '}commit {one['commit'][:8]}"
    words = WORDS[device].format(**one["environment"] | one) + f"Recorded {one['date'][:10]} {kernels}. "
    words += f"Above 1 numbarnn is slower: {sum(ratio > 1 for ratio in first)} of {len(first)} (the first in brackets)."
    return "\n".join([wrapped(words), "", *lines, "", wrapped(BELOW)])


def headline():
    """Return the CPU's and the GPU's times of one case each."""
    said = []
    for device, (cell, dtype, shape) in HEADLINES.items():
        one = newest(device)
        (ours, peers), (theirs, _) = (times_of(find(one, (cell, dtype, False), shape, what)) for what in PASSES)
        peer = "PyTorch" if peers[0] == TORCH else "cuDNN's fastest algorithm"
        threads = "" if device == "cuda" else f", {one['method']['threads']} threads"
        first, second = ([milliseconds(middle[name]) for middle in (ours, theirs)] for name in ("numbarnn", peers[0]))
        sizes = f"T = {shape.T}, B = {shape.B}, I = {shape.I}, H = {shape.H}"
        said.append(
            f"- {one['device_name']}{threads}, {NAMES[cell]} in {dtype}, {sizes}: forward {first[0]} ms, forward and "
            f"backward {first[1]} ms; {peer} {second[0]} ms and {second[1]} ms. Measured {one['date'][:10]}"
            f"{' with an earlier revision' * changed(one)}."
        )
    return "\n".join(wrapped(words, indent="  ") for words in said)


def wrapped(words, indent=""):
    """Return a paragraph in lines as these pages have them; `indent` before each but the first."""
    return textwrap.fill(words, WIDTH, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


# Page -> name of a part -> (what writes it, what stands before and after it).
GPU, CPU = partial(table, "cuda", SETS["schedules"]), partial(table, "cpu", SETS["default"])
PAGES = {
    "README.md": {"headline": (headline, "\n", "\n")},
    "notebooks/speed.md": {"gpu": (GPU, "\n", "\n"), "cpu": (CPU, "\n", "\n")},
}


def rendered(page, text):
    """Return the text of a page with every part written anew."""

    def written(match):
        write, before, after = PAGES[page][match[2]]
        return f"{match[1]}{before}{write()}{after}{match[4]}"

    return PART.sub(written, text)


if __name__ == "__main__":
    for page in PAGES:
        path = ROOT / page
        path.write_text(rendered(page, path.read_text(encoding="utf-8")), encoding="utf-8")
