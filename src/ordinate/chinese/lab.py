"""Rules of the lab: comparisons, records, reports."""

RULES: dict[str, str] = {}
