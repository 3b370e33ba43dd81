"""Triton kernels and one Numba kernel. Modules import them only in the branch that runs them."""
