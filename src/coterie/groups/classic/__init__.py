"""The coordinator of a group of the classic protocol (JoinGroup and SyncGroup), and of the group's committed
offsets."""
