"""Signatures of sign-offs: Ed25519 with a key of the user's, PEM or OpenSSH.

Needs the package ``cryptography``, which only signing and checking a signature bring in. A private key, its
passphrase and its file's content appear in no message.
"""

import base64
import hashlib
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from equipoise.evals.errors import SignoffError, UsageError
from equipoise.evals.signoff_document import Signature

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

__all__ = ["check_signature", "fingerprint", "is_available", "load_private_key", "load_public_key", "sign"]

MAX_KEY_BYTES = 1 << 16
OPENSSH_PRIVATE = b"-----BEGIN OPENSSH PRIVATE KEY-----"


def is_available() -> bool:
    """Whether signatures can be made and checked here."""
    try:
        import cryptography  # noqa: F401
    except ImportError:
        return False
    return True


def _require() -> None:
    if not is_available():
        raise UsageError(
            "signatures need the package cryptography: pip install 'equipoise[signing]', or leave out the key"
        )


def load_private_key(path: Path, passphrase_env: str | None) -> "Ed25519PrivateKey":
    """Read the key to sign with; ``passphrase_env`` names the environment variable of its passphrase.

    Raises
    ------
    UsageError
        It cannot be read, is no Ed25519 key, or its passphrase is missing or wrong.
    """
    _require()
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key, load_ssh_private_key

    raw = _read(path, "--key")
    passphrase = _passphrase(passphrase_env)
    load: Any = load_ssh_private_key if raw.lstrip().startswith(OPENSSH_PRIVATE) else load_pem_private_key
    try:
        key = load(raw, passphrase)
    except (TypeError, ValueError, UnsupportedAlgorithm):
        # The library's message may quote what it read.
        raise UsageError(
            f"--key {path} cannot be opened: it is no private key in PEM or OpenSSH form, or its passphrase "
            "is missing, needless or wrong (name the variable that has it with --key-passphrase-env)"
        ) from None
    if not isinstance(key, Ed25519PrivateKey):
        raise UsageError(f"--key {path} is no Ed25519 key; make one with `ssh-keygen -t ed25519`")
    return key


def _passphrase(variable: str | None) -> bytes | None:
    if variable is None:
        return None
    found = os.environ.get(variable)
    if not found:
        raise UsageError(f"--key-passphrase-env: the environment variable {variable} is not set")
    return found.encode()


def load_public_key(path: Path) -> "Ed25519PublicKey":
    """Read the key that a signature must be of.

    Raises
    ------
    UsageError
        It cannot be read, or is no Ed25519 public key.
    """
    _require()
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    from cryptography.hazmat.primitives.serialization import load_pem_public_key, load_ssh_public_key

    raw = _read(path, "--public-key")
    load: Any = load_ssh_public_key if raw.lstrip().startswith(b"ssh-") else load_pem_public_key
    try:
        key = load(raw.strip())
    except (ValueError, UnsupportedAlgorithm):
        raise UsageError(
            f"--public-key {path} is no public key in PEM or OpenSSH form; give the .pub file of the key"
        ) from None
    if not isinstance(key, Ed25519PublicKey):
        raise UsageError(f"--public-key {path} is no Ed25519 key")
    return key


def _read(path: Path, flag: str) -> bytes:
    try:
        with path.open("rb") as file:
            raw = file.read(MAX_KEY_BYTES + 1)
    except OSError as e:
        raise UsageError(f"{flag} {path} cannot be read ({e.strerror})") from e
    if len(raw) > MAX_KEY_BYTES:
        raise UsageError(f"{flag} {path} has over {MAX_KEY_BYTES} bytes; that is no key")
    return raw


def sign(payload: bytes, key: "Ed25519PrivateKey") -> Signature:
    """Sign ``payload``."""
    return Signature(
        algorithm="ed25519",
        public_key=_openssh(key.public_key()),
        value=base64.b64encode(key.sign(payload)).decode("ascii"),
    )


def check_signature(payload: bytes, signature: Signature, trusted: "Ed25519PublicKey | None") -> None:
    """Check a signature against the trusted key, or without one against the key that it names itself.

    Raises
    ------
    SignoffError
        It is of another key, or not of this content.
    """
    from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    from cryptography.hazmat.primitives.serialization import load_ssh_public_key

    if trusted is not None and _openssh(trusted) != signature.public_key:
        raise SignoffError(
            f"the signature is of another key: {fingerprint(signature.public_key)}, the key given is "
            f"{fingerprint(_openssh(trusted))}"
        )
    try:
        key = load_ssh_public_key(signature.public_key.encode("ascii"))
        if not isinstance(key, Ed25519PublicKey):
            raise ValueError("another kind of key")
        key.verify(base64.b64decode(signature.value, validate=True), payload)
    except InvalidSignature as e:
        raise SignoffError("the signature does not fit the content: the sign-off was edited") from e
    except (ValueError, UnsupportedAlgorithm) as e:
        raise SignoffError("the signature cannot be read: the sign-off was edited") from e


def _openssh(key: "Ed25519PublicKey") -> str:
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    return key.public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode("ascii")


def fingerprint(public_key: str) -> str:
    """As ``ssh-keygen -l`` prints it; the key in the form of an OpenSSH ``.pub`` file."""
    try:
        blob = base64.b64decode(public_key.split()[1], validate=True)
    except (IndexError, ValueError):
        return "(no key)"
    return "SHA256:" + base64.b64encode(hashlib.sha256(blob).digest()).decode("ascii").rstrip("=")
