"""Encodings that add a code to the embeddings, one per file."""
