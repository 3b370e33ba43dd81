"""A config.json read into a plan: the encoding of every layer, and where each fact was read."""
