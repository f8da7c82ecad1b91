"""Programs in processes of their own."""

import os
import subprocess
import sys
import textwrap


def in_child(program, **environment):
    """Output of a Python program in a process of its own, which must end well and in time."""
    ran = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout
