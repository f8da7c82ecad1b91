"""The machine code of a compiled kernel (NVIDIA calls it SASS), as NVIDIA's disassembler prints it; without a GPU.

What PTX says is not what runs: the assembler unrolls, merges and moves. Names of instructions are in "CUDA Binary
Utilities", "Instruction Set Reference".
"""

import re
import subprocess
import tempfile
from pathlib import Path

from numbarnn.common import install

_SECTION = re.compile(r"^//-+ \.text\.(\S+) -+$", re.MULTILINE)
LABEL = re.compile(r"^(\.L\w+):")
INSTRUCTION = re.compile(r"^\s*/\*([0-9a-f]+)\*/\s+(?:@(!?U?P\w+)\s+)?([A-Z][\w.]*)\s*(.*?)\s*;")


def listing(compiled):
    """Return the lines of a `compiler.CompiledKernel` that have instructions, and labels to jump to."""
    lines = text_of(compiled).splitlines()
    return [line.rstrip() for line in lines if LABEL.match(line) or INSTRUCTION.match(line)]


def text_of(compiled):
    """Return what the disassembler prints of a `compiler.CompiledKernel`.

    Raises:
        RuntimeError: the disassembler is not installed, or does not know the device; says what to do.
    """
    sections = _SECTION.split(disassembled(compiled.cubin))
    return dict(zip(sections[1::2], sections[2::2], strict=True))[compiled.entry]


def disassembled(cubin):
    """The disassembler's text of a cubin (bytes): all of its functions."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernel.cubin"
        path.write_bytes(cubin)
        done = subprocess.run([disassembler(), "-c", path], capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"NVIDIA's disassembler cannot read the kernel: {' '.join(done.stderr.split())}")
    return done.stdout


def disassembler():
    """The path of NVIDIA's disassembler: that of a wheel, of conda, or of the CUDA toolkit.

    Raises:
        RuntimeError: it is not installed; says how to.
    """
    cure = f"install it: {install.command('sass')}"
    try:
        from cuda.pathfinder import find_nvidia_binary_utility
    except ImportError as error:
        raise RuntimeError(f"what finds NVIDIA's disassembler is missing ({error}); {cure}") from error
    found = find_nvidia_binary_utility("nvdisasm")
    if found is None:
        raise RuntimeError(f"NVIDIA's disassembler, nvdisasm, was not found; {cure}")
    return found
