"""Sockets of AF_EXTL for other programs of this directory, and small programs with them.

extl.py serve KIND PORT         echoes each connection until its end; prints "ready"
extl.py echo KIND HOST PORT N   sends N bytes to the server and compares, then prints mode and reason
extl.py hold KIND COUNT         holds COUNT connections to itself until it is killed; prints "ready"
extl.py flood KIND SECONDS      creates sockets, some connected, as fast as possible; prints the number
extl.py unload ROUNDS SECONDS LEAST PATIENCE
                                removes the module up to ROUNDS times within SECONDS, and at least LEAST
                                times within PATIENCE; prints the number, failures by errno, the longest
                                time in ms, and the module's users if it is loaded in the end
extl.py storm KIND SECONDS      processes and threads make all calls on the same sockets; prints the number

KIND is tcp4, tcp6, extl4, extl6 (the family), alias4 or alias6 (the protocol number).
"""
import ctypes
import errno
import os
import random
import select
import socket
import struct
import sys
import threading
import time

AF_EXTL = int(os.environ.get("TEST_AF_EXTL", "19"))
IPPROTO_EXTL = 259
SOL_EXTL, EXTL_INFO = 0x4558, 1
IDLE, LISTENING, TCP, DIRECT = 0, 1, 2, 3
KINDS = [n + v for n in ("tcp", "extl", "alias") for v in "46"]
LIBC = ctypes.CDLL(None, use_errno=True)


def inet(kind):
    return socket.AF_INET6 if kind.endswith("6") else socket.AF_INET


def make(kind, flags=0):
    """Creates a socket, which stays open on exec unless the flags say otherwise. Python treats it
    as an IPv4 or IPv6 socket."""
    words = {
        "tcp": (inet(kind), 0),
        "alias": (inet(kind), IPPROTO_EXTL),
        "extl": (AF_EXTL, 1 if kind.endswith("6") else 0),
    }
    family, protocol = words[kind[:-1]]
    fd = LIBC.socket(family, socket.SOCK_STREAM | flags, protocol)
    if fd < 0:
        raise OSError(ctypes.get_errno(), "socket")
    return socket.socket(inet(kind), socket.SOCK_STREAM, 0, fileno=fd)


def home(kind):
    return "::1" if kind.endswith("6") else "127.0.0.1"


def info(s):
    """Returns mode, reason, bytes sent and bytes received."""
    mode, reason, zero, sent, received = struct.unpack("=HHIQQ", s.getsockopt(SOL_EXTL, EXTL_INFO, 64))
    assert zero == 0
    return mode, reason, sent, received


def listener(kind, backlog=16, port=0, host=None):
    s = make(kind)
    s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    s.bind((host or home(kind), port))
    s.listen(backlog)
    return s


def pair(kind, other=None):
    """Returns both ends of a local connection: the client's socket, of this kind, and the accepted
    socket."""
    with listener(other or kind) as s:
        client = make(kind)
        client.connect(s.getsockname())
        return client, s.accept()[0]


def attempt(call, *words):
    """Returns the result of a call, or the name of its error."""
    try:
        return call(*words)
    except OSError as e:
        return errno.errorcode.get(e.errno, str(e))


def exactly(s, count):
    data = bytearray()
    while len(data) < count:
        piece = s.recv(count - len(data))
        if not piece:
            break
        data += piece
    return bytes(data)


def answer(s):
    with s:
        while data := s.recv(65536):
            s.sendall(data)


def serve(kind, port):
    s = listener(kind, port=port, host="::" if kind.endswith("6") else "0.0.0.0")
    print("ready", flush=True)
    while True:
        threading.Thread(target=answer, args=(s.accept()[0],), daemon=True).start()


def resolve(kind, host, port):
    return socket.getaddrinfo(host, port, inet(kind), socket.SOCK_STREAM)[0][4]


def echo(kind, host, port, count):
    s = make(kind)
    extl = not kind.startswith("tcp")
    if extl:
        assert info(s) == (IDLE, 0, 0, 0), info(s)
    s.settimeout(60)
    s.connect(resolve(kind, host, port))
    data = random.randbytes(count)
    got = []
    reader = threading.Thread(target=lambda: got.append(exactly(s, count)))
    reader.start()
    s.sendall(data)
    s.shutdown(socket.SHUT_WR)
    reader.join()
    assert got[0] == data, (len(got[0]), count)
    assert s.recv(1) == b""
    words = ["same"]
    if extl:
        mode, reason, *counts = info(s)
        assert counts == [count, count], counts
        words += [mode, reason]
    print(*words)


