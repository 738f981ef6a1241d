"""Connections of AF_EXTL between nodes, whose data must bypass TCP.

extl_direct.py serve KIND PORT               serves clients of this program; prints "ready"
extl_direct.py echo KIND HOST PORT SEED ...  for each following size: sends this many bytes in both directions at
                                             the same time, blocking and by epoll, and compares at both ends
extl_direct.py threads KIND HOST PORT SEED COUNT ROUNDS
                                             COUNT threads, each with a connection and ROUNDS exchanges of a
                                             random size up to 200 kB, compared at both ends
extl_direct.py calls KIND HOST PORT          flags of calls, and all kinds of ends of a connection
extl_direct.py churn KIND HOST PORT SECONDS  makes connections, each with an exchange; prints the numbers of direct
                                             ones, ones by TCP, and failed ones
extl_direct.py hold KIND HOST PORT WAY       holds a connection until an error, and prints it with the time; WAY send
                                             sends, timeout sends with TCP_USER_TIMEOUT, idle reads with SO_KEEPALIVE
extl_direct.py busy KIND HOST PORT COUNT     makes COUNT exchanges without and with SO_BUSY_POLL; prints the numbers
                                             of times that it slept
"""
import errno
import fcntl
import hashlib
import random
import resource
import select
import socket
import struct
import subprocess
import sys
import termios
import threading
import time

import extl

DIRECT = 3
SO_BUSY_POLL = 46
HEAD = struct.Struct("=QIB")
# Requests of a client: exchanges, blocking and by epoll; then other actions.
HALF, RESET, UNREAD, SLOW, WAS_SAME, KEEP = 2, 3, 4, 5, 6, 9
# Set if the last data, which were read slowly, were right.
SAME = threading.Event()


def ports(s):
    """Returns the ports of a connection, which must still exist."""
    return s.getsockname()[1], s.getpeername()[1]


def tcp_bytes(own, peer):
    """Returns TCP's counts of bytes: acknowledged (a SYN counts as one), received. TCP_INFO has
    more."""
    ends = f"sport = :{own} and dport = :{peer}"
    said = subprocess.run(["ss", "-tinH", ends], check=True, stdout=subprocess.PIPE, text=True).stdout
    counts = dict(word.split(":", 1) for word in said.split() if word.startswith("bytes_"))
    assert said, "no connection of TCP"
    return [int(counts.get(name, 0)) for name in ("bytes_acked", "bytes_received")]


def check(s, ended=None):
    """Checks that TCP's connection carries no data, but only its own end if the connection with the
    ports `ended` has ended."""
    mode, reason, _, _ = extl.info(s)
    assert (mode, reason) == (DIRECT, 0), ("mode and reason", mode, reason)
    acked, received = tcp_bytes(*(ended or ports(s)))
    assert acked <= 1 and received <= (ended is not None), ("TCP carried", acked, received)


def data_of(seed, count):
    return random.Random(seed).randbytes(count)


def digest(data):
    return hashlib.sha256(data).hexdigest()


def blocking(s, out, count):
    """Sends and receives at the same time. Returns the received data."""
    got = []

    def read():
        try:
            got.append(extl.exactly(s, count))
        except OSError as e:
            got.append(e)

    reader = threading.Thread(target=read)
    reader.start()
    try:
        s.sendall(out)
    finally:
        reader.join()
    if isinstance(got[0], OSError):
        raise got[0]
    return got[0]


def by_epoll(s, out, count):
    """Sends and receives at the same time by non-blocking calls. Returns the received data."""
    s.setblocking(False)
    got, sent, end = bytearray(), 0, time.monotonic() + 60
    with select.epoll() as poll:
        poll.register(s, select.EPOLLIN | select.EPOLLOUT | select.EPOLLET)
        # Edge-triggered: all possible reads and writes follow each event.
        while sent < len(out) or len(got) < count:
            assert time.monotonic() < end, (sent, len(out), len(got), count)
            for _, _ in poll.poll(1):
                while sent < len(out):
                    try:
                        sent += s.send(out[sent:sent + 200_000])
                    except BlockingIOError:
                        break
                while len(got) < count:
                    try:
                        piece = s.recv(min(count - len(got), 150_000))
                    except BlockingIOError:
                        break
                    assert piece, ("the stream ended", len(got), count)
                    got += piece
    s.setblocking(True)
    return bytes(got)


def exchange(s, seed, count, way, mine, theirs, direct=True):
    out = data_of(seed + mine, count)
    got = (by_epoll if way else blocking)(s, out, count)
    assert digest(got) == digest(data_of(seed + theirs, count)), (len(got), count)
    if direct:
        check(s)


