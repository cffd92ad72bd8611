"""The simulation of ordinary clients, static and dynamic, without workers, on the real group machine."""
