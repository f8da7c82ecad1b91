"""What turns a scalar function into a function of a backend: constants, functions, tuples in memory, storage."""
