"""Ask a GPU everything that a short time with one should answer, the most valuable first.

    python tests/device --minutes 9 --out DIR --bundle ALL.zip   # with the same DIR it goes on where it was cut off
    python tests/device --summary DIR                            # print what is there so far
    python tests/device --record DIR FILE                        # write the times as a record of `numbarnn bench`

Each part has its own time limit and one result file, DIR/PART.jsonl, with a line per answer. Parts run in processes of
their own: what hangs is killed, what crashes is noted, and a failing part stops nothing. A part's module has
`questions(run)`, `answer(name, run)`, which returns a dict with "ok" and figures, and `told(answers)`, lines of text.
"""

import argparse
import json
import sys
import time
import zipfile
from contextlib import suppress
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "support"), str(ROOT / "tests" / "fakes")]

import conduct

import emulator

if emulator.is_wanted():
    emulator.install()

from numbarnn import engines
from numbarnn.bench import console, info
from numbarnn.bench.speed.record import kernels_digest, source_of

AT_THE_END_S = 5  # for killing, writing and the summary, within the minutes
BUNDLE_EVERY_S = 5
MANY = 15  # processes: each compiles on a core of its own
MESSAGE = 1500  # characters of a message in the summary: its end


class Part(NamedTuple):
    """A part: its limit and that of each question in seconds, how many processes answer, and which part of a module."""

    name: str
    about: str
    module: str
    seconds: float
    question_s: float
    together: int = 1

    def __getattr__(self, function):  # questions, answer, told
        return partial(getattr(import_module(self.module), function), of=self.name)


PARTS = [
    Part("smoke", "does it run at all", "smoke", 40, 30, MANY),
    Part("compile", "first calls of the recorded questions, and whether their grids fit", "smoke", 90, 80, MANY),
    Part("times", "against cuDNN's standard and persist_static", "times", 150, 25),
    Part("families", "the smallest case of every code path; the same bits from 500 replays", "families", 70, 50, MANY),
    Part("more", "persist_dynamic and small_h; bfloat16, TF32, 3xTF32", "times", 80, 25),
    Part("compile_tilings", "first calls of the planner's five best tilings", "steps", 60, 60, MANY),
    Part("tilings", "the planner's five best tilings of each recorded question", "steps", 60, 25),
    Part("phases", "what a step's time is made of, by the clocks of the SMs", "steps", 40, 25),
    Part("schedules", "the recorded questions step by step", "times", 30, 25),
    Part("silent", "a kernel of which one block publishes nothing ends in an error", "tools", 40, 40),
    Part("options", "numbarnn check, cell by cell, against float64 and cuDNN", "tools", 60, 60, MANY),
    Part("vectors", "cuDNN's results of small problems, as files for the tests", "tools", 20, 20),
    Part("tests", "python -m pytest -m gpu, and what is assumed of cuDNN", "tools", 80, 80, 4),
    Part("sanitizer", "compute-sanitizer: races, barriers, memory", "tools", 40, 30, 4),
]
NAMES = [part.name for part in PARTS]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], prog="python tests/device")
    add = parser.add_argument
    add("--minutes", type=float, default=9.0, help="for all of it, at most; default %(default)s")
    add("--out", type=Path, help="folder of the results")
    add("--bundle", type=Path, help="write all files of DIR as one zip too, every few seconds")
    add("--part", type=console.comma_list(NAMES), default=NAMES, help=f"from {', '.join(NAMES)}; default all")
    add("--device", choices=["cuda", "sim"], default="cuda", help="sim: the simulator, small")
    add("--small", action="store_true", help="tiny problems, to see whether the script itself works")
    add("--summary", type=Path, metavar="DIR", help="only print what a folder of results says")
    add("--record", nargs=2, type=Path, metavar=("DIR", "FILE"), help="only write a record of `numbarnn bench`")
    add("--worker", nargs="+", help=argparse.SUPPRESS)  # a part and its questions
    args = parser.parse_args()
    if args.summary:
        print(summary(args.summary))
        return 0
    if args.record:
        return import_module("times").write_record(*args.record)
    if args.out is None:
        parser.error("--out DIR is missing: the folder for the results")
    if args.device == "cuda" and (problem := engines.why_not("cuda")):
        parser.error(f"there is no GPU to ask: {problem}. --device sim asks the simulator, small")
    run = conduct.Run(args.device, args.small or args.device == "sim", str(args.out.resolve()))
    if args.worker:
        return conduct.work(PARTS[NAMES.index(args.worker[0])], args.worker[1:], run)
    return ask(args, run)


