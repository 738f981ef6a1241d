"""Makes the same calls on a TCP connection and on a direct connection between two nodes. Both must
give the same results.

extl_plays.py serve PORT       executes calls for clients, on sockets with the two following ports; prints "ready"
extl_plays.py play HOST PORT   runs all tests with both kinds of connections, and compares
"""
import array
import ctypes
import errno
import fcntl
import mmap
import os
import os
import select
import socket
import struct
import subprocess
import sys
import tempfile
import termios
import threading
import time

import extl

KINDS = ("tcp4", "alias4")
TCP = socket.IPPROTO_TCP
TCP_USER_TIMEOUT, TCP_INQ, SO_PEEK_OFF, SO_ZEROCOPY = 18, 36, 42, 60
MSG_ERRQUEUE, MSG_ZEROCOPY, MSG_FASTOPEN = 0x2000, 0x4000000, 0x20000000
LINGER_0 = struct.pack("ii", 1, 0)
FOREVER = 60


def until(test, what):
    end = time.monotonic() + FOREVER
    while not test():
        assert time.monotonic() < end, what
        time.sleep(0.01)


def ready(s, wanted=0):
    """Waits for the wanted events of a socket. Returns its current events."""
    poll = select.poll()
    poll.register(s, select.POLLIN | select.POLLOUT | select.POLLRDHUP)
    found = []

    def look():
        found[:] = [what for _, what in poll.poll(0)] or [0]
        return found[0] & wanted == wanted

    until(look, ("events", wanted))
    return found[0]


def unread(s):
    left = array.array("i", [0])
    fcntl.ioctl(s, termios.FIONREAD, left)
    return left[0]


def call(s, name, *words):
    """Makes a call by its name, for this or the other node."""
    known = {
        "read": lambda count: extl.exactly(s, count),
        "reset": lambda: (s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, LINGER_0), s.close()),
        "wait": lambda seconds: time.sleep(seconds),
        "slowly": lambda count: slowly(s, count),
        "at_end": lambda: at_end(s),
    }
    return extl.attempt(known.get(name) or getattr(s, name), *words)


def slowly(s, count):
    """Reads with pauses, so that senders must wait."""
    data = bytearray()
    while len(data) < count:
        time.sleep(0.01)
        piece = s.recv(20_000)
        assert piece, len(data)
        data += piece
    return bytes(data)


def at_end(s):
    """Closes as soon as the peer has closed. Returns true if the port is kept afterwards
    (TIME_WAIT)."""
    ends = [f":{name[1]:04X}" for name in (s.getsockname(), s.getpeername())]
    assert s.recv(1) == b""
    s.close()

    def state():
        with open("/proc/net/tcp") as file:
            lines = [line.split() for line in file]
        return [words[3] for words in lines if [words[1][8:], words[2][8:]] == ends]

    until(lambda: state() in ([], ["06"]), "the end")
    return state() != []


def served(control, listeners):
    files, s = control.makefile("rwb"), None
    with control:
        while line := files.readline():
            name, *words = eval(line)
            if name == "accept":
                s = listeners[words[0]].accept()[0]
                s.settimeout(None)
                said = None
            else:
                said = call(s, name, *words)
            files.write(repr(said).encode() + b"\n")
            files.flush()
    if s:
        s.close()


def serve(port):
    first = extl.listener("tcp4", port=port, host="0.0.0.0")
    listeners = {}
    for n, kind in enumerate(KINDS, 1):
        listeners[kind] = extl.listener(kind, port=port + n, host="0.0.0.0")
    print("ready", flush=True)
    while True:
        threading.Thread(target=served, args=(first.accept()[0], listeners), daemon=True).start()


class Far:
    """The program at the other end of the connection, which executes calls by name."""

    def __init__(self, host, port, kind):
        self.files = socket.create_connection((host, port)).makefile("rwb")
        self.kind, self.to = kind, (host, port + 1 + KINDS.index(kind))

    def call(self, *words):
        words = [int(word) if isinstance(word, int) else word for word in words]
        self.files.write(repr(words).encode() + b"\n")
        self.files.flush()
        return eval(self.files.readline())

    def accept(self):
        assert self.call("accept", self.kind) is None

    def close(self):
        self.files.close()


def pair(far):
    near = extl.make(far.kind)
    near.settimeout(None)
    near.connect(far.to)
    far.accept()
    # The path is decided after both ends have sent data.
    near.sendall(b"?")
    assert far.call("read", 1) == b"?"
    far.call("sendall", b"!")
    assert near.recv(1) == b"!"
    if far.kind != "tcp4":
        assert extl.info(near)[0] == extl.DIRECT, extl.info(near)
    return near


