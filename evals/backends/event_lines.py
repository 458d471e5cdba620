"""Server-sent events, line by line (WHATWG HTML, 9.2.6): only the data counts."""

__all__ = ["EventLines"]


class EventLines:
    """Takes a stream's lines, without their line feeds, and gives the data of each event that they end."""

    def __init__(self) -> None:
        self._data: list[bytes] = []

    def take(self, line: bytes) -> bytes | None:
        """The data of the event that this line ends, None if it ends none; an event without data is none."""
        line = line.removesuffix(b"\r")
        if not line:
            data, self._data = self._data, []
            return b"\n".join(data) if data else None
        field, _, value = line.partition(b":")
        if field == b"data":
            self._data.append(value.removeprefix(b" "))
        return None
