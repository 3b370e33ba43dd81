"""Rules of the lab: comparisons, records, reports."""

RULES = {
    "must name at least one run": "至少要有一次训练",
}
