"""The asyncio shell of one worker: drives the member and herder machines, supervises tasks."""
