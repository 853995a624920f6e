"""Peers files and keys: what is refused, each in one sentence that shows the value."""

import itertools
import os
import stat
from pathlib import Path

import pytest
import zmq
from commands import forked
from curve_network import Network

from gossamer.errors import InputError
from gossamer.registry import transports
from gossamer.runtime.transport.base import Failure, Opening
from gossamer.runtime.transport.curve import opened
from gossamer.runtime.transport.frames import Frame, Greeting, Kind, read
from gossamer.runtime.transport.notices import read_notice, write_notice
from gossamer.runtime.transport.peers import read_keys, read_peers, write_keys

KEYS = [zmq.curve_keypair()[0].decode() for _ in range(2)]


def table(client: object = 0, name: object = "alpha", address: object = "127.0.0.1:5555", key: object = KEYS[0]) -> str:
    rows = {"client": client, "name": name, "address": address, "key": key}
    return "[[peer]]\n" + "".join(f"{field} = {_toml(value)}\n" for field, value in rows.items() if value is not None)


def _toml(value: object) -> str:
    return f"'{value}'" if isinstance(value, str) else str(value)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (table() + table(1, "alpha", "h:1", KEYS[1]), "has the name 'alpha' twice, for 'alpha' and 'alpha'; each peer"),
        (table() + table(0, "beta", "h:1", KEYS[1]), "has the client 0 twice, for 'alpha' and 'beta'"),
        (table() + table(1, "beta", "h:1"), "twice, for 'alpha' and 'beta'"),
        (table() + table(1, "beta", key=KEYS[1]), "has the address '127.0.0.1:5555' twice"),
        (table(address="nowhere"), "must have an `address` such as 'host:5555', got 'nowhere'."),
        (table(address="host:0"), "must have an `address` such as 'host:5555', got 'host:0'."),
        (table(address="tcp://host:1"), "got 'tcp://host:1'."),
        (table(key="short"), "must have a public `key` of 40 characters, got 'short'; see `gossamer keygen`."),
        (table(client=-1), "`client` must be an integer from 0 to 4294967295, got -1."),
        (table(client=True).replace("True", "true"), "must be an integer from 0 to 4294967295, got True."),
        (table(name=None), "has no `name`."),
        (table(name=""), "must have a `name` of 1 to 100 printable characters, got ''."),
        (table() + "port = 3\n", "has no setting 'port'; valid settings: 'client', 'name', 'address', 'key'."),
        ("", "has no peers; add a table [[peer]] for each client."),
        ("peer = 3", "has no peers"),
        ("[[peers]]\n", "has no table 'peers'; valid tables: 'peer'. Did you mean 'peer'?"),
        ("[[peer", "is not TOML: "),
    ],
    ids=itertools.count(),  # keys are made anew, and differ between processes
)
def test_a_bad_peers_file_is_one_sentence(text: str, sentence: str, tmp_path: Path) -> None:
    path = tmp_path / "peers.toml"
    path.write_text(text)
    with pytest.raises(InputError) as caught:
        read_peers(path)
    assert sentence in str(caught.value)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_missing_peers_file_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"The peers file '.*none.toml' cannot be read: No such file or directory\."):
        read_peers(tmp_path / "none.toml")


def test_keys_are_private(tmp_path: Path) -> None:
    made = write_keys(tmp_path / "mine")
    secret = tmp_path / "mine" / "key.secret"
    assert stat.S_IMODE(secret.stat().st_mode) == 0o600
    assert stat.S_IMODE(secret.parent.stat().st_mode) == 0o700
    assert read_keys(secret) == made
    assert made.secret.decode() not in repr(made)
    secret.chmod(0o640)
    with pytest.raises(InputError, match=r"can be read by other users \(mode 0640\); run `chmod 600` on it\."):
        read_keys(secret)
    secret.chmod(0o600)
    secret.write_text("hello\n")
    with pytest.raises(InputError, match="is not a secret key of 40 characters; make one with `gossamer keygen`"):
        read_keys(secret)
    with pytest.raises(InputError, match=r"The secret key '.*none' cannot be read: No such file"):
        read_keys(tmp_path / "none")


