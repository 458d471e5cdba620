"""A plot as PNG, through resvg; optional, because nothing else needs it."""

from equipoise.evals.errors import UsageError

__all__ = ["png"]

ZOOM = 2.0
#: resvg leaves out text whose font it does not find, so one that is there is named to it.
FAMILIES = ("Helvetica", "Arial", "Segoe UI", "Roboto", "Noto Sans", "Liberation Sans", "DejaVu Sans")
PROBE = (
    '<svg xmlns="http://www.w3.org/2000/svg" width="16" height="16">'
    '<text y="12" font-family="sans-serif">{}</text></svg>'
)


def png(svg: str) -> bytes:
    """Twice the size of ``svg`` in pixels.

    Raises
    ------
    UsageError
        resvg is not installed, or there is no font to write with.
    """
    try:
        from resvg_py import svg_to_bytes
    except ImportError as e:
        raise UsageError(
            "--format png needs resvg: pip install 'equipoise[png]', or take --format svg"
        ) from e

    blank = bytes(svg_to_bytes(svg_string=PROBE.format("")))
    for family in FAMILIES:
        if bytes(svg_to_bytes(svg_string=PROBE.format("8"), sans_serif_family=family)) != blank:
            return bytes(svg_to_bytes(svg_string=svg, sans_serif_family=family, zoom=ZOOM))
    raise UsageError(
        f"--format png found no font ({', '.join(FAMILIES)}); install one (fonts-dejavu-core), or take "
        "--format svg"
    )
