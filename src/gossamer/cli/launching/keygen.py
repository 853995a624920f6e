"""`gossamer keygen`: make a key pair for the transport `curve`."""

import argparse

from gossamer.cli.lines import note, show_json
from gossamer.runtime.transport.peers import PUBLIC, SECRET, write_keys


def keygen(options: argparse.Namespace) -> int:
    """`gossamer keygen`."""
    keys = write_keys(options.folder)
    if options.json:
        return show_json({"public": keys.public.decode(), "secret_file": f"{options.folder}/{SECRET}"})
    note(f"Wrote {options.folder}/{SECRET}, which stays on this host, and {options.folder}/{PUBLIC}.")
    print(keys.public.decode())
    return 0
