"""What the clients of a simulation would have sent: packets, and bits for each seed."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from gossamer.algorithms.surrogate import Outgoing, Slots
from gossamer.compression import packet
from gossamer.compression.base import Codec, Message
from gossamer.compression.partial import Partial
from gossamer.topology import Mixing, MixingMatrix


class Traffic:
    """Counts packets and bits, by seed. A packet goes from each client to each of its neighbours in that round."""

    def __init__(self, mixing: Mixing, seeds: Sequence[int], codec: Codec) -> None:
        self.codec: Codec = codec
        self.packets = 0
        self.bits_nominal = dict.fromkeys(seeds, 0)  # added up over clients, like `bits`
        self.bits = dict.fromkeys(seeds, 0)  # added up over clients; a link carried their mean
        self.bits_total = dict.fromkeys(seeds, 0)
        self._mixing = mixing
        self._degrees = mixing.degrees if isinstance(mixing, MixingMatrix) else None
        self._known: dict[Any, list[tuple[int, ...]]] = {}

    def count(self, messages: Sequence[Outgoing], t: int, seeds: Sequence[int]) -> None:
        """Add one exchange of round t."""
        degrees = self._mixing.at(t).degrees if self._degrees is None else self._degrees
        if len(degrees) == 1:  # a client alone sends nothing
            return
        self.packets += 1
        shape = (len(seeds), self._mixing.clients)
        if isinstance(messages[0], Slots):
            self._count_slots([one for one in messages if isinstance(one, Slots)], t, seeds, shape)
            return
        sent = [message for message in messages if isinstance(message, Message)]
        key = self._key(sent, t, len(seeds))
        counted = self._known.get(key)
        if counted is None:
            nominal = sum(message.bits_nominal_of_rows() for message in sent).reshape(shape)  # type: ignore[union-attr]
            lengths = 8 * packet.sizes(sent, t, range(shape[1]), self.codec).reshape(shape)
            # On a schedule, a client may have no neighbour in a round.
            each = (lengths * (degrees > 0), lengths * degrees, nominal * (degrees > 0))
            counted = [tuple(map(int, row)) for row in np.stack(each).sum(axis=2).T]
            if key is not None:
                self._known[key] = counted
        for seed, (bits, total, bits_nominal) in zip(seeds, counted, strict=True):
            self.bits[seed] += bits
            self.bits_total[seed] += total
            self.bits_nominal[seed] += bits_nominal

    def counts_blindly(self, packets: Sequence[Sequence[Outgoing]]) -> bool:
        """Whether the bits of such packets are known without looking at what they hold."""
        sent = [[message for message in messages if isinstance(message, Message)] for messages in packets]
        return not any(self._key(messages, 0, 1) is None for messages in sent)

    def _key(self, messages: Sequence[Message], t: int, seeds: int) -> Any:
        """What the bits of fixed-width packets depend on; None where every packet has to be looked at."""
        if self.codec != "fixed" or self._degrees is None or any(isinstance(one, Partial) for one in messages):
            return None
        return (t.bit_length(), seeds, *((type(one), one.shape, one.payload_size()) for one in messages))

    def _count_slots(self, slots: Sequence[Slots], t: int, seeds: Sequence[int], shape: tuple[int, int]) -> None:
        """Each neighbour gets a packet of its own: a link carries their mean."""
        degrees = np.maximum(self._mixing.at(t).degrees, 1)
        total, nominal = np.zeros(shape, np.int64), np.zeros(shape, np.int64)
        for k in range(len(slots[0].messages)):
            messages = [one.messages[k] for one in slots]
            used = slots[0].used[:, k].cpu().numpy().reshape(shape)
            total += np.where(used, 8 * packet.sizes(messages, t, range(shape[1]), self.codec).reshape(shape), 0)
            counted = sum(message.bits_nominal_of_rows() for message in messages)
            nominal += np.where(used, np.asarray(counted).reshape(shape), 0)
        for place, seed in enumerate(seeds):
            self.bits[seed] += int((total[place] // (8 * degrees) * 8).sum())
            self.bits_total[seed] += int(total[place].sum())
            self.bits_nominal[seed] += int((nominal[place] // degrees).sum())

    def on_one_link(self, seed: int) -> float:
        """Bits so far, averaged over clients."""
        return self.bits[seed] / self._mixing.clients

    def nominal_on_one_link(self, seed: int) -> float:
        """The same, counted as b bits per coordinate."""
        return self.bits_nominal[seed] / self._mixing.clients

    def counts(self) -> dict[str, Any]:
        """The counters, as JSON keeps them."""
        every = [[seed, self.bits[seed], self.bits_total[seed], self.bits_nominal[seed]] for seed in self.bits]
        return {"packets": self.packets, "seeds": every}

    def restore(self, counts: Mapping[str, Any]) -> None:
        """Go on from such counters."""
        self.packets = counts["packets"]
        for seed, bits, total, nominal in counts["seeds"]:
            self.bits[seed], self.bits_total[seed], self.bits_nominal[seed] = bits, total, nominal
