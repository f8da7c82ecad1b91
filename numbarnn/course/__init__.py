"""Tools of the course's notebooks: exercises that are checked on the spot, and progress of long cells.

An exercise is four cells that follow each other; tests/support/exercises.py finds them by their tags:

    markdown              "### Exercise 6.1: ...", and what to write
    code      "exercise"  the cell to fill in: a function that says `raise NotImplementedError`, a kernel that writes
                          nothing yet, or `answer = ...`
    code      "check"     `course.check(...)` or `course.breaks(...)`, short
    markdown  "solution"  folded away in <details>: hints, the whole cell solved ("Solution"), and, where there is a
                          plausible one, a wrong attempt ("A wrong turn"), each as one block of ```python

A check never raises: it prints lines that begin with "right", "not solved yet" or "wrong", so that "Run all" comes to
the end, and `otherwise=` is what later cells go on with. The tests run all forms of every exercise: the unsolved cell
must be "not solved yet", the solution "right", the wrong turn "wrong". A code cell that takes more than 5 seconds has
the tag "slow", begins with the comment "# takes about ... seconds", and shows `course.progress`. The first code cell is
the same in all notebooks.
"""

from .checks import breaks, check
from .launching import launch
from .progress import progress

__all__ = ["breaks", "check", "launch", "progress"]
