"""`numbarnn prove`: everything that a short time with a GPU should answer, the most valuable first, in one command.

    numbarnn prove --minutes 9 --out DIR
    numbarnn prove --minutes 9 --out DIR --bundle ALL.zip    # where few files come back from the machine with the GPU
    numbarnn prove --summary DIR                             # of what is there so far; ALL.zip does as well

Each part has its own limit and its own file in DIR. Started again with the same DIR it goes on where it was cut off;
answers that are of other code (of what runs during a call on a GPU) or of another device are moved aside, and asked
again. Parts run in processes of their own: what hangs is killed, what crashes is noted.
"""

import argparse
import time
from itertools import zip_longest
from pathlib import Path

from numbarnn import engines
from numbarnn.bench import console, info
from numbarnn.bench.prove import results, summary
from numbarnn.bench.prove.conduct import Conductor
from numbarnn.bench.prove.parts import BY_NAME, MINUTES, PARTS, Asked
from numbarnn.common import install

AT_THE_END_S = 6  # for killing, writing and the summary, within the minutes
WORTH_S = 4  # less time than this is not worth a process
BUNDLE_EVERY_S = 5


def add_arguments(parser):
    add = parser.add_argument
    add("--minutes", type=positive, default=MINUTES, metavar="M", help="for all of it, at most; default %(default)s")
    add("--out", type=folder, metavar="DIR", help="folder of the results; the same again goes on where it was cut off")
    add("--bundle", type=console.json_path, metavar="FILE", help="all files in DIR as one zip too, every few seconds")
    names = ", ".join(BY_NAME)
    about = f"from {names}; default all"
    add("--part", type=console.comma_list(BY_NAME), default=list(BY_NAME), metavar="PART[,PART]", help=about)
    again = "forget what these parts have answered, and ask again"
    add("--again", type=console.comma_list(BY_NAME), default=[], metavar="PART[,PART]", help=again)
    add("--device", choices=["cuda", "sim"], default="cuda", help="sim: the simulator, small; default %(default)s")
    add("--small", action="store_true", help="tiny problems, to see whether the command itself works")
    add("--summary", metavar="DIR", help="only tell what a folder of results, or its bundle, says")


def folder(text):
    """An argparse type: a folder, there or not."""
    path = Path(text)
    if path.exists() and not path.is_dir():
        raise argparse.ArgumentTypeError(f"expected a folder, got the file {text!r}")
    return path


def positive(text):
    """An argparse type: a number above 0."""
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0 < number < float("inf"):
        raise argparse.ArgumentTypeError(f"expected a number of minutes above 0, got {text!r}")
    return number


def run(args):
    """Asks, or tells; returns 1 where something is wrong, or nothing was answered, else 0."""
    if args.summary:
        return tell(args.summary, args.part)
    begin = time.monotonic()
    if args.out is None:
        raise console.WrongArguments("say where the results are to go: numbarnn prove --minutes 9 --out DIR")
    require(args.device)
    args.out.mkdir(parents=True, exist_ok=True)
    asked = Asked(args.device, args.small or args.device == "sim", str(args.out.resolve()))
    environment = info.collect()
    same = results.identity(environment, *asked[:2])
    parts = [part for part in PARTS if part.name in args.part]
    kept = {}
    for part in parts:
        if part.name in args.again:
            put_aside(args.out / f"{part.name}.json")
        kept[part.name], said = results.Results.open(args.out, part, same, environment)
        if said:
            console.say(said)
    bundle = Bundle(args.out, args.bundle)
    until = begin + args.minutes * 60 - AT_THE_END_S
    conductor = Conductor(asked, until, args.minutes / MINUTES, bundle.soon)
    try:
        ask(parts, kept, conductor)
    finally:
        conductor.end()
        bundle.soon(seconds=0)
    return tell(args.out, args.part, write=True, bundle=bundle)


def require(device):
    """Raises console.CannotRun where the device cannot be asked."""
    if device == "sim":
        if (problem := install.simulator_lacks()) is not None:
            raise console.CannotRun(f"the simulator cannot be asked: {problem}")
    elif (problem := engines.why_not("cuda")) is not None:
        raise console.CannotRun(f"there is no GPU to ask: {problem}. --device sim asks the simulator, small")


def ask(parts, kept, conductor):
    """Asks all parts, each within its limit; then those that were cut off, with what time is left."""
    for number in (1, 2):
        todo = [part for part in parts if not kept[part.name].done]
        for part, following in zip_longest(todo, todo[1:]):
            if conductor.left() < WORTH_S:
                return
            found = kept[part.name]
            seconds = part.seconds * conductor.scale if number == 1 else conductor.left()
            begin = time.monotonic()
            conductor.run(part, found, seconds, following)
            told = summary.headline(part.name, found.head | {"answers": list(found.answers.values())})
            console.say(f"{time.monotonic() - begin:6.1f} s  {told}")


def put_aside(path):
    """Renames a part's file, so that nothing of it is gone on from."""
    if path.exists():
        number = 1
        while (aside := path.with_name(f"{path.stem}-before-{number}.json")).exists():
            number += 1
        path.replace(aside)


def tell(place, names, write=False, bundle=None):
    """Prints the summary of results, and with `write` leaves it beside them; returns the exit code."""
    found = results.read_all(place, names)
    text = summary.text(found, names)
    console.say(text)
    if write:
        console.write_bytes(Path(place) / "summary.txt", (text + "\n").encode())
        bundle.now()
    answers = [answer for data in found.values() for answer in data["answers"]]
    bad = (results.WRONG, results.FAILED, results.CRASHED, results.SLOW)
    if any(answer["outcome"] in bad for answer in answers):
        return 1
    return 0 if any(answer["outcome"] == results.OK for answer in answers) else 1


class Bundle:
    """The zip of a folder; without a path nothing is written."""

    def __init__(self, folder, path):
        self._folder, self._path, self._last = folder, path, float("-inf")

    def soon(self, seconds=BUNDLE_EVERY_S):
        """Writes it, unless that was tried so many seconds ago. Where it fails, parts go on: their files are there."""
        if time.monotonic() - self._last > seconds:
            try:
                self.now()
            except OSError:
                self._last = time.monotonic()  # `now` at the end says what is wrong, if it is so still

    def now(self):
        if self._path is not None:
            results.bundle(self._folder, self._path)
            self._last = time.monotonic()
