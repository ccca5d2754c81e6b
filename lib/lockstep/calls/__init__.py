"""The record of a job's c10d calls, and what it says of ranks that do not go on."""
