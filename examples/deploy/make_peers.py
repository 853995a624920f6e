"""Write the peers file of a run, with keys for the hosts that have none yet.

    python make_peers.py run alpha beta gamma delta      # run/peers.toml, run/keys/alpha/key.secret, ...

The hosts are the clients 0, 1, 2, ... in this order. A host whose run/keys/HOST/key.public is there keeps its key; so
make the keys on the hosts, and collect the public ones, where secret keys should not travel.
"""

import argparse
import os
from pathlib import Path

from gossamer.errors import GossamerError
from gossamer.runtime.transport.peers import PUBLIC, Peer, peers_text, read_peers, write_keys


def make_peers(folder: Path, hosts: list[str], port: int, suffix: str) -> Path:
    """The peers file, after it was checked as `gossamer join` will check it."""
    peers = []
    for client, host in enumerate(hosts):
        keys = folder / "keys" / host
        if not (keys / PUBLIC).exists():
            write_keys(keys)
        address = f"{host}{suffix}:{port}"
        peers.append(Peer(client, host, address, (keys / PUBLIC).read_bytes().strip()))
    path = folder / "peers.toml"
    new = path.with_suffix(".new")
    new.write_text(peers_text(peers))
    read_peers(new)
    os.replace(new, path)  # a client that reads the file meanwhile finds the old one or the new one
    return path


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("hosts", nargs="+", metavar="HOST")
    parser.add_argument("--port", type=int, default=5555)
    parser.add_argument("--suffix", default="", help="what turns a host into an address, such as .gossamer")
    options = parser.parse_args()
    try:
        print(make_peers(options.folder, options.hosts, options.port, options.suffix))
    except GossamerError as error:
        raise SystemExit(f"make_peers.py: {error}") from None


if __name__ == "__main__":
    main()
