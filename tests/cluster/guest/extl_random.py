"""extl_random.py FIRST COUNT [ADDRESS4 ADDRESS6]: runs random sequences of socket calls with TCP and with AF_EXTL, and compares results, errors, events and data.

A sequence depends on its number only. In each, sockets of one kind communicate on this node.
Both kinds run step by step at the same time. Before the next step their events, unread bytes and
connection states must be the same, which may take a while on a busy host. With addresses of exn
the data of AF_EXTL bypass TCP; without addresses, TCP carries them too.

Sequences in which TCP differs from itself are ignored; there may be few of them. Prints the
number of compared sequences, and with a COUNT of 1 each step.
"""
import array
import fcntl
import hashlib
import os
import random
import select
import signal
import socket
import struct
import sys
import termios
import time

from extl import attempt, home, info, make, resolve

STEPS = 50
# Seconds between two polls of the events, which must be the same twice.
LOOK = 0.002
# Maximum seconds until events are the same, or a connection is established.
PATIENCE = 3
OPTIONS = [
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE),
    (socket.SOL_SOCKET, socket.SO_REUSEADDR),
    (socket.SOL_SOCKET, socket.SO_RCVLOWAT),
    (socket.SOL_SOCKET, socket.SO_OOBINLINE),
    (socket.SOL_SOCKET, socket.SO_ERROR),
    (socket.SOL_SOCKET, socket.SO_ACCEPTCONN),
    (socket.SOL_SOCKET, 42),
    (socket.IPPROTO_TCP, socket.TCP_NODELAY),
    (socket.IPPROTO_TCP, socket.TCP_CORK),
    (socket.IPPROTO_TCP, socket.TCP_DEFER_ACCEPT),
    (socket.IPPROTO_TCP, 23),
]
FLAGS = [0, 0, 0, socket.MSG_PEEK, socket.MSG_WAITALL, socket.MSG_TRUNC, socket.MSG_OOB, 0x2000]
SENDING = [0, 0, 0, 0, socket.MSG_MORE, socket.MSG_OOB, 0x20000000, 0x4000000]
MOST = 8
# Mode of a direct connection.
DIRECT = 3
# Local addresses by IP version.
ADDRESSES = {v: home(v) for v in "46"}
# Number of direct connection ends.
direct = 0


def past_tcp():
    return ADDRESSES["4"] != home("4")


def unread(s):
    left = array.array("i", [0])
    return attempt(fcntl.ioctl, s, termios.FIONREAD, left), left[0]