def test_a_key_is_never_replaced(tmp_path: Path) -> None:
    before = write_keys(tmp_path)
    with pytest.raises(InputError, match=r"There is a key in '.*' already"):
        write_keys(tmp_path)
    assert read_keys(tmp_path / "key.secret") == before


def test_keygen_prints_the_public_key(tmp_path: Path) -> None:
    done = forked("keygen", "keys", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, (tmp_path / "keys" / "key.public").read_text())
    secret = (tmp_path / "keys" / "key.secret").read_text().strip()
    assert secret not in done.stdout + done.stderr
    assert zmq.curve_public(secret.encode()).decode() == done.stdout.strip()
    again = forked("keygen", "keys", cwd=tmp_path)
    assert again.returncode == 2
    assert again.stderr.count("\n") == 1


def test_who_is_who_is_checked_before_anything_listens(tmp_path: Path) -> None:
    network = Network(tmp_path, 3)
    write_keys(tmp_path / "other")
    with pytest.raises(InputError, match=r"The public key '.*' of '.*' is not in the peers file"):
        opened(network.peers(0), tmp_path / "other" / "key.secret")
    first = opened(network.peers(0), network.secret(0))
    with pytest.raises(InputError, match=r"This process is client 1, but its key is that of client 0 \('peer0'\)"):
        first(Opening(1, [0], 1000, 7))
    with pytest.raises(InputError, match=r"has no client 5, a neighbour\."):
        first(Opening(0, [1, 5], 1000, 7))
    with pytest.raises(InputError, match="`timeout` must be a number above 0, got 0"):
        opened(network.peers(0), network.secret(0), timeout=0)
    with pytest.raises(InputError, match=r"Client 0 cannot listen at 192\.0\.2\.1:5555: "):
        opened(network.peers(0), network.secret(0), listen="192.0.2.1:5555")(Opening(0, [1], 1000, 7))


def test_the_name_needs_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GOSSAMER_PEERS", raising=False)
    with pytest.raises(InputError, match=r"needs \$GOSSAMER_PEERS, a peers file, and \$GOSSAMER_KEY"):
        transports.get("curve")(Opening(0, [1], 1000, 7))


def test_frames_are_read_as_they_were_written_and_nothing_else_is() -> None:
    for one in (
        Greeting(Kind.HELLO, 2**32 - 1, 3, 1, 0, 2**64 - 1, 17),
        Greeting(Kind.WELCOME, 0, 0, 0, 1, 0, 0),
        Frame(Kind.PACKET, 5, 4, b"packet"),
        Frame(Kind.NOTICE, 1, 0, b"notice"),
        Frame(Kind.ALIVE, 1, 0),
        Frame(Kind.BYE, 2**64 - 1, 0),
        Frame(Kind.ACK, 0, 2**64 - 1),
    ):
        data = one.pack()
        assert read(memoryview(data)) == one
        cut = read(memoryview(data[:-1]))
        assert cut is None or cut == Frame(one.kind, one.number, one.received, one.body[:-1])  # type: ignore[union-attr]
    for bad in (b"", b"\0", b"\x08" + bytes(16), b"\x04" + bytes(16), Frame(Kind.ACK, 1, 0).pack(), os.urandom(3)):
        assert read(memoryview(bad)) is None
    assert read(memoryview(Frame(Kind.BYE, 3, 0, b"more").pack())) is None
    assert read(memoryview(b"\x01\x02" + bytes(32))) is None  # of another version


def test_notices() -> None:
    failure = Failure("Rank 3 lost its neighbour 2: \N{SNOWMAN}.", 7, True, 5)
    data = write_notice(9, failure)
    assert read_notice(9, data + bytes(50)) == failure
    assert read_notice(8, data) is None
    for end in range(len(data)):
        assert read_notice(9, data[:end]) is None
    assert len(write_notice(9, Failure("x" * 5000, 0))) < 1000
