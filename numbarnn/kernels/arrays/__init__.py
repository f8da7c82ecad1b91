"""Kernels about arrays alone: copies, masks, dropout, column sums."""
