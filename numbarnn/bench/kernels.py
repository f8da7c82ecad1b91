"""`numbarnn kernels`: compile kernels without a GPU and show their resources, PTX, machine code or source."""

import argparse
import inspect
import re
import textwrap
from pathlib import Path

import numpy as np

from numbarnn.bench import console, planned
from numbarnn.cuda import compiler
from numbarnn.cuda.machine_code import listing
from numbarnn.kernels import catalog

USUAL_ARCH = "sm_90"
COLUMNS = ["", "kernel", "dtype", "layouts", "arch", "regs", "shared", "dynamic", "spills", "stack", "threads"]


def add_arguments(parser):
    """Add the options of `numbarnn kernels`."""
    about = f"Architectures to compile for, such as sm_90; may be repeated. Default: {USUAL_ARCH}."
    parser.add_argument("--arch", type=known_archs, action="extend", metavar="SM[,SM]", help=about)
    output = parser.add_mutually_exclusive_group()
    console.add_json_argument(output, "one row per kernel, dtype and arch")
    about = "Print a kernel's PTX for the first arch. NAME is a name of the table (NAME-DTYPE[-LAYOUTS]), or another "
    about += "kernel that a layer launches, such as lstm_pointwise_backward or copy."
    output.add_argument("--ptx", type=shipped_kernel, metavar="NAME", help=about)
    about = "Print a kernel's machine code (SASS). Needs the extra [sass]."
    output.add_argument("--sass", type=shipped_kernel, metavar="NAME", help=about)
    about = "Print a kernel's Python source, and the constants that decide which of its branches are compiled."
    output.add_argument("--source", type=shipped_kernel, metavar="NAME", help=about)


def run(args):
    """Print the table, or PTX, machine code or source; return 1 if a kernel does not compile."""
    if args.source is not None:
        print_source(args.source)
        return 0
    try:
        compiler.toolchain()
    except RuntimeError as error:
        raise console.CannotRun(str(error)) from error
    archs = list(dict.fromkeys(args.arch or [USUAL_ARCH]))
    if args.ptx is not None:
        console.say(f"// {args.ptx}, {archs[0]}\n{args.ptx.ptx(capability(archs[0])).rstrip()}")
        return 0
    if args.sass is not None:
        print_machine_code(args.sass, archs[0])
        return 0
    rows = compile_all(archs)
    print_rows(rows)
    failed, spilling = sum(not row["ok"] for row in rows), sum(bool(row["spill_bytes"]) for row in rows)
    verdict = f"{failed} FAILED, " * bool(failed) + (f"{spilling} spill registers" if spilling else "no spills")
    console.say(f"{len(rows)} kernels for {', '.join(archs)}: {verdict}")
    if args.json:
        console.write_json(args.json, rows)
    return int(failed > 0)


# ------------------------------------------------------------------------------------------------- arguments
def known_archs(text):
    """Parse one or more archs such as sm_90, separated by commas (an argparse type)."""
    names = [name.strip() for name in text.split(",")]
    if wrong := [name for name in names if not re.fullmatch(r"sm_\d{2,3}", name)]:
        raise argparse.ArgumentTypeError(f"expected archs such as {USUAL_ARCH}; got {wrong[0]!r}")
    return names


def shipped_kernel(name):
    """Find a ShippedKernel by its name (an argparse type)."""
    try:
        return catalog.find(name, planned.named_kernels(capability(USUAL_ARCH)))
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def capability(arch):
    """Return the compute capability of an arch: "sm_90" is (9, 0), "sm_100" is (10, 0)."""
    return divmod(int(arch.removeprefix("sm_")), 10)


# ------------------------------------------------------------------------------------------------------ rows
def compile_all(archs):
    """Compile the persistent kernels of `planned.PROBLEMS`; return a row per kernel and arch."""
    todo = [(one, arch) for arch in archs for one in planned.kernels_of(planned.PROBLEMS, capability(arch))]
    names = f"{len(todo)} kernels for {', '.join(archs)} by {compiler.toolchain()}"
    console.say(f"Compiling {names}: about 10 s each, less for kernels that an earlier run has compiled.\n")
    return [compile_row(*one) for one in console.progress_bar(todo, "kernels")]


def compile_row(shipped, arch):
    """Compile one kernel for one arch; return its row, a dict with None for unknown numbers."""
    row = {"name": shipped.kernel.name, "dtype": shipped.dtype, "layouts": shipped.layouts, "arch": arch}
    row |= dict.fromkeys(("registers", "shared_bytes")) | {"dynamic_shared_bytes": shipped.dynamic_shared_bytes}
    row |= {"spill_bytes": None, "stack_bytes": None, "threads_per_block": shipped.threads, "ok": False, "error": None}
    try:
        compiled = shipped.compile(capability(arch))
    except Exception as exception:  # shown in the kernel's row
        return row | {"error": f"{type(exception).__name__}: {exception}"}
    row |= {"shared_bytes": compiled.shared_bytes, "stack_bytes": compiled.stack_bytes}
    if compiled.registers < 0 or compiled.spill_bytes < 0:
        return row | {"error": "the linker did not report registers and spills"}
    return row | {"registers": compiled.registers, "spill_bytes": compiled.spill_bytes, "ok": True}


# --------------------------------------------------------------------------------------------------- output
def print_rows(rows):
    cells = []
    for row in rows:
        *shown, ok, _ = row.values()
        result = f"spills {row['spill_bytes']} bytes" if row["spill_bytes"] else "ok" if ok else "FAILED"
        cells.append([result, *("-" if value is None else value for value in shown)])
    console.print_table("Kernels (sizes in bytes)", COLUMNS, cells, right=COLUMNS[5:])
    for row in rows:
        if not row["ok"]:
            words = (row[key] for key in ("name", "dtype", "layouts", "arch") if row[key])
            console.say(f"FAILED {' '.join(words)}: {row['error']}")


def print_machine_code(shipped, arch):
    compiled = shipped.compile(capability(arch))
    try:
        lines = listing(compiled)
    except RuntimeError as error:
        raise console.CannotRun(str(error)) from error
    console.say("\n".join([f"// {shipped}, {arch}: {compiled.registers} registers", *lines]))


def print_source(shipped):
    """Print a kernel's Python source below its place and the constants that its factory set.

    One source serves all cells and tiles: the compiler drops the branches that a constant rules out."""
    function = shipped.function
    package, lines = Path(__file__).resolve().parents[2], inspect.getsourcelines(function)
    path = Path(inspect.getsourcefile(function)).resolve().relative_to(package).as_posix()
    variables, named = inspect.getclosurevars(function), []
    for name, value in sorted({**variables.globals, **variables.nonlocals}.items()):
        if isinstance(value, type) and issubclass(value, np.generic):
            named.append(f"{name} = {value.__name__}")
        elif isinstance(value, (int, float)):
            named.append(f"{name} = {value}")
    constants = textwrap.wrap(", ".join(named), 120, initial_indent="# ", subsequent_indent="# ")
    console.say("\n".join([f"# {path}, line {lines[1]}", *constants, textwrap.dedent("".join(lines[0])).rstrip()]))
