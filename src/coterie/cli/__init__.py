"""The composition root: the only package that connects all other packages."""
