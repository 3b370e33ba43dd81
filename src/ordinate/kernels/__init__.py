"""Triton kernels, and one of Numba; nothing outside their callers' chosen branch imports this package."""
