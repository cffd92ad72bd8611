"""The asyncio shell of one worker: gives events to the member and herder machines, and performs their effects."""
