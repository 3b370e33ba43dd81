"""Rules of what people touch, and of what is known of encodings: verify, show, plot, the page."""

RULES = {
    "must be from {least} to {most}": "必须在 {least} 到 {most} 之间",
}
