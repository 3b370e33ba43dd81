"""Attention with the Triton kernels: operators, bias terms, launch plans and tile sizes."""
