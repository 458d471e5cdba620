"""Runs Python that a model wrote, and tells whether it passes its tests. See README.md."""
