"""Kernels about arrays alone: copies, masks, repeats, dropout, column sums."""
