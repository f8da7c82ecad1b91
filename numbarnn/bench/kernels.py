"""`numbarnn kernels`: compile kernels without a GPU; registers, spills, shared memory; PTX, machine code, source."""

import argparse
import inspect
import re
import time
from collections import Counter
from pathlib import Path

from numbarnn.bench import console, planned, source
from numbarnn.cuda import compiler
from numbarnn.cuda.machine_code import read, widths
from numbarnn.kernels import catalog

ARCHS = ("sm_80", "sm_90", "sm_100")  # what --all compiles for where no --arch is given
USUAL_ARCH = "sm_90"  # what is compiled for without --all
SECONDS = {True: 10, False: 1}  # that a planned kernel, and another, take to compile on one core, about

# How a multiprocessor hands out registers, from compute capability 7.0 on (CUDA's cuda_occupancy.h): in all, shared
# evenly by parts, each with its own warps; a warp of so many threads gets a multiple of a step.
REGISTERS, PARTITIONS, WARP, REGISTERS_STEP = 65536, 4, 32, 256
RULE = (
    f"blocks: how many blocks of so many threads the registers of a multiprocessor hold. Each of its {PARTITIONS} "
    f"parts has {REGISTERS // PARTITIONS}; a warp of {WARP} threads takes {WARP} times the kernel's registers, rounded "
    f"up to a multiple of {REGISTERS_STEP}: blocks = {PARTITIONS} * ({REGISTERS // PARTITIONS} // registers of a warp) "
    "// warps of a block. The device's limits on threads and blocks, and shared memory, come on top."
)
# What is counted in machine code: products, loads and stores of global, shared and local memory, what waits.
COUNTED = ("HMMA", "FFMA", "FFMA2", "DFMA", "LDG", "STG", "LDS", "STS", "LDL", "STL", "BAR", "NANOSLEEP")
COLUMNS = [
    "", "kernel", "dtype", "layouts", "arch", "regs", "shared", "dynamic", "spills", "stack", "threads", "blocks",
]  # fmt: skip


def add_arguments(parser):
    about = f"what to compile for, such as sm_90; may be repeated; default {USUAL_ARCH}, with --all {','.join(ARCHS)}"
    parser.add_argument("--arch", type=known_archs, action="extend", metavar="SM[,SM]", help=about)
    about = "every shipped kernel; without it the persistent kernels of " + ", ".join(map(name_of, planned.THREE))
    parser.add_argument("--all", action="store_true", help=about)
    parser.add_argument("--strict", action="store_true", help="exit with 1 where a kernel spills registers, too")
    output = parser.add_mutually_exclusive_group()
    console.add_json_argument(output, "one row per kernel, dtype and arch")
    about = "print a kernel's PTX instead, for the first arch; NAME as in the table, or NAME-DTYPE[-LAYOUTS]"
    output.add_argument("--ptx", type=shipped_kernel, metavar="NAME", help=about)
    about = "print its machine code (SASS) instead, and what is counted in it; needs the extra [sass]"
    output.add_argument("--sass", type=shipped_kernel, metavar="NAME", help=about)
    about = "print its Python source instead, without the code that this kernel never runs"
    output.add_argument("--source", type=shipped_kernel, metavar="NAME", help=about)


def run(args):
    """Print the table, or PTX, machine code or source; returns 1 where a kernel does not compile, or, with --strict,
    spills."""
    if args.source is not None:
        print_source(args.source)
        return 0
    try:
        compiler.toolchain()
    except RuntimeError as error:
        raise console.CannotRun(str(error)) from error
    archs = list(dict.fromkeys(args.arch or (ARCHS if args.all else [USUAL_ARCH])))
    if args.ptx is not None:
        console.say(f"// {args.ptx}, {archs[0]}\n{args.ptx.ptx(capability(archs[0])).rstrip()}")
        return 0
    if args.sass is not None:
        print_machine_code(args.sass, archs[0])
        return 0
    begin = time.perf_counter()
    rows = compile_all(archs, args.all)
    print_rows(rows)
    failed, spilling = sum(not row["ok"] for row in rows), sum(bool(row["spill_bytes"]) for row in rows)
    verdict = f"{failed} FAILED, " * bool(failed) + (f"{spilling} spill registers" if spilling else "no spills")
    console.say(f"{len(rows)} kernels for {', '.join(archs)}: {verdict} ({time.perf_counter() - begin:.1f} s)")
    if args.json:
        console.write_json(args.json, rows)
    return 1 if failed or (args.strict and spilling) else 0