def reset_after_end(far):
    """The peer ends its direction, then resets, which affects only sending."""
    near = pair(far)
    far.call("sendall", b"last")
    far.call("shutdown", socket.SHUT_WR)
    ready(near, select.POLLRDHUP)
    said = [near.recv(10), near.recv(10)]
    far.call("reset")
    ready(near, select.POLLHUP)
    for _ in range(2):
        said += [call(near, "recv", 10), call(near, "send", b"x", socket.MSG_NOSIGNAL)]
    return said


def reset_before_end(far):
    near = pair(far)
    far.call("sendall", b"last")
    until(lambda: unread(near) == 4, "data")
    far.call("reset")
    ready(near, select.POLLHUP)
    said = []
    for _ in range(3):
        said.append(call(near, "recv", 10))
    return [*said, call(near, "send", b"x", socket.MSG_NOSIGNAL), ready(near)]


def after_the_end(far):
    """Makes calls on a socket whose connection has ended, for each way to end it."""
    said = []
    for way in ("both", "reset", "unwanted"):
        near = pair(far)
        if way == "both":
            near.shutdown(socket.SHUT_WR)
            assert far.call("read", 1) == b""
            far.call("shutdown", socket.SHUT_WR)
        elif way == "reset":
            far.call("reset")
        else:
            # Data for a closed direction are answered by a reset.
            far.call("shutdown", socket.SHUT_RDWR)
            ready(near, select.POLLRDHUP)
            near.sendall(b"x")
        ready(near, select.POLLHUP)
        until(lambda: call(near, "getpeername") == "ENOTCONN", way)
        said += [
            call(near, "recv", 10),
            call(near, "getsockopt", socket.SOL_SOCKET, socket.SO_ERROR),
            call(near, "shutdown", socket.SHUT_WR),
            call(near, "setsockopt", TCP, socket.TCP_FASTOPEN, 5),
            call(near, "bind", ("", 0)),
            call(near, "connect", far.to),
            call(near, "send", b"x", MSG_FASTOPEN | socket.MSG_NOSIGNAL),
            ready(near),
        ]
        near.close()
    return said


def port_kept(far):
    """The end that closes first keeps its port, the other does not. There are exceptions,
    because TCP's end and the stream's may overtake each other."""
    kept = []
    for _ in range(8):
        near = pair(far)
        other = threading.Thread(target=lambda: kept.append(far.call("at_end")))
        other.start()
        time.sleep(0.05)
        near.close()
        other.join()
    return kept.count(True) < 3


def hint(far):
    """TCP_INQ, including the end."""
    near = pair(far)
    near.setsockopt(TCP, TCP_INQ, 1)
    far.call("sendall", b"0123456789")
    far.call("shutdown", socket.SHUT_WR)
    ready(near, select.POLLRDHUP)
    until(lambda: unread(near) == 10, "data")
    return [near.recvmsg(n, 100)[:2] for n in (4, 6, 10)]


def nothing(far):
    """Reads of 0 bytes."""
    near, said = pair(far), []
    said.append(call(near, "recvmsg", 0, 0, socket.MSG_DONTWAIT))
    near.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", 0, 200_000))
    began = time.monotonic()
    said += [call(near, "recvmsg", 0), time.monotonic() - began > 0.1]
    far.call("sendall", b"data")
    said += [call(near, "recvmsg", 0)[0], near.recv(10)]
    far.call("shutdown", socket.SHUT_WR)
    return [*said, call(near, "recvmsg", 0)[0]]


def short_file(far):
    """sendfile() beyond the end of the file: the last data are sent at once."""
    took = []
    near = pair(far)
    with tempfile.TemporaryFile() as file:
        file.write(bytes(500))
        file.flush()
        for _ in range(6):
            began = time.monotonic()
            assert os.sendfile(near.fileno(), file.fileno(), 0, 10_000) == 500
            assert len(far.call("read", 500)) == 500
            took.append(time.monotonic() - began)
    return min(took) < 0.18 or took


def peeks(far):
    near, said = pair(far), []
    near.setsockopt(socket.SOL_SOCKET, SO_PEEK_OFF, 0)
    far.call("sendall", b"0123456789")
    until(lambda: unread(near) == 10, "data")
    for count, flags in [(3, 2), (3, 2), (2, 0), (3, 2), (1, 2), (1, 2), (4, 0), (5, 2), (9, 0)]:
        said.append(call(near, "recv", count, flags | socket.MSG_DONTWAIT))
    return [*said, near.getsockopt(socket.SOL_SOCKET, SO_PEEK_OFF)]


