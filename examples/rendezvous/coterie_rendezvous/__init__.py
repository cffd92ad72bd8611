"""Example plug-ins for connect groups: an assignor (`assignor`) and a listener of rebalances (`listener`)."""
