"""The coordinator's side of the group protocols, as pure machines."""
