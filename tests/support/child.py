"""Programs in processes of their own."""

import os
import subprocess
import sys
import textwrap

LIMIT_S = 120


def in_child(program, **environment):
    """Output of a Python program in a process of its own, which must end well and in time."""
    command, pipe = [sys.executable, "-c", textwrap.dedent(program)], subprocess.PIPE
    with subprocess.Popen(command, env={**os.environ, **environment}, stdout=pipe, stderr=pipe, text=True) as process:
        for _ in range(LIMIT_S):  # counted: who stops tests for a while stops their programs, too
            try:
                output, errors = process.communicate(timeout=1)
                break
            except subprocess.TimeoutExpired:
                continue
        else:
            process.kill()
            raise AssertionError(f"the program takes more than {LIMIT_S} seconds")
    assert process.returncode == 0, errors
    return output
