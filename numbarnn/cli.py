"""The command line: `numbarnn info | check | bench | report | demo | plan | trace | kernels`.

Each subcommand is a module with `add_arguments(parser)` and `run(args) -> exit code`, imported when it is used.
"""

import argparse
import os
import sys
from importlib import import_module
from pathlib import Path

import numbarnn

# subcommand -> (its module, what it does)
COMMANDS = {
    "info": ("numbarnn.bench.info", "show versions, devices, engines, and how to install what is missing"),
    "check": ("numbarnn.bench.check", "compare every engine of this machine with float64, PyTorch and cuDNN"),
    "bench": ("numbarnn.bench.speed", "time forward and backward against PyTorch, onnxruntime and cuDNN"),
    "report": ("numbarnn.bench.report", "write results of bench as an HTML page"),
    "demo": ("numbarnn.bench.demo", "train a character model and let it write"),
    "plan": ("numbarnn.bench.plan", "show how a GPU would run a problem, and why; needs no GPU"),
    "trace": ("numbarnn.bench.trace.command", "write an HTML animation of what thread blocks compute and wait for"),
    "kernels": (
        "numbarnn.bench.kernels",
        "compile persistent kernels without a GPU; show registers, spills, PTX, machine code or source",
    ),
}


def build_parser(command=None):
    """Return the parser and the function `run` of `command` (a name in COMMANDS), whose options the parser has."""
    parser = argparse.ArgumentParser(prog="numbarnn", description="Run, check and time recurrent networks.")
    parser.add_argument("--version", action="version", version=f"numbarnn {numbarnn.__version__}")
    subparsers = parser.add_subparsers(dest="command", metavar="{" + ",".join(COMMANDS) + "}", required=True)
    run = None
    for name, (module_name, purpose) in COMMANDS.items():
        subparser = subparsers.add_parser(name, help=purpose, description=purpose[0].upper() + purpose[1:] + ".")
        if name == command:
            module = import_module(module_name)
            module.add_arguments(subparser)
            run = module.run
    return parser, run


def main(argv=None):
    """Run a subcommand and return its exit code: 0 success, 1 failure. Exit with 2 for wrong arguments."""
    argv = sys.argv[1:] if argv is None else list(argv)
    _take_any_text()
    command = next((argument for argument in argv if not argument.startswith("-")), None)
    try:  # Ctrl-C may also come while the command's modules are imported, which takes a second
        parser, run = build_parser(command)
        args = parser.parse_args(argv)
        refuse_one_file_for_two(args, parser)
        return _run(command, run, args)
    except KeyboardInterrupt:
        print(f"numbarnn {command}: interrupted", file=sys.stderr)
        return 130


def _run(command, run, args):
    """Run a command and return its exit code; print an expected error in one line."""
    from numbarnn.bench.console import CannotRun, WrongArguments

    try:
        return run(args)
    except BrokenPipeError:  # `| head` has closed the stream, so neither write to it nor flush it at the end
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except (CannotRun, OSError, MemoryError) as reason:
        print(f"numbarnn {command}: {in_one_line(reason)}", file=sys.stderr)
        return 2 if isinstance(reason, WrongArguments) else 1


def _take_any_text():
    """Let output streams accept all text. A letter that the encoding lacks becomes "?"; a closed stream drops text."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, "w"))
        elif getattr(stream, "errors", None) == "strict":
            stream.reconfigure(errors="replace")


def refuse_one_file_for_two(args, parser):
    """Exit with an error if two options name the same output file. Options of output files are Paths."""
    named = {}
    for option, path in vars(args).items():
        if isinstance(path, Path) and named.setdefault(path.resolve(), option) != option:
            parser.error(f"--{named[path.resolve()]} and --{option} name the same file, {str(path)!r}")


def in_one_line(error):
    """Return the message of an exception in one line."""
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.filename}: {error.strerror}"
    if isinstance(error, MemoryError):
        return f"not enough memory: {error}" if str(error) else "not enough memory"
    return " ".join(str(error).split())
