"""Turn scalar functions into functions of a backend: constants, functions, tuples in memory, storage."""
