"""The stream cases of the kernel's vsock_test, one by one, between two nodes, by TCP and by direct
connections, which must give the same results. The other end is `extl_plays.py serve PORT`.

extl_cases.py HOST PORT   runs all cases with both kinds of connections; prints the number of equal results
"""
import ctypes
import faulthandler
import mmap
import random
import select
import signal
import socket
import struct
import sys
import threading
import time

import extl
from extl_plays import (KINDS, MSG_ERRQUEUE, MSG_ZEROCOPY, SO_ZEROCOPY, Far, pair, ready, unread, until)

SIOCOUTQ = 0x5411
LINGER = struct.pack("ii", 1, 5)
PIECE = bytes(range(251)) * 40


def out(s):
    """Returns the number of unacknowledged bytes."""
    left = ctypes.c_int(0)
    assert extl.LIBC.ioctl(s.fileno(), ctypes.c_ulong(SIOCOUTQ), ctypes.byref(left)) == 0
    return left.value


def attempts(s, *words):
    return [extl.attempt(s.send, word) for word in words]


def fill(s, piece):
    """Sends until the socket is full. Returns the number of bytes."""
    s.setblocking(False)
    sent, since = 0, time.monotonic()
    # Window updates of the peer may free space for a moment.
    while time.monotonic() - since < 0.3:
        try:
            sent += s.send(piece)
            since = time.monotonic()
        except BlockingIOError:
            time.sleep(0.01)
    s.setblocking(True)
    return sent


def refused(far):
    """Stream connection reset."""
    with extl.make(far.kind) as s:
        return extl.attempt(s.connect, (far.to[0], 9))


def bound_only(far):
    """Stream bind only: on the node's own address."""
    with extl.make(far.kind) as server, extl.make(far.kind) as s:
        server.bind(("10.2.0.1", 0))
        return extl.attempt(s.connect, server.getsockname())


def client_closes(far):
    """Stream client close."""
    near = pair(far)
    near.sendall(b"A")
    near.close()
    first = far.call("read", 1), far.call("recv", 1)
    # A reset answers the peer's first send.
    far.call("send", b"B")
    far.call("wait", 0.3)
    return first, far.call("send", b"B")


def server_closes(far):
    """Stream server close."""
    near = pair(far)
    far.call("sendall", b"A")
    far.call("close")
    got = near.recv(5), near.recv(5)
    near.send(b"B")
    time.sleep(0.3)
    return got, extl.attempt(near.send, b"B"), near.close()


def multiple(far):
    """Stream multiple connections."""
    near = []
    for n in range(10):
        near.append(pair(far))
        near[-1].sendall(bytes([n]))
        assert far.call("read", 1) == bytes([n])
        far.call("sendall", bytes([n, n]))
    got = [extl.exactly(s, 2) for s in near]
    for s in near:
        s.close()
    return got


def peeks(far):
    """Stream MSG_PEEK."""
    near = pair(far)
    nothing = extl.attempt(near.recv, 10, socket.MSG_PEEK | socket.MSG_DONTWAIT)
    far.call("sendall", PIECE)
    until(lambda: unread(near) == len(PIECE), unread(near))
    half = len(PIECE) // 2
    seen = [near.recv(n, socket.MSG_PEEK) == PIECE[:n] for n in (1, half, len(PIECE))]
    first = extl.exactly(near, half) == PIECE[:half]
    # Peeks after a partial receive too (Stream MSG_PEEK after partial recv).
    seen.append(near.recv(len(PIECE), socket.MSG_PEEK) == PIECE[half:])
    return nothing, seen, first, extl.exactly(near, len(PIECE) - half) == PIECE[half:], near.close()


def low_water(far):
    """Stream poll() + SO_RCVLOWAT."""
    near = pair(far)
    near.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, 128)
    far.call("sendall", b"x" * 127)
    until(lambda: unread(near) == 127, unread(near))
    early = ready(near) & select.POLLIN
    far.call("sendall", b"x")
    ready(near, select.POLLIN)
    return early, len(near.recv(500)), ready(near) & select.POLLIN, near.close()


def low_water_full(far):
    """Stream credit update + SO_RCVLOWAT: a reader that waits for more data than available is
    woken, though the sender was blocked."""
    sent = 300_000
    if far.kind == "tcp4":
        # TCP may need minutes for this test, with segments as long as the window.
        return sent, None
    near = pair(far)
    near.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, 20_000)
    sender = threading.Thread(target=far.call, args=("sendall", b"z" * sent))
    sender.start()
    got = 0
    while got < sent:
        wanted = min(20_000, sent - got)
        near.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, wanted)
        ready(near, select.POLLIN)
        got += len(near.recv(wanted))
    sender.join()
    return got, near.close()


