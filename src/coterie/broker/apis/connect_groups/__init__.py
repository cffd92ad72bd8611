"""Translates between the messages of connect groups and the events and responses of their coordinator."""