class World:
    """Sockets of one kind, and the ports seen."""

    def __init__(self, kind, seed):
        self.kind, self.rng = kind, random.Random(seed)
        self.sockets, self.ports = [], []
        self.home = resolve(kind, ADDRESSES[kind[-1]], 0)

    def name(self, address):
        """Returns an address, with ports numbered in the order of their first occurrence."""
        if not isinstance(address, tuple):
            return address
        port = address[1]
        if port and port not in self.ports:
            self.ports.append(port)
        return address[0], self.ports.index(port) if port else None

    def step(self):
        rng = self.rng
        # All random values are drawn in each step, so that later steps do not depend on earlier
        # results.
        do, which, other = rng.randrange(22), rng.random(), rng.random()
        number, flags, sending = rng.choice([0, 1, 2, 3, 100, 1000]), rng.choice(FLAGS), rng.choice(SENDING)
        option, value, how, data = rng.choice(OPTIONS), rng.choice([0, 1, 5, 200]), rng.randrange(4), rng.randbytes(number)
        if not self.sockets or (do == 0 and len(self.sockets) < MOST):
            self.sockets.append(make(self.kind, socket.SOCK_NONBLOCK))
            return "socket"
        s = self.sockets[int(which * len(self.sockets))]
        t = self.sockets[int(other * len(self.sockets))]
        if do in (1, 2):
            return "bind", attempt(s.bind, self.home), self.name(attempt(s.getsockname))
        if do in (3, 4):
            return "listen", attempt(s.listen, number % 4)
        if do in (5, 6, 7):
            # On one node it is established at once, or in progress for a moment.
            to = attempt(t.getsockname)
            result = attempt(s.connect, to) if to[1] else "no address"
            return "connect", "begun" if result in (None, "EINPROGRESS") else result
        if do in (8, 9):
            got = attempt(s.accept)
            if isinstance(got, str):
                return "accept", got
            got[0].setblocking(False)
            self.sockets.append(got[0])
            return "accept", self.name(got[1])
        if do in (10, 11, 12):
            to = attempt(t.getsockname)
            if sending == 0x20000000 and to[1]:
                result = attempt(s.sendto, data, sending, to)
            else:
                if past_tcp():
                    # Urgent data are one of the documented differences.
                    sending &= ~socket.MSG_OOB
                result = attempt(s.send, data, sending | socket.MSG_NOSIGNAL)
            return "send", "begun" if result == "EINPROGRESS" else result
        if do in (13, 14, 15):
            got = attempt(s.recv, number, flags)
            if flags & socket.MSG_TRUNC and isinstance(got, bytes):
                return "recv", len(got)
            return "recv", got if isinstance(got, str) else (len(got), hashlib.md5(got).hexdigest())
        if do == 16:
            return "shutdown", attempt(s.shutdown, how)
        if do == 17:
            return "setsockopt", attempt(s.setsockopt, *option, value)
        if do == 18:
            return "getsockopt", attempt(s.getsockopt, *option, 64)
        if do == 19:
            return "names", self.name(attempt(s.getsockname)), self.name(attempt(s.getpeername))
        if do == 20 and how:
            if how == 1:
                attempt(s.setsockopt, socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.sockets.remove(s)
            return "close", attempt(s.close)
        return "dup", attempt(lambda: os.close(os.dup(s.fileno())))

    def events(self):
        poll = select.poll()
        for s in self.sockets:
            poll.register(s, 0x1F | select.POLLRDHUP)
        seen = dict(poll.poll(0))
        connected = [not isinstance(attempt(s.getpeername), str) for s in self.sockets]
        return [(seen.get(s.fileno(), 0), unread(s), c) for s, c in zip(self.sockets, connected)]

    def begin(self):
        """Creates two accepted connections, so that calls have an effect."""
        s = make(self.kind, socket.SOCK_NONBLOCK)
        s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        s.bind(self.home)
        s.listen(16)
        self.sockets.append(s)
        self.name(s.getsockname())
        for _ in range(2):
            a = make(self.kind, socket.SOCK_NONBLOCK)
            attempt(a.connect, s.getsockname())
            select.select([s], [], [], PATIENCE)
            b, address = s.accept()
            b.setblocking(False)
            self.name(address)
            self.sockets += [a, b]

    def end(self):
        """Returns the unread data of each socket, and closes all."""
        global direct
        left = []
        for s in self.sockets:
            if not self.kind.startswith("tcp") and info(s)[0] == DIRECT:
                direct += 1
            left.append(attempt(s.recv, 1 << 20))
        for s in self.sockets:
            s.close()
        return left


def settle(a, b):
    """Returns the events of both kinds when they are the same and stable, or after a time-out."""
    end, before = time.monotonic() + PATIENCE, None
    while True:
        now = a.events(), b.events()
        if now == before and now[0] == now[1] or time.monotonic() > end:
            return now
        before = now
        time.sleep(LOOK)


def difference(kinds, seed, tell=False):
    """Returns the first difference between two kinds, or None."""
    a, b = (World(kind, seed) for kind in kinds)
    try:
        a.begin()
        b.begin()
        settle(a, b)
        for n in range(STEPS):
            done = a.step(), b.step()
            if tell:
                print(f"{n}: {done}")
            if done[0] != done[1]:
                return f"step {n}: {done[0]} and {done[1]}"
            events = settle(a, b)
            if tell:
                print(f"    {events}")
            if events[0] != events[1]:
                return f"events after step {n}, {done[0]}: {events[0]} and {events[1]}"
    finally:
        left = a.end(), b.end()
    if left[0] != left[1]:
        return f"what is left: {left[0]} and {left[1]}"
    return None


def main():
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    first, count = int(sys.argv[1]), int(sys.argv[2])
    ADDRESSES.update(zip("46", sys.argv[3:]))
    compared = skipped = bad = 0
    for seed in range(first, first + count):
        kind, version = ("extl", "alias")[seed % 2], "46"[seed // 2 % 2]
        ours = "tcp" + version, kind + version
        first_one = difference(ours, seed, count == 1)
        if first_one is None:
            compared += 1
            continue
        # Compares TCP with itself for reference. A single difference may be caused by the host.
        others = 1 + sum(difference(ours, seed) is not None for _ in range(3))
        itself = sum(difference(("tcp" + version, "tcp" + version), seed) is not None for _ in range(4))
        if others == 1 or others <= itself + 1:
            skipped += 1
            print(f"# sequence {seed}, {kind}{version}: {others} of 4, TCP and TCP {itself} of 4: {first_one}")
            continue
        bad += 1
        print(f"sequence {seed}, {kind}{version}: TCP and this, {others} of 4 times: {first_one}")
    print(f"{compared} same, {skipped} not the same each time, {bad} other; {direct} ends past TCP")
    sys.exit(bad > 0 or skipped > count // 4)


if __name__ == "__main__":
    main()
