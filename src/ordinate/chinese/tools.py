"""Rules of what people touch, and what is known of encodings: verify, show, plot, the page."""

RULES: dict[str, str] = {}
