"""The worker's side of the group protocols, as a pure machine."""
