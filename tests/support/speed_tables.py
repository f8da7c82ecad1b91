"""What README.md and notebooks/speed.md say about speed, written from the records in `results`:

    python tests/support/speed_tables.py            writes it there
    python tests/support/speed_tables.py --check    says what they would have to say, and changes nothing

They have a pair of comments for each part, <!-- table: NAME --> and <!-- end of table -->, with what is written
between them. For each cell and dtype the newest record counts, among those of the GPU, or CPU, that the newest record
of all is of. A time that is not to be trusted (`trust`) has a mark. A table says if kernels have changed since.
"""

import argparse
import re
import sys
import textwrap
from collections import Counter
from functools import partial
from pathlib import Path

import numbarnn
from numbarnn.bench import record
from numbarnn.bench.peers.torch_peer import TORCH
from numbarnn.bench.shapes import FORWARD, SETS, TF32, TRAINING, WHOLE, Shape, with_tf32

ROOT = Path(numbarnn.__file__).parents[1]
PART = re.compile(r"(<!-- table: (\w+) -->)(.*?)(<!-- end of table -->)", re.DOTALL)
HEADLINES = {  # device -> (cell, dtype, shape) of the headline
    "cuda": ("lstm", "float16", Shape(1024, 16, 768, 768, 1)),
    "cpu": ("lstm", "float32", Shape(25, 16, 512, 512, 1)),
}
MARK = "?"
WIDTH = 120
LETTERS = {"standard": "s", "persist_static": "p", "persist_dynamic": "d", "persist_static_small_h": "h"}
NAMES = {"lstm": "LSTM", "gru": "GRU", "rnn_tanh": "RNN tanh", "rnn_relu": "RNN ReLU"}

# What stands before a table: a text for a record's fields, and what ratios are about.
WORDS = {
    "cuda": (
        "On one {device_name} (driver {driver}, cuDNN {versions[cuDNN]}, PyTorch {versions[PyTorch]}): milliseconds of "
        "`auto` by the GPU's clock and, in brackets, relative to {rival}; I = H; float32 without TF32 where it does "
        "not say TF32 (PyTorch's own default is with). "
    ),
    "cpu": (
        "On {method[threads]} threads of an {cpu[model]} (OpenBLAS kernels for {cpu[openblas_core]}): milliseconds of "
        "`auto` by the host's clock and, in brackets, relative to PyTorch {versions[PyTorch]} and, forward, "
        "onnxruntime {versions[onnxruntime]} in the same run. "
    ),
}
CUDNN_TIMED = (
    "the fastest of cuDNN's algorithms, called directly as a CUDA graph (s: standard, p: persistent static, d: "
    "persistent dynamic, h: persistent for small H), and PyTorch's choice of them"
)
CUDNN_NOT_TIMED = (
    "PyTorch's call of cuDNN, with the algorithm that PyTorch chooses, outside of a graph (cuDNN's algorithms "
    "themselves have not been timed yet)"
)


# --------------------------------------------------------------------------------------------------------- records
def newest(device, shapes=None):
    """(cell, dtype, tf32) -> the newest record with it; all on the "cpu" or "cuda" device of the newest record that has
    rows of these shapes."""
    records = [one for one in map(record.read, record.RESULTS.glob("*.json")) if one and one["device"] == device]
    records = sorted((one for one in records if rows_of(one, shapes)), key=lambda one: one["date"])
    of_device = [one for one in records if one["device_name"] == records[-1]["device_name"]]
    found = {(row["cell"], row["dtype"], row["tf32"]): one for one in of_device for row in rows_of(one, shapes)}
    cells, words = list(NAMES), list(TF32.values())
    return dict(sorted(found.items(), key=lambda item: (cells.index(item[0][0]), item[0][1], words.index(item[0][2]))))


def rows_of(one, shapes=None):
    """The rows of a record that are about the schedule `auto`, whole passes with an input product, and some shapes."""
    rows = [row for row in one["results"] if row["schedule"] == "auto" and row["what"] in WHOLE]
    rows = [row for row in rows if row["input_mode"] == "linear"]
    return [row for row in rows if not shapes or shape_of(row) in shapes]


def shape_of(row):
    return Shape(**row["shape"], form=tuple(row["form"]))


def find(one, cell, dtype, tf32, shape, what):
    """The row about a case and pass; None where a record has none."""
    wanted = cell, dtype, tf32, shape, what
    rows = [r for r in rows_of(one) if (r["cell"], r["dtype"], r["tf32"], shape_of(r), r["what"]) == wanted]
    return rows[0] if rows else None


