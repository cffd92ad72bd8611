"""Bad records: separation of a batch's bad rows, dead letter destinations, and the commit of good and bad rows."""
