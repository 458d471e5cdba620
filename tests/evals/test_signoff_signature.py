"""Signatures of sign-offs: of the right key and of this content, or not at all; no secret in any message."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest
from cli_runs import cli, error_of
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, generate_private_key
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    KeySerializationEncryption,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)
from signoffs import copy_of, make_run, policy_file, sign, signoff_of

from equipoise.evals import signoff_signature
from equipoise.evals.signoff_signature import fingerprint

PASSPHRASE = "correct horse battery"


def _private(path: Path, form: PrivateFormat, encryption: KeySerializationEncryption) -> Path:
    key = Ed25519PrivateKey.generate()
    path.write_bytes(key.private_bytes(Encoding.PEM, form, encryption))
    public = key.public_key()
    openssh = public.public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    path.with_suffix(".pub").write_bytes(openssh + b" somebody@somewhere\n")
    pem = public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    path.with_suffix(".pub.pem").write_bytes(pem)
    return path


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory of private keys with their public ones beside them."""
    root = tmp_path_factory.mktemp("keys")
    locked = BestAvailableEncryption(PASSPHRASE.encode())
    _private(root / "pem", PrivateFormat.PKCS8, NoEncryption())
    _private(root / "openssh", PrivateFormat.OpenSSH, NoEncryption())
    _private(root / "pem-locked", PrivateFormat.PKCS8, locked)
    _private(root / "openssh-locked", PrivateFormat.OpenSSH, locked)
    return root


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = make_run(tmp_path_factory.mktemp("signed"))
    policy_file(run.parent / "easy.toml")
    return run


@pytest.fixture
def run(good: Path, tmp_path: Path) -> Path:
    return copy_of(good, tmp_path)


@pytest.fixture(scope="module")
def signed(good: Path, keys: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run signed with the key ``pem``."""
    run = copy_of(good, tmp_path_factory.mktemp("by_pem"))
    assert sign(run, run.parent / "easy.toml", "--key", keys / "pem").exit_code == 0
    return run


@pytest.mark.parametrize("name", ["pem", "openssh", "pem-locked", "openssh-locked"])
def test_a_signature_of_either_form_of_key_holds(
    run: Path, keys: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SIGN_PASSPHRASE", PASSPHRASE)
    unlock = ("--key-passphrase-env", "SIGN_PASSPHRASE") if "locked" in name else ()
    result = sign(run, run.parent / "easy.toml", "--key", keys / name, *unlock)
    assert result.exit_code == 0
    assert PASSPHRASE not in result.output + (run / "signoff.json").read_text()
    for public in (f"{name}.pub", f"{name}.pub.pem"):
        checked = cli("signoff", "verify", run, "--public-key", keys / public)
        assert checked.exit_code == 0
        assert "the given key" in checked.stdout


def test_the_fingerprint_is_ssh_keygens(keys: Path) -> None:
    if shutil.which("ssh-keygen") is None:
        pytest.skip("ssh-keygen is not installed")
    public = keys / "pem.pub"
    said = subprocess.run(["ssh-keygen", "-lf", public], capture_output=True, text=True, check=True).stdout
    assert said.split()[1] == fingerprint(public.read_text())


def test_another_key_is_named(signed: Path, keys: Path) -> None:
    result = cli("signoff", "verify", signed, "--public-key", keys / "openssh.pub")
    assert result.exit_code == 4
    of, given = (fingerprint((keys / name).read_text()) for name in ("pem.pub", "openssh.pub"))
    assert f"of another key: {of}, the key given is {given}" in result.stdout


def test_without_a_trusted_key_a_signature_vouches_for_nobody(signed: Path) -> None:
    result = cli("signoff", "verify", signed)
    assert result.exit_code == 0
    assert "a key that nobody vouched for (--public-key)" in result.stdout


def test_an_edit_breaks_the_signature_even_where_nothing_else_would(signed: Path, tmp_path: Path) -> None:
    run = copy_of(signed, tmp_path)
    data = signoff_of(run) | {"equipoise": "9.9"}
    (run / "signoff.json").write_text(json.dumps(data))
    result = cli("signoff", "verify", run)
    assert result.exit_code == 4
    assert "the signature does not fit the content" in result.stdout


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"value": "AAAA"}, "does not fit the content"),
        ({"value": "§"}, "cannot be read"),
        ({"public_key": "ssh-rsa AAAA"}, "cannot be read"),
        (None, "has no signature"),
    ],
)
def test_a_broken_or_missing_signature_is_named(
    signed: Path, keys: Path, tmp_path: Path, change: dict[str, str] | None, said: str
) -> None:
    run = copy_of(signed, tmp_path)
    data = signoff_of(run)
    data["signature"] = None if change is None else data["signature"] | change
    (run / "signoff.json").write_text(json.dumps(data))
    trusted = () if change is not None else ("--public-key", keys / "pem.pub")
    result = cli("signoff", "verify", run, *trusted)
    assert result.exit_code == 4
    assert said in result.stdout


def test_a_refusal_is_not_signed(run: Path, keys: Path) -> None:
    strict = policy_file(run.parent / "strict.toml", {"decision": {"max_alpha": 0.01}})
    result = sign(run, strict, "--key", keys / "pem")
    assert (result.exit_code, signoff_of(run)["signature"]) == (3, None)
    assert "A refusal is not signed with the key." in result.stdout


@pytest.mark.parametrize(
    ("name", "passphrase", "said"),
    [
        ("pem-locked", None, "cannot be opened"),
        ("openssh-locked", None, "cannot be opened"),
        ("pem-locked", "wrong guess", "cannot be opened"),
        ("openssh-locked", "wrong guess", "cannot be opened"),
        ("pem-locked", "", "the environment variable SIGN_PASSPHRASE is not set"),
        ("pem.pub", None, "cannot be opened"),
        ("ec", None, "is no Ed25519 key"),
        ("none", None, "cannot be read"),
    ],
)
def test_a_key_that_cannot_sign_is_a_usage_error_that_tells_no_secret(
    run: Path, keys: Path, name: str, passphrase: str | None, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ec = generate_private_key(SECP256R1()).private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    (keys / "ec").write_bytes(ec)
    unlock: tuple[str, ...] = ()
    if passphrase is not None:
        monkeypatch.setenv("SIGN_PASSPHRASE", passphrase)
        unlock = ("--key-passphrase-env", "SIGN_PASSPHRASE")
    result = sign(run, run.parent / "easy.toml", "--key", keys / name, *unlock)
    message = error_of(result, code=2)
    assert said in message
    assert "PRIVATE" not in message
    assert not passphrase or passphrase not in message
    assert not (run / "signoff.json").exists()


def test_a_public_key_that_is_none_is_a_usage_error(signed: Path, keys: Path) -> None:
    result = cli("signoff", "verify", signed, "--public-key", keys / "pem")
    assert "no public key" in error_of(result, code=2)


def test_without_the_library_the_remedy_is_named_and_nothing_is_silent(
    run: Path, signed: Path, keys: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(signoff_signature, "is_available", lambda: False)
    with_key = sign(run, run.parent / "easy.toml", "--key", keys / "pem")
    assert "pip install 'equipoise[signing]'" in error_of(with_key, code=2)
    result = cli("signoff", "verify", signed)
    assert result.exit_code == 0
    assert "note: the signature was not checked: pip install 'equipoise[signing]'" in result.stdout
