"""Vector instructions that transpose, copy and prefetch numbers by address."""

from llvmlite import ir

from numbarnn.compile import types
from numbarnn.compile.translate import intrinsic
from numbarnn.engines.cpu.vectors import INT, VECTOR_BYTES, Vectors


@intrinsic
def transpose_square(typing_context, zero, source, source_row, rows, out, out_row):
    """Write out = the transposed source, with as many rows and columns as a vector has numbers; strides in bytes.
    Only the first `rows` of the source are read; the last of them is repeated."""

    def generate(context, builder, signature, arguments):
        v = Vectors(context, builder, signature.args[0])
        _, source, source_row, count, out, out_row = arguments
        last = builder.sub(count, INT(1))
        numbers = [builder.select(builder.icmp_signed("<", INT(i), last), INT(i), last) for i in range(v.length)]
        rows = [v.load(v.moved(source, number, source_row)) for number in numbers]
        _exchange(builder, rows)
        for i, row in enumerate(rows):
            v.store(row, v.moved(out, i, out_row))
        return context.get_dummy_value()

    return types.void(zero, *[types.intp] * 5), generate


@intrinsic
def transpose_half(typing_context, zero, source, source_row, out):
    """Write out = the transposed source, with one vector's columns and half as many rows.
    A vector holds two columns of the source. Rows of out are contiguous."""

    def generate(context, builder, signature, arguments):
        v = Vectors(context, builder, signature.args[0])
        _, source, source_row, out = arguments
        rows = [v.load(v.moved(source, i, source_row)) for i in range(v.length // 2)]
        _exchange(builder, rows)
        order = [i + column for column in range(2) for i in range(0, v.length, 2)]
        order = ir.Constant(ir.VectorType(ir.IntType(32), v.length), order)
        for i, row in enumerate(rows):
            v.store(builder.shuffle_vector(row, row, order), v.moved(out, i, VECTOR_BYTES))
        return context.get_dummy_value()

    return types.void(zero, *[types.intp] * 3), generate


def _exchange(builder, rows):
    """Swap a row's number with the high part of a number's position in it; the low part stays."""
    width, numbers = len(rows) // 2, rows[0].type.count // len(rows)
    while width:  # swap halves of pairs of rows, quarters of pairs, and so on
        for i in range(len(rows)):
            if not i & width:
                rows[i], rows[i + width] = _swapped(builder, rows[i], rows[i + width], width * numbers)
        width //= 2


def _swapped(builder, first, second, width):
    """Return two rows after exchanging the first one's odd blocks with the second one's even blocks."""
    length = first.type.count
    even = [i + j for i in range(0, length, 2 * width) for j in range(width)]
    mask_type = ir.VectorType(ir.IntType(32), length)
    results = []
    for start in (0, width):
        places = [0] * length
        for i in even:
            places[i], places[i + width] = i + start, length + i + start
        results.append(builder.shuffle_vector(first, second, ir.Constant(mask_type, places)))
    return results


def _copier(count_of):
    """Return a function for compiled code that copies count_of(numbers per vector) numbers between two addresses."""

    def generate(context, builder, signature, arguments):
        v, (_, source, out) = Vectors(context, builder, signature.args[0]), arguments
        kind = ir.VectorType(v.number, count_of(v.length))
        numbers = builder.load(v.at(source, kind))
        numbers.align = v.bytes
        builder.store(numbers, v.at(out, kind)).align = v.bytes
        return context.get_dummy_value()

    @intrinsic
    def copy(typing_context, zero, source, out):
        return types.void(zero, types.intp, types.intp), generate

    return copy


copy_panel_term = _copier(lambda length: 2 * length)


@intrinsic
def fetch(typing_context, zero, address):
    """Prefetch the line at an address into the L2 cache; the address may be invalid."""

    def generate(context, builder, signature, arguments):
        Vectors(context, builder, signature.args[0]).fetch(arguments[1])
        return context.get_dummy_value()

    return types.void(zero, types.intp), generate
