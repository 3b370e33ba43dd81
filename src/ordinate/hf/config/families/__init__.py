"""The functions that read the configs of each family of models: one file per kind of family."""
