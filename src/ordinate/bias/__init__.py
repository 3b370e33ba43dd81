"""Encodings that add to the attention logits, one a file, and the descriptions they do it with."""
