"""`numbarnn trace`: watch a pass: the wavefront through layers and time, and what every block does and waits for.

The persistent schedule runs in the simulator, all blocks of its kernel at once. Where this process cannot be the
simulator, another one is started for it. Other schedules do not run: the launches of their plan are shown. `--from`
shows a record that `--json` wrote.
"""

import argparse
import subprocess
import sys
import tempfile
from datetime import datetime, timezone
from importlib import import_module
from pathlib import Path

import numbarnn
from numbarnn.bench import console
from numbarnn.bench.cases.shapes import Shape, parse_sizes
from numbarnn.bench.named_cells import ABOUT_CELL, built_in_or_own
from numbarnn.bench.trace import page, record
from numbarnn.cuda.compiler import simulated
from numbarnn.schedules import SCHEDULES

SHAPE = Shape(12, 2, 4, 8, 4)  # two blocks for each of four layers; about two seconds in the simulator
TIMEOUT_S = 1800
LETTERS_SHOWN = 300  # of what a failed process said


def add_arguments(parser):
    add = parser.add_argument
    add("--html", type=console.json_path, metavar="FILE", help="write the page, one file without references to others")
    existing, about = console.existing_file("the file of a record"), "show this record, as --json wrote it"
    add("--from", dest="read", type=lambda text: Path(existing(text)), metavar="FILE", help=about)
    add("--shape", type=parse_sizes, default=SHAPE, metavar="T,B,I,H,L", help="sizes; default %(default)s")
    add("--cell", type=named, default="lstm", metavar="CELL", help=ABOUT_CELL)
    about = "persistent (the default): its blocks in the simulator; else the launches of the plan"
    add("--schedule", choices=list(SCHEDULES), default="persistent", help=about)
    add("--backward", action="store_true", help="the backward pass instead of the forward pass")
    add("--bidirectional", action="store_true", help="a second direction, backward in time")
    about = "keep the layer's first block from publishing that step, to see a deadlock; persistent only"
    add("--stall", type=place, metavar="LAYER,STEP", help=about)
    console.add_json_argument(parser, "the record")


def run(args):
    """Makes the record, prints what it shows, writes record and page; returns 1 where the run that it shows failed."""
    if not args.html and not args.json:
        raise console.WrongArguments("say where the page is to go: numbarnn trace --html FILE")
    made = given(args) if args.read else make(args)
    rows = zip(made.blocks, made.waiting(), strict=True)
    columns = [made.of[:-1], "of the time"]
    console.say(f"{made.title}\n")
    console.print_table("Who waits", columns, [[b.name, f"{share:.0%}"] for b, share in rows], columns[1:])
    if args.json:
        console.write_json(args.json, record.as_json(made))
    if args.html:
        console.write_bytes(args.html, page.html(made).encode())
        console.say(f"page: {args.html}")
    if made.error:
        console.say(f"the run failed: {made.error}", error=True)
    return 1 if made.error else 0


# ---------------------------------------------------------------------------------------------------- arguments
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


# ---------------------------------------------------------------------------------------------------- records
def given(args):
    """The Record of --from, which says itself what it is of."""
    others = {"shape": SHAPE, "cell": "lstm", "schedule": "persistent", "backward": False, "bidirectional": False}
    for name, usual in (others | {"stall": None}).items():
        if getattr(args, name) != usual:
            raise console.WrongArguments(f"--{name} says what to record, and --from {args.read} is there: leave it out")
    try:
        return record.read(args.read)
    except record.BadRecord as reason:
        raise record.BadRecord(f"--from {reason}") from reason


def make(args):
    """The Record that was asked for; console.CannotRun where the schedule cannot run it, or the simulator here."""
    if args.stall and not (args.stall[0] < args.shape.L and args.stall[1] < args.shape.T):
        layer, step = args.stall
        raise console.WrongArguments(
            f"--stall {layer},{step}: --shape {args.shape} has layers 0 to {args.shape.L - 1} and steps 0 to "
            f"{args.shape.T - 1}"
        )
    if args.schedule != "persistent":
        if args.stall:
            raise console.WrongArguments(
                f"--stall keeps a block from publishing, and only --schedule 'persistent' has blocks that wait, not "
                f"{args.schedule!r}"
            )
        return _recorded("launches", args, schedule=args.schedule)
    return _recorded("simulated", args, stalled=args.stall) if simulated() else in_the_simulator(args)


def _recorded(module, args, **more):
    """The Record that one of the modules makes in this process."""
    cell, directions = built_in_or_own(args.cell), 1 + args.bidirectional
    about = [*(["bidirectional"] if args.bidirectional else []), "backward" if args.backward else "forward"]
    sizes = ", ".join(f"{name}={size}" for name, size in args.shape.sizes.items())
    title = f"{cell.name}, {args.schedule}, {' '.join(about)}: {sizes}"
    facts = (("recorded", f"{datetime.now(timezone.utc):%Y-%m-%d}"), ("numbarnn", numbarnn.__version__))
    try:
        record_of = import_module(f"numbarnn.bench.trace.{module}").record
        return record_of(title, cell, args.shape, args.backward, directions, **more).telling(facts)
    except ValueError as reason:
        raise console.WrongArguments(f"--cell {args.cell} with --shape {args.shape}: {reason}") from reason
    except RuntimeError as reason:
        raise console.CannotRun(str(reason)) from reason


def in_the_simulator(args):
    """The Record made by a process of its own, as Numba reads its switch when it starts."""
    with tempfile.TemporaryDirectory() as folder:
        answer = Path(folder) / "record.json"
        command = [sys.executable, "-m", "numbarnn", "trace", "--json", str(answer)]
        command += ["--shape", str(args.shape), "--cell", args.cell]
        command += [f"--{name}" for name in ("backward", "bidirectional") if getattr(args, name)]
        command += ["--stall", ",".join(map(str, args.stall))] if args.stall else []
        streams = {"stdin": subprocess.DEVNULL, "capture_output": True, "text": True, "errors": "replace"}
        try:
            ran = subprocess.run(command, **streams, env=console.environment(simulated=True), timeout=TIMEOUT_S)
        except subprocess.TimeoutExpired:
            raise console.CannotRun(f"the simulator took more than {TIMEOUT_S} s: take a smaller --shape") from None
        if not answer.exists():
            said = " ".join(ran.stderr.split()).removeprefix("numbarnn trace: ")[-LETTERS_SHOWN:]
            kind = console.WrongArguments if ran.returncode == 2 else console.CannotRun
            raise kind(said or f"the simulator's process ended with exit code {ran.returncode}")
        return record.read(answer)
