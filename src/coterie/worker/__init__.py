"""The asyncio shell of one worker: drives member and herder, supervises tasks."""
