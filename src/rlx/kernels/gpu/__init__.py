"""Schedules for GPUs. What has none of its own is a CPU schedule with a thread for each parallel iteration."""
