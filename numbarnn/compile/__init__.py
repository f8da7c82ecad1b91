"""Turn scalar functions into functions of a backend, with constants, tuples and storage of a dtype."""
