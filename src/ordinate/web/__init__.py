"""The interactive page of ``ordinate explore``."""
