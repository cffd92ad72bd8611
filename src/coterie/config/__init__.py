"""Typed settings and the definition of configuration keys."""
