"""Products inside persistent kernels: a block's slice of the weights, times a vector that other blocks produce.

A block owns U units of one layer and direction, and with them the rows (forward: G * U rows of R and of W; backward: U
columns of R and W, seen as rows). These stay on the chip for the whole call. At every step each warp

    waits for its part of the vector (B rows, some columns) and loads it       `gather`
    multiplies it with its part of the rows                                    `multiply`
    leaves its partial sums in shared memory                                   `partials`

and after a barrier the threads of the block add the warps' partial sums, one (unit, sequence) each.

Waiting. What blocks exchange is written once and never changed, in buffers that were filled with `UNWRITTEN` bits before.
A number is there as soon as it is anything else, so data are their own flags: one trip through the L2 cache per step
instead of three (store, flag, load). Numbers that happen to have these bits, a NaN that no arithmetic yields, are
stored as the usual NaN. Every wait is bounded.

The lanes of a warp share the vector's rows as the tensor cores' B operand wants it: lane 4 g + q holds, of row g, the
q-th 16 bytes of each chunk of 64 bytes. As the order of the columns does not matter to a product, if it is the same for
the weights, two tiles of `mma` take words 0, 1 and 2, 3 of these 16 bytes. Without tensor cores ("fma") the chunks go to
shared memory first.
"""

from dataclasses import dataclass
from functools import cache, cached_property
from types import SimpleNamespace

import numpy as np
from numba import cuda

from numbarnn.cells.definition import jit
from numbarnn.cells.precision import compute_dtype, is_half
from numbarnn.kernels import ptx, storage
from numbarnn.kernels.target import TARGET

UNWRITTEN = 0xFFFFFFFF  # a word that nobody has written yet (0xFFFF where numbers are exchanged one by one)
CHUNK_BYTES = 64  # of a row, per chunk: 16 for each of 4 lanes
TILE_ROWS, TILE_BATCH = 16, 8  # rows and columns of the result of one mma
POLLS_BEFORE_SLEEP, SLEEP_NS = 256, 100

# The columns of the table `warps` (int64), what a warp multiplies:
VECTOR = 0  # number of the vector
SHIFT = 1  # the step at time t reads slot t + SHIFT
WIDTH = 2  # elements of a row of the vector
COLUMN = 3  # its first column
COUNT = 4  # number of columns; 0: the warp has nothing to multiply
WEIGHTS = 5  # where the weight of its first row and column stands
GROUP_STRIDE, UNIT_STRIDE, COLUMN_STRIDE = 6, 7, 8  # from gate to gate, unit to unit, column to column
KIND = 9
WARP_COLUMNS = 10
RECURRENT, INPUT = 0, 1  # kinds: products of the own layer's previous step, and of another layer's same time


