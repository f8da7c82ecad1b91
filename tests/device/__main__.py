"""Measure and check on a GPU within a few minutes whatever is worth most.

    python tests/device --minutes 9 --out DIR --bundle ALL.zip   # the same DIR again: go on with what is missing
    python tests/device --minutes 0 --out DIR                    # only print the results so far

Each part has a time limit and a result file, DIR/PART.jsonl, with a line per answer. Processes that hang are killed,
those that crash are noted, and a failing part stops nothing. A part's module has `questions(run, part)`: name -> a
function that returns the answer, a dict: "ok" and figures. The summary prints its lines "told", and over all answers
the mean of "ratios" and the largest "share" of an error's limit.
"""

import argparse
import json
import math
import shutil
import signal
import sys
import time
import traceback
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
from numbarnn.bench.record import kernels_digest

MANY = 15  # processes, where compiling takes most of the time


class Part(NamedTuple):
    """A group of questions: limits of all and of one in seconds, and how many processes answer."""

    name: str
    about: str
    module: str
    seconds: float
    question_s: float
    processes: int = 1


PARTS = {part.name: part for part in (
    Part("smoke", "does it run at all", "checks", 40, 30, MANY),
    Part("compile", "first calls of the recorded problems", "checks", 90, 80, MANY),
    Part("times", "against cuDNN's standard and persist_static", "times", 150, 25),
    Part("families", "each code path against float64; 500 replays give the same bits", "checks", 70, 50, MANY),
    Part("more", "bfloat16, TF32, 3xTF32; persist_dynamic and persist_static_small_h", "times", 80, 25),
    Part("schedules", "the recorded problems by the other schedules", "times", 30, 25),
    Part("silent", "a block that never publishes ends the call in an error", "tools", 40, 40),
    Part("options", "numbarnn check, cell by cell", "tools", 60, 60, MANY),
    Part("cudnn", "what is assumed of cuDNN", "tools", 40, 40),
    Part("vectors", "cuDNN's results of small problems, as files for the tests", "tools", 20, 20),
    Part("tests", "python -m pytest -m gpu, file by file", "tools", 80, 80, 4),
    Part("sanitizer", "compute-sanitizer: races, barriers, memory", "tools", 40, 30, 4),
)}  # fmt: skip


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], prog="python tests/device")
    add = parser.add_argument
    add("--minutes", type=float, default=9.0, help="time limit of the whole run; default %(default)s")
    add("--out", type=Path, required=True, metavar="DIR", help="folder of the results")
    add("--bundle", type=Path, metavar="ZIP", help="also write DIR as one zip, every few seconds")
    console.add_list_argument(parser, "--part", PARTS, list(PARTS))
    add("--device", choices=["cuda", "sim"], default="cuda", help="sim: the simulator, with tiny problems")
    add("--small", action="store_true", help="tiny problems, to test the script itself")
    add("--worker", nargs="+", help=argparse.SUPPRESS)  # a part and its questions
    args = parser.parse_args()
    if args.device == "cuda" and args.minutes and (problem := engines.why_not("cuda")):
        parser.error(f"no GPU: {problem}. --device sim takes the simulator, with tiny problems")
    args.out.mkdir(parents=True, exist_ok=True)
    run = conduct.Run(args.device, args.small or args.device == "sim", str(args.out.resolve()))
    if args.worker:
        return conduct.work(PARTS[args.worker[0]], args.worker[1:], run)
    head = {"kernels": kernels_digest("cuda"), "device": run.device, "small": run.small}
    if not (path := args.out / "head.json").exists():
        console.write_json(path, head | {"environment": info.collect()})
    elif args.minutes and not head.items() <= json.loads(path.read_text()).items():
        parser.error(f"{args.out} has results of other kernels, sizes or another device: take another folder")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # then the workers end, and the summary is written
    try:
        ask_all(args, run)
    finally:
        import_module("times").write_record(run)
        console.write_bytes(args.out / "summary.txt", (text := summary(args.out)).encode())
        bundle(args, every_s=0)
        print(text)
    outcomes = {one["outcome"] for name in args.part for one in run.answers(name).values()}
    return 0 if outcomes and outcomes <= {"ok", "cannot"} else 1


def ask_all(args, run):
    """Ask each part within its limit, then once more what was cut off."""
    begin = time.monotonic()
    until = begin + 60 * args.minutes - 5  # in these workers are killed, and the summary is written
    for again in (conduct.AGAIN, ("cut off",)):
        for part in (PARTS[name] for name in args.part):
            seconds = part.seconds if again == conduct.AGAIN and not run.small else math.inf
            try:
                conduct.ask(part, run, min(until, time.monotonic() + seconds), again, partial(bundle, args))
            except Exception:  # such as questions that cannot be listed
                run.keep(part.name, "all questions", "failed", message=traceback.format_exc())
            print(f"{time.monotonic() - begin:6.1f} s  {part.name}: {run.counts(part.name)}", flush=True)


def bundle(args, every_s=5):
    """Write the folder of results as one zip, unless there is a younger one. It is complete whenever it is there."""
    if args.bundle and not (args.bundle.exists() and time.time() - args.bundle.stat().st_mtime < every_s):
        Path(shutil.make_archive(f"{args.bundle}.part", "zip", args.out)).replace(args.bundle)


def summary(folder):
    """All figures of a folder of results, and the messages of failures."""
    head = json.loads((folder / "head.json").read_text())
    found, run = head["environment"], conduct.Run(head["device"], head["small"], str(folder))
    versions = ", ".join(f"{name} {version}" for name, version in found["versions"].items() if version)
    lines = [f"{found['gpus'] or head['device']}, commit {found['commit']}, kernels {head['kernels']}; {versions}"]
    for part in PARTS.values():
        answers, failures = run.answers(part.name), {}
        lines.append(f"\n{part.name} ({part.about}): {run.counts(part.name)}")
        if ratios := [math.log(ratio) for one in answers.values() for ratio in one.get("ratios", ())]:
            mean, largest = math.exp(sum(ratios) / len(ratios)), math.exp(max(ratios))
            lines.append(f"  geometric mean of {len(ratios)} ratios {mean:.3f}, the largest {largest:.2f}")
        if shares := [(one["share"], name) for name, one in answers.items() if one.get("share") is not None]:
            lines.append("  nearest to its limit: {:.2f} of it ({})".format(*max(shares)))
        for name, one in answers.items():
            lines += [f"  {name}: {line}" for line in one.get("told", ())]
            if one["outcome"] != "ok":
                failures.setdefault((one["outcome"], one.get("message", "").strip()[-1500:]), []).append(name)
        for (outcome, message), names in failures.items():
            lines += [f"  {outcome}: {', '.join(names)}", *(f"    {line}" for line in message.splitlines())]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
