"""`numbarnn trace`: watch a pass of the persistent schedule: what every block does and waits for.

It runs in the simulator, all blocks of its kernel at once; where this process cannot be the simulator, another one is
started for it. `--from` shows a record that `--json` wrote. The page is `page.html` with `player.css` and `player.js`,
and the record as JSON.
"""

import json
from datetime import UTC, datetime
from html import escape
from pathlib import Path
from string import Template

import numbarnn
from numbarnn.bench import console
from numbarnn.bench.cells import ABOUT_CELL, built_in_or_own
from numbarnn.bench.shapes import Shape, parse_sizes
from numbarnn.bench.trace import record
from numbarnn.cuda.compiler import simulated

SHAPE = Shape(12, 2, 4, 8, 4)  # two blocks for each of four layers; about two seconds in the simulator
USUAL = {"shape": SHAPE, "cell": "lstm", "backward": False, "bidirectional": False}
TIMEOUT_S = 1800
SCALES = {  # what a time of the record is
    "turns": "Time is counted in turns: in the simulator all threads of the grid take turns, one at a time. Turns show "
    "who comes before whom; how long something takes on a GPU they do not show.",
    "ns": "Time is that of the device's clock, in nanoseconds.",
}


def add_arguments(parser):
    """Options of `numbarnn trace`."""
    add = parser.add_argument
    add("--html", type=console.json_path, metavar="FILE", help="write the page, one file without references to others")
    about = "show this record, as --json wrote it"
    add("--from", dest="read", type=console.existing_file, metavar="FILE", help=about)
    add("--shape", type=parse_sizes, default=SHAPE, metavar="T,B,I,H,L", help="sizes; default %(default)s")
    named = lambda text: built_in_or_own(text) and text  # noqa: E731
    add("--cell", type=named, default="lstm", metavar="CELL", help=ABOUT_CELL)
    add("--backward", action="store_true", help="the backward pass instead of the forward pass")
    add("--bidirectional", action="store_true", help="a second direction, backward in time")
    console.add_json_argument(parser, "the record")


def run(args):
    """Make the record, print what it shows, write record and page; returns 1 where the run that it shows failed."""
    if not args.html and not args.json:
        raise console.WrongArguments("say where the page is to go: numbarnn trace --html FILE")
    if args.read:
        if more := [name for name, usual in USUAL.items() if getattr(args, name) != usual]:
            said = f"--{more[0]} says what to record, and --from {args.read} is there: leave it out"
            raise console.WrongArguments(said)
        made = record.read(args.read)
    else:
        made = make(args)
    rows = [[block, f"{share:.0%}"] for block, share in zip(made.blocks, made.waiting(), strict=True)]
    console.say(f"{made.title}\n")
    console.print_table("Who waits", ["block", "of the time"], rows, ["of the time"])
    if args.json:
        console.write_json(args.json, record.as_json(made))
    if args.html:
        console.write_bytes(args.html, html(made).encode())
        console.say(f"page: {args.html}")
    if made.error:
        console.say(f"the run failed: {made.error}", error=True)
    return 1 if made.error else 0


def make(args):
    """Return the Record that was asked for; console.CannotRun where the schedule cannot run it, or the simulator."""
    if not simulated():
        return in_the_simulator(args)
    from numbarnn.bench.trace.simulated import record as record_of

    cell, shape = built_in_or_own(args.cell), args.shape
    words = ["bidirectional"] * args.bidirectional + ["backward" if args.backward else "forward"]
    sizes = ", ".join(f"{name}={size}" for name, size in shape.sizes.items())
    facts = (("recorded", f"{datetime.now(UTC):%Y-%m-%d}"), ("numbarnn", numbarnn.__version__))
    try:
        title = f"{cell.name}, persistent, {' '.join(words)}: {sizes}"
        return record_of(title, cell, shape, args.backward, 1 + args.bidirectional, facts)
    except ValueError as reason:
        raise console.WrongArguments(f"--cell {args.cell} with --shape {shape}: {reason}") from reason
    except RuntimeError as reason:
        raise console.CannotRun(str(reason)) from reason


def in_the_simulator(args):
    """Return the Record made by a process of its own."""
    arguments = ["trace", "--shape", str(args.shape), "--cell", args.cell]
    arguments += [f"--{name}" for name in ("backward", "bidirectional") if getattr(args, name)]
    code, found, said = console.run_simulated(arguments, TIMEOUT_S)
    if found is not None:
        return record.from_json(found)
    if code is None:
        raise console.CannotRun(f"the simulator is stopped, as {said}: take a smaller --shape")
    raise (console.WrongArguments if code == 2 else console.CannotRun)(said.removeprefix("numbarnn trace: "))


def html(made):
    """Return the page of a Record."""
    facts = "".join(f"<dt>{escape(name)}</dt><dd>{escape(value)}</dd>" for name, value in made.about)
    data = json.dumps(record.as_json(made), separators=(",", ":"), allow_nan=False)
    kinds = [kind for kind in record.KINDS if kind != "wait" and any(event.kind == kind for event in made.events)]
    failed = f'<p class="error" role="alert">The run failed: {escape(made.error or "")}</p>'
    page, style, script = (
        Path(__file__).with_name(name).read_text(encoding="utf-8") for name in ("page.html", "player.css", "player.js")
    )
    body = Template(page).substitute(
        title=escape(made.title), facts=f'<dl class="facts">{facts}</dl>' if facts else "",
        scale=escape(SCALES[made.unit]), directions=made.directions,
        meanings="".join(f"<div><dt>{kind}</dt><dd>{escape(record.KINDS[kind])}</dd></div>" for kind in kinds),
        error=failed if made.error else "",
        data=data.replace("<", "\\u003c"),  # within a <script>: nothing in it looks like the element's end
    )  # fmt: skip
    return console.document(f"numbarnn trace: {made.title}", body, style, script)
