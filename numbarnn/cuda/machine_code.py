"""Read a compiled kernel's machine code (SASS) with NVIDIA's disassembler, without a GPU.

PTX does not show what runs, since the assembler unrolls, merges and moves instructions. NVIDIA's "CUDA Binary
Utilities" lists the instructions under "Instruction Set Reference".
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
    """Return the lines with instructions and labels of a `compiler.CompiledKernel`.

    Raises:
        RuntimeError: the disassembler is not installed or cannot read the kernel.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernel.cubin"
        path.write_bytes(compiled.cubin)
        done = subprocess.run([disassembler(), "-c", path], capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"NVIDIA's disassembler cannot read the kernel: {' '.join(done.stderr.split())}")
    sections = _SECTION.split(done.stdout)
    lines = dict(zip(sections[1::2], sections[2::2], strict=True))[compiled.entry].splitlines()
    return [line.rstrip() for line in lines if LABEL.match(line) or INSTRUCTION.match(line)]


def disassembler():
    """Return the path of NVIDIA's disassembler, from a wheel, conda or the CUDA toolkit.

    Raises:
        RuntimeError: it is not installed.
    """
    cure = f"Install it: {install.command('sass')}"
    try:
        from cuda.pathfinder import find_nvidia_binary_utility
    except ImportError as error:
        raise RuntimeError(f"cannot search for NVIDIA's disassembler ({error}). {cure}") from error
    path = find_nvidia_binary_utility("nvdisasm")
    if path is None:
        raise RuntimeError(f"NVIDIA's disassembler, nvdisasm, was not found. {cure}")
    return path