@dataclass(frozen=True)
class Slice:
    """How a block's slice is cut: what a kernel is compiled for.

    Attributes:
        dtype: what is stored: "float32", "float64", "float16", "bfloat16".
        math: "fma", or the tensor cores: "mma" (for the halves), "tf32" (for float32).
        groups: rows per unit: the gates forward, 1 backward.
        units: U, units per block.
        warps: warps per block.
        chunks: most chunks of 64 bytes of a row that a warp multiplies.
        gathered: chunks that a warp loads at once; a divisor of `chunks`.
        tiles: sets of 8 sequences that are multiplied at once, 1 or 2.
        aligned: rows and slices start at multiples of 16 bytes, so that lanes load 16 bytes at once.
        whole: every warp multiplies exactly `chunks` chunks, so that nothing has to be left out.
        resident: "registers" or "shared": where the weights stay ("fma": always shared).
    """

    dtype: str
    math: str
    groups: int
    units: int
    warps: int
    chunks: int
    gathered: int
    tiles: int
    aligned: bool
    whole: bool = False
    resident: str = "registers"

    @cached_property
    def threads(self):
        """Threads per block."""
        return 32 * self.warps

    @cached_property
    def sequences(self):
        """Sequences that are multiplied at once; a step goes through the batch by so many."""
        return TILE_BATCH * self.tiles

    @cached_property
    def pairs(self):
        """(unit, sequence) pairs per thread, at most, of what is multiplied at once."""
        return -(-self.units * self.sequences // self.threads)

    @cached_property
    def rows(self):
        """Rows of weights per block, padded to what is multiplied at once."""
        multiple = TILE_ROWS if self.math != "fma" else min(8, -(-self.groups * self.units // 4) * 4)
        return -(-self.groups * self.units // multiple) * multiple

    @cached_property
    def row_stride(self):
        """Elements from a sequence's partial sums to the next one's; chosen against bank conflicts."""
        return self.rows + 4

    @cached_property
    def vector_elements(self):
        """Elements in 16 bytes."""
        return 16 // (2 if is_half(self.dtype) else np.dtype(self.dtype).itemsize)

    @cached_property
    def chunk_elements(self):
        """Elements in a chunk."""
        return 4 * self.vector_elements

    @cached_property
    def weight_stride(self):
        """Elements from a row of a warp's weights in shared memory to the next ("fma"); against bank conflicts."""
        return self.chunks * self.chunk_elements + 4

    @cached_property
    def staged_stride(self):
        """Elements from a sequence's staged numbers in shared memory to the next one's ("fma")."""
        return self.gathered * self.chunk_elements + 4

    @cached_property
    def weight_elements(self):
        """Elements of shared memory that weights take during the steps."""
        if self.math == "fma":
            return self.warps * self.rows * self.weight_stride
        return 0 if self.resident == "registers" else self.threads * self.fragment_words

    @cached_property
    def staged_elements(self):
        """Elements of shared memory for the vector ("fma")."""
        return self.warps * self.sequences * self.staged_stride if self.math == "fma" else 0

    @cached_property
    def fragment_words(self):
        """32-bit words of weights per thread ("mma", "tf32")."""
        return self.rows // TILE_ROWS * self.chunks * 8 if self.math != "fma" else 0

    @cached_property
    def biases(self):
        """Where the units' biases begin in shared memory: those of W x, then those of R h; as the rows are."""
        return self.weight_elements + self.staged_elements

    @cached_property
    def partials(self):
        """Where the partial sums begin: of warp 0, the first sequence, the first row."""
        return self.biases + 2 * self.groups * self.units

    @cached_property
    def between_warps(self):
        """Elements from a warp's partial sums to the next one's."""
        return self.sequences * self.row_stride

    @cached_property
    def states(self):
        """Where the states of the block's units begin: of sequence 0 unit 0, unit 1, ..., then the next sequence."""
        return self.partials + self.warps * self.between_warps

    def shared_elements(self, batch, states):
        """Elements (of the dtype of sums) of dynamic shared memory.

        In this order: weights, the vector, biases, partial sums, states. On their way to registers the weights pass
        through it too.

        Args:
            batch: sequences of the block.
            states: numbers that a unit keeps from step to step.
        """
        return max(self.states + batch * self.units * states, self.threads * self.fragment_words)

    def shared_bytes(self, batch, states):
        """Bytes of dynamic shared memory."""
        return self.shared_elements(batch, states) * np.dtype(compute_dtype(self.dtype)).itemsize


# ---------------------------------------------------------------------------------------------------- the exchange
@cache
def make_newest(dtype, aligned):
    """A device function of four words: `UNWRITTEN` if one of them, or a half of one, is not there yet; else less.

    Without branches, so that the loads before it do not wait for each other.
    """
    largest = ptx.largest
    if is_half(dtype) and not aligned:
        low, high = np.uint32(0x0000FFFF), np.uint32(0xFFFF0000)

        def newest(words):
            found = np.uint32(0)
            for word in words:
                found = largest(found, largest(word | low, word | high))
            return found

    elif dtype == "float64":

        def newest(words):  # the upper words: a float64 is written at once
            return largest(words[1], words[3])

    else:

        def newest(words):
            return largest(largest(words[0], words[1]), largest(words[2], words[3]))

    return jit(newest, TARGET)


@cache
def make_load(dtype, aligned, whole):
    """A device function load(array, index, left, valid): 16 bytes as four words; zero from the `left`-th element on, unless
    they are known to be `whole`.

    valid: an index from which 16 bytes can be loaded in any case: a load that is always done needs no branch.
    """
    zero = np.uint32(0)
    load_words, load_element = ptx.load_words, ptx.load
    if aligned and whole:

        def load(array, index, left, valid):
            return load_words(array, index)

    elif aligned:

        def load(array, index, left, valid):
            words = load_words(array, index if left > 0 else valid)
            mask = np.uint32(UNWRITTEN) if left > 0 else zero
            return words[0] & mask, words[1] & mask, words[2] & mask, words[3] & mask

    elif is_half(dtype):
        pack, none = ptx.pack_halves, np.uint16(0)

        def load_pair(array, index, left):
            low = load_element(array, index) if left > 0 else none
            return pack(low, load_element(array, index + 1) if left > 1 else none)

        pair = jit(load_pair, TARGET)

        def load(array, index, left, valid):
            first, second = pair(array, index, left), pair(array, index + 2, left - 2)
            return first, second, pair(array, index + 4, left - 4), pair(array, index + 6, left - 6)

    elif dtype == "float64":
        low_word, high_word = _words_of_float64()

        def load(array, index, left, valid):
            first = load_element(array, index) if left > 0 else 0.0
            second = load_element(array, index + 1) if left > 1 else 0.0
            return low_word(first), high_word(first), low_word(second), high_word(second)

    else:
        as_word = ptx.as_word

        def load_one(array, index, left):
            return as_word(load_element(array, index)) if left > 0 else zero

        one = jit(load_one, TARGET)

        def load(array, index, left, valid):
            first, second = one(array, index, left), one(array, index + 1, left - 1)
            return first, second, one(array, index + 2, left - 2), one(array, index + 3, left - 3)

    return jit(load, TARGET)


def _words_of_float64():
    """Device functions: the lower and the upper word of a float64."""
    mask, shift = np.uint64(0xFFFFFFFF), np.uint64(32)

    def low(value):
        return np.uint32(np.float64(value).view(np.uint64) & mask)

    def high(value):
        return np.uint32(np.float64(value).view(np.uint64) >> shift)

    return jit(low, TARGET), jit(high, TARGET)


@cache
def make_publish(dtype, aligned):
    """A device function publish(array, index, stored, valid): a number that others wait for, as `storage` stores it.

    All lanes of a warp call it together; it stores where `valid`. Where others look at words of two halves, two lanes
    store them together.
    """
    store, store_word, pack = ptx.store, ptx.store_word, ptx.pack_halves
    unwritten, usual_nan = np.uint16(0xFFFF), np.uint16(0x7FFF)
    if is_half(dtype) and aligned:

        def publish(array, index, stored, valid):
            own = usual_nan if stored == unwritten else stored
            other = np.uint16(cuda.shfl_xor_sync(0xFFFFFFFF, np.int32(own), 1))
            if valid and cuda.threadIdx.x % 2 == 0:
                store_word(array, index, pack(own, other))

    elif is_half(dtype):

        def publish(array, index, stored, valid):
            if valid:
                store(array, index, usual_nan if stored == unwritten else stored)

    else:
        nan = np.dtype(dtype).type(np.nan)

        def publish(array, index, stored, valid):
            if valid:
                store(array, index, nan if stored != stored else stored)

    return jit(publish, TARGET)


@cache
def make_gather(cut, group):
    """The device function that waits for one group of chunks of a vector and loads it.

    gather(words, vector, row, batch, first, end, width, column, count, wait, limit) -> whether all came within the limit

        words: local (tiles, gathered, 4) uint32, written.
        vector: rows of `width` elements; rows row * batch ... are read, of the sequences from `first` on, before `end`.
        column, count: the warp's first column and number of columns.
        wait: 0 if what is there is valid in any case.
        limit: times to look, at most.
    """
    newest, largest = make_newest(cut.dtype, cut.aligned), ptx.largest
    sleep, sleep_ns = ptx.sleep, np.uint32(SLEEP_NS)
    load, tiles, gathered = make_load(cut.dtype, cut.aligned, cut.whole), cut.tiles, cut.gathered
    vector_elements, chunk_elements = cut.vector_elements, cut.chunk_elements
    skipped, in_simulator = group * cut.gathered * cut.chunk_elements, TARGET == "python"

    def gather(words, vector, row, batch, first, end, width, column, count, wait, limit):
        lane = cuda.threadIdx.x % 32
        own = skipped + lane % 4 * vector_elements
        polls = 0
        while True:
            if in_simulator:
                sleep(sleep_ns)  # others run before this thread looks
            found = np.uint32(0)
            for tile in range(tiles):
                b = min(first + tile * 8 + lane // 4, end - 1)
                valid = (row * batch + b) * width + column
                for chunk in range(gathered):
                    skip = own + chunk * chunk_elements
                    four = load(vector, valid + skip, count - skip, valid)
                    found = largest(found, newest(four))
                    for k in range(4):
                        words[tile, chunk, k] = four[k]
            if wait == 0 or found != UNWRITTEN:
                return True
            polls += 1
            if polls > limit:
                return False
            if polls > POLLS_BEFORE_SLEEP:
                sleep(sleep_ns)

    return jit(gather, TARGET)


# ------------------------------------------------------------------------------------------------------- products
@cache
def make_product(cut):
    """The device functions of a slice's product, by FMA or by the tensor cores.

    Returns:
        A namespace of
        load(fragments, weights, shared, at, units, group_stride, unit_stride, column_stride, count): once per call: the
            warp's part of the weights to where it stays; a barrier of the block must follow.
        step(fragments, words, shared, partial, vector, row, batch, first, end, width, column, count, wait, limit): gathers
            the warp's part of the vector and multiplies it; partial sums at `partial`. Whether all came in time.
    """
    return _make_fma_product(cut) if cut.math == "fma" else _make_mma_product(cut)


@cache
def in_turn(functions):
    """A device function that calls all of these with its arguments; whether all returned True.

    Loops over what stays in registers must disappear in compiling, as registers have no addresses; the compiler leaves
    long loops as they are. A chain of functions made for each number of the loop is none.
    """
    if len(functions) == 1:
        return functions[0]
    first, rest = functions[0], in_turn(functions[1:])

    def both(*arguments):
        done = first(*arguments)
        return rest(*arguments) and done

    return jit(both, TARGET)


@cache
def _make_weight_at(cut):
    """A device function: the weight of a row and column, as stored; zero outside of the slice."""
    groups, units_per_block = cut.groups, cut.units
    zero = np.uint16(0) if is_half(cut.dtype) else np.dtype(cut.dtype).type(0)

    def weight_at(weights, at, row, column, units, group_stride, unit_stride, column_stride, count):
        group, unit = row // units_per_block, row % units_per_block
        if group >= groups or unit >= units or column >= count:
            return zero
        return weights[at + group * group_stride + unit * unit_stride + column * column_stride]

    return jit(weight_at, TARGET)


@cache
def _make_weight_word(cut):
    """A device function: a word of weights, as `mma` takes it: two halves of neighbouring columns, or one TF32."""
    weight_at, pack, as_word, to_tf32 = _make_weight_at(cut), ptx.pack_halves, ptx.as_word, ptx.to_tf32
    if cut.dtype == "float32":

        def weight_word(weights, at, row, column, *strides):
            return to_tf32(as_word(weight_at(weights, at, row, column, *strides)))

    else:

        def weight_word(weights, at, row, column, *strides):
            return pack(
                weight_at(weights, at, row, column, *strides), weight_at(weights, at, row, column + 1, *strides)
            )

    return jit(weight_word, TARGET)


def _make_mma_product(cut):
    """By `mma`. A fragment, what a lane holds of a tile of 16 rows, is four words: of row g, of row g + 8, and of the
    same rows the next word; fragments are numbered by tile, chunk and half of the chunk."""
    chunks, tiles, row_tiles, rows = cut.chunks, cut.tiles, cut.rows // TILE_ROWS, cut.rows
    gathered, row_stride, lane_words = cut.gathered, cut.row_stride, cut.fragment_words
    in_registers = cut.resident == "registers"
    weight_word, put_word, get = _make_weight_word(cut), _make_put_word(), ptx.load_shared_words
    word_elements = 1 if cut.dtype == "float32" else 2
    zero = np.float32(0)
    to_registers = in_turn(tuple(_make_fragment_load(cut, number) for number in range(cut.fragment_words // 4)))

    def load(fragments, weights, shared, at, units, group_stride, unit_stride, column_stride, count):
        lane, warp = cuda.threadIdx.x % 32, cuda.threadIdx.x // 32
        strides = (units, group_stride, unit_stride, column_stride, count)
        for index in range(lane, rows * chunks * 16, 32):
            row, word = index // (chunks * 16), index % (chunks * 16)
            chunk, of_chunk = word // 16, word % 16
            owner = row % 8 * 4 + of_chunk // 4  # the lane
            number = (row // 16 * chunks + chunk) * 2 + of_chunk % 4 // 2
            part = of_chunk % 2 * 2 + row % 16 // 8
            value = weight_word(weights, at, row, word * word_elements, *strides)
            put_word(shared, warp * lane_words * 32 + number * 128 + owner * 4 + part, value)
        cuda.syncwarp()
        if in_registers:
            to_registers(fragments, shared, warp * lane_words * 32 + lane * 4)

    multiply = tuple(
        in_turn(tuple(_make_mma_group(cut, group * gathered + chunk, chunk) for chunk in range(gathered)))
        for group in range(chunks // gathered)
    )
    gather_and_multiply = in_turn(
        tuple(_make_group(make_gather(cut, group), multiply[group]) for group in range(chunks // gathered))
    )

    def step(fragments, words, shared, partial, vector, row, batch, first, end, width, column, count, wait, limit):
        lane = cuda.threadIdx.x % 32
        sums = cuda.local.array((row_tiles, tiles, 4), np.float32)
        for tile in range(row_tiles):
            for n in range(tiles):
                for k in range(4):
                    sums[tile, n, k] = zero
        where = (vector, row, batch, first, end, width, column, count, wait, limit)
        done = gather_and_multiply(fragments, sums, words, shared, where)
        for tile in range(row_tiles):
            for n in range(tiles):
                at = partial + (n * 8 + lane % 4 * 2) * row_stride + tile * 16 + lane // 4
                shared[at] = sums[tile, n, 0]
                shared[at + row_stride] = sums[tile, n, 1]
                shared[at + 8] = sums[tile, n, 2]
                shared[at + row_stride + 8] = sums[tile, n, 3]
        return done

    return SimpleNamespace(load=jit(load, TARGET), step=jit(step, TARGET))


@cache
def _make_put_word():
    """A device function: put a word into shared memory, an array of float32."""
    as_float32 = ptx.as_float32

    def put_word(shared, at, word):
        shared[at] = as_float32(word)

    return jit(put_word, TARGET)


@cache
def _make_fragment_load(cut, number):
    """A device function that takes one fragment from shared memory to registers."""
    get, first, offset = ptx.load_shared_words, number * 4, number * 128

    def fragment_load(fragments, shared, at):
        four = get(shared, at + offset)
        for k in range(4):
            fragments[first + k] = four[k]
        return True

    return jit(fragment_load, TARGET)


@cache
def _make_group(gather, multiply):
    """A device function that gathers a group of chunks and multiplies it."""

    def group(fragments, sums, words, shared, where):
        done = gather(words, *where)
        multiply(fragments, sums, words, shared)
        return done

    return jit(group, TARGET)


@cache
def _make_mma_group(cut, chunk, place):
    """A device function that adds the product of one chunk, which stands at `place` of the gathered words, to `sums`."""
    row_tiles, tiles, chunks, lane_words = cut.rows // TILE_ROWS, cut.tiles, cut.chunks, cut.fragment_words
    in_registers, get = cut.resident == "registers", ptx.load_shared_words
    mma = {"float16": ptx.mma_float16, "bfloat16": ptx.mma_bfloat16, "float32": ptx.mma_tf32}[cut.dtype]
    to_tf32, rounds = ptx.to_tf32, cut.dtype == "float32"

    def multiply(fragments, sums, words, shared):
        lane, warp = cuda.threadIdx.x % 32, cuda.threadIdx.x // 32
        for half in range(2):
            for tile in range(row_tiles):
                number = (tile * chunks + chunk) * 2 + half
                if in_registers:
                    at = number * 4
                    a = (fragments[at], fragments[at + 1], fragments[at + 2], fragments[at + 3])
                else:
                    a = get(shared, warp * lane_words * 32 + number * 128 + lane * 4)
                for n in range(tiles):
                    b = (words[n, place, 2 * half], words[n, place, 2 * half + 1])
                    if rounds:
                        b = (to_tf32(b[0]), to_tf32(b[1]))
                    d = mma(a, b, (sums[tile, n, 0], sums[tile, n, 1], sums[tile, n, 2], sums[tile, n, 3]))
                    for k in range(4):
                        sums[tile, n, k] = d[k]
        return True

    return jit(multiply, TARGET)


def _make_fma_product(cut):
    """By FMA: lanes share the (row, sequence) pairs of the block's result, each a small rectangle of them."""
    rows, row_stride, stride, columns = cut.rows, cut.row_stride, cut.weight_stride, cut.chunks * cut.chunk_elements
    rectangle = _Rectangle.of(cut)
    row_lanes, batch_lanes, own_rows, own_batch = (
        rectangle.row_lanes, rectangle.batch_lanes, rectangle.rows, rectangle.sequences,
    )  # fmt: skip
    weight_at, widen = _make_weight_at(cut), storage.widen(cut.dtype)
    number = np.dtype(compute_dtype(cut.dtype)).type
    zero = number(0)
    rows_first = cut.groups == 1  # backward: units, not columns, are neighbours in memory

    def load(fragments, weights, shared, at, units, group_stride, unit_stride, column_stride, count):
        lane, warp = cuda.threadIdx.x % 32, cuda.threadIdx.x // 32
        for index in range(lane, rows * columns, 32):
            row, column = (index % rows, index // rows) if rows_first else (index // columns, index % columns)
            weight = weight_at(weights, at, row, column, units, group_stride, unit_stride, column_stride, count)
            shared[(warp * rows + row) * stride + column] = widen(weight)

    gather_and_multiply = in_turn(
        tuple(
            _make_group(make_gather(cut, group), _make_fma_group(cut, group))
            for group in range(cut.chunks // cut.gathered)
        )
    )

    def step(fragments, words, shared, partial, vector, row, batch, first, end, width, column, count, wait, limit):
        lane = cuda.threadIdx.x % 32
        sums = cuda.local.array((own_rows, own_batch), number)
        for i in range(own_rows):
            for j in range(own_batch):
                sums[i, j] = zero
        where = (vector, row, batch, first, end, width, column, count, wait, limit)
        done = gather_and_multiply(fragments, sums, words, shared, where)
        at = partial + lane // row_lanes * row_stride + lane % row_lanes
        for i in range(own_rows):
            for j in range(own_batch):
                shared[at + j * batch_lanes * row_stride + i * row_lanes] = sums[i, j]
        return done

    return SimpleNamespace(load=jit(load, TARGET), step=jit(step, TARGET))


@dataclass(frozen=True)
class _Rectangle:
    """The part of a warp's result that a lane computes: rows l, l + row_lanes, ..., and sequences likewise."""

    row_lanes: int
    batch_lanes: int
    rows: int
    sequences: int

    @classmethod
    def of(cls, cut):
        """That of a Slice."""
        row_lanes = 8 if cut.rows % 8 == 0 and cut.rows >= 32 else 4
        return cls(row_lanes, 32 // row_lanes, cut.rows // row_lanes, cut.sequences // (32 // row_lanes))


@cache
def _make_fma_group(cut, group):
    """A device function that takes a group of gathered chunks to shared memory and adds its product to `sums`."""
    rectangle, number = _Rectangle.of(cut), np.dtype(compute_dtype(cut.dtype)).type
    row_lanes, batch_lanes, own_rows, own_batch = (
        rectangle.row_lanes, rectangle.batch_lanes, rectangle.rows, rectangle.sequences,
    )  # fmt: skip
    rows, weight_stride, stride, columns = (
        cut.rows,
        cut.weight_stride,
        cut.staged_stride,
        cut.gathered * cut.chunk_elements,
    )
    put, get, tiles, gathered = _make_put(cut.dtype), ptx.load_shared, cut.tiles, cut.gathered
    chunk_elements, vector_elements, staged, sequences = (
        cut.chunk_elements,
        cut.vector_elements,
        cut.weight_elements,
        cut.sequences,
    )
    skipped, unrolled = group * columns, 2  # loads of the next columns go on during the sums of these

    def multiply(fragments, sums, words, shared):
        lane, warp = cuda.threadIdx.x % 32, cuda.threadIdx.x // 32
        stage = staged + warp * sequences * stride
        cuda.syncwarp()  # other lanes may still read what was staged before
        for n in range(tiles):
            for chunk in range(gathered):
                at = stage + (n * 8 + lane // 4) * stride + chunk * chunk_elements + lane % 4 * vector_elements
                put(shared, at, words, n, chunk)
        cuda.syncwarp()
        vectors = cuda.local.array((own_batch, 4), number)
        own_weights = (warp * rows + lane % row_lanes) * weight_stride + skipped
        own_stage = stage + lane // row_lanes * stride
        for first in range(0, columns, 4 * unrolled):
            for part in range(unrolled):
                at = first + 4 * part
                for j in range(own_batch):
                    four = get(shared, own_stage + j * batch_lanes * stride + at)
                    for k in range(4):
                        vectors[j, k] = four[k]
                for i in range(own_rows):
                    weight = get(shared, own_weights + i * row_lanes * weight_stride + at)
                    for j in range(own_batch):
                        total = sums[i, j]
                        for k in range(4):
                            total += weight[k] * vectors[j, k]
                        sums[i, j] = total
        return True

    return jit(multiply, TARGET)


@cache
def _make_put(dtype):
    """A device function that puts 16 gathered bytes into shared memory, as numbers."""
    if dtype == "float64":
        as_float64 = ptx.as_float64

        def put(shared, at, words, n, chunk):
            shared[at] = as_float64(words[n, chunk, 0], words[n, chunk, 1])
            shared[at + 1] = as_float64(words[n, chunk, 2], words[n, chunk, 3])

    elif dtype == "float32":
        store = ptx.store_shared_words

        def put(shared, at, words, n, chunk):
            four = (words[n, chunk, 0], words[n, chunk, 1], words[n, chunk, 2], words[n, chunk, 3])
            store(shared, at, four)

    else:
        widen, low, shift = storage.widen(dtype), np.uint32(0xFFFF), np.uint32(16)

        def put(shared, at, words, n, chunk):
            for k in range(4):
                word = words[n, chunk, k]
                shared[at + 2 * k] = widen(np.uint16(word & low))
                shared[at + 2 * k + 1] = widen(np.uint16(word >> shift))

    return jit(put, TARGET)


@cache
def make_sums(cut, count, ranges):
    """A device function sums(shared, at, first, last): `count` numbers of one (unit, sequence), each added over warps.

    at: where warp 0's partial sum of the unit's first row stands; first, last: the warps [first, last) are added, in this
    order; without `ranges` all are (warps that have nothing to multiply leave zeros).
    """
    if count == 0:
        return jit(lambda shared, at, first, last: (), TARGET)
    rest, warps, units, between = make_sums(cut, count - 1, ranges), cut.warps, cut.units, cut.between_warps
    zero = np.dtype(compute_dtype(cut.dtype)).type(0)

    def sums(shared, at, first, last):
        total = zero
        for warp in range(warps):
            if not ranges or (first <= warp and warp < last):
                total += shared[at + warp * between]
        return (total, *rest(shared, at + units, first, last))

    return jit(sums, TARGET)


@cache
def make_publish_all(dtype, aligned, count):
    """A device function publish_all(array, index, between, stored, valid): `publish` for a tuple of `count` numbers."""
    if count == 0:
        return jit(lambda array, index, between, stored, valid: None, TARGET)
    publish, rest = make_publish(dtype, aligned), make_publish_all(dtype, aligned, count - 1)
    narrow = storage.narrow(dtype)

    def publish_all(array, index, between, values, valid):
        publish(array, index, narrow(values[0]), valid)
        rest(array, index + between, between, values[1:], valid)

    return jit(publish_all, TARGET)