def end(s, seed, count, way):
    """Ends a connection as the client requests."""
    if way == HALF:
        got = extl.exactly(s, count)
        assert s.recv(1) == b""
        s.sendall(got)
    elif way == RESET:
        s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    elif way == UNREAD:
        # The connection is closed while data of the client are unread.
        s.recv(1, socket.MSG_PEEK)
    elif way == SLOW:
        time.sleep(1)
        if extl.exactly(s, count) == data_of(seed, count) and s.recv(1) == b"":
            SAME.set()
    elif way == WAS_SAME:
        s.sendall(b"yes" if SAME.wait(5) else b"no")


def answer(s):
    with s:
        try:
            while head := extl.exactly(s, HEAD.size):
                seed, count, way = HEAD.unpack(head)
                if way == KEEP:
                    # Stops reading.
                    time.sleep(count)
                    continue
                if way > 1:
                    return end(s, seed, count, way)
                exchange(s, seed, count, way, 1, 0, direct=False)
                # Confirms to the client that the data were right.
                s.sendall(b"!")
        except OSError as e:
            print(errno.errorcode.get(e.errno), flush=True)


def serve(kind, port):
    s = extl.listener(kind, port=port, host="::" if kind.endswith("6") else "0.0.0.0", backlog=128)
    print("ready", flush=True)
    while True:
        threading.Thread(target=answer, args=(s.accept()[0],), daemon=True).start()


def connect(kind, host, port):
    s = extl.make(kind)
    s.settimeout(None)
    s.connect(extl.resolve(kind, host, port))
    return s


def echo(kind, host, port, seed, sizes):
    for way in (0, 1):
        s = connect(kind, host, port)
        for count in sizes:
            s.sendall(HEAD.pack(seed, count, way))
            exchange(s, seed, count, way, 0, 1)
            assert extl.exactly(s, 1) == b"!"
            seed += 2
        ended = ports(s)
        s.shutdown(socket.SHUT_WR)
        assert s.recv(1) == b""
        check(s, ended)
        s.close()
    print("same")


def threads(kind, host, port, seed, count, rounds):
    failed = []

    def run(n):
        rng = random.Random(seed + n)
        try:
            with connect(kind, host, port) as s:
                for _ in range(rounds):
                    size, way, first = int(200_000 ** rng.random()), rng.randrange(2), rng.randrange(1 << 32)
                    s.sendall(HEAD.pack(first, size, way))
                    exchange(s, first, size, way, 0, 1, direct=False)
                    assert extl.exactly(s, 1) == b"!", (first, size, way)
                check(s)
        except (OSError, AssertionError) as e:
            failed.append((n, repr(e)))

    running = [threading.Thread(target=run, args=(n,)) for n in range(count)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    print(*failed or ["same"])


def fails(number, call, *words):
    try:
        said = call(*words)
    except OSError as e:
        assert e.errno == number, e
    else:
        raise AssertionError(("no error", said))


def some_calls(s):
    """Tests flags and options on a connection that echoes."""
    def ready(count):
        left = bytearray(4)
        while True:
            fcntl.ioctl(s, termios.FIONREAD, left)
            if struct.unpack("i", left)[0] == count:
                return
            time.sleep(0.01)

    s.sendall(HEAD.pack(5, 1000, 0))
    out, back = data_of(5, 1000), data_of(6, 1000)
    fails(errno.EOPNOTSUPP, s.send, b"x", socket.MSG_OOB)
    assert s.send(out[:400], socket.MSG_MORE) == 400
    s.sendall(out[400:])
    ready(1001)
    assert s.recv(10, socket.MSG_PEEK) == back[:10]
    assert s.recv(2000, socket.MSG_PEEK | socket.MSG_DONTWAIT) == back + b"!"
    assert s.recv(100) == back[:100]
    # Discards the data.
    assert len(s.recv(100, socket.MSG_TRUNC)) == 100
    assert s.recv(801, socket.MSG_WAITALL) == back[200:] + b"!"
    fails(errno.EAGAIN, s.recv, 1, socket.MSG_DONTWAIT)
    s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", 0, 300_000))
    began = time.monotonic()
    fails(errno.EAGAIN, s.recv, 1)
    assert 0.2 < time.monotonic() - began < 5
    # The reader waits for more data than are available.
    s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, 2000)
    s.sendall(HEAD.pack(7, 100, 0) + data_of(7, 100))
    ready(101)
    with select.epoll() as poll:
        poll.register(s, select.EPOLLIN)
        assert not poll.poll(0.1)
        s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, 1)
        assert poll.poll(1)
    assert s.recv(500) == data_of(8, 100) + b"!"
    check(s)