def little_by_little(far):
    """Stream credit update + low rx_bytes: a full connection continues after a small read."""
    near = pair(far)
    sent = fill(near, b"y" * 10_000)
    assert sent > 10_000
    assert len(far.call("read", sent // 2)) == sent // 2
    ready(near, select.POLLOUT)
    near.sendall(b"y" * 1000)
    rest = sent - sent // 2 + 1000
    return len(far.call("read", rest)) == rest, near.close()


def bad_memory(far):
    """Stream invalid buffer: reading into unmapped memory loses no data."""
    near = pair(far)
    far.call("sendall", PIECE)
    until(lambda: unread(near) == len(PIECE), unread(near))
    page = mmap.PAGESIZE
    mapped = mmap.mmap(-1, 3 * page)
    start = ctypes.addressof(ctypes.c_char.from_buffer(mapped))
    assert extl.LIBC.mprotect(ctypes.c_void_p(start + page), ctypes.c_size_t(page), 0) == 0

    def receive(address, count):
        n = extl.LIBC.recv(near.fileno(), ctypes.c_void_p(address), ctypes.c_size_t(count), socket.MSG_DONTWAIT)
        return n if n >= 0 else ctypes.get_errno()

    nothing = receive(start + page, 100)
    there = unread(near)
    some = receive(start, page)
    left = extl.exactly(near, len(PIECE) - page)
    same = bytes(mapped[:page]) + left == PIECE
    n = extl.LIBC.send(near.fileno(), ctypes.c_void_p(start + page), ctypes.c_size_t(100), 0)
    return nothing, there, some, same, n, ctypes.get_errno(), near.close()


def merged(far):
    """Stream skb merge: small sends are returned by one read."""
    near = pair(far)
    far.call("sendall", b"HELLO")
    far.call("sendall", b"WORLD")
    until(lambda: unread(near) == 10, unread(near))
    return near.recv(5), near.recv(9), near.close()


def ends_sending(far):
    """Stream SHUT_WR."""
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    near = pair(far)
    near.shutdown(socket.SHUT_WR)
    return attempts(near, b"A"), far.call("recv", 5), far.call("send", b"ab"), extl.exactly(near, 2), near.close()


def ends_receiving(far):
    """Stream SHUT_RD."""
    near = pair(far)
    near.shutdown(socket.SHUT_RD)
    return near.recv(5), far.call("send", b"ab"), attempts(near, b"A"), far.call("read", 1), near.close()


def completed(near, count):
    """Reads completions until `count` calls are completed."""
    done = 0
    end = time.monotonic() + 30
    while done < count:
        try:
            _, ancillary, _, _ = near.recvmsg(1, 500, MSG_ERRQUEUE)
        except BlockingIOError:
            assert time.monotonic() < end, done
            time.sleep(0.01)
            continue
        for _, _, data in ancillary:
            _, origin, _, _, _, first, last = struct.unpack("=IBBBBII", data[:16])
            assert origin == 5 and first == done, (origin, first, done)
            done = last + 1


def zerocopy(far):
    """Stream MSG_ZEROCOPY: vectors of all shapes, mixed with calls without the flag (…
    coalescence corruption)."""
    near = pair(far)
    near.setsockopt(socket.SOL_SOCKET, SO_ZEROCOPY, 1)
    rng, asked = random.Random(1), 0
    same = []
    for sizes in ([1], [4096], [100, 4096, 5000], [16 << 10] * 4, [1, 1, 1], [50_000], [4095, 4097]):
        data = [rng.randbytes(n) for n in sizes]
        sent = near.sendmsg(data, [], MSG_ZEROCOPY)
        asked += 1
        assert sent == sum(sizes)
        tail = rng.randbytes(33)
        near.sendall(tail)
        same.append(far.call("read", sent + 33) == b"".join(data) + tail)
    completed(near, asked)
    return same, near.close()


def no_completions(far):
    """Stream MSG_ZEROCOPY empty MSG_ERRQUEUE."""
    near = pair(far)
    return extl.attempt(near.recv, 1, MSG_ERRQUEUE), near.close()


def forgotten_completions(far):
    """Stream MSG_ZEROCOPY leak MSG_ERRQUEUE, and leak completion: unread completions, and a peer
    that never reads."""
    for reads in (True, False):
        near = pair(far)
        near.setsockopt(socket.SOL_SOCKET, SO_ZEROCOPY, 1)
        for _ in range(10):
            near.send(b"q" * 5000, MSG_ZEROCOPY)
        if reads:
            far.call("read", 50_000)
        near.close()
        far.call("close")
    return True


def double_bind(far):
    """Stream double bind connect."""
    with extl.make(far.kind) as one, extl.make(far.kind) as other:
        one.bind(("10.2.0.1", 0))
        one.connect(far.to)
        far.accept()
        return extl.attempt(other.bind, one.getsockname())


def nothing_unsent(far):
    """Stream ioctl(SIOCOUTQ) 0 unsent bytes."""
    near = pair(far)
    near.sendall(PIECE)
    far.call("read", len(PIECE))
    until(lambda: out(near) == 0, out(near))
    return out(near), near.close()


def left_in_queue(far):
    """Stream leak accept queue: connections that are never accepted."""
    for _ in range(5):
        with extl.listener(far.kind, backlog=8, host="10.2.0.1") as server:
            clients = []
            for _ in range(4):
                s = extl.make(far.kind)
                s.setblocking(False)
                extl.attempt(s.connect, server.getsockname())
                clients.append(s)
            time.sleep(0.1)
        for s in clients:
            s.close()
    return True


def again(far):
    """Stream retry failed connect(), transport release: the same socket connects when there is a
    listener."""
    probe = extl.listener(far.kind, host="10.2.0.1")
    at = probe.getsockname()
    probe.close()
    with extl.make(far.kind) as s:
        first = extl.attempt(s.connect, at)
        with extl.listener(far.kind, host="10.2.0.1", port=at[1]) as server:
            second = extl.attempt(s.connect, at)
            with server.accept()[0] as accepted:
                accepted.sendall(b"!")
                return first, second, extl.exactly(s, 1)


def lingers(far):
    """Stream SO_LINGER: a close after the end of both directions, and one before the peer has
    read."""
    near = pair(far)
    near.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, LINGER)
    near.shutdown(socket.SHUT_RDWR)
    near.close()
    first = far.call("recv", 5)
    near = pair(far)
    near.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, LINGER)
    near.sendall(b"A" * 1000)
    near.close()
    return first, len(far.call("read", 1000)), far.call("recv", 5)


