"""Machine code for this CPU: optimized by LLVM, kept on disk, and loaded to where it can be called.

Files lie beside the GPU's kernels (`numbarnn.common.code_cache`), named by all that the code was made of: who finds one
compiles nothing.
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
_lock = waited_for_by_forks(threading.RLock())  # LLVM has locks of its own, too
_addresses = {}  # symbol -> address, of this process


@cache
def _machine():
    """LLVM's description of this CPU, and the engine that keeps machine code."""
    with suppress(RuntimeError):  # needless, and refused, from llvmlite 0.45 on
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
    """What this CPU has, as LLVM says: name -> whether it does; nothing where LLVM does not know such a CPU, for which
    it then compiles what all of the architecture have."""
    try:
        return llvm.get_host_cpu_features()
    except RuntimeError:
        return llvm.FeatureMap()


@cache
def _cpu():
    """(name, features) of this CPU."""
    return llvm.get_host_cpu_name(), host_features().flatten()


@cache
def _known_to_llvm():
    """What LLVM says of itself and of this CPU."""
    return llvmlite.__version__, llvm.get_process_triple(), *_cpu()


@cache
def _sources():
    """SHA-256 of what the package's own functions are compiled from."""
    return hashlib.sha256("".join(code_cache.sources(*_MADE_OF)).encode()).hexdigest()


def address_of(name, what, made_of, write):
    """The address of a function as machine code: from disk, or compiled now.

    Args:
        name: its name. what: what it belongs to, for `notice`.
        made_of: strings that tell it from others of the name, as far as the package's sources do not.
        write: write(symbol) -> the function of that name as `llvmlite.ir.Module`.
    """
    with _lock:  # for all that asks LLVM: a fork waits for this lock, and not for llvmlite's own
        about = (*made_of, _sources(), *_known_to_llvm())
        key = hashlib.sha256("\0".join((name, *about)).encode()).hexdigest()
        symbol = f"numbarnn.{name}.{key[:16]}"
        if symbol not in _addresses:
            _addresses[symbol] = loaded(_code(key, symbol, name, what, write), symbol)
        return _addresses[symbol]


def _code(key, symbol, name, what, write):
    """The object file of a function, see `address_of`."""
    known = code_cache.read(key, ".o")
    if known is None:
        with code_cache.alone(key), notice.compiling(what, "three seconds", code_cache.directory_if_any()):
            known = code_cache.read(key, ".o")  # another process may have compiled it meanwhile
            if known is None:
                code = compiled(write(symbol))
                code_cache.write(key, {"name": name}, code, ".o")
                return code
    return known[1]


def offer_symbol(name, address):
    """Let machine code call a function of C by its name."""
    with _lock:
        llvm.add_symbol(name, address)


def loaded(code, symbol):
    """The address of a function of that symbol in an object file."""
    engine = _machine()[1]
    engine.add_object_file(llvm.ObjectFileRef.from_data(code))
    engine.finalize_object()
    return engine.get_function_address(symbol)


def compiled(module):
    """An object file of an `llvmlite.ir.Module`."""
    return _machine()[0].emit_object(optimized(module))


def optimized(module):
    """The same as a module of LLVM's, optimized for this CPU."""
    machine = _machine()[0]
    module.triple, module.data_layout = llvm.get_process_triple(), str(machine.target_data)
    whole = llvm.parse_assembly(str(module))
    whole.verify()
    # First all is put into one function and its loops are turned around, which helps to make vectors of them.
    passes, builder = _passes(machine, 0)
    passes.add_loop_rotate_pass()
    passes.add_instruction_combine_pass()
    passes.add_jump_threading_pass()
    passes.run(whole, builder)
    passes, builder = _passes(machine, 3)
    passes.run(whole, builder)
    return whole


def _passes(machine, level):
    """LLVM's passes of a level of effort, and what runs them."""
    options = llvm.create_pipeline_tuning_options(speed_level=level)
    options.loop_vectorization = level > 0
    builder = llvm.create_pass_builder(machine, options)
    return builder.getModulePassManager(), builder
