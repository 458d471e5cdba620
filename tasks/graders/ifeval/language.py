"""The language of a text, the same for the same text: langdetect with a seed of its own."""

import functools

from langdetect import DetectorFactory, LangDetectException
from langdetect.detector_factory import PROFILES_DIRECTORY

__all__ = ["language_of"]

_SEED = 0
_MAX_CHARS = 20_000  # langdetect itself reads 10,000, but searches all of a text for addresses first


@functools.cache
def _detectors() -> DetectorFactory:
    factory = DetectorFactory()
    factory.load_profile(PROFILES_DIRECTORY)
    factory.set_seed(_SEED)
    return factory


def language_of(text: str) -> str | None:
    """ISO 639-1 code, such as "en"; None where a text has nothing to tell it by."""
    detector = _detectors().create()
    detector.append(text[:_MAX_CHARS])
    try:
        found: str = detector.detect()
    except LangDetectException:
        return None
    return found
