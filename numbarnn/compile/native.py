"""Machine code for this CPU: optimized by LLVM, cached on disk, and loaded to where it can be called.

Cache files are next to those of GPU kernels (`numbarnn.common.code_cache`), with names from everything that the code
depends on. A process that finds a file compiles nothing.
"""

import hashlib
import threading
from contextlib import suppress
from functools import cache

import llvmlite
import llvmlite.binding as llvm

from numbarnn.common import code_cache, notice
from numbarnn.common.forks import waited_for_by_forks

_MADE_OF = ("common", "cells", "compile", "engines/cpu", "kernels/arrays")  # folders whose functions get compiled
lock = waited_for_by_forks(threading.RLock())  # LLVM's own locks stay held in a fork
_addresses = {}  # symbol -> address, in this process


@cache
def _machine():
    """Return LLVM's target machine for this CPU, and the engine that holds machine code."""
    with suppress(RuntimeError):  # unnecessary, and refused, from llvmlite 0.45 on
        llvm.initialize()
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    target = llvm.Target.from_triple(llvm.get_process_triple())
    relocation = {"x86": "static", "ppc": "pic"}.get(target.name[:3], "default")
    cpu, features = _cpu()
    options = dict(reloc=relocation, codemodel="jitdefault", jit=True)
    machine = target.create_target_machine(cpu=cpu, features=features, opt=3, **options)
    return machine, llvm.create_mcjit_compiler(llvm.parse_assembly(""), machine)


def host_features():
    """Return this CPU's features, name -> whether it has it. If LLVM does not know the CPU, the result is empty, and
    LLVM compiles for all CPUs of the architecture."""
    try:
        return llvm.get_host_cpu_features()
    except RuntimeError:
        return llvm.FeatureMap()


@cache
def _cpu():
    """Return (name, features) of this CPU."""
    return llvm.get_host_cpu_name(), host_features().flatten()


@cache
def _known_to_llvm():
    """Return LLVM's version, target triple and CPU."""
    return llvmlite.__version__, llvm.get_process_triple(), *_cpu()


@cache
def _sources():
    """Return the SHA-256 of the sources of the package's compiled functions."""
    return code_cache.sources_digest(*_MADE_OF)


def address_of(name, label, made_of, write):
    """Return the address of a function's machine code, from disk or compiled now.

    Args:
        name: its name.
        label: what it belongs to, for `notice`.
        made_of: strings that, with the package's sources, tell it from other functions of the name.
        write: write(symbol) -> an `llvmlite.ir.Module` with the function of that name.
    """
    with lock:  # for all that asks LLVM: a fork waits for this lock, and not for llvmlite's own
        key_parts = (*made_of, _sources(), *_known_to_llvm())
        key = hashlib.sha256("\0".join((name, *key_parts)).encode()).hexdigest()
        symbol = f"numbarnn.{name}.{key[:16]}"
        if symbol not in _addresses:
            known = code_cache.read(key, ".o")
            code = known[1] if known else _compiled_once(key, symbol, name, label, write)
            _addresses[symbol] = loaded(code, symbol)
        return _addresses[symbol]


def _compiled_once(key, symbol, name, label, write):
    """Return a function's object file, compiled here unless another process does so now (see `address_of`)."""
    with code_cache.alone(key), notice.compiling(label, "three seconds", code_cache.directory_if_any()):
        known = code_cache.read(key, ".o")
        if known:
            return known[1]
        code = compiled(write(symbol))
        code_cache.write(key, {"name": name}, code, ".o")
        return code


def offer_symbol(name, address):
    """Let machine code call a C function by a name."""
    with lock:
        llvm.add_symbol(name, address)


def loaded(code, symbol):
    """Load an object file and return the address of its function `symbol`."""
    engine = _machine()[1]
    engine.add_object_file(llvm.ObjectFileRef.from_data(code))
    engine.finalize_object()
    return engine.get_function_address(symbol)


def compiled(module):
    """Return the object file of an `llvmlite.ir.Module`."""
    return _machine()[0].emit_object(optimized(module))


def optimized(module):
    """Return a module of LLVM's with the same functions, optimized for this CPU."""
    machine = _machine()[0]
    module.triple, module.data_layout = llvm.get_process_triple(), str(machine.target_data)
    whole = llvm.parse_assembly(str(module))
    whole.verify()
    # First inline everything and rotate loops, which helps vectorization.
    passes, builder = _passes(machine, 0)
    passes.add_loop_rotate_pass()
    passes.add_instruction_combine_pass()
    passes.add_jump_threading_pass()
    passes.run(whole, builder)
    passes, builder = _passes(machine, 3)
    passes.run(whole, builder)
    return whole


def _passes(machine, level):
    """Return LLVM's passes of an optimization level, and their builder."""
    options = llvm.create_pipeline_tuning_options(speed_level=level)
    options.loop_vectorization = level > 0
    builder = llvm.create_pass_builder(machine, options)
    return builder.getModulePassManager(), builder
