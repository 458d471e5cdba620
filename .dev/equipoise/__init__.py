"""Equipoise: is a quantized release statistically indistinguishable from its BF16 original?

The five rooms of the project live at the top of the repository and are importable only
under this package: ``equipoise.evals``, ``equipoise.tasks``, ``equipoise.quant``,
``equipoise.kernels`` and ``equipoise.reports``.
"""

__all__ = ["__version__"]
__version__ = "0.1.0"