def completions(far):
    """MSG_ZEROCOPY: a completion for each call that sent data."""
    near, seen, copied = pair(far), set(), True
    said = [near.send(b"x", MSG_ZEROCOPY), ready(near)]
    near.setsockopt(socket.SOL_SOCKET, SO_ZEROCOPY, 1)
    for n in range(3):
        assert near.send(bytes(3000), MSG_ZEROCOPY) == 3000
    assert len(far.call("read", 9001)) == 9001
    while len(seen) < 3:
        ready(near, select.POLLERR)
        _, control, flags, _ = near.recvmsg(0, 200, MSG_ERRQUEUE)
        [(level, kind, words)] = control
        error, origin, _, code, _, low, high = struct.unpack_from("=IBBBBII", words)
        said.append((level, kind, error, origin)) if not seen else None
        seen.update(range(low, high + 1))
        copied &= code & 1
    assert far.kind == "tcp4" or copied
    near.shutdown(socket.SHUT_WR)
    said.append(call(near, "send", b"x", MSG_ZEROCOPY | socket.MSG_NOSIGNAL))
    return [*said, sorted(seen), ready(near), call(near, "recvmsg", 0, 200, MSG_ERRQUEUE)]


# Reasons: the server accepted too late, now or a short time ago.
LATE = 13, 18


def early(far, how, late):
    """shutdown() before the connection is accepted."""
    near = extl.make(far.kind)
    near.settimeout(None)
    near.connect(far.to)
    began = time.monotonic()
    near.shutdown(how)
    took = time.monotonic() - began
    # POLLOUT is not defined yet.
    said = [ready(near) & ~(select.POLLOUT if how == socket.SHUT_RD else 0)]
    if how != socket.SHUT_RD:
        said.append(call(near, "send", b"x", socket.MSG_NOSIGNAL))
    if how != socket.SHUT_WR:
        said.append(near.recv(1))
    # TCP carries the data if the connection is accepted too late.
    time.sleep(late)
    if late and far.kind != "tcp4":
        mode, reason = extl.info(near)[:2]
        assert mode == extl.TCP and reason in LATE, (mode, reason)
    far.accept()
    if how == socket.SHUT_RD:
        near.sendall(b"early")
        said.append(far.call("read", 5))
    else:
        said.append(far.call("recv", 1))
    if how == socket.SHUT_WR:
        far.call("sendall", b"late")
        said.append(extl.exactly(near, 4))
        far.call("shutdown", socket.SHUT_WR)
        said += [near.recv(1), ready(near, select.POLLHUP)]
    return [*said, took < 2]


def early_at_server(far):
    """The accepted socket ends its direction at once."""
    near = extl.make(far.kind)
    near.settimeout(None)
    near.connect(far.to)
    far.accept()
    said = [far.call("shutdown", socket.SHUT_WR), near.recv(1)]
    near.sendall(b"data")
    return [*said, far.call("read", 4), far.call("send", b"x", socket.MSG_NOSIGNAL)]


def early_or_late(far):
    said = []
    for how in (socket.SHUT_RD, socket.SHUT_WR, socket.SHUT_RDWR):
        said.append(early(far, how, 0))
    said.append(early_at_server(far))
    for how in (socket.SHUT_RD, socket.SHUT_WR, socket.SHUT_RDWR):
        said.append(early(far, how, 3))
    return said


def fast_open(far):
    """MSG_FASTOPEN on an established connection."""
    near = extl.make(far.kind)
    near.setblocking(False)
    said = [call(near, "connect", far.to)]
    far.accept()
    ready(near, select.POLLOUT)
    near.settimeout(None)
    said += [call(near, "sendto", b"data", MSG_FASTOPEN, far.to) for _ in range(2)]
    near.sendall(b"more")
    return [*said, far.call("read", 8)]


def killed(far):
    """TCP's connection is killed from outside."""
    near, said = pair(far), []
    reader = threading.Thread(target=lambda: said.append(call(near, "recv", 10)))
    reader.start()
    time.sleep(0.2)
    port = near.getsockname()[1]
    subprocess.run(["ss", "-K", "-tn", f"sport = :{port}"], check=True, stdout=subprocess.DEVNULL)
    reader.join(FOREVER)
    ready(near, select.POLLHUP)
    said += [call(near, "recv", 10), call(near, "send", b"x", socket.MSG_NOSIGNAL), ready(near)]
    return [*said, far.call("recv", 10), far.call("recv", 10)]


def lingering(far):
    """A lingering close waits until the peer has the data, not until the peer closes."""
    near = pair(far)
    near.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 20))
    near.sendall(bytes(1000))
    began = time.monotonic()
    near.close()
    took = time.monotonic() - began
    return took < 10 or took, far.call("read", 1000), far.call("recv", 1)


