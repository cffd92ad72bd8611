"""Transcripts: scenarios of the source documents, run by the real machines and printed as text."""
