"""Helpers for LLVM's builder, most of them as in Numba's module of this name."""

from contextlib import contextmanager
from types import SimpleNamespace

from llvmlite import ir

voidptr_t = ir.IntType(8).as_pointer()


def alloca_once(builder, kind, name=""):
    """Return the address of a value on the function's stack, allocated once however often this is reached."""
    with builder.goto_entry_block():
        return builder.alloca(kind, name=name)


def get_or_insert_function(module, kind, name):
    """Return the function of a name; declare it if the module does not know it."""
    known = module.globals.get(name)
    return ir.Function(module, kind, name) if known is None else known


def memset(builder, place, count):
    """Set bytes at an address to 0."""
    start = builder.bitcast(place, voidptr_t)
    fill = builder.module.declare_intrinsic("llvm.memset", [voidptr_t, count.type])
    builder.call(fill, [start, ir.IntType(8)(0), count, ir.IntType(1)(0)])


def loop_wishes(module, wishes):
    """Return metadata that tells LLVM how to treat one loop. LLVM identifies a loop by a node that names itself first.

    Args:
        wishes: name -> value, or None if the name says all.
    """
    nodes = [
        module.add_metadata([ir.MetaDataString(module, f"llvm.loop.{name}"), *([] if value is None else [value])])
        for name, value in wishes.items()
    ]
    loop = ir.MDValue(module, nodes, name=str(len(module.metadata)))
    loop.operands = (loop, *nodes)
    return loop


def each_of(builder, value, numbers):
    """Yield each of some numbers: the code written then runs if the value equals it; the last one covers the rest."""
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
    """Run the block `count` times; yields an object whose `index` counts from 0.

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
