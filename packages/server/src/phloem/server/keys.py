"""API keys: what is kept of them, the file that holds them, and how one is recognized.

Of a key only its SHA-256 is kept. A key that `new_secret` makes has 256 random bits, which nobody
can guess from any hash, so that salt and a slow hash (for passwords, which can be guessed) would
protect nothing; and a slow one would let strangers keep the server busy with wrong keys.

The file has a line for each key: its name, the hash in hexadecimal, and limits that differ from
the server's, as `requests=60 tokens=100000 concurrent=4`. Lines that begin with `#` are comments.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import re
import secrets
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from pathlib import Path

ADMIN = "admin"
"""What the admin key is called."""

_NAME = re.compile(r"[A-Za-z0-9._@-]{1,64}")
_PREFIX = "phl-"
"""How made keys begin, so that scanners for leaked secrets can know them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyLimits:
    """How much one key may ask for; None: any amount."""

    requests: int | None = None
    """A minute; each of a request's sequences counts."""
    tokens: int | None = None
    """A minute; of prompts and outputs together."""
    concurrent: int | None = None
    """Sequences at a time."""

    def __post_init__(self) -> None:
        for each in fields(self):
            limit = getattr(self, each.name)
            if limit is not None and limit < 1:
                raise ValueError(f"{each.name} {limit} lets nobody in: give 1 or more")

    def over(self, others: KeyLimits) -> KeyLimits:
        """These limits, and where there are none those of `others`."""
        if self is UNLIMITED:
            return others
        return KeyLimits(
            **{
                each.name: getattr(others, each.name)
                if getattr(self, each.name) is None
                else getattr(self, each.name)
                for each in fields(self)
            }
        )


UNLIMITED = KeyLimits()


@dataclass(frozen=True, slots=True)
class Key:
    """What is known of an API key."""

    name: str
    digest: bytes = field(repr=False)
    """Its SHA-256."""
    limits: KeyLimits = UNLIMITED
    admin: bool = False

    @property
    def id(self) -> str:
        """What it is called in caches and logs, in 16 characters; the same after a restart."""
        return hashlib.sha256(b"phloem key id" + self.digest).hexdigest()[:16]

    def line(self) -> str:
        """Its line in a file."""
        limits = {each.name: getattr(self.limits, each.name) for each in fields(self.limits)}
        said = [f"{name}={limit}" for name, limit in limits.items() if limit is not None]
        return " ".join([self.name, self.digest.hex(), *said])


class KeyRing:
    """The keys of a server."""

    def __init__(self, keys: Iterable[Key] = ()) -> None:
        """Raises:
        ValueError: two keys are the same.
        """
        # Hashed once more, with a secret of this process: how long it takes to find a hash, or not
        # to find it, tells nothing that a client could choose or foresee.
        self._secret = secrets.token_bytes(32)
        self._keys: dict[bytes, Key] = {}
        self.has_admin = False
        for key in keys:
            known = self._keys.setdefault(self._place(key.digest), key)
            if known is not key:
                raise ValueError(
                    f"the keys {known.name} and {key.name} are the same: give each its own"
                )
            self.has_admin = self.has_admin or key.admin
        self.has_callers = any(not key.admin for key in self._keys.values())

    def find(self, secret: bytes) -> Key | None:
        """The key that `secret` is, if any; its time depends only on the secret's own length."""
        digest = digest_of(secret)
        key = self._keys.get(self._place(digest))
        expected = bytes(32) if key is None else key.digest
        return key if hmac.compare_digest(expected, digest) else None

    def _place(self, digest: bytes) -> bytes:
        return hashlib.blake2b(digest, key=self._secret, digest_size=32).digest()


def digest_of(secret: bytes) -> bytes:
    """What is kept of a key."""
    return hashlib.sha256(secret).digest()


def new_secret() -> str:
    """A new key, of 256 random bits."""
    return _PREFIX + secrets.token_urlsafe(32)


def make_ring(plain: Sequence[str], file: str | None, admin: str | None) -> KeyRing:
    """The keys that a server's options name.

    Raises:
        ValueError: one is empty, the file is not as it should be, or two are the same.
    """
    keys = [Key(f"key-{i}", digest_of(_checked(key))) for i, key in enumerate(plain, 1)]
    if file is not None:
        of_file = read_keys(Path(file))
        if not of_file:
            # As without one, everybody would be let in.
            raise ValueError(
                f"the keys file {file} has no keys: add one (`phloem keys add`) or leave it out"
            )
        keys += of_file
    if admin is not None:
        keys.append(Key(ADMIN, digest_of(_checked(admin)), admin=True))
    return KeyRing(keys)


