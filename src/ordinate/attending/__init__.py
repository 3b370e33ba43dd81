"""Attention for every encoding: the public functions, and the implementations they choose from."""
