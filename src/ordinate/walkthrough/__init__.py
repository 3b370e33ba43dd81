"""The computation of an encoding, step by step with real numbers."""
