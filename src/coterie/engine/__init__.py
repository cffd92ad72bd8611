"""Parts that all machines share: step output, outbox, timers, trace, the `Log` seam."""
