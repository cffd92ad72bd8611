"""The simulation of ordinary clients of one group, static and dynamic, without workers, on the real group machine."""
