"""Chinese for the sentences of the library, by their English templates."""
