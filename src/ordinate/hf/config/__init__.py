"""Reads a config.json into a plan: the encoding of every layer, and the key that each fact came from."""
