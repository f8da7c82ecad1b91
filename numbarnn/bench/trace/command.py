"""`numbarnn trace`: watch a pass: the wavefront through layers and time, and what every block does and waits for.

The persistent schedule runs in the simulator, all blocks of its kernel at once. Where this process cannot be the
simulator, another one is started for it. Other schedules do not run: the launches of their plan are shown. `--from`
shows a record that `--json` wrote. The page is `page.html` with `player.css` and `player.js`, and the record as JSON.
"""

import argparse
import json
from datetime import datetime, timezone
from html import escape
from importlib import import_module
from pathlib import Path
from string import Template

import numbarnn
from numbarnn.bench import console
from numbarnn.bench.cases.shapes import Shape, parse_sizes
from numbarnn.bench.cells import ABOUT_CELL, built_in_or_own
from numbarnn.bench.trace import record
from numbarnn.cuda.compiler import simulated
from numbarnn.schedules import SCHEDULES

SHAPE = Shape(12, 2, 4, 8, 4)  # two blocks for each of four layers; about two seconds in the simulator
USUAL = {"shape": SHAPE, "cell": "lstm", "schedule": "persistent", "backward": False, "bidirectional": False,
         "stall": None}  # fmt: skip
TIMEOUT_S = 1800
SCALES = {  # what a time of the record is
    "turns": "Time is counted in turns: in the simulator all threads of the grid take turns, one at a time. Turns show "
    "who comes before whom; how long something takes on a GPU they do not show.",
    "steps": "Time is counted in steps of one layer, as the plan estimates it: nothing ran.",
    "ns": "Time is that of the device's clock, in nanoseconds.",
}


def add_arguments(parser):
    """Options of `numbarnn trace`."""
    add = parser.add_argument
    add("--html", type=console.json_path, metavar="FILE", help="write the page, one file without references to others")
    about = "show this record, as --json wrote it"
    add("--from", dest="read", type=console.existing_file, metavar="FILE", help=about)
    add("--shape", type=parse_sizes, default=SHAPE, metavar="T,B,I,H,L", help="sizes; default %(default)s")
    add("--cell", type=named, default="lstm", metavar="CELL", help=ABOUT_CELL)
    about = "persistent (the default): its blocks in the simulator; else the launches of the plan"
    add("--schedule", choices=list(SCHEDULES), default="persistent", help=about)
    add("--backward", action="store_true", help="the backward pass instead of the forward pass")
    add("--bidirectional", action="store_true", help="a second direction, backward in time")
    about = "keep the layer's first block from publishing that step, to see a deadlock; persistent only"
    add("--stall", type=place, metavar="LAYER,STEP", help=about)
    console.add_json_argument(parser, "the record")


def named(text):
    """An argparse type: the name of a cell, once it was found."""
    built_in_or_own(text)
    return text


def place(text):
    """An argparse type: "1,4" -> (1, 4)."""
    parts = text.split(",")
    if len(parts) != 2 or not all(part.strip().isdecimal() for part in parts):
        raise argparse.ArgumentTypeError(f"expected LAYER,STEP, two whole numbers such as 1,4; got {text!r}")
    return tuple(map(int, parts))


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
    console.print_table("Who waits", [made.of[:-1], "of the time"], rows, ["of the time"])
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
    shape, stall = args.shape, args.stall
    if stall and not (stall[0] < shape.L and stall[1] < shape.T):
        sizes = f"--shape {shape} has layers 0 to {shape.L - 1} and steps 0 to {shape.T - 1}"
        raise console.WrongArguments(f"--stall {stall[0]},{stall[1]}: {sizes}")
    if stall and args.schedule != "persistent":
        raise console.WrongArguments(
            f"--stall keeps a block from publishing, and only --schedule 'persistent' has blocks that wait, not "
            f"{args.schedule!r}"
        )
    if args.schedule == "persistent" and not simulated():
        return in_the_simulator(args)
    cell, directions = built_in_or_own(args.cell), 1 + args.bidirectional
    module, more = ("simulated", stall) if args.schedule == "persistent" else ("launches", args.schedule)
    words = ["bidirectional"] * args.bidirectional + ["backward" if args.backward else "forward"]
    sizes = ", ".join(f"{name}={size}" for name, size in shape.sizes.items())
    title = f"{cell.name}, {args.schedule}, {' '.join(words)}: {sizes}"
    facts = (("recorded", f"{datetime.now(timezone.utc):%Y-%m-%d}"), ("numbarnn", numbarnn.__version__))
    try:
        record_of = import_module(f"numbarnn.bench.trace.{module}").record
        return record_of(title, cell, shape, args.backward, directions, more).telling(facts)
    except ValueError as reason:
        raise console.WrongArguments(f"--cell {args.cell} with --shape {shape}: {reason}") from reason
    except RuntimeError as reason:
        raise console.CannotRun(str(reason)) from reason


def in_the_simulator(args):
    """Return the Record made by a process of its own."""
    arguments = ["trace", "--shape", str(args.shape), "--cell", args.cell]
    arguments += [f"--{name}" for name in ("backward", "bidirectional") if getattr(args, name)]
    arguments += ["--stall", ",".join(map(str, args.stall))] if args.stall else []
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
    never = " What stands in a red frame below never got what it waits for." * ("livelock" in (made.error or ""))
    failed = f'<p class="error" role="alert">The run failed: {escape(made.error or "")}{never}</p>'
    page, style, script = (
        Path(__file__).with_name(name).read_text(encoding="utf-8") for name in ("page.html", "player.css", "player.js")
    )
    body = Template(page).substitute(
        title=escape(made.title), facts=f'<dl class="facts">{facts}</dl>' if facts else "",
        scale=escape(SCALES[made.unit]), of=made.of, directions=made.directions, lane=made.of[:-1],
        meanings="".join(f"<div><dt>{kind}</dt><dd>{escape(record.KINDS[kind])}</dd></div>" for kind in kinds),
        error=failed if made.error else "",
        data=data.replace("<", "\\u003c"),  # within a <script>: nothing in it looks like the element's end
    )  # fmt: skip
    return console.document(f"numbarnn trace: {made.title}", body, style, script)
