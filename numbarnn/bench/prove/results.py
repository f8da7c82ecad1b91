"""The files of `numbarnn prove`: one for each part, DIR/NAME.json, written whole after each answer.

    {"format": "numbarnn prove 1", "part": "times", "about": ..., "outcome": "done" | "cut off",
     "kernels": digest of the code, "commit", "clean", "toolchain": $NUMBARNN_TOOLCHAIN, "device_name", "driver",
     "date", "environment": `numbarnn info`, "small": false, "seconds": 12.3,
     "answers": [{"question": "lstm 25,16,512,512,1 float16", "outcome": "ok", "seconds": 3.2, ...}, ...]}

Answers of parts that take times also make the file a record of `numbarnn bench`, with `method` and `results`.
"""

import json
import os
import zipfile
from dataclasses import dataclass, field
from pathlib import Path

from numbarnn.bench import console
from numbarnn.bench.speed.record import kernels_digest, source_of
from numbarnn.common import files
from numbarnn.cuda.compiler import TOOLCHAIN

FORMAT = "numbarnn prove 1"
OK, WRONG, FAILED, CRASHED, SLOW, CANNOT, CUT = (
    "ok", "wrong", "failed", "crashed", "out of time", "cannot", "cut off"
)  # fmt: skip
#: What becomes of a question, in the order in which a summary tells it.
OUTCOMES = {
    WRONG: "an answer came, and something is not as it should be",
    FAILED: "an exception",
    CRASHED: "the process died",
    SLOW: "killed at the question's own limit",
    CANNOT: "something is missing here; the message says what and how to get it",
    CUT: "killed as the part's time was over; a later run asks again",
    OK: "all is right",
}
DONE = "done"
ASKED_AGAIN = (CUT, CANNOT)  # by a later run: what was missing may be there by then


def identity(environment, device, small):
    """What results must share with a run to be kept: the code that ran, on what, and how large the problems are."""
    gpus = environment["gpus"]
    name = gpus[0]["name"] if device == "cuda" and gpus else "simulator" if device == "sim" else device
    return {"kernels": kernels_digest("cuda"), "device": device, "device_name": name, "small": small}


@dataclass
class Results:
    """The answers to a part's questions, and its file; head: what stands in it besides."""

    path: Path
    head: dict
    answers: dict = field(default_factory=dict)

    @classmethod
    def open(cls, folder, part, same, environment):
        """(results, what there is to say): those in the folder where they are of the same code and device, else none.

        Others are moved aside, never lost.
        """
        path = Path(folder) / f"{part.name}.json"
        commit, clean = source_of(environment["commit"])
        head = {"format": FORMAT, "part": part.name, "about": part.about, "outcome": CUT, **same, "commit": commit,
                "clean": clean, "toolchain": os.environ.get(TOOLCHAIN), "driver": environment["driver"],
                "date": environment["date"], "seconds": 0.0, "environment": environment}  # fmt: skip
        made, said = cls(path, head), None
        if path.exists():
            before = read(path)
            differing = [f"{name} {before.get(name)}, now {value}" for name, value in same.items()
                         if before.get(name) != value]  # fmt: skip
            if differing:
                aside = path.with_name(f"{part.name}-of-{before.get('kernels')}.json")
                path.replace(aside)
                said = f"{part.name}: asked again, as its results are of other code or another device "
                said += f"({'; '.join(differing)}); they are in {aside.name} now"
            else:
                made.head = before | {"outcome": CUT}
                told = made.head.pop("answers")
                made.answers = {answer["question"]: answer for answer in told if answer["outcome"] not in ASKED_AGAIN}
                for name in ("results", "method"):
                    made.head.pop(name, None)
                if before["outcome"] == DONE and len(made.answers) == len(told):
                    made.head["outcome"] = DONE
                    said = f"{part.name}: kept, done on {before['date']} with this code ({before['kernels']})"
                else:
                    said = f"{part.name}: goes on, {len(made.answers)} of its questions are answered"
        return made, said

    @property
    def done(self):
        """Whether every question has its answer."""
        return self.head["outcome"] == DONE

    def write(self):
        """Writes the file; timed answers as a record of `numbarnn bench` too."""
        answers = list(self.answers.values())
        shown = [{name: value for name, value in answer.items() if name != "method"} for answer in answers]
        data = self.head | {"answers": shown}
        methods = [answer["method"] for answer in answers if "method" in answer]
        if methods:
            data |= {"method": methods[-1], "doubt": None}
            data["results"] = [row for answer in answers for row in answer.get("rows", ())]
            for answer in shown:
                answer.pop("rows", None)
        console.write_json(self.path, data)


def read(path):
    """A part's file as a dict whose answers have their rows again; console.CannotRun: it is no such file."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise console.CannotRun(f"{path.name} is no JSON: {error}") from error
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        raise console.CannotRun(f"{path.name} is no result of numbarnn prove: its format is not {FORMAT!r}")
    rows = iter(data.get("results", ()))
    for answer in data["answers"]:
        if "num_rows" in answer:
            answer["rows"] = [next(rows) for _ in range(answer["num_rows"])]
            answer["method"] = data["method"]
    return data


def read_all(place, names):
    """Part's name -> its data, of those parts that a folder, or a bundle of one, has."""
    place = Path(place)
    if not place.is_dir() and not (place.is_file() and zipfile.is_zipfile(place)):
        raise console.WrongArguments(
            f"--summary: expected the folder that --out named, or the bundle of it: got {str(place)!r}"
        )
    root = place if place.is_dir() else zipfile.Path(place)
    found = {name: root / f"{name}.json" for name in names}
    return {name: read(path) for name, path in found.items() if path.exists()}


def bundle(folder, path):
    """Writes all files below a folder as one zip."""
    folder = Path(folder)
    with files.replacing(path) as part, zipfile.ZipFile(part, "w", zipfile.ZIP_DEFLATED) as archive:
        for file in sorted(file for file in folder.rglob("*") if file.is_file() and ".part" not in file.suffixes):
            archive.write(file, file.relative_to(folder).as_posix())
