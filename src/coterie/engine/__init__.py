"""Parts that all machines share: step output, outbox, timers, trace, lease, the `Log` seam."""
