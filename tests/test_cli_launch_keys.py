"""Keys and addresses of the ranks of one host, as an agent of `gossamer launch --hosts` makes them."""

import os
import socket
from pathlib import Path

import pytest
from processes import free_port

from gossamer.cli.launching.keys import Places, address_towards, key_path, peers_path, write_peers
from gossamer.errors import InputError, RunError
from gossamer.runtime.transport.peers import Peer, peers_text, read_keys, read_peers


def test_every_rank_has_a_key_and_a_port_of_its_own(tmp_path: Path) -> None:
    places = Places(tmp_path, "alpha", "", range(2, 5), 0)
    assert list(places.found) == [2, 3, 4]
    assert len(set(places.found.values())) == 3
    for rank, (address, key) in places.found.items():
        assert address.startswith("127.0.0.1:")
        path = key_path(tmp_path, rank)
        assert path.stat().st_mode & 0o777 == 0o600
        assert read_keys(path).public.decode() == key
        with socket.socket() as made:  # the port is held, and nobody can connect to it yet
            assert made.connect_ex(("127.0.0.1", int(address.rpartition(":")[2]))) != 0
    places.close()


def test_ports_in_a_row_and_one_that_is_taken(tmp_path: Path) -> None:
    first = min(free_port(), 65000)
    places = Places(tmp_path, "alpha", "localhost", range(3), first)
    assert [address for address, _ in places.found.values()] == [f"127.0.0.1:{first + at}" for at in range(3)]
    places.close()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(
            RunError, match=rf"Host 'beta' cannot listen at 127\.0\.0\.1:{port}: .*choose another --port"
        ):
            Places(tmp_path / "other", "beta", "", range(1), port)


def test_an_address_of_ipv6(tmp_path: Path) -> None:
    try:
        found = address_towards("::1")
    except RunError:
        pytest.skip("this host has no IPv6")
    assert found == (socket.AF_INET6, "::1")
    places = Places(tmp_path, "alpha", "::1", range(1), 0)
    (place,) = places.found.values()
    places.close()
    write_peers(tmp_path, peers_text([Peer(0, "alpha", place[0], place[1].encode())]))
    assert read_peers(peers_path(tmp_path))[0].address.startswith("[::1]:")


def test_a_host_that_is_not_known() -> None:
    with pytest.raises(RunError, match=rf"Host {socket.gethostname()} cannot reach host 'nowhere\.invalid': "):
        address_towards("nowhere.invalid")


def test_a_peers_file_is_read_as_it_was_written(tmp_path: Path) -> None:
    keys = [b"Yne@$w-vo<fVvi]a<NY6T1ed:M$fCG*[IaLV{hID", b"rq:rM>}U?@Lns47E1%kR.o@n%FcmmsL/@{H8]yf7"]
    peers = [Peer(i, f'rank {i} on "höst"\\', f"192.0.2.{i}:5555", key) for i, key in enumerate(keys)]
    write_peers(tmp_path, peers_text(peers))
    assert list(read_peers(peers_path(tmp_path)).values()) == peers
    assert os.stat(peers_path(tmp_path)).st_mode & 0o777 == 0o600
    with pytest.raises(FileExistsError):
        write_peers(tmp_path, peers_text(peers))
    (tmp_path / "twice").mkdir()
    write_peers(tmp_path / "twice", peers_text([peers[0], Peer(1, "beta", peers[0].address, keys[1])]))
    with pytest.raises(InputError, match=r"has the address '192\.0\.2\.0:5555' twice"):
        read_peers(peers_path(tmp_path / "twice"))
