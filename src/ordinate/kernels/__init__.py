"""Triton kernels; nothing outside their callers' chosen branch imports this package."""
