"""Encodings that turn queries and keys."""
