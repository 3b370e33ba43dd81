"""The properties of an encoding, each measured by running it."""
