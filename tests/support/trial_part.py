"""A part of `numbarnn prove` for tests of how it asks: what becomes of a question is its name."""

import os
import subprocess
import sys
from pathlib import Path

from numbarnn.bench import console
from numbarnn.bench.prove import parts

NAMES = ("right", "wrong", "raises", "missing", "dies", "hangs", "right again")
PART = parts.Part("trial", "how it asks", "trial", seconds=120, question_s=100)
QUICK = parts.Part("quick", "what else it asks", "trial", seconds=120, question_s=100, more={"names": ("right",)})


def install():
    """Lets `numbarnn prove` have these parts, in this process."""
    sys.modules["numbarnn.bench.prove.trial"] = sys.modules[__name__]
    for part in (PART, QUICK):
        parts.BY_NAME[part.name] = part


def questions(asked, names=NAMES):
    return list(names)


def answer(name, asked, names=NAMES):
    with Path(asked.folder, "asked.txt").open("a") as file:
        file.write(f"{name}\n")
    print("printed by", name)
    if name == "wrong":
        return {"ok": False, "figure": float("nan")}
    if name == "raises":
        raise ArithmeticError("no such number")
    if name == "missing":
        raise console.CannotRun("it is not installed: pip install it")
    if name == "dies":
        print("last words", file=sys.stderr)
        os.abort()
    if name == "hangs" and not Path(asked.folder, "mended").exists():
        sleeper = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        Path(asked.folder, "hanging.txt").write_text(f"{os.getpid()} {sleeper.pid}")
        sleeper.wait()
    return {"ok": True, "figure": 3, "process": os.getpid(), "threads": os.environ["OMP_NUM_THREADS"]}


def told(answers):
    return [f"{len(answers)} answers"]
