"""Vector instructions for this machine, for compiled code that works on addresses.

LLVM's language has vectors of any length and maps them to AVX-512, AVX2, SSE2 or NEON. The functions here are those
that LLVM would not vectorize by itself; they serve all machines and dtypes. The main one is `tile_product`, with v
numbers to a vector:

    sums = zeros((rows, 2))                       # of vectors: 6 or 8 rows of 2, all in registers
    for k in range(terms):
        b = panel[k, :v], panel[k, v:]            # two vectors of packed R
        for i in range(rows):
            factor = a[i, k]                      # one number, copied to all v places
            sums[i, 0] += factor * b[0]           # one instruction each: multiply and add
            sums[i, 1] += factor * b[1]

Addresses are in bytes. A first argument `zero` carries the dtype.
"""

from itertools import chain

import llvmlite.binding as llvm
import numpy as np
from llvmlite import ir

from numbarnn.compile import cgutils, types
from numbarnn.compile.native import host_features
from numbarnn.compile.translate import intrinsic

INT = ir.IntType(64)


def _vector_bytes():
    """Return the bytes of a vector register."""
    features = host_features()
    return 64 if features.get("avx512f") else 32 if features.get("avx") else 16


VECTOR_BYTES = _vector_bytes()
_IS_ARM = llvm.get_default_triple().startswith(("aarch64", "arm64"))  # 128 bits and fused multiply-adds, all of them
# Bytes of a row to prefetch ahead while transposing: squares step down a column, where the processor fetches too late.
AHEAD = 256
LINE = 64  # bytes of a cache line
# A tile of 6 x 2 sums, 2 vectors of the panel and a factor take 15 of 16 registers. AVX-512 has 32, but 12 rows are
# no faster there than 8, and take longer to compile.
MOST_ROWS = 8 if VECTOR_BYTES == 64 else 6
# Terms to multiply without a branch while one cache line of the next panel is prefetched.
UNROLLED = 2 if VECTOR_BYTES == 64 else 4


def description():
    """Describe in words what products are compiled for."""
    features, text = host_features(), f"vectors of {8 * VECTOR_BYTES} bits"
    if features.get("fma") or _IS_ARM:
        text += ", fused multiply-add"
    if VECTOR_BYTES == 16 and not _IS_ARM:
        text += ", slower, as this processor has no AVX"
    return text


def own_memory(builder, kind, count):
    """Return the address of stack memory for `count` values, uninitialized: LLVM takes a second to compile its
    clearing.
    """
    with builder.goto_entry_block():
        return builder.alloca(ir.ArrayType(kind, count))


class Vectors:
    """Writes instructions on vectors of a dtype."""

    def __init__(self, context, builder, dtype):
        self.builder, self.number = builder, context.get_value_type(dtype)
        self.bytes = dtype.bitwidth // 8
        self.length = VECTOR_BYTES // self.bytes
        self.type = ir.VectorType(self.number, self.length)

    def at(self, address, type_=None):
        return self.builder.inttoptr(address, (type_ or self.type).as_pointer())

    def moved(self, address, count, step):
        """Return the address plus `count` (an int or a value) steps of `step` bytes."""
        builder = self.builder
        count, step = (INT(n) if isinstance(n, int) else n for n in (count, step))
        return builder.add(address, builder.mul(count, step))

    def load(self, address):
        vector = self.builder.load(self.at(address))
        vector.align = self.bytes
        return vector

    def store(self, vector, address):
        self.builder.store(vector, self.at(address)).align = self.bytes

    def load_first(self, address, count):
        """Load the first `count` numbers of a vector, with zeros after them; nothing else is read."""
        builder, places = self.builder, ir.VectorType(INT, self.length)
        all_alike = ir.Constant(ir.VectorType(ir.IntType(32), self.length), None)
        counts = builder.insert_element(ir.Constant(places, ir.Undefined), count, ir.IntType(32)(0))
        counts = builder.shuffle_vector(counts, counts, all_alike)
        mask = builder.icmp_signed("<", ir.Constant(places, list(range(self.length))), counts)
        name = f"llvm.masked.load.v{self.length}f{8 * self.bytes}.p0v{self.length}f{8 * self.bytes}"
        kind = ir.FunctionType(self.type, [self.type.as_pointer(), ir.IntType(32), mask.type, self.type])
        load = cgutils.get_or_insert_function(builder.module, kind, name)
        return builder.call(load, [self.at(address), ir.IntType(32)(self.bytes), mask, ir.Constant(self.type, None)])

    def total(self, vector):
        """Return the sum of a vector's numbers, in an order that LLVM chooses."""
        kind = ir.FunctionType(self.number, [self.number, self.type])
        name = f"llvm.vector.reduce.fadd.v{self.length}f{8 * self.bytes}"
        add = cgutils.get_or_insert_function(self.builder.module, kind, name)
        return self.builder.call(add, [self.number(0), vector], fastmath=("reassoc",))

    def same(self, address):
        """Load the number at an address into all places of a vector."""
        builder, undefined = self.builder, ir.Constant(self.type, ir.Undefined)
        number = builder.load(self.at(address, self.number))
        first = builder.insert_element(undefined, number, ir.IntType(32)(0))
        return builder.shuffle_vector(first, undefined, ir.Constant(ir.VectorType(ir.IntType(32), self.length), None))

    def multiply_add(self, x, y, z):
        """Return x y + z, one instruction if the machine has it."""
        of_all = ir.FunctionType(self.type, [self.type] * 3)
        name = f"llvm.fmuladd.v{self.length}f{8 * self.bytes}"
        return self.builder.call(cgutils.get_or_insert_function(self.builder.module, of_all, name), [x, y, z])

    def fetch(self, address):
        """Prefetch the line at an address into the L2 cache; the address may be invalid."""
        builder, byte, flag = self.builder, ir.IntType(8).as_pointer(), ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [byte, flag, flag, flag])
        fetch = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0i8")
        builder.call(fetch, [self.at(address, ir.IntType(8)), flag(0), flag(2), flag(1)])

    def add_products(self, sums, factor, vectors):
        """Add factor times each vector to the variables in `sums`."""
        for place, vector in zip(sums, vectors, strict=True):
            self.builder.store(self.multiply_add(factor, vector, self.builder.load(place)), place)

    def places(self, sums, out, out_row):
        """Return (variable, its address in out) for each of the sums."""
        rows = [self.moved(out, i, out_row) for i in range(len(sums))]
        return [
            (place, self.moved(first, j, VECTOR_BYTES))
            for row, first in zip(sums, rows, strict=True)
            for j, place in enumerate(row)
        ]

    def variable(self):
        """Return a vector variable, uninitialized; LLVM keeps it in a register."""
        return cgutils.alloca_once(self.builder, self.type)


