"""Reads records and writes reports. Nothing here trains."""