# ------------------------------------------------------------------------------------------------- arguments
def known_archs(text):
    """An argparse type: one or more archs such as sm_90, separated by commas, that the installed compiler knows."""
    names, known = [name.strip() for name in text.split(",")], compiler_archs()
    for name in names:
        if not re.fullmatch(r"sm_\d{2,3}", name) or (known and name not in known):
            raise argparse.ArgumentTypeError(f"expected archs such as {', '.join(known or ARCHS)}; got {name!r}")
    return names


def compiler_archs():
    """Return what the installed compiler compiles for; empty where it is missing, which `run` reports."""
    try:
        compiler.toolchain()
    except RuntimeError:
        return []
    from cuda.bindings import nvrtc

    return [f"sm_{number}" for number in sorted(nvrtc.nvrtcGetSupportedArchs()[1])]


def name_of(problem):
    """Return a problem in a few words."""
    sizes = f"H={','.join(map(str, problem.hidden_sizes))} B={problem.batch}"
    return f"{problem.cell.name} {sizes} {problem.dtype}"


def shipped_kernels(cc, everything=True):
    """Return all ShippedKernels for a compute capability: the catalog's, and those that a planner cuts; or three."""
    if not everything:
        return [*planned.persistent_kernels(cc, planned.THREE)]
    return [*catalog.shipped_kernels(), *planned.persistent_kernels(cc), planned.minimal_kernel()]


def shipped_kernel(name):
    """An argparse type: a ShippedKernel by its name; cut for the newest of ARCHS."""
    try:
        return catalog.find(name, shipped_kernels(capability(ARCHS[-1])))
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def capability(arch):
    """Return the compute capability of an arch: "sm_90" is (9, 0), "sm_100" is (10, 0)."""
    return divmod(int(arch.removeprefix("sm_")), 10)


# ------------------------------------------------------------------------------------------------------ rows
def compile_all(archs, everything):
    """Return the rows of shipped kernels for the first arch, then for the next; says before how long that takes.

    Each kernel is compiled for all archs before the next one: Numba's part of the work is done once for all of them.
    """
    todo = [(arch, shipped) for arch in archs for shipped in shipped_kernels(capability(arch), everything)]
    seconds = sum(SECONDS["persistent" in shipped.kernel.name] for _, shipped in todo)
    console.say(
        f"Compiling {len(todo)} kernels for {', '.join(archs)} by {compiler.toolchain()}: about {seconds} s, less for "
        "those that a former run has compiled.\n"
    )
    turns, rows = {}, [None] * len(todo)
    turn_of = [turns.setdefault((id(shipped.kernel), shipped.signature), len(turns)) for _, shipped in todo]
    with console.Progress() as progress:
        for arch in archs:
            progress.start(arch, sum(other == arch for other, _ in todo))
        for place in sorted(range(len(todo)), key=turn_of.__getitem__):
            arch, shipped = todo[place]
            rows[place] = compile_row(shipped, arch)
            progress.update(arch)
            if progress.bars is None:
                console.say(f"{sum(map(bool, rows))} of {len(todo)}: {shipped}, {arch}", error=True)
    return rows


