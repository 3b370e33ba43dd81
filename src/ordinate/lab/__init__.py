"""The lab: the same small Transformer trained once per encoding, and tested at lengths beyond training."""