def command_of(records):
    """The command that takes the times of some records again."""
    rows = [row for one in records for row in one["results"]]
    shapes = list(dict.fromkeys(map(shape_of, rows)))
    named = [name for name, own in SETS.items() if set(own) == set(shapes)]
    words = ["numbarnn bench", f"--device {records[0]['device']}"]
    words += [f"--set {named[0]}"] if named else [f"--shape {shape}" for shape in shapes]
    for option, key in (("--cell", "cell"), ("--dtype", "dtype"), ("--schedule", "schedule")):
        words.append(f"{option} {','.join(dict.fromkeys(row[key] for row in rows))}")
    if found := {row["tf32"] for row in rows if row["device"] == "cuda" and row["dtype"] == "float32"}:
        words.append(f"--tf32 {','.join(word for word, tf32 in TF32.items() if tf32 in found)}")
    words.append(f"--rounds {max(one['method']['rounds'] for one in records)}")
    return " ".join(words)


# --------------------------------------------------------------------------------------------------------- numbers
def milliseconds(seconds):
    return f"{seconds * 1e3:.3g}" if seconds < 0.1 else f"{seconds * 1e3:.0f}"


def entry(row, doubt):
    """A cell of the table: milliseconds, and in brackets ratios, for which a mark at the milliseconds holds, too."""
    if row is None or not row["ok"]:
        return "-"
    times, best = row["device_seconds"] or row["seconds"], row["best_cudnn"]
    ratio, own = record.ratios(times), MARK if record.doubts(row, ["numbarnn"], doubt) else ""
    shown = []
    for name in (name for name in rivals_of(row) if name in ratio):
        mark = MARK if not own and record.doubts(row, [name]) else ""
        shown.append(f"{ratio[name]:.2f}{LETTERS[name.split()[1]] if name == best else ''}{mark}")
    return f"{milliseconds(record.medians(times)['numbarnn'])}{own} ({', '.join(shown)})"


def rival_of(row):
    """The contender that a row's first ratio is about; None: nobody."""
    return next((name for name in rivals_of(row) if name in (row["device_seconds"] or row["seconds"])), None)


def rivals_of(row):
    """The contenders that a row's ratios are about, in order."""
    return [name for name in (row["best_cudnn"], TORCH, "onnxruntime") if name]


# ---------------------------------------------------------------------------------------------------------- tables
def table(device, shapes):
    """(lines, records) of a table with a row per shape, two columns per cell and dtype; empty without records."""
    columns, square = newest(device, shapes), all(s.I == s.H for s in shapes)
    heads = ["T, B, H, layers" if square else "T, B, I, H, layers"]
    for cell, dtype, tf32 in columns:
        heads += [f"{NAMES[cell]} {with_tf32(dtype, tf32)} forward", "with backward"]
    rows = [heads]
    for shape in shapes:
        sizes = [shape.T, shape.B, *([] if square else [shape.I]), shape.H, shape.L]
        rows.append([", ".join(map(str, sizes))])
        for key, one in columns.items():
            rows[-1] += [entry(find(one, *key, shape, what), one["doubt"]) for what in (FORWARD, TRAINING)]
    lines = [f"| {' | '.join(row)} |" for row in rows]
    lines.insert(1, f"|{' --- |' * len(heads)}")
    return lines, list({id(one): one for one in columns.values()}.values())


def part(device, shapes):
    """A table with what is to be said about it before and after it, and the command that takes its times again."""
    lines, records = table(device, shapes)
    if not records:
        return f"No times on a {'GPU' if device == 'cuda' else 'CPU'} have been recorded yet."
    rows = [(row, one["doubt"]) for one in records for row in rows_of(one, shapes) if row["ok"]]
    rival = CUDNN_TIMED if any(row["best_cudnn"] for row, _ in rows) else CUDNN_NOT_TIMED
    words = WORDS[device].format(**records[-1]["environment"] | records[-1], rival=rival)
    again = ["", "Again (the records are in `numbarnn/bench/results`):", "", "```bash"]
    again += [f"{command_of(records)} --json FILE", "```"]
    return "\n".join([wrapped(words + provenance(records) + slower(rows)), "", *lines, *legend(rows), *again])


gpu, cpu = partial(part, "cuda", SETS["schedules"]), partial(part, "cpu", SETS["default"])


def headline():
    """The GPU's times of one case if the benchmark trusts them; else the CPU's that it trusts, and then the GPU's."""
    trusted, said = zip(*map(of_headline, HEADLINES), strict=True)
    words = [said[0]] if trusted[0] else [said[1]] * trusted[1] + [said[0]]
    return wrapped(" ".join([*words, "See [how fast](notebooks/speed.md)."]), indent="  ")