def compile_row(shipped, arch):
    """Return what is known of one kernel compiled for one arch: a dict; its numbers are None where they are unknown."""
    row = {"name": shipped.kernel.name, "dtype": shipped.dtype, "layouts": shipped.layouts, "arch": arch}
    row |= dict.fromkeys(("registers", "shared_bytes")) | {"dynamic_shared_bytes": shipped.dynamic_shared_bytes}
    row |= {"spill_bytes": None, "stack_bytes": None, "threads_per_block": shipped.threads}
    row |= {"blocks_by_registers": None, "ok": False, "error": None}
    try:
        compiled = shipped.compile(capability(arch))
    except Exception as exception:  # whatever it is, it is this kernel's row that tells of it
        return row | {"error": f"{type(exception).__name__}: {exception}"}
    row |= {"shared_bytes": compiled.shared_bytes, "stack_bytes": compiled.stack_bytes}
    if compiled.registers < 0 or compiled.spill_bytes < 0:
        return row | {"error": "the linker did not tell the registers and spills"}
    blocks = blocks_by_registers(compiled.registers, shipped.threads)
    found = {"registers": compiled.registers, "spill_bytes": compiled.spill_bytes}
    return row | found | {"blocks_by_registers": blocks, "ok": True}


def blocks_by_registers(registers, threads):
    """Return how many blocks of so many threads the registers of a multiprocessor hold; see RULE."""
    of_a_warp = -(-registers * WARP // REGISTERS_STEP) * REGISTERS_STEP
    warps = REGISTERS // PARTITIONS // max(of_a_warp, REGISTERS_STEP) * PARTITIONS
    return warps // -(-threads // WARP)


# --------------------------------------------------------------------------------------------------- output
def print_rows(rows):
    """Print the table, the rule behind its last number, and what went wrong."""
    cells = []
    for row in rows:
        *shown, ok, _ = row.values()
        result = f"spills {row['spill_bytes']} bytes" if row["spill_bytes"] else "ok" if ok else "FAILED"
        cells.append([result, *("-" if value is None else value for value in shown)])
    console.print_table("Kernels (sizes in bytes)", COLUMNS, cells, right=COLUMNS[5:])
    console.say(RULE)
    for row in rows:
        if not row["ok"]:
            words = (row[key] for key in ("name", "dtype", "layouts", "arch") if row[key])
            console.say(f"FAILED {' '.join(words)}: {row['error']}")
    console.say()


def print_machine_code(shipped, arch):
    """Print a kernel's machine code for an arch, below comments that say what is counted in it."""
    compiled = shipped.compile(capability(arch))
    try:
        code = read(compiled)
    except RuntimeError as error:
        raise console.CannotRun(str(error)) from error
    head = [f"{shipped}, {arch}: {compiled.registers} registers", *counts(code)]
    console.say("\n".join([*(f"// {line}" for line in head), *code.listing]))


def counts(code):
    """Return what is counted in a `MachineCode`, as lines: instructions, accesses by width, loops."""
    names = Counter(one.name for one in code.instructions)
    lines = [f"{len(code.instructions)} instructions, {names['LDL'] + names['STL']} of them load or store spilled "
             "registers"]  # fmt: skip
    for what, accesses in (("global", ("LDG", "STG")), ("shared", ("LDS", "STS"))):
        found = [f"{number} {name} of {bits} bits" for name in accesses
                 for bits, number in widths(code.instructions, name).items()]  # fmt: skip
        lines.append(f"{what} memory: {', '.join(found) or 'not accessed'}")
    for loop in code.loops:
        names = Counter(one.name for one in loop.instructions)
        found = ", ".join(f"{names[name]} {name}" for name in COUNTED if names[name]) or "none that are counted"
        lines.append(f"{'  ' * loop.depth}loop at {loop.first:#06x}: {len(loop.instructions)} instructions: {found}")
    return lines


def print_source(shipped):
    """Print a kernel's reduced Python source, below comments: where the full source is, and the kernel's constants."""
    function = shipped.function
    package = Path(__file__).resolve().parents[2]
    path = Path(inspect.getsourcefile(function)).resolve().relative_to(package).as_posix()
    text = source.reduced(function)
    head = [f"# {path}, line {inspect.getsourcelines(function)[1]}", f"# Without the code that {shipped} never runs."]
    console.print_python("\n".join([*head, *source.constants(function, text), text]))
