"""Tools of the course's notebooks: exercises that check themselves, and progress of slow cells.

An exercise is four consecutive cells, which tests/support/exercises.py finds by their tags:

    markdown              "### Exercise 6.1: ...", the task
    code      "exercise"  the cell to fill in: a function that raises NotImplementedError, a kernel that writes nothing
                          yet, or `answer = ...`
    code      "check"     a short `course.check(...)` or `course.breaks(...)`
    markdown  "solution"  a <details> element with hints, the solved cell ("Solution") and, if there is a plausible one,
                          a wrong attempt ("A wrong turn"), each in a block of ```python

A check never raises, so that "Run all" reaches the end. It prints lines that begin with "right", "not solved yet" or
"wrong", and later cells use its argument `otherwise`. The tests run every exercise unsolved, solved and with the wrong
turn. A code cell that takes more than 5 seconds has the tag "slow", begins with the comment "# takes about ... seconds"
and uses `course.progress`. All notebooks begin with the same code cell.
"""

from .checks import breaks, check
from .running import launch, progress

__all__ = ["breaks", "check", "launch", "progress"]
