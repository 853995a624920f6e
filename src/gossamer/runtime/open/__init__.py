"""Runs whose clients come and go: edges that open and close, late packets, and what was recorded of them.

`terms.py` has the surrogates of an edge, and `member.py` one client as a machine without a network and without a clock.
`history.py` is what happened to it, `replaying.py` the same again in one process, `timetable.py` histories that were
made up. `control.py`, `view.py`, `neighborhood.py`, `conversation.py` and `participant.py` put a member on the
transport for untrusted networks.
"""
