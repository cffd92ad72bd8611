"""The composition root: the only place where the whole is put together."""
