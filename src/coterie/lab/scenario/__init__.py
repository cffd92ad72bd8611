"""Transcripts: scenarios of the source documents, played by the real machines and written down to be read."""
