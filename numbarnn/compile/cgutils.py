"""Helpers for LLVM's builder, most of them like those of Numba's module of this name."""

from contextlib import contextmanager
from types import SimpleNamespace

from llvmlite import ir

voidptr_t = ir.IntType(8).as_pointer()


def alloca_once(builder, kind, name=""):
    """Allocate a value on the function's stack, once however often the code runs, and return its address."""
    with builder.goto_entry_block():
        return builder.alloca(kind, name=name)


def get_or_insert_function(module, kind, name):
    """Return the function of a name, and declare it if the module lacks it."""
    known = module.globals.get(name)
    return ir.Function(module, kind, name) if known is None else known


def memset(builder, place, count):
    """Set `count` bytes from an address on to 0."""
    start = builder.bitcast(place, voidptr_t)
    fill = builder.module.declare_intrinsic("llvm.memset", [voidptr_t, count.type])
    builder.call(fill, [start, ir.IntType(8)(0), count, ir.IntType(1)(0)])


def loop_wishes(module, wishes):
    """Return metadata with LLVM's options for one loop. Its node refers to itself, which makes it unique, as LLVM
    needs.

    Args:
        wishes: name -> value, or None for an option without a value.
    """
    nodes = [
        module.add_metadata([ir.MetaDataString(module, f"llvm.loop.{name}"), *([] if value is None else [value])])
        for name, value in wishes.items()
    ]
    loop = ir.MDValue(module, nodes, name=str(len(module.metadata)))
    loop.operands = (loop, *nodes)
    return loop


def each_of(builder, value, numbers):
    """Yield each number; code written then runs if the value equals it. The last one covers all other values."""
    after, blocks = builder.append_basic_block("chosen"), [builder.append_basic_block(f"of.{n}") for n in numbers]
    choice = builder.switch(value, blocks[-1])
    for number, block in zip(numbers[:-1], blocks, strict=False):
        choice.add_case(value.type(number), block)
    for number, block in zip(numbers, blocks, strict=True):
        builder.position_at_end(block)
        yield number
        builder.branch(after)
    builder.position_at_end(after)


@contextmanager
def for_range(builder, count, unrolled=True):
    """Run the `with` block's code `count` times. The object it yields has an `index`, which counts from 0.

    Args:
        unrolled: whether LLVM may unroll the loop.
    """
    counter = alloca_once(builder, count.type)
    builder.store(count.type(0), counter)
    head, body, after = map(builder.append_basic_block, ("for", "for.body", "for.end"))
    builder.branch(head)
    builder.position_at_end(head)
    index = builder.load(counter)
    builder.cbranch(builder.icmp_signed("<", index, count), body, after)
    builder.position_at_end(body)
    yield SimpleNamespace(index=index)
    builder.store(builder.add(index, count.type(1), flags=["nsw"]), counter)
    again = builder.branch(head)
    if not unrolled:
        again.set_metadata("llvm.loop", loop_wishes(builder.module, {"unroll.disable": None}))
    builder.position_at_end(after)