def of_headline(device):
    """(whether its times stand: trusted, and of today's kernels on a GPU; a sentence) about the case of a device."""
    cell, dtype, shape = HEADLINES[device]
    kind = "a GPU" if device == "cuda" else "the CPU"
    if not (records := newest(device, [shape])) or (cell, dtype, False) not in records:
        return False, f"No times on {kind} have been recorded yet."
    one = records[cell, dtype, False]
    rows = [find(one, cell, dtype, False, shape, what) for what in (FORWARD, TRAINING)]
    if not all(row and row["ok"] for row in rows):
        return False, f"No times on {kind} have been recorded yet."
    rival = rival_of(rows[0])
    name = "the fastest of cuDNN's algorithms" if rival != TORCH else "PyTorch" + " with cuDNN" * (device == "cuda")
    times = [record.medians(row["device_seconds"] or row["seconds"]) for row in rows]
    ours, theirs = ([milliseconds(middle[who]) for middle in times] for who in ("numbarnn", rival))
    where = f"an {one['device_name']}"
    where += "" if device == "cuda" else f" ({one['method']['threads']} threads)"
    earlier = " with an earlier revision" * changed(one)
    doubted = any(record.doubts(row, ["numbarnn", rival], one["doubt"]) for row in rows)
    earlier += ", in doubt by the benchmark's own rule" * doubted
    words = (
        f"{NAMES[cell]} of {shape.T} steps, batch {shape.B}, {shape.H} units in {dtype} on {where}: {ours[0]} ms "
        f"forward and {ours[1]} ms with backward ({name}: {theirs[0]} and {theirs[1]}), measured "
        f"{one['date'][:10]}{earlier}."
    )
    return not doubted and not (changed(one) and device == "cuda"), words


def changed(one):
    """Whether the kernels have changed since a record, or nobody knows."""
    return one["kernels"] != record.kernels_digest(one["device"])


def provenance(records):
    """When it was recorded, at which commit, and whether the kernels are still the same."""
    dates, states = {one["date"][:10] for one in records}, set()
    for one in records:
        known = bool(one["commit"])
        state = f"commit {one['commit'][:8]}" if known else "no commit was recorded"
        state += " with changes that were not committed" if known and not one["clean"] else ""
        states.add((state, changed(one)))
    words = [f"with other kernels: {state}" if other else f"at {state}" for state, other in sorted(states)]
    return f"Recorded {' and '.join(sorted(dates))} {' and '.join(words)}. "


def slower(rows):
    """How many of the ratios are above 1."""
    ratios = [record.ratios(row["device_seconds"] or row["seconds"]) for row, _ in rows]
    first = [found[rival_of(row)] for (row, _), found in zip(rows, ratios, strict=True) if rival_of(row)]
    above = sum(ratio > 1 for ratio in first)
    return f"Above 1 numbarnn is slower: {above} of {len(first)} (of the first in brackets)."


def legend(rows):
    """What the mark stands for: every reason once, the most frequent first."""
    reasons = Counter()
    for row, doubt in rows:
        for reason in record.doubts(row, ["numbarnn", *rivals_of(row)], doubt):
            reasons["the times of a contender scatter" if "scatters" in reason else reason] += 1
    about = "not to be trusted by the benchmark's own rule, where it stands at the milliseconds with the ratios"
    words = "; ".join(reason for reason, _ in reasons.most_common())
    return ["", wrapped(f"`{MARK}`: {about}: {words}.")] if reasons else []


def wrapped(words, indent=""):
    """A paragraph in lines as these pages have them; `indent` before each but the first."""
    return textwrap.fill(words, WIDTH, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


# Page -> name of a part -> (what writes it, what stands before and after it). The headline stands within an item of a
# list, whose paragraph would end with a comment at the start of a line.
PAGES = {
    "README.md": {"headline": (headline, "\n  ", "")},
    "notebooks/speed.md": {"gpu": (gpu, "\n", "\n"), "cpu": (cpu, "\n", "\n")},
}


# ----------------------------------------------------------------------------------------------------------- pages
def rendered(page, text):
    """The text of a page with every part written anew; ValueError where one is missing or unknown."""
    parts, names = PAGES[page], [match[2] for match in PART.finditer(text)]
    if sorted(names) != sorted(parts):
        raise ValueError(f"{page} must have the parts {', '.join(parts)} once each, between comments; it has {names}")

    def written(match):
        write, before, after = parts[match[2]]
        return f"{match[1]}{before}{write()}{after}{match[4]}"

    return PART.sub(written, text)


def main(argv=None):
    """Writes the pages, or checks them; returns 1 where one is not what the records say."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="change nothing; exit status 1 if something would change")
    check, changed = parser.parse_args(argv).check, 0
    for page in PAGES:
        path = ROOT / page
        if not path.is_file():
            parser.error(f"{path} is not there: run this in a clone of the repository, installed with pip install -e .")
        text = path.read_text(encoding="utf-8")
        written = rendered(page, text)
        if check:
            sys.stdout.writelines(f"{match[0]}\n" for match in PART.finditer(written) if match[0] not in text)
            changed |= written != text
        else:
            path.write_text(written, encoding="utf-8")
    return int(changed)


if __name__ == "__main__":
    sys.exit(main())
