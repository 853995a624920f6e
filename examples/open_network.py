"""A network whose hosts need not trust the lines between them, nor count on each other: they come, go and come back.

`gossamer keygen keys` makes a key. All hosts have one peers file, with a table for each client (eight, at most):

    [[peer]]
    client = 0
    name = "alpha"
    address = "192.0.2.1:5555"
    key = "Yne@$w-vo<fVvi]a<NY6T1ed:M$fCG*[IaLV{hID"    # what is in alpha's keys/key.public

python examples/open_network.py peers.toml keys/key.secret                # on every host
python examples/open_network.py peers.toml keys/key.secret --join alpha   # on a host that is new or comes back

Ctrl-C makes a host leave, and the others go on. They also go on if it is killed, or if its network is gone.
"""

import argparse
import signal

import torch
from torch import nn

import gossamer as gs
from gossamer.runtime.transport.curve import opened

SEATS = 8  # for clients; nobody has to take them all
parser = argparse.ArgumentParser()
parser.add_argument("peers")
parser.add_argument("key")
parser.add_argument("--join", help="a neighbour with whose model to begin")
parser.add_argument("--rounds", type=int, default=1000)
options = parser.parse_args()
transport = opened(options.peers, options.key)
client = transport.me.client

data = gs.problems.load("digits")
mine = gs.problems.split(data.labels, SEATS, "iid")[client]  # a client's own data, which nobody else sees
inputs, test_inputs = (torch.tensor(x).float() / data.peak for x in (data.features[mine], data.test_features))
targets, test_targets = (torch.tensor(y).long() for y in (data.labels[mine], data.test_labels))
torch.manual_seed(0)  # those who begin together begin with the same model
model = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.Tanh(), nn.Linear(32, 10))
method = gs.BEER(lr=0.2, gamma=0.5, compressor=gs.gsgd(5))
mixing = gs.mixing_matrix(gs.topology.complete(SEATS))  # the possible edges
how = {"transport": transport, "patience": 2.0, "join": options.join}
optimizer = gs.DecentralizedOptimizer(model.parameters(), method, mixing, **how)
for number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(number, lambda *_: optimizer.ask_to_stop())

print(f"client {client} begins in round {optimizer.rounds}", flush=True)
while optimizer.rounds < options.rounds and not optimizer.should_stop:
    rows = torch.randint(len(inputs), (32,))
    loss = nn.functional.cross_entropy(model(inputs[rows]), targets[rows])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()  # goes on after 2 seconds without those that are late
    if optimizer.rounds % 100 == 0 or optimizer.should_stop:
        accuracy = (model(test_inputs).argmax(dim=1) == test_targets).float().mean()
        print(f"round {optimizer.rounds}: accuracy {accuracy:.3f}, clients {sorted(optimizer.present)}", flush=True)
(optimizer.leave if optimizer.should_stop else optimizer.close)()
print(f"client {client} ended after round {optimizer.rounds}: {optimizer.traffic}")
