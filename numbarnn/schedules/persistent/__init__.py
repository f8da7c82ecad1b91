"""The persistent schedule: what a launch computes, how layers are tiled over blocks, and the tables of its kernels."""