def _checked(secret: str) -> bytes:
    if not secret or not secret.isascii() or not secret.isprintable() or " " in secret:
        raise ValueError(
            "an API key is empty or has characters that no header can carry: use visible ASCII "
            "characters (`phloem keys add` makes good ones)"
        )
    return secret.encode()


def read_keys(file: Path) -> list[Key]:
    """The keys of a file.

    Raises:
        ValueError: it cannot be read, or a line is not as it should be.
    """
    try:
        # Not `splitlines`, which ends lines at characters that a comment may have.
        lines = file.read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no UTF-8"
        raise ValueError(f"the keys file {file} cannot be read ({reason})") from error
    keys: dict[str, Key] = {}
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        try:
            key = _parsed(line)
            if key.name in keys:
                raise ValueError(f"the name {key.name} is there twice: give each key its own")
        except ValueError as error:
            # Without the line itself, which somebody may have given a plain key.
            raise ValueError(f"line {number} of the keys file {file}: {error}") from None
        keys[key.name] = key
    return list(keys.values())


def _parsed(line: str) -> Key:
    name, *rest = line.split()
    check_name(name)
    if not rest or not re.fullmatch(r"[0-9a-f]{64}", rest[0]):
        raise ValueError("the second word is no SHA-256 of a key: use `phloem keys add`")
    given: dict[str, int] = {}
    known = [each.name for each in fields(KeyLimits)]
    for word in rest[1:]:
        limit, equals, value = word.partition("=")
        if (
            limit not in known
            or limit in given
            or not equals
            or not re.fullmatch(r"\d{1,12}", value)
        ):
            raise ValueError(
                f"a limit is not as it should be: give each of {', '.join(known)} once, as "
                "requests=60"
            )
        given[limit] = int(value)
    return Key(name, bytes.fromhex(rest[0]), KeyLimits(**given))


def check_name(name: str) -> None:
    """Refuse a name that would not fit a file's line, or that is the admin key's.

    Raises:
        ValueError: it does not.
    """
    if not _NAME.fullmatch(name) or name == ADMIN:
        raise ValueError(
            "the name of a key has 1 to 64 letters, digits, and . _ @ - in it, and is not "
            f"{ADMIN}: choose another"
        )


def add_key(file: Path, name: str, limits: KeyLimits) -> str:
    """Make a key and note it in a file, which is made if need be; the key, which is kept nowhere.

    Raises:
        ValueError: the name is taken or none, or the file cannot be read or written.
    """
    check_name(name)
    with _locked(file):
        keys = read_keys(file) if file.exists() else []
        if any(key.name == name for key in keys):
            raise ValueError(f"the name {name} is taken: choose another, or remove that key first")
        secret = new_secret()
        text = file.read_text(encoding="utf-8") if keys or file.exists() else ""
        if text and not text.endswith("\n"):
            text += "\n"
        _write(file, text + Key(name, digest_of(secret.encode()), limits).line() + "\n")
    return secret


def remove_key(file: Path, name: str) -> None:
    """Take a key out of a file; its comments stay.

    Raises:
        ValueError: there is none of that name, or the file cannot be read or written.
    """
    with _locked(file):
        if all(key.name != name for key in read_keys(file)):
            raise ValueError(f"there is no key {name}: `phloem keys list` shows their names")
        lines = file.read_text(encoding="utf-8").split("\n")
        _write(file, "\n".join(line for line in lines if line.split()[:1] != [name]))


@contextmanager
def _locked(file: Path) -> Iterator[None]:
    """Within it no other process changes a keys file: its folder is locked, where that can be."""
    try:
        import fcntl
    except ImportError:  # Windows
        yield
        return
    try:
        folder = os.open(file.parent, os.O_RDONLY)
    except OSError as error:
        raise ValueError(f"the keys file {file} cannot be written ({error.strerror})") from error
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        yield
    finally:
        os.close(folder)


def _write(file: Path, text: str) -> None:
    """All or nothing, and for its owner's eyes only, as `mkstemp` makes files."""
    try:
        handle, path = tempfile.mkstemp(dir=file.parent, prefix=f".{file.name}.")
        try:
            with open(handle, "w", encoding="utf-8") as new:
                new.write(text)
            os.replace(path, file)
        except BaseException:
            Path(path).unlink(missing_ok=True)
            raise
    except OSError as error:
        raise ValueError(f"the keys file {file} cannot be written ({error.strerror})") from error
