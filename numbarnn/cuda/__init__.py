"""What runs kernels on NVIDIA GPUs, or in place of one, and knows no recurrent network: compiler, launches, products."""
