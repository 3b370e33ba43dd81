"""`patch` and `unpatch`: rotation and attention by ordinate in live models of transformers."""