def ask(args, run):
    """Ask all parts, each within its limit, then what was cut off; return the exit code."""
    begin = time.monotonic()
    until, bundled = begin + 60 * args.minutes - AT_THE_END_S, begin
    args.out.mkdir(parents=True, exist_ok=True)
    write_head(args.out, run)

    def written(at_once=False):
        nonlocal bundled
        if args.bundle and (at_once or time.monotonic() - bundled > BUNDLE_EVERY_S):
            bundled = time.monotonic()
            with suppress(OSError):  # the next one may work; the files themselves are in DIR
                bundle(args.out, args.bundle)

    for turn in (1, 2):
        for part in (PARTS[NAMES.index(name)] for name in args.part):
            limit = until if turn == 2 or run.small else min(until, time.monotonic() + part.seconds)
            conduct.ask(part, run, limit, written)
            print(f"{time.monotonic() - begin:6.1f} s  {part.name}: {counts(conduct.read(run, part.name))}", flush=True)
    text = summary(args.out)
    console.write_bytes(args.out / "summary.txt", text.encode())
    written(at_once=True)
    print(text)
    outcomes = {one["outcome"] for name in args.part for one in conduct.read(run, name).values()}
    return 0 if outcomes and outcomes <= {"ok", "cannot"} else 1


def write_head(out, run):
    """Write what the results are of: code, device, versions. Results of other code are moved aside."""
    found, path = info.collect(), out / "head.json"
    commit, clean = source_of(found["commit"])
    head = {"kernels": kernels_digest("cuda"), "commit": commit, "clean": clean, "environment": found, **run._asdict()}
    if path.exists() and json.loads(path.read_text())["kernels"] != head["kernels"]:
        aside = out / f"before-{time.time():.0f}"
        aside.mkdir()
        for file in [*out.glob("*.json*"), *out.glob("*.txt")]:
            file.rename(aside / file.name)
        print(f"results of other code are in {aside} now")
    if not path.exists():
        console.write_json(path, head)


def bundle(folder, path):
    """Write all files below a folder as one zip."""
    part = path.with_suffix(".part")
    with zipfile.ZipFile(part, "w", zipfile.ZIP_DEFLATED) as archive:
        for file in sorted(file for file in folder.rglob("*") if file.is_file()):
            archive.write(file, file.relative_to(folder).as_posix())
    part.replace(path)


def counts(answers):
    """How many questions had which outcome, as text."""
    outcomes = [one["outcome"] for one in answers.values()]
    return ", ".join(f"{outcomes.count(name)} {name}" for name in dict.fromkeys(outcomes)) or "no answer"


def summary(folder):
    """Every part with its figures, and the messages of what was not right."""
    head = json.loads((folder / "head.json").read_text())
    environment = head["environment"]
    versions = ", ".join(f"{name} {version}" for name, version in environment["versions"].items() if version)
    device = [gpu.get("name") for gpu in environment["gpus"]] or head["device"]
    lines = [f"{device}, driver {environment['driver']}, commit {head['commit']}, code {head['kernels']}; {versions}"]
    for part in PARTS:
        answers = conduct.read(conduct.Run(head["device"], head["small"], str(folder)), part.name)
        if not answers:
            lines.append(f"\n{part.name}: not asked ({part.about})")
            continue
        lines.append(f"\n{part.name} ({part.about}): {counts(answers)}")
        lines += [f"  {line}" for line in part.told(list(answers.values()))]
        messages = {}
        for one in answers.values():
            if one["outcome"] != "ok":
                messages.setdefault((one["outcome"], one.get("message", "").strip()[-MESSAGE:]), []).append(one)
        for (outcome, message), found in messages.items():
            lines.append(f"  {outcome}: {found[0]['question']}{f' and {len(found) - 1} more' * (len(found) > 1)}")
            lines += [f"    {line}" for line in message.splitlines()]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
