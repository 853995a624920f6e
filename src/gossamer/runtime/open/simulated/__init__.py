"""Histories that were made up: `events.py` says what happens, by hand or by a seed, `events_file.py` reads it from a
TOML file, and `timetable.py` works out what each client then does, and when.
"""
