"""`coterie plan`: what would move if the group changed."""
