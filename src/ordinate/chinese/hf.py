"""Rules of models of transformers: configs, patches, checkpoints."""

RULES: dict[str, str] = {}
