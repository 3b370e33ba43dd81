"""How each family of models writes its positions down: one file a kind of family."""
