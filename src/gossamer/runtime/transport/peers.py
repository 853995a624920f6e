"""Who may connect: a peers file with addresses and public keys, and the secret key of this process.

A peers file is TOML, with one table per client of the run:

    [[peer]]
    client = 0
    name = "alpha"
    address = "192.0.2.1:5555"
    key = "Yne@$w-vo<fVvi]a<NY6T1ed:M$fCG*[IaLV{hID"

`gossamer keygen DIR` makes a pair of keys. The secret one stays in its file, which nobody else may read.
"""

import contextlib
import json
import os
import re
import stat
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import zmq

from gossamer.errors import InputError, RunError, check_integer, unknown

SECRET, PUBLIC = "key.secret", "key.public"
"""The files that `write_keys` makes."""
_FIELDS = ("client", "name", "address", "key")
_ADDRESS = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+):([0-9]{1,5})")
_Z85 = re.compile(r"[0-9a-zA-Z.\-:+=^!/*?&<>()\[\]{}@%$#]{40}")
_MOST_BYTES = 1 << 24


@dataclass(frozen=True)
class Peer:
    """One client of the run."""

    client: int
    name: str
    address: str
    """HOST:PORT, where the client listens."""
    key: bytes
    """Its public key, in Z85."""


@dataclass(frozen=True)
class Keys:
    """The key pair of this process, in Z85."""

    public: bytes
    secret: bytes

    def __repr__(self) -> str:
        return f"Keys(public={self.public.decode()!r})"  # never the secret


def read_peers(path: str | os.PathLike[str]) -> dict[int, Peer]:
    """The peers in a file, by client number."""
    where = f"the peers file '{os.fspath(path)}'"
    try:
        with Path(path).open("rb") as file:
            data = file.read(_MOST_BYTES + 1)
        if len(data) > _MOST_BYTES:
            raise InputError(f"{_capital(where)} is larger than {_MOST_BYTES:,} bytes.")
        tables = tomllib.loads(data.decode())
    except OSError as error:
        raise InputError(f"{_capital(where)} cannot be read: {error.strerror or error}.") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{_capital(where)} is not TOML: {error}.") from None
    for name in tables:
        if name != "peer":
            raise unknown("table", name, ["peer"], owner=_capital(where))
    rows = tables.get("peer")
    if not isinstance(rows, list) or not rows or not all(isinstance(row, dict) for row in rows):
        raise InputError(f"{_capital(where)} has no peers; add a table [[peer]] for each client.")
    peers = [_peer(row, number, where) for number, row in enumerate(rows, start=1)]
    for field in _FIELDS:
        seen: dict[object, str] = {}
        for peer in peers:
            value = getattr(peer, field)
            if value in seen:
                shown = value.decode() if isinstance(value, bytes) else value
                raise InputError(
                    f"{_capital(where)} has the {field} {shown!r} twice, for {seen[value]!r} and {peer.name!r}; "
                    f"each peer needs its own."
                )
            seen[value] = peer.name
    return {peer.client: peer for peer in peers}


def peers_text(peers: Iterable[Peer]) -> str:
    """The content of a peers file with these peers."""
    rows = [{**asdict(peer), "key": peer.key.decode()} for peer in peers]
    return "\n".join(
        "[[peer]]\n" + "".join(f"{field} = {json.dumps(row[field], ensure_ascii=False)}\n" for field in _FIELDS)
        for row in rows
    )


def _peer(row: Mapping[str, object], number: int, where: str) -> Peer:
    owner = f"Peer {number} in {where}"
    for field in row:
        if field not in _FIELDS:
            raise unknown("setting", field, _FIELDS, owner=owner)
    for field in _FIELDS:
        if field not in row:
            raise InputError(f"{owner} has no `{field}`.")
    name, address, key = (row[field] for field in _FIELDS[1:])
    if not isinstance(name, str) or not 1 <= len(name) <= 100 or not name.isprintable():
        raise InputError(f"{owner} must have a `name` of 1 to 100 printable characters, got {name!r:.90}.")
    found = _ADDRESS.fullmatch(address) if isinstance(address, str) and len(address) < 300 else None
    if found is None or not 1 <= int(found[2]) <= 65535:
        raise InputError(f"{owner} must have an `address` such as 'host:5555', got {address!r:.90}.")
    if not isinstance(key, str) or _Z85.fullmatch(key) is None:
        raise InputError(f"{owner} must have a public `key` of 40 characters, got {key!r:.90}; see `gossamer keygen`.")
    try:
        client = check_integer("client", row["client"], 0, 2**32 - 1)
    except InputError as error:
        raise InputError(f"{owner}: {error}") from None
    return Peer(client, name, found[0], key.encode())


def write_keys(folder: str | os.PathLike[str]) -> Keys:
    """Make a key pair, and write it into a folder; a key that is there already is never replaced."""
    folder = Path(folder)
    public, secret = zmq.curve_keypair()
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        handle = os.open(folder / SECRET, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(handle, "wb") as file:
            file.write(secret + b"\n")
        (folder / PUBLIC).write_bytes(public + b"\n")
    except FileExistsError:
        raise InputError(
            f"There is a key in '{folder}' already; choose another folder, or remove '{folder / SECRET}'."
        ) from None
    except OSError as error:
        with contextlib.suppress(OSError):
            (folder / PUBLIC).unlink()
        raise RunError(f"No key could be written into '{folder}': {error.strerror or error}.") from None
    return Keys(public, secret)


def read_keys(path: str | os.PathLike[str]) -> Keys:
    """The key pair whose secret half is in a file; the file must belong to this user, and to nobody else."""
    try:
        with Path(path).open("rb") as file:
            _check_private(path, os.fstat(file.fileno()))
            text = file.read(1000).strip()
    except OSError as error:
        raise InputError(f"The secret key '{os.fspath(path)}' cannot be read: {error.strerror or error}.") from None
    if _Z85.fullmatch(text.decode(errors="replace")) is None:
        raise InputError(f"'{os.fspath(path)}' is not a secret key of 40 characters; make one with `gossamer keygen`.")
    return Keys(zmq.curve_public(text), text)


def _check_private(path: str | os.PathLike[str], status: os.stat_result) -> None:
    if not hasattr(os, "getuid"):  # Windows has other permissions
        return
    mode = stat.S_IMODE(status.st_mode)
    if mode & 0o077:
        raise InputError(
            f"The secret key '{os.fspath(path)}' can be read by other users (mode {mode:04o}); run `chmod 600` on it."
        )
    if status.st_uid != os.getuid():
        raise InputError(f"The secret key '{os.fspath(path)}' belongs to another user (uid {status.st_uid}).")


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