def calls(kind, host, port):
    new = lambda: connect(kind, host, port)
    with new() as s:
        some_calls(s)
    with new() as s:
        data = data_of(1, 200_000)
        s.sendall(HEAD.pack(1, len(data), HALF) + data)
        check(s)
        s.shutdown(socket.SHUT_WR)
        fails(errno.EPIPE, s.send, b"x", socket.MSG_NOSIGNAL)
        assert extl.exactly(s, len(data)) == data
        assert s.recv(1) == b"" and s.recv(1) == b""
        with select.epoll() as poll:
            poll.register(s, select.EPOLLIN | select.EPOLLRDHUP)
            [(_, what)] = poll.poll(1)
            assert what & select.EPOLLHUP and what & select.EPOLLRDHUP and not what & select.EPOLLERR, what
    for way in (RESET, UNREAD):
        with new() as s:
            s.sendall(HEAD.pack(1, 1, way) + b"unread")
            with select.epoll() as poll:
                poll.register(s, 0)
                [(_, what)] = poll.poll(5)
            assert what & select.EPOLLHUP and what & select.EPOLLERR, what
            fails(errno.ECONNRESET, s.recv, 10)
            assert s.recv(10) == b""
            fails(errno.EPIPE, s.send, b"x", socket.MSG_NOSIGNAL)
            assert extl.info(s)[0] == DIRECT
    # Lingers with more data than the receive ring holds but less than both rings hold, in calls
    # below the zero-copy limit.
    s = new()
    s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 8))
    s.sendall(HEAD.pack(3, 400_000, SLOW))
    data = data_of(3, 400_000)
    for at in range(0, len(data), 100_000):
        s.sendall(data[at:at + 100_000])
    began = time.monotonic()
    s.close()
    took = time.monotonic() - began
    assert 0.3 < took < 7, took
    # Lingers while the peer neither reads nor closes.
    s = new()
    s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 20))
    s.sendall(HEAD.pack(0, 3, KEEP) + data_of(3, 1000))
    began = time.monotonic()
    s.close()
    took = time.monotonic() - began
    assert took < 2, took
    with new() as s:
        s.sendall(HEAD.pack(0, 0, WAS_SAME))
        assert extl.exactly(s, 3) == b"yes"
    print("same")


def churn(kind, host, port, seconds):
    end, done, rng = time.monotonic() + seconds, [0, 0, 0], random.Random()
    while time.monotonic() < end:
        count, way = rng.choice([1, 100, 3000, 100_000]), rng.randrange(2)
        try:
            with connect(kind, host, port) as s:
                s.sendall(HEAD.pack(9, count, way))
                exchange(s, 9, count, way, 0, 1, direct=False)
                assert extl.exactly(s, 1) == b"!"
                done[extl.info(s)[0] != DIRECT] += 1
        except OSError as e:
            allowed = (errno.ECONNRESET, errno.ENETDOWN, errno.ETIMEDOUT, errno.EPIPE)
            assert e.errno in allowed, e
            done[2] += 1
    print(*done)


def hold(kind, host, port, way):
    s = connect(kind, host, port)
    s.sendall(HEAD.pack(0, 1, 0))
    exchange(s, 0, 1, 0, 0, 1)
    print("ready", flush=True)
    s.sendall(HEAD.pack(0, 3600, KEEP))
    if way == "timeout":
        s.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 2000)
    elif way == "idle":
        s.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option in (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT):
            s.setsockopt(socket.IPPROTO_TCP, option, 2)
    try:
        if way == "idle":
            assert s.recv(1)
        while True:
            s.sendall(bytes(1000))
    except OSError as e:
        print(errno.errorcode.get(e.errno), round(time.monotonic(), 1), flush=True)


def busy(kind, host, port, count):
    """A program that busy-polls does not sleep."""
    slept = []
    with connect(kind, host, port) as s:
        for us in (0, 500_000):
            s.setsockopt(socket.SOL_SOCKET, SO_BUSY_POLL, us)
            before = resource.getrusage(resource.RUSAGE_SELF).ru_nvcsw
            for seed in range(count):
                s.sendall(HEAD.pack(seed, 64, 0))
                s.sendall(data_of(seed, 64))
                assert extl.exactly(s, 65) == data_of(seed + 1, 64) + b"!"
            slept.append(resource.getrusage(resource.RUSAGE_SELF).ru_nvcsw - before)
        check(s)
        # The receive time-out also ends a busy poll.
        s.setsockopt(socket.SOL_SOCKET, SO_BUSY_POLL, 1000)
        s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", 0, 300_000))
        began = time.monotonic()
        assert extl.attempt(s.recv, 1) == "EAGAIN" and time.monotonic() - began >= 0.3
    print(*slept)


if __name__ == "__main__":
    command, kind, words = sys.argv[1], sys.argv[2], sys.argv[3:]
    if command == "serve":
        serve(kind, int(words[0]))
    elif command == "echo":
        echo(kind, words[0], int(words[1]), int(words[2]), [int(n) for n in words[3:]])
    elif command == "threads":
        threads(kind, words[0], *map(int, words[1:]))
    elif command == "busy":
        busy(kind, words[0], int(words[1]), int(words[2]))
    elif command == "churn":
        churn(kind, words[0], int(words[1]), float(words[2]))
    elif command == "calls":
        calls(kind, words[0], int(words[1]))
    else:
        hold(kind, words[0], int(words[1]), words[2])
