"""Programs in processes of their own."""

import os
import subprocess
import sys
import textwrap

LIMIT_S = 300


def in_child(program, *arguments, paths=(), **environment):
    """Output of a Python program in a process of its own, which must end well and in time.

    Args:
        arguments: what its `sys.argv` has after the program.
        paths: where it finds modules, beside Python's own folders; none: where this process would.
        environment: variables that differ from this process'.
    """
    command, pipe = [sys.executable, "-c", textwrap.dedent(program), *map(str, arguments)], subprocess.PIPE
    if paths:
        environment["PYTHONPATH"] = os.pathsep.join(map(str, paths))
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
