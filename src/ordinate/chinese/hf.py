"""Rules of models of transformers: configs, patches, checkpoints."""

RULES = {
    "must be at least {least} and at most {most}": "必须在 {least} 到 {most} 之间",
}
