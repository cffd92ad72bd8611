"""Kinds of transforms and predicates: what each does to the columns of a row. Connect calls them SMTs."""
