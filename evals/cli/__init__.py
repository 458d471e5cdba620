"""The command line; ``main`` is the entry point."""

from equipoise.evals.cli.app import main

__all__ = ["main"]
