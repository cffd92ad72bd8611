"""Authentication and authorization of clients, and the limits of their bytes in flight."""
