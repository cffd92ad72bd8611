"""`coterie plan`: shows which jobs would move if the group changed."""
