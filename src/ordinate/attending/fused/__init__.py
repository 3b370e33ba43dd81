"""The Triton kernels' side of attention: what a call becomes before it is launched."""
