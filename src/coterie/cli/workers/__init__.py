"""Workers: how a worker's process is put together and begins anew, and the commands that act on workers."""
