"""``python -m equipoise.evals.cli``."""

from equipoise.evals.cli.app import main

if __name__ == "__main__":
    main()