def tile_product(most, vectors):
    """Return a function for compiled code: out = a panel, or +=, for 1 to `most` rows of a: the micro-kernel.

    Args:
        vectors: vectors of the panel per term.

    Args of the function:
        rows: number of rows.
        a, a_row: address of the rows (rows, terms), and bytes between them.
        panel, term_bytes: address of the panel's first term, and bytes between two terms.
        ahead: address to prefetch, one cache line for each UNROLLED terms. The processor cannot guess the next panel,
            and large weights lie in the L3 cache.
        terms, out, out_row: number of terms; address of the result, and bytes between its rows.
        add: add to out.
    """

    def generate(context, builder, signature, arguments):
        v = Vectors(context, builder, signature.args[0])
        _, rows, *operands = arguments
        for count in cgutils.each_of(builder, rows, range(1, most + 1)):
            _write_tile(v, (count, vectors), *operands)
        return context.get_dummy_value()

    @intrinsic
    def product(typing_context, zero, rows, a, a_row, panel, term_bytes, ahead, terms, out, out_row, add):
        return types.void(zero, *[types.intp] * 9, types.boolean), generate

    return product


def _write_tile(v, shape, a, a_row, panel, term_bytes, ahead, terms, out, out_row, add):
    """Write `tile_product`'s instructions for a tile of a shape (rows, vectors)."""
    builder, (rows, vectors) = v.builder, shape
    sums = [[v.variable() for _ in range(vectors)] for _ in range(rows)]
    starts = [v.moved(a, i, a_row) for i in range(rows)]
    for place in chain(*sums):
        builder.store(ir.Constant(v.type, None), place)
    for i in range(rows):  # fetch the sums to add to: a store would wait for their line
        for line in range(0, vectors * VECTOR_BYTES, LINE):
            v.fetch(builder.add(v.moved(out, i, out_row), INT(line)))

    def add_products(term):
        first = v.moved(panel, term, term_bytes)
        b = [v.load(v.moved(first, j, VECTOR_BYTES)) for j in range(vectors)]
        for row, start in zip(sums, starts, strict=True):
            v.add_products(row, v.same(v.moved(start, term, v.bytes)), b)

    groups = builder.sdiv(terms, INT(UNROLLED))
    with cgutils.for_range(builder, groups) as loop:
        v.fetch(v.moved(ahead, loop.index, LINE))
        for number in range(UNROLLED):
            add_products(builder.add(builder.mul(loop.index, INT(UNROLLED)), INT(number)))
    done = builder.mul(groups, INT(UNROLLED))
    with cgutils.for_range(builder, builder.sub(terms, done)) as loop:
        add_products(builder.add(done, loop.index))
    with builder.if_then(builder.icmp_signed("!=", add, add.type(0))):
        for place, address in v.places(sums, out, out_row):
            builder.store(builder.fadd(v.load(address), builder.load(place)), place)
    for place, address in v.places(sums, out, out_row):
        v.store(builder.load(place), address)


