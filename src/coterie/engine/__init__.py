"""What every machine shares: step output, outbox, timers, trace, the `Log` seam."""
