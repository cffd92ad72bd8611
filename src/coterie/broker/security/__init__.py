"""Who a peer is, what it may do, and how much it may ask for."""
