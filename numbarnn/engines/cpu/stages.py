"""A call for each stage of a cell, in compiled code."""

from numba import types
from numba.extending import intrinsic


def _calls(cell, numbers, add_up, multiply, arguments, typing_context):
    """(function, signature) of each call, by the stages' numbers."""
    for number in numbers:
        function = add_up if cell.cell.stages[number].sums else multiply
        yield function, function.get_call_type(typing_context, (cell.stage(number), *arguments), {})


def _for_each(order):
    """f(cell, add_up, multiply, walk, at) for compiled code: add_up(stage, walk, at) for each stage that has sums,
    multiply(stage, walk, at) for each that has gates.

    Each is compiled for its stage: loops over units that ask within for theirs are seldom vectorised. Of a cell without
    stages nothing is compiled. An intrinsic, as a chain of functions costs LLVM many times as long.
    """

    @intrinsic
    def each(typing_context, cell, add_up, multiply, walk, at):
        numbers = range(len(cell.cell.stages))[::order]
        calls = list(_calls(cell, numbers, add_up, multiply, (walk, at), typing_context))

        def generate(context, builder, signature, arguments):
            for function, of_stage in calls:
                call = context.get_function(function, of_stage)
                call(builder, (context.get_dummy_value(), *arguments[3:]))
            return context.get_dummy_value()

        return types.void(cell, add_up, multiply, walk, at), generate

    return each


each_stage = _for_each(1)
each_stage_back = _for_each(-1)