def cork(far):
    """TCP_CORK holds small data, and TCP_NODELAY overrides it once."""
    near = pair(far)
    held, went = set(), []
    for _ in range(6):
        near.setsockopt(TCP, socket.TCP_CORK, 1)
        near.sendall(b"cork")
        time.sleep(0.03)
        held.add(far.call("recv", 4, socket.MSG_DONTWAIT))
        began = time.monotonic()
        near.setsockopt(TCP, socket.TCP_CORK, 0)
        if b"cork" not in held:
            far.call("read", 4)
        went.append(time.monotonic() - began)
        held -= {b"cork"}
        near.setsockopt(TCP, socket.TCP_CORK, 1)
        near.sendall(b"cork")
        began = time.monotonic()
        near.setsockopt(TCP, socket.TCP_NODELAY, 1)
        far.call("read", 4)
        went.append(time.monotonic() - began)
        near.setsockopt(TCP, socket.TCP_NODELAY, 0)
        near.setsockopt(TCP, socket.TCP_CORK, 0)
    return sorted(held), min(went[::2]) < 0.15, min(went[1::2]) < 0.15


def facts(far):
    """TCP_INFO."""
    near, said = pair(far), []

    def now():
        info = near.getsockopt(TCP, socket.TCP_INFO, 300)
        acked, received = struct.unpack_from("=QQ", info, 120)
        unsent, = struct.unpack_from("=I", info, 144)
        return info[0], acked, received, unsent

    near.sendall(bytes(10_000))
    assert len(far.call("read", 10_000)) == 10_000
    far.call("sendall", bytes(3000))
    until(lambda: unread(near) == 3000, "data")
    until(lambda: now()[1] >= 10_000, "acknowledgement")
    said.append(now())
    far.call("shutdown", socket.SHUT_WR)
    ready(near, select.POLLRDHUP)
    said.append(now()[0])
    return said


# ioctl() through the interface of 32-bit programs: push rbx; mov ebx, edi; mov ecx, esi; mov eax,
# 54; int 0x80; pop rbx; ret
CODE = bytes.fromhex("53 89fb 89f1 b836000000 cd80 5b c3")


def of_32_bits(far):
    near = pair(far)
    far.call("sendall", b"12345")
    until(lambda: unread(near) == 5, "data")
    code = mmap.mmap(-1, 4096, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, 7)
    code.write(CODE)
    # The memory is below 4 GiB.
    low = mmap.mmap(-1, 4096, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x40, 3)
    address = lambda m: ctypes.addressof(ctypes.c_char.from_buffer(m))
    ioctl = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.c_uint, ctypes.c_uint)(address(code))
    said = []
    for command in (termios.FIONREAD, termios.TIOCOUTQ, 0x894B, 0x8905):
        low[:4] = b"\xff" * 4
        said.append((ioctl(near.fileno(), command, address(low)), bytes(low[:4])))
    return said


def together(far):
    """Small sends of several threads stay whole while space is scarce, including a non-blocking
    send."""
    near, each, size = pair(far), 60, 5000

    def send(letter):
        for _ in range(each):
            near.sendall(letter * size)

    threads = [threading.Thread(target=send, args=(letter,)) for letter in (b"a", b"b", b"c")]
    for thread in threads:
        thread.start()
    data = far.call("slowly", len(threads) * each * size)
    for thread in threads:
        thread.join()
    pieces = {data[n:n + size] for n in range(0, len(data), size)}
    return sorted(pieces) == [letter * size for letter in (b"a", b"b", b"c")]


PLAYS = [
    reset_after_end,
    reset_before_end,
    after_the_end,
    port_kept,
    hint,
    nothing,
    short_file,
    peeks,
    completions,
    early_or_late,
    fast_open,
    killed,
    lingering,
    cork,
    facts,
    of_32_bits,
]


def play(host, port):
    wrong = 0
    # A kernel without that interface kills the process.
    has_32_bits = os.path.exists("/proc/sys/abi/vsyscall32")
    plays = [act for act in PLAYS if act != of_32_bits or has_32_bits]
    for act in [*plays, together]:
        said = {}
        # TCP may split the sends of several threads differently.
        for kind in KINDS if act != together else KINDS[1:]:
            far = Far(host, port, kind)
            try:
                said[kind] = act(far)
            except (AssertionError, OSError, ValueError) as e:
                said[kind] = repr(e) + f" in line {e.__traceback__.tb_next.tb_lineno}"
            far.close()
        if act == together:
            said["tcp4"] = True
        if said[KINDS[0]] != said[KINDS[1]] or isinstance(said[KINDS[0]], str):
            wrong += 1
            print(act.__name__, *said.items(), sep="\n  ")
    all_of = "same" if has_32_bits else "same without 32 bits"
    print(all_of if not wrong else f"{wrong} differ")


if __name__ == "__main__":
    command, *words = sys.argv[1:]
    if command == "serve":
        serve(int(words[0]))
    else:
        play(words[0], int(words[1]))
