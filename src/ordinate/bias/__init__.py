"""Encodings that add to the attention logits, one per file, and the bias types that they return."""
