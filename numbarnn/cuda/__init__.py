"""Running kernels on NVIDIA GPUs, or in place of one: compiler, launches, products. Knows no recurrent network."""
