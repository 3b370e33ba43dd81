"""Trains models and writes records. Nothing here reads a report."""
