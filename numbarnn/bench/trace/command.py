"""`numbarnn trace`: show what every block of a persistent kernel computes and waits for, in the simulator.

The page is `page.html` with `player.css`, `player.js` and the record (see `recorder`) as JSON.
"""

import json
from html import escape
from pathlib import Path
from string import Template

from numbarnn import engines
from numbarnn.bench import console
from numbarnn.bench.cells import ABOUT_CELL, built_in_or_own
from numbarnn.bench.shapes import Shape, parse_sizes

SHAPE = Shape(12, 2, 4, 8, 4)  # two blocks for each of four layers; about two seconds in the simulator


def add_arguments(parser):
    """Add the options of `numbarnn trace`."""
    add = parser.add_argument
    add("--html", type=console.json_path, metavar="FILE", help="Write the page, one self-contained file.")
    add("--shape", type=parse_sizes, default=SHAPE, metavar="T,B,I,H,L", help="Sizes. Default: %(default)s.")
    named = lambda text: built_in_or_own(text) and text  # noqa: E731
    add("--cell", type=named, default="lstm", metavar="CELL", help=ABOUT_CELL)
    add("--backward", action="store_true", help="Show the backward pass instead of forward.")
    add("--bidirectional", action="store_true", help="Add a second direction, backward in time.")
    console.add_json_argument(parser, "the record")


def run(args):
    """Print a summary, and write the record and page; return 1 if the recorded run failed."""
    if not args.html and not args.json:
        raise console.WrongArguments("say where the page is to go: numbarnn trace --html FILE")
    record = make(args)
    console.say(f"{record['title']}\n")
    rows = [[block["name"], f"{share:.0%}"] for block, share in zip(record["blocks"], waiting(record), strict=True)]
    console.print_table("Who waits", ["block", "of the time"], rows, ["of the time"])
    if args.json:
        console.write_json(args.json, record)
    if args.html:
        console.write_bytes(args.html, html(record).encode())
        console.say(f"page: {args.html}")
    if record["error"]:
        console.say(f"the run failed: {record['error']}", error=True)
    return 1 if record["error"] else 0


def make(args):
    """Return the record for the arguments. Raise console.CannotRun if the simulator cannot run it."""
    if problem := engines.why_not("sim"):
        raise console.CannotRun(problem)
    from numbarnn.bench.trace.recorder import record

    cell, shape = built_in_or_own(args.cell), args.shape
    words = ["bidirectional"] * args.bidirectional + ["backward" if args.backward else "forward"]
    sizes = ", ".join(f"{name}={size}" for name, size in shape.sizes.items())
    try:
        title = f"{cell.name}, persistent, {' '.join(words)}: {sizes}"
        return record(title, cell, shape, args.backward, 1 + args.bidirectional)
    except ValueError as reason:
        raise console.WrongArguments(f"--cell {args.cell} with --shape {shape}: {reason}") from reason
    except RuntimeError as reason:
        raise console.CannotRun(str(reason)) from reason


def waiting(record):
    """Return for each block of a record the share of the time that it waits."""
    events, waits = record["events"], [0] * len(record["blocks"])
    total = max(event["end"] for event in events) - min(event["start"] for event in events) or 1
    for event in events:
        waits[event["block"]] += (event["end"] - event["start"]) * (event["kind"] == "wait")
    return [wait / total for wait in waits]


def html(record):
    failed = f'<p class="error" role="alert">The run failed: {escape(record["error"] or "")}</p>'
    page, style, script = (
        Path(__file__).with_name(name).read_text(encoding="utf-8") for name in ("page.html", "player.css", "player.js")
    )
    body = Template(page).substitute(
        title=escape(record["title"]), seed=record["seed"], directions=record["directions"],
        error=failed if record["error"] else "",
        data=json.dumps(record, separators=(",", ":")).replace("<", "\\u003c"),  # nothing in it ends the <script>
    )  # fmt: skip
    return console.document(f"numbarnn trace: {record['title']}", body, style, script)
