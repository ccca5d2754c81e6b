"""Traces for other programs: one file for Perfetto, its page, data frames."""
