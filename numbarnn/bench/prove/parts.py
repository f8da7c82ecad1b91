"""What `numbarnn prove` asks: its parts, the most valuable first.

A part has questions, which are named by text, and a module that answers them:

    questions(asked, **more) -> their names, in order, the most valuable first; or a dict by name of what they ask
    answer(name, asked, **more) -> a dict with "ok" (whether all is right) and whatever figures there are
    told(answers) -> lines of text about answers, for the summary

A question that cannot be answered here raises `console.CannotRun`, which says what is missing. Any other exception is a
failure, and is kept with its whole message.
"""

from dataclasses import dataclass, field
from importlib import import_module
from typing import NamedTuple

MINUTES = 9  # for which the limits below are made; a shorter run has less for each


_GPU = ("numba.cuda", "cupy")
#: Module -> packages that every answer of it imports.
IMPORTED = {"plain": _GPU, "silent": _GPU, "phases": _GPU, "asked_cudnn": _GPU, "timed": (*_GPU, "torch")}


class Asked(NamedTuple):
    """What all parts are asked with: the device, "cuda" or "sim"; whether problems are small, so that the simulator and
    an emulated GPU can run them; and the folder for files besides the answers, as text."""

    device: str
    small: bool
    folder: str


@dataclass(frozen=True)
class Part:
    """A part.

    Attributes:
        about: what it tells, in words. seconds: its limit. question_s: that of each question.
        module: of numbarnn.bench.prove; more: what its functions are called with besides.
        together: how many processes answer side by side: 1 where times are taken.
    """

    name: str
    about: str
    module: str
    seconds: float
    question_s: float
    together: int = 1
    more: dict = field(default_factory=dict)

    def load(self):
        """Imports what answers take, which takes seconds."""
        self._own("answer")
        for package in IMPORTED.get(self.module, ()):
            import_module(package)

    def questions(self, asked):
        return list(self._own("questions")(asked, **self.more))

    def answer(self, name, asked):
        return self._own("answer")(name, asked, **self.more)

    def told(self, answers):
        return self._own("told")(answers)

    def _own(self, function):
        return getattr(import_module(f"numbarnn.bench.prove.{self.module}"), function)


MANY = 15  # processes: each compiles on a core of its own, and that is what takes their time
#: The first one compiles for the second, whose times are taken by one process alone.
PARTS = (
    Part("plain", "LSTM, GRU and RNN of the recorded sizes by every schedule against float64", "plain", 90, 80, MANY),
    Part("times", "the recorded problems against each of cuDNN's algorithms", "timed", 170, 60, 1, {"of": "recorded"}),
    Part("silent", "a kernel of which a block publishes nothing ends in an error", "silent", 40, 40, 2),
    Part("options", "every cell and option against float64 and cuDNN", "plain", 70, 40, MANY, {"of": "options"}),
    Part("cudnn", "what this package assumes of cuDNN", "asked_cudnn", 15, 15, 4),
    Part("vectors", "cuDNN's results of small problems, as files for the tests", "tools", 20, 20, 1, {"of": "vectors"}),
    Part("tests", "python -m pytest -m gpu", "tools", 80, 80, 4, {"of": "tests"}),
    Part("phases", "what a step's time is made of, by the clocks of the SMs", "phases", 30, 25),
    Part("precision", "allow_tf32, bfloat16 and B = 1 against cuDNN", "timed", 50, 40, 1, {"of": "precision"}),
    Part("sanitizer", "compute-sanitizer: races, barriers, memory", "tools", 40, 30, 4, {"of": "sanitizer"}),
    Part("stream", "single steps, the state carried", "timed", 15, 15, 1, {"of": "stream"}),
    Part("schedules", "the recorded problems step by step", "timed", 30, 30, 1, {"of": "schedules"}),
    Part("deepbench", "DeepBench's problems, its passes apart", "timed", 20, 20, 1, {"of": "deepbench"}),
)
BY_NAME = {part.name: part for part in PARTS}