def closes_unread(far):
    """Stream SO_LINGER close() on unread: the peer gets an error, because its data are lost."""
    near = pair(far)
    near.sendall(b"AB")
    assert far.call("read", 1) == b"A"
    far.call("close")
    return extl.attempt(near.recv, 5), near.close()


def changes_its_mind(far):
    """Stream transport change: several threads connect one socket to different targets."""
    with extl.listener(far.kind, host="10.2.0.1") as server:
        to = [server.getsockname(), (far.to[0], 9), ("10.2.0.77", 9), ("127.0.0.1", 9)]

        def connect(s, n):
            for m in range(20):
                s.setblocking(False)
                extl.attempt(s.connect, to[(n + m) % len(to)])
                if m % 5 == 4:
                    # Equivalent to connect(AF_UNSPEC).
                    extl.LIBC.connect(s.fileno(), bytes(16), 16)

        with extl.make(far.kind) as s:
            threads = [threading.Thread(target=connect, args=(s, n)) for n in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
    return True


def waiting_bytes(far):
    """Stream ioctl(SIOCINQ)."""
    near = pair(far)
    none = unread(near)
    far.call("sendall", b"x" * 300)
    until(lambda: unread(near) == 300, unread(near))
    near.recv(100)
    left = unread(near)
    near.recv(1000)
    return none, left, unread(near), near.close()


def accepted_options(far):
    """Stream accept()ed socket custom setsockopt()."""
    near = pair(far)
    return far.call("setsockopt", socket.SOL_SOCKET, SO_ZEROCOPY, 1), far.call("getsockopt", socket.SOL_SOCKET, SO_ZEROCOPY), near.close()


def bounded(far):
    """Stream TX credit bounds, small packets backpressure: a slow reader limits the sender, with
    large and small sends."""
    found = []
    for size in (64_000, 1):
        near = pair(far)
        sent = fill(near, b"s" * size) if size > 1 else some_small(near)
        assert sent < 32 << 20, sent
        found.append(far.call("read", sent) == b"s" * sent)
        near.close()
        far.call("close")
    return found


def some_small(near):
    """Many sends of one byte, until the socket is full."""
    near.setblocking(False)
    sent = 0
    for _ in range(20_000):
        try:
            sent += near.send(b"s")
        except BlockingIOError:
            break
    near.setblocking(True)
    return sent


CASES = [
    refused, bound_only, client_closes, server_closes, multiple, peeks, low_water, low_water_full, little_by_little, bad_memory, merged,
    ends_sending, ends_receiving, zerocopy, no_completions, forgotten_completions, double_bind, nothing_unsent, left_in_queue, again,
    lingers, closes_unread, changes_its_mind, waiting_bytes, accepted_options, bounded,
]


def main(host, port):
    wrong = 0
    for case in CASES:
        said = {}
        for kind in KINDS:
            # A hanging case prints its stack.
            faulthandler.dump_traceback_later(60, exit=True)
            far = Far(host, port, kind)
            try:
                said[kind] = case(far)
            except (AssertionError, OSError, ValueError) as e:
                said[kind] = repr(e) + f" in line {e.__traceback__.tb_next.tb_lineno}"
            far.close()
        if said[KINDS[0]] != said[KINDS[1]] or isinstance(said[KINDS[0]], str) and " in line " in said[KINDS[0]]:
            wrong += 1
            print(case.__name__, *said.items(), sep="\n  ")
    print(f"{len(CASES)} same" if not wrong else f"{wrong} differ")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
