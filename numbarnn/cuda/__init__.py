"""Compile and launch kernels, and multiply matrices, on NVIDIA GPUs or in a simulator. Knows no recurrent network."""
