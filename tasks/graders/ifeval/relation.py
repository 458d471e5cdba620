"""How an instruction compares a count: "at least" or "less than"."""

__all__ = ["RELATIONS", "Found", "related"]

#: Whether an instruction was followed, and what was found.
Found = tuple[bool, str]
RELATIONS = ("at least", "less than")


def related(found: int, relation: str, wanted: int, what: str) -> Found:
    """Compare a count of ``what``."""
    followed = found >= wanted if relation == "at least" else found < wanted
    return followed, f"{found} {what}, wanted {relation} {wanted}"
