"""Time to a target accuracy on slow links: see `__main__.py`."""