def dot_tiles(most, columns):
    """Return a function for compiled code: out (rows, count * columns) = a bᵀ, or +=, for row-major a and b.

    Each dot product has one vector of partial sums, which are added at the end. Each row of `a` is multiplied by
    several rows of `b` at once.

    Args:
        most: the largest number of rows of `a`. columns: columns of a tile.

    Args of the function:
        rows: number of rows.
        a, a_row; b, b_row; out, out_row: addresses, and bytes between rows.
        count: number of tiles of `columns` columns.
        terms: length of a row of `a` or `b`. add: whether to add to out.
    """

    def generate(context, builder, signature, arguments):
        v = Vectors(context, builder, signature.args[0])
        _, rows, *operands = arguments
        for number in cgutils.each_of(builder, rows, range(1, most + 1)):
            _write_dot_tiles(v, (number, columns), *operands)
        return context.get_dummy_value()

    @intrinsic
    def product(typing_context, zero, rows, a, a_row, b, b_row, count, terms, out, out_row, add):
        return types.void(zero, *[types.intp] * 9, types.boolean), generate

    return product


def _write_dot_tiles(v, shape, a, a_row, b, b_row, count, terms, out, out_row, add):
    """Write `dot_tiles`'s instructions for tiles of a shape (rows, columns)."""
    builder, (rows, columns) = v.builder, shape
    sums = [[v.variable() for _ in range(columns)] for _ in range(rows)]
    adds, whole = builder.icmp_signed("!=", add, add.type(0)), builder.sdiv(terms, INT(v.length))
    done, tile_bytes = builder.mul(whole, INT(v.length)), builder.mul(b_row, INT(columns))

    def add_products(tile, at, load):
        of_a = [load(v.moved(v.moved(a, i, a_row), at, v.bytes)) for i in range(rows)]
        for j in range(columns):
            place = v.moved(v.moved(tile, j, b_row), at, v.bytes)
            of_b = load(place)
            for i in range(rows):
                builder.store(v.multiply_add(of_a[i], of_b, builder.load(sums[i][j])), sums[i][j])

    with cgutils.for_range(builder, count) as loop:
        tile = v.moved(b, loop.index, tile_bytes)
        for place in chain(*sums):
            builder.store(ir.Constant(v.type, None), place)
        # Unrolling needs more addresses than there are registers, which costs a short row more than it saves.
        with cgutils.for_range(builder, whole, unrolled=False) as vectors:
            add_products(tile, builder.mul(vectors.index, INT(v.length)), v.load)
        with builder.if_then(builder.icmp_signed("<", done, terms)):
            left = builder.sub(terms, done)
            add_products(tile, done, lambda address: v.load_first(address, left))
        for i, j in np.ndindex(rows, columns):
            place = builder.add(v.moved(out, i, out_row), v.moved(INT(j * v.bytes), loop.index, columns * v.bytes))
            place = v.at(place, v.number)
            before = builder.select(adds, builder.load(place), v.number(0))
            builder.store(builder.fadd(v.total(builder.load(sums[i][j])), before), place)


@intrinsic
def transpose_square(typing_context, zero, source, source_row, out, out_row):
    """Write out = the transposed source, with as many rows and columns as a vector has numbers; strides in bytes."""

    def generate(context, builder, signature, arguments):
        v = Vectors(context, builder, signature.args[0])
        _, source, source_row, out, out_row = arguments
        starts = [v.moved(source, number, source_row) for number in range(v.length)]
        rows = [v.load(start) for start in starts]
        for start in starts:
            v.fetch(builder.add(start, INT(AHEAD)))
        _exchange(builder, rows)
        for i, row in enumerate(rows):
            v.store(row, v.moved(out, i, out_row))
        return context.get_dummy_value()

    return types.void(zero, *[types.intp] * 4), generate


def _exchange(builder, rows):
    """Transpose a square of rows."""
    width = len(rows) // 2
    while width:  # swap halves of pairs of rows, quarters of pairs, and so on
        for i in range(len(rows)):
            if not i & width:
                rows[i], rows[i + width] = _swapped(builder, rows[i], rows[i + width], width)
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


@intrinsic
def numbers_at(typing_context, zero, address):
    """Return a pointer to numbers of the dtype of `zero`, for `pointer[i]`."""
    pointer = types.CPointer(zero)

    def generate(context, builder, signature, arguments):
        return builder.inttoptr(arguments[1], context.get_value_type(pointer))

    return pointer(zero, types.intp), generate


@intrinsic
def own_numbers(typing_context, zero, count):
    """Return a pointer to stack memory for `count` numbers, a constant."""
    if not isinstance(count, types.IntegerLiteral):
        raise TypeError("count must be known when compiling")
    pointer, size = types.CPointer(zero), count.literal_value

    def generate(context, builder, signature, arguments):
        place = own_memory(builder, context.get_value_type(zero), size)
        return builder.bitcast(place, context.get_value_type(pointer))

    return pointer(zero, count), generate


@intrinsic
def bytes_of(typing_context, zero):
    """Return the bytes of a number."""
    return types.intp(zero), lambda context, builder, signature, arguments: INT(zero.bitwidth // 8)


@intrinsic
def own_bytes(typing_context, count):
    """Return the address of `count` bytes of stack memory, a constant."""
    size = count.literal_value

    def generate(context, builder, signature, arguments):
        return builder.ptrtoint(own_memory(builder, ir.IntType(8), size), INT)

    return types.intp(count), generate