def hold(kind, count):
    ends = [pair(kind) for _ in range(count)]
    assert len(ends) == count
    print("ready", flush=True)
    while True:
        time.sleep(60)


def flood(kind, seconds, pause=0):
    """Creates and closes sockets. Sometimes pauses, on average `pause` times as long as it
    worked. Prints the number of sockets and the longest time for a socket in ms, even if the
    module is not loaded any more."""
    end, made, rng = time.monotonic() + seconds, 0, random.Random()
    busy = longest = 0
    try:
        while time.monotonic() < end:
            since = time.monotonic()
            if made % 4:
                make(kind).close()
            else:
                for s in pair(kind):
                    s.close()
            made += 1
            took = time.monotonic() - since
            longest = max(longest, took)
            # A longer time includes the loading of the module, which does not count as work.
            busy += took if took < 0.1 else 0
            if pause and made % 8 == 0:
                time.sleep(rng.uniform(0, 2 * pause) * busy)
                busy = 0
    finally:
        print(made, round(1000 * longest))


def unload(rounds, seconds, least, patience):
    SYS_DELETE_MODULE, O_NONBLOCK = 176, 2048
    began, done, longest, others = time.monotonic(), 0, 0, {}
    while done < rounds and time.monotonic() - began < (patience if done < least else seconds):
        since = time.monotonic()
        failed = LIBC.syscall(SYS_DELETE_MODULE, b"af_extl", O_NONBLOCK)
        longest = max(longest, time.monotonic() - since)
        if not failed:
            done += 1
        else:
            name = errno.errorcode[ctypes.get_errno()]
            others[name] = others.get(name, 0) + 1
            # Lets other programs run, which must load the module or close their sockets and may
            # have no other CPU.
            time.sleep(0.002)
    with open("/proc/modules") as f:
        users = [line.split()[2:5] for line in f if line.startswith("af_extl ")]
    print(done, others, round(1000 * longest), users)


def disturb(ends, seed):
    """Makes non-blocking calls for half a second on sockets that others use at the same time."""
    rng, done = random.Random(seed), 0
    end = time.monotonic() + 0.5
    while time.monotonic() < end:
        s, other = rng.choice(ends), rng.choice(ends)
        attempt(
            rng.choice([
                lambda: s.send(bytes(rng.randrange(3000)), socket.MSG_NOSIGNAL),
                lambda: s.recv(rng.randrange(4000), rng.choice([0, socket.MSG_PEEK])),
                lambda: s.getsockopt(SOL_EXTL, EXTL_INFO, 64),
                lambda: s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096),
                lambda: s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
                lambda: s.connect(other.getsockname()),
                lambda: s.bind((home("x6" if s.family == socket.AF_INET6 else "x4"), 0)),
                lambda: s.listen(2),
                lambda: s.accept()[0].close(),
                lambda: s.shutdown(rng.randrange(3)),
                lambda: select.select([s], [s], [s], 0),
                lambda: os.close(os.dup(s.fileno())),
                lambda: LIBC.connect(s.fileno(), bytes(28), 28),
            ])
        )
        done += 1
    return done


def storm(kind, seconds):
    end, done = time.monotonic() + seconds, 0
    # On a slow host the end takes the remaining time.
    while time.monotonic() < end or done <= 100:
        # All processes use the new sockets while they have no data yet.
        new = [make(kind, socket.SOCK_NONBLOCK) for _ in range(3)]
        ends = [*new, *pair(kind), listener(kind)]
        for s in ends:
            s.setblocking(False)
        children = []
        for n in range(3):
            child = os.fork()
            if not child:
                threads = [threading.Thread(target=disturb, args=(ends, 10 * n + m)) for m in range(2)]
                for thread in threads:
                    thread.start()
                for thread in threads:
                    thread.join()
                os._exit(0)
            children.append(child)
        done += disturb(ends, 99)
        # One of the processes closes last.
        for s in ends:
            s.close()
        for child in children:
            assert os.waitpid(child, 0)[1] == 0
    print(done)


if __name__ == "__main__":
    command, words = sys.argv[1], sys.argv[2:]
    if command == "serve":
        serve(words[0], int(words[1]))
    elif command == "echo":
        echo(words[0], words[1], int(words[2]), int(words[3]))
    elif command == "hold":
        hold(words[0], int(words[1]))
    elif command == "unload":
        unload(*map(float, words))
    elif command == "storm":
        storm(words[0], float(words[1]))
    else:
        flood(words[0], *map(float, words[1:]))
