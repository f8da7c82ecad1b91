"""CUDA kernels: the steps of cells, persistent kernels for whole calls, and operations on arrays."""
