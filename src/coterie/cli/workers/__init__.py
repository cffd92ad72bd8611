"""Workers: composition and relaunch of a worker's process, and the commands that act on workers."""
