"""How a layer's weights are tiled over blocks: a block's tile, and the sizes that follow from it.

A block owns U units of one layer and direction. Its tile is their rows of weights: forward A * U rows of R and G * U
of W, backward U columns of R and W, seen as rows. Of each warp's part, the first chunks of columns stay in registers
for the whole call, the rest in shared memory. At every step each warp

    waits for its part of the block's operand (some sequences, some columns)   `exchange`
    multiplies it by its part of the tile                                      `products`
    leaves its partial sums in shared memory

and after a barrier the threads of the block add the warps' partial sums, one (unit, sequence) each.
"""

from dataclasses import dataclass

from numbarnn.common.precision import compute_dtype, itemsize

PIECE_BYTES = 16  # what a lane loads at once
CHUNK_BYTES = 4 * PIECE_BYTES  # of a row, per chunk: 16 for each of 4 lanes
M16, N8 = 16, 8  # rows of weights and sequences of one mma
ROWS_PER_LANE = 8  # most rows that a lane multiplies with each number that it loads, by FMA from registers


@dataclass(frozen=True)
class Tile:
    """A block's tile of the weights and how it is multiplied: what a kernel is compiled for.

    Attributes:
        dtype: what is stored: "float32", "float16", "bfloat16".
        math: "fma" (float32), or tensor cores: "mma" (float16 and bfloat16), "tf32" and "tf32x3" (float32, each product
            as one of rounded numbers, or as three of numbers split in two).
        rows_per_unit: forward the most gates of a matrix that blocks multiply, 1 backward. units: U, units per block.
        warps: warps per block. chunks: most k-chunks, 64 bytes of a row each, that a warp multiplies.
        gathered: chunks that a warp loads at once; a divisor of `chunks`.
        n8: sets of 8 sequences that are multiplied at once, 1 to 4.
        aligned: rows and parts of rows start at multiples of 16 bytes, so that lanes load 16 bytes at once.
        whole: every warp multiplies exactly `chunks` chunks; no columns need zeroing.
        shared_chunks: how many chunks, after those in registers, stay in shared memory.
        unit_biases: biases per unit: forward the gates of W x and of R h, 0 backward.
        weights_aligned: where `aligned`, the weights' rows start at multiples of 16 bytes too.
        for_stages: numbers of shared memory for each sequence, in which the cell's stages add up.
        unit_parameters: of cells with stages, per-unit parameters in shared memory; other cells' are in registers.
        groups_ahead: groups of chunks that a warp loads before it waits for a group and multiplies it: 0 or 1.
        projects: h is a projection, of which a block has one row for each unit: see `projection`.
        given: forward: blocks of the launch's first layer multiply its input themselves; else x Wᵀ is computed before.
        accumulators: "mma" and "tf32": a warp adds its products to so many sets of sums in turn, which are added at the
            end. Each product waits for the previous one in the same set.
        keeps_biases: forward: each thread keeps the biases of its pairs in registers; else it loads them from shared
            memory at every step.
    """

    dtype: str
    math: str
    rows_per_unit: int
    units: int
    warps: int
    chunks: int
    gathered: int
    n8: int
    aligned: bool
    whole: bool = False
    shared_chunks: int = 0
    unit_biases: int = 0
    weights_aligned: bool = True
    groups_ahead: int = 0
    for_stages: int = 0
    unit_parameters: int = 0
    given: bool = False
    projects: bool = False
    accumulators: int = 1
    keeps_biases: bool = False

    @property
    def backward(self):
        """Whether the tile is for backward, where a unit has one row, and units are neighbors in memory."""
        return self.unit_biases == 0

    @property
    def loads_pieces(self):
        """Whether lanes load several weights at once, backward those of neighboring units."""
        return self.aligned and self.weights_aligned and (not self.backward or self.units % 2 == 0)

    @property
    def register_chunks(self):
        """Number of chunks in registers, the first ones; "fma" has all or none there."""
        return self.chunks - self.shared_chunks

    @property
    def resident(self):
        """Where the weights are during the steps: "registers", "shared" or "registers+shared"."""
        counts = {"registers": self.register_chunks, "shared": self.shared_chunks}
        return "+".join(place for place, count in counts.items() if count)

    @property
    def threads(self):
        """Threads per block."""
        return 32 * self.warps

    @property
    def sequences(self):
        """Sequences that are multiplied at once; a step goes through the batch in such groups."""
        return N8 * self.n8

    @property
    def pairs(self):
        """Most (unit, sequence) pairs per thread in one such group."""
        return -(-self.units * self.sequences // self.threads)

    @property
    def row_lanes(self):
        """Lanes of a warp along the rows ("fma"), a power of 2. With weights in registers a lane has at most 8 rows."""
        if not self.register_chunks:
            return 8 if self.rows_per_unit * self.units >= 32 else 4
        return next_power_of_two(-(-self.rows_per_unit * self.units // ROWS_PER_LANE))

    @property
    def rows(self):
        """Rows of weights per block, padded to a multiple of the rows that are multiplied at once."""
        multiple = self.row_lanes if self.math == "fma" else M16
        return -(-self.rows_per_unit * self.units // multiple) * multiple

    @property
    def whole_chunks(self):
        """Chunks per warp are a multiple of this, since "fma" with weights in registers gives each lane 16 bytes in
        turn."""
        if self.math != "fma" or not self.register_chunks:
            return 1
        return max(1, 4 * (32 // self.row_lanes) // self.chunk_elements)

    @property
    def groups(self):
        """Number of groups of chunks, which a warp multiplies one after another."""
        return self.chunks // self.gathered

    @property
    def chunks_on_the_way(self):
        """Chunks that a warp has room for in registers: a group, and the groups loaded ahead of time."""
        return self.gathered * (1 + self.groups_ahead)

    def place_of(self, group):
        """Return the place of a group's first chunk among the chunks on the way."""
        return self.gathered * (group % (1 + self.groups_ahead))

    @property
    def dependent_products(self):
        """Most products of a warp that wait for each other by `mma`, as they add to the same sums."""
        return -(-2 * self.chunks // self.accumulators)

    @property
    def row_stride(self):
        """Elements from a sequence's partial sums to the next one's; chosen against bank conflicts."""
        return self.rows + 4

    @property
    def piece_elements(self):
        """Elements in a piece: 16 bytes, what a lane loads at once."""
        return PIECE_BYTES // itemsize(self.dtype)

    @property
    def chunk_elements(self):
        """Elements in a chunk."""
        return 4 * self.piece_elements

    @property
    def weight_stride(self):
        """Elements between rows of a warp's weights in shared memory ("fma"), against bank conflicts."""
        return self.shared_chunks * self.chunk_elements + 4

    @property
    def staged_stride(self):
        """Elements from a sequence's staged numbers in shared memory to the next one's ("fma")."""
        return (self.chunks if self.register_chunks else self.gathered) * self.chunk_elements + 4

    @property
    def weight_elements(self):
        """Elements of shared memory that weights take during the steps."""
        if not self.shared_chunks:
            return 0
        return self.warps * self.rows * self.weight_stride if self.math == "fma" else self.threads * self.shared_words

    @property
    def staged_elements(self):
        """Elements of shared memory for the operand ("fma")."""
        return self.warps * self.sequences * self.staged_stride if self.math == "fma" else 0

    @property
    def fragment_words(self):
        """Words of weights in each thread's registers."""
        if self.math == "fma":
            return self.rows * self.register_chunks * self.chunk_elements // 32
        return self.rows // M16 * self.register_chunks * 8

    @property
    def shared_words(self):
        """32-bit words of weights per thread in shared memory, except for "fma"."""
        return self.rows // M16 * self.shared_chunks * 8

    @property
    def words_per_lane(self):
        """32-bit words of weights that each lane loads before the steps."""
        return self.rows * self.chunks * CHUNK_BYTES // 4 // 32

    @property
    def biases(self):
        """Where the units' biases begin in shared memory: those of W x, then those of R h, in the order of rows."""
        return self.weight_elements + self.staged_elements

    @property
    def parameters(self):
        """Where per-unit parameters begin, if they are in shared memory: the first of all units, then the next."""
        return self.biases + self.unit_biases * self.units

    @property
    def partials(self):
        """Where the partial sums begin: warp 0, first sequence, first row."""
        return self.parameters + self.unit_parameters * self.units

    @property
    def between_warps(self):
        """Elements from a warp's partial sums to the next one's."""
        return self.sequences * self.row_stride

    @property
    def stages(self):
        """Where the stages' sums begin: one number per sequence, then the next sum."""
        return self.partials + self.warps * self.between_warps

    @property
    def states(self):
        """Where the states of the block's units begin: sequence 0 with unit 0, unit 1, ..., then the next sequence."""
        return self.stages + self.sequences * self.for_stages

    def shared_bytes(self, batch, states):
        """Return the bytes of dynamic shared memory, in the dtype of sums.

        It holds weights, operand, biases and parameters, partial sums, stages' sums and states, in this order.

        Args:
            batch: sequences of the block. states: numbers that a unit keeps from step to step.
        """
        return (self.states + batch * self.units * states) * itemsize(compute_dtype(self.dtype))


def next_power_of_two(number):
    """Return the smallest power of 2 that is at least a positive number."""
    return 1 << (number - 1).bit_length()
