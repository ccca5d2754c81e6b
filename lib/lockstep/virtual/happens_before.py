"""The order that a program makes: vector clocks of the streams and the host.

An operation is named by its stream and its number there. It is ordered before all that a stream
does next if that stream's clock has reached its number. Times play no part: what is not ordered may
happen in any order on another day.
"""

from __future__ import annotations

Clock = dict[int, int]  # stream → number of its last operation that is known to be done
HOST = -1


def merge(clock: Clock, other: Clock) -> None:
    """After this, all that `other` knows to be done is known to `clock`."""
    for stream, number in other.items():
        if clock.get(stream, 0) < number:
            clock[stream] = number


class Order:
    """The clocks of all streams, and of the host."""

    def __init__(self) -> None:
        self.streams: dict[int, Clock] = {}
        self.host: Clock = {HOST: 0}

    def clock(self, stream: int) -> Clock:
        if stream not in self.streams:
            self.streams[stream] = {stream: 0}
        return self.streams[stream]

    def launch(self, stream: int) -> int:
        """The number of the next operation of a stream; what the host knows is before it."""
        clock = self.clock(stream)
        merge(clock, self.host)
        clock[stream] += 1
        return clock[stream]

    def record(self, stream: int) -> Clock:
        """Return what an event says that is recorded now."""
        clock = self.clock(stream)
        merge(clock, self.host)
        return dict(clock)

    def wait(self, stream: int, recorded: Clock) -> None:
        merge(self.clock(stream), recorded)

    def host_waits(self, recorded: Clock) -> None:
        merge(self.host, recorded)

    def host_acts(self) -> int:
        """The number of the next thing that the host itself does to memory."""
        self.host[HOST] += 1
        return self.host[HOST]

    def is_before(self, stream: int, number: int, after: Clock) -> bool:
        """Whether operation `number` of `stream` is done in what `after` knows."""
        return after.get(stream, 0) >= number
