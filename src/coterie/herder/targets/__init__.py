"""The herder's part in a connect group (K848C).

The coordinator sends this worker its jobs, and may order it to compute. The worker applies its assignment
(`following`). The leader also reports the configured jobs (`configured_jobs`). The worker that the coordinator chooses
computes the target assignment (`computing`). The view of the group comes from the coordinator (`description`).
"""
