"""Live models of transformers: rotation and attention by ordinate, and back again."""
