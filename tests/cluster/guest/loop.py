"""loop.py PEER [NAME…]: tests sockets of the module loop_family, whose data come back on the same socket. PEER is the address of another node on exn0.

Each function whose name begins with "see_" is a test. Prints a line for each.
"""
import ctypes
import errno
import fcntl
import os
import random
import select
import signal
import socket
import struct
import sys
import tempfile
import threading
import time

from extl import LIBC, attempt, exactly

FAMILY, LEVEL = 22, 0x4C50
DELAY, FAIL, RESOLVE, ROUTE, OWN_ROUTE, QUEUED, OUTLIVE = range(1, 8)
RING = 16384
SO_RCVTIMEO, SO_SNDTIMEO, SO_PEEK_OFF = 20, 21, 42
TCP_CORK, TCP_INQ = 3, 36
ALL = select.POLLIN | select.POLLOUT | select.POLLRDHUP
PEER = "10.2.0.2"
OF_NIC, UP, PLAIN, KNOWN, V6 = 1, 2, 4, 8, 16


def make(version=4, delay=0):
    fd = LIBC.socket(FAMILY, socket.SOCK_STREAM, 1 if version == 6 else 0)
    if fd < 0:
        raise OSError(ctypes.get_errno(), "socket")
    family = socket.AF_INET6 if version == 6 else socket.AF_INET
    s = socket.socket(family, socket.SOCK_STREAM, 0, fileno=fd)
    s.setsockopt(LEVEL, DELAY, delay)
    return s


def ready(s):
    poll = select.poll()
    poll.register(s, ALL)
    return dict(poll.poll(0)).get(s.fileno(), 0)


def elapsed(call, *words):
    start = time.monotonic()
    result = attempt(call, *words)
    return result, time.monotonic() - start


def limit(s, option, seconds):
    s.setsockopt(socket.SOL_SOCKET, option, struct.pack("ll", int(seconds), int(seconds % 1 * 1e6)))


def full(s):
    """Fills the ring. Returns the number of bytes."""
    sent = 0
    while (n := attempt(s.send, bytes(3000), socket.MSG_DONTWAIT)) != "EAGAIN":
        sent += n
    return sent


def same(seen, wanted):
    assert seen == wanted, f"{seen} instead of {wanted}"


def near(seen, wanted):
    assert wanted * 0.9 - 0.01 <= seen <= wanted + 2, f"took {seen} instead of {wanted}"


def see_data(version=4):
    for delay in (0, 300):
        s = make(version, delay)
        data = os.urandom(400_000)
        writer = threading.Thread(target=s.sendall, args=(data,))
        writer.start()
        same(exactly(s, len(data)) == data, True)
        writer.join()
        for n in (1, 7, 8, 4095, 4096, 4097, RING - 1, RING):
            s.sendall(data[:n])
            same(exactly(s, n) == data[:n], True)
        pieces = [data[i * 1000 : i * 1000 + 3 + i] for i in range(20)]
        same(s.sendmsg(pieces), sum(map(len, pieces)))
        rooms = [bytearray(1), bytearray(100), bytearray(300)]
        s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, 200)
        n = s.recvmsg_into(rooms)[0]
        same(b"".join(rooms)[:n] == b"".join(pieces)[:n] and n >= 200, True)
        s.close()


def see_data_v6():
    see_data(6)


def see_time_limits():
    s = make()
    same(attempt(s.recv, 5, socket.MSG_DONTWAIT), "EAGAIN")
    s.setblocking(False)
    same(attempt(s.recv, 5), "EAGAIN")
    s.setblocking(True)
    limit(s, SO_RCVTIMEO, 0.3)
    limit(s, SO_SNDTIMEO, 0.5)
    result, took = elapsed(s.recv, 5)
    same(result, "EAGAIN")
    near(took, 0.3)
    same(full(s), RING)
    result, took = elapsed(s.send, b"x")
    same(result, "EAGAIN")
    near(took, 0.5)
    # A part is sent, then the time limit ends the call.
    s.recv(100)
    result, took = elapsed(s.send, bytes(500))
    same(result, 100)
    near(took, 0.5)
    # Data that arrive during the wait end it.
    slow = make(delay=200_000)
    slow.send(b"ab")
    result, took = elapsed(slow.recv, 5)
    same(result, b"ab")
    near(took, 0.2)
    slow.send(b"abcd")
    limit(slow, SO_RCVTIMEO, 0.05)
    same(elapsed(slow.recv, 5)[0], "EAGAIN")


def interrupted(s, restart):
    """Returns the result and error of recv() with a signal after 0.2 s and data after 0.6 s."""
    signal.signal(signal.SIGALRM, lambda *_: None)
    signal.siginterrupt(signal.SIGALRM, not restart)
    timer = threading.Timer(0.6, s.send, (b"late",))
    timer.start()
    signal.setitimer(signal.ITIMER_REAL, 0.2)
    room = ctypes.create_string_buffer(10)
    n = LIBC.recv(s.fileno(), room, 10, 0)
    error = ctypes.get_errno() if n < 0 else 0
    timer.join()
    if n < 0:
        s.recv(10)
    return n, error


def see_signals():
    s = make()
    # Without a time limit, SA_RESTART resumes the call; with one it does not.
    same(interrupted(s, True), (4, 0))
    same(interrupted(s, False), (-1, errno.EINTR))
    limit(s, SO_RCVTIMEO, 50)
    same(interrupted(s, True), (-1, errno.EINTR))
    # A fatal signal kills a waiting process.
    pid = os.fork()
    if pid == 0:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        make().recv(1)
        os._exit(1)
    time.sleep(0.3)
    os.kill(pid, signal.SIGTERM)
    same(os.waitpid(pid, 0)[1], signal.SIGTERM)


def see_events():
    s = make()
    same(ready(s), select.POLLOUT)
    s.send(b"x")
    same([e for _, e in ready_in(s)], [select.POLLIN])
    same(ready(s), select.POLLIN | select.POLLOUT)
    s.recv(1)
    same(full(s), RING)
    time.sleep(0.1)
    same(ready(s), select.POLLIN)
    s.recv(RING)
    same(ready(s), select.POLLOUT)
    # Wake-ups from the softirq: poll, select and epoll, also edge-triggered.
    slow = make(delay=150_000)
    with select.epoll() as ep:
        ep.register(slow, select.EPOLLIN | select.EPOLLET)
        for wait in (lambda: ep.poll(5), lambda: select.select([slow], [], [], 5)[0], lambda: ready_in(slow)):
            slow.send(b"x")
            start = time.monotonic()
            assert wait(), "no event"
            near(time.monotonic() - start, 0.15)
            slow.recv(1)
            ep.poll(0)
            same(ep.poll(0), [])
    # One thread waits for space in poll while another reads.
    same(full(slow), RING)
    time.sleep(1)
    timer = threading.Timer(0.2, slow.recv, (5000,))
    timer.start()
    poll = select.poll()
    poll.register(slow, select.POLLOUT)
    start = time.monotonic()
    same([e for _, e in poll.poll(5000)], [select.POLLOUT])
    near(time.monotonic() - start, 0.2)
    timer.join()
    # SO_RCVLOWAT.
    s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, 100)
    s.send(bytes(99))
    time.sleep(0.05)
    same(ready(s), select.POLLOUT)
    s.send(b"x")
    same([e for _, e in ready_in(s)], [select.POLLIN])


def ready_in(s):
    poll = select.poll()
    poll.register(s, select.POLLIN)
    return poll.poll(5000)


def see_end():
    s = make(delay=100_000)
    s.send(b"rest")
    s.shutdown(socket.SHUT_WR)
    same(ready(s), select.POLLOUT)
    same(ready_in(s) != [], True)
    same(s.recv(100, socket.MSG_WAITALL), b"rest")
    same(s.recv(100), b"")
    same(ready(s), select.POLLIN | select.POLLOUT | select.POLLRDHUP | select.POLLHUP)
    # SIGPIPE is raised once, except with MSG_NOSIGNAL.
    count = []
    old = signal.signal(signal.SIGPIPE, lambda *_: count.append(1))
    same(attempt(s.send, b"x", socket.MSG_NOSIGNAL), "EPIPE")
    same(len(count), 0)
    same(attempt(s.send, b"x"), "EPIPE")
    same(len(count), 1)
    signal.signal(signal.SIGPIPE, old)
    # The end wakes a waiting reader.
    s = make()
    threading.Timer(0.2, s.shutdown, (socket.SHUT_RD,)).start()
    result, took = elapsed(s.recv, 1)
    same(result, b"")
    near(took, 0.2)


def see_errors():
    def pending(s):
        return s.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)

    s = make(delay=100_000)
    s.setsockopt(LEVEL, FAIL, errno.ECONNRESET)
    result, took = elapsed(s.recv, 1)
    same(result, "ECONNRESET")
    near(took, 0.1)
    same(pending(s), 0)
    # An event reports the error once.
    s.setsockopt(LEVEL, FAIL, errno.ETIMEDOUT)
    same([e & select.POLLERR for _, e in ready_in(s)], [select.POLLERR])
    same((pending(s), pending(s)), (errno.ETIMEDOUT, 0))
    # A writer that waits for space gets the error too. The first error is kept.
    full(s)
    time.sleep(0.6)
    s.setsockopt(LEVEL, FAIL, errno.EHOSTUNREACH)
    result, took = elapsed(s.send, b"x")
    same(result, "EHOSTUNREACH")
    near(took, 0.1)
    for e in (errno.EHOSTDOWN, errno.ENETDOWN):
        s.setsockopt(LEVEL, FAIL, e)
        time.sleep(0.2)
    same(pending(s), errno.EHOSTDOWN)
    # Invalid options on the same socket.
    same(attempt(s.setsockopt, LEVEL, 99, 1), "ENOPROTOOPT")
    same(attempt(s.setsockopt, LEVEL, DELAY, b"x"), "EINVAL")


def see_sigio():
    count = []
    signal.signal(signal.SIGIO, lambda *_: count.append(1))
    s = make(delay=100_000)
    fcntl.fcntl(s, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(s, fcntl.F_SETFL, fcntl.fcntl(s, fcntl.F_GETFL) | os.O_ASYNC | os.O_NONBLOCK)

    def after(wanted, what):
        deadline = time.monotonic() + 2
        while not count and time.monotonic() < deadline:
            time.sleep(0.01)
        assert bool(count) == wanted, f"{what}: {len(count)} signals"
        count.clear()

    s.send(b"x")
    after(True, "data")
    # SIGIO for space is sent only after a call found none.
    s.recv(1)
    after(False, "room")
    full(s)
    time.sleep(1)
    count.clear()
    s.recv(100)
    after(True, "room that was missed")
    s.recv(100)
    after(False, "room again")
    s.setsockopt(LEVEL, FAIL, errno.ECONNRESET)
    after(True, "error")
    s.shutdown(socket.SHUT_WR)
    after(True, "end")


def see_receive_flags():
    s = make()
    s.send(b"0123456789")
    time.sleep(0.05)
    same(s.recv(4, socket.MSG_PEEK), b"0123")
    same(s.recv(20, socket.MSG_PEEK), b"0123456789")
    s.setsockopt(socket.SOL_SOCKET, SO_PEEK_OFF, 2)
    same((s.recv(3, socket.MSG_PEEK), s.recv(3, socket.MSG_PEEK)), (b"234", b"567"))
    same(s.recv(4), b"0123")
    same(s.recv(3, socket.MSG_PEEK), b"89")
    s.setsockopt(socket.SOL_SOCKET, SO_PEEK_OFF, -1)
    # Data are discarded without memory to receive them.
    same(LIBC.recv(s.fileno(), None, 3, socket.MSG_TRUNC), 3)
    same(s.recv(9), b"789")
    # MSG_WAITALL returns all data, although they arrive in parts.
    slow = make(delay=100_000)
    slow.send(b"ab")
    threading.Timer(0.3, slow.send, (b"cd",)).start()
    same(slow.recv(4, socket.MSG_WAITALL), b"abcd")
    # TCP_INQ reports the number of unread bytes.
    s.setsockopt(socket.SOL_TCP, TCP_INQ, 1)
    s.send(bytes(50))
    time.sleep(0.05)
    data, control = s.recvmsg(20, 100)[:2]
    same((len(data), control), (20, [(socket.SOL_TCP, TCP_INQ, struct.pack("i", 30))]))
    same(s.recvmsg(20)[2] & ~socket.MSG_CTRUNC, 0)


def see_bad_memory():
    s = make()
    same(LIBC.send(s.fileno(), ctypes.c_void_p(8), 10, 0), -1)
    same(ctypes.get_errno(), errno.EFAULT)
    # A mapped page and an unmapped one: data of the mapped page are sent, because the remainder
    # would be an error.
    libc = LIBC
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
    at = libc.mmap(None, 8192, 3, 0x22, -1, 0)
    libc.munmap(ctypes.c_void_p(at + 4096), ctypes.c_size_t(4096))
    ctypes.memset(ctypes.c_void_p(at), 0x5A, 4096)
    edge = ctypes.c_void_p(at + 4096 - 60)
    same(LIBC.send(s.fileno(), edge, 100, socket.MSG_DONTWAIT), 60)
    same(exactly(s, 60), b"\x5a" * 60)
    s.send(b"y" * 100)
    time.sleep(0.05)
    same(LIBC.recv(s.fileno(), ctypes.c_void_p(8), 10, 0), -1)
    same(ctypes.get_errno(), errno.EFAULT)
    same(LIBC.recv(s.fileno(), edge, 100, 0), 60)
    same(ctypes.string_at(edge, 60), b"y" * 60)
    # No byte was lost.
    same(exactly(s, 40), b"y" * 40)


def see_control():
    """Control messages that TCP rejects are rejected; others are accepted."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        tcp = socket.create_connection(server.getsockname())
        s = make()
        seen = []
        for level, kind, value in (
            (socket.SOL_SOCKET, 9999, b""),
            (socket.SOL_SOCKET, socket.SCM_RIGHTS, struct.pack("i", 0)),
            (socket.SOL_SOCKET, socket.SO_MARK, struct.pack("i", 5)),
            (socket.SOL_SOCKET, socket.SO_MARK, b"x"),
            (socket.SOL_IP, socket.IP_TOS, struct.pack("i", 4)),
        ):
            results = [attempt(x.sendmsg, [b"x"], [(level, kind, value)]) for x in (tcp, s)]
            same(results[1], results[0])
            seen.append(results[0])
        assert 1 in seen and "EINVAL" in seen, seen


def see_splice():
    s = make(delay=1000)
    data = os.urandom(150_000)
    with tempfile.TemporaryFile() as file:
        file.write(data)
        file.flush()
        writer = threading.Thread(target=s.sendfile, args=(file,), kwargs={"offset": 0})
        writer.start()
        inlet, outlet = os.pipe()
        got, end = bytearray(), 0
        while len(got) < len(data):
            n = os.splice(s.fileno(), outlet, 30_000)
            assert n > 0
            got += os.read(inlet, n)
        writer.join()
        same(bytes(got) == data, True)
        # From a pipe to the socket.
        os.write(outlet, data[:9000])
        same(os.splice(inlet, s.fileno(), 9000), 9000)
        same(exactly(s, 9000) == data[:9000], True)
        # Non-blocking.
        s.setblocking(False)
        same(attempt(os.splice, s.fileno(), outlet, 10), "EAGAIN")
        os.close(inlet)
        os.close(outlet)


def see_closes():
    def close_after(linger):
        s = make(delay=400_000)
        s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", *linger))
        s.send(b"x")
        return elapsed(s.close)[1]

    near(close_after((0, 0)), 0)
    near(close_after((1, 0)), 0)
    near(close_after((1, 5)), 0.4)
    # A process that exits does not linger.
    start = time.monotonic()
    pid = os.fork()
    if pid == 0:
        s = make(delay=5_000_000)
        s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 20))
        s.send(b"x")
        os._exit(0)
    os.waitpid(pid, 0)
    assert time.monotonic() - start < 4
    # A path that outlives its socket must not wake any process.
    probe = make()
    before = struct.unpack("i", probe.getsockopt(LEVEL, OUTLIVE, 4))[0]
    for _ in range(20):
        s = make()
        s.setsockopt(LEVEL, OUTLIVE, 1)
        s.close()
        time.sleep(0.04)
    after = struct.unpack("i", probe.getsockopt(LEVEL, OUTLIVE, 4))[0]
    assert after - before >= 15, f"{after - before} of 20"


def route(s, option=ROUTE):
    raw = s.getsockopt(LEVEL, option, 40)
    index, flags, error = struct.unpack("=III", raw[:12])
    return index, flags, error, raw[12:18].hex(":"), raw[18:24].hex(":"), raw[24:].rstrip(b"\0").decode()


def shown(words):
    return os.popen(words).read().split()


def see_route():
    exn = socket.if_nametoindex("exn0")
    mine = shown("cat /sys/class/net/exn0/address")[0]
    os.system("ip neigh flush dev exn0; ip -6 neigh flush dev exn0")
    # The address is unknown, because it was not requested yet and the socket is non-blocking.
    s = make()
    s.setblocking(False)
    attempt(s.connect, (PEER, 9))
    index, flags, error, mac, _, name = route(s)
    same((index, flags, error, mac, name), (exn, OF_NIC | UP | PLAIN, errno.EAGAIN, mine, "exn0"))
    os.system("ip neigh flush dev exn0")
    s = make()
    s.setsockopt(LEVEL, RESOLVE, 5000)
    same(attempt(s.connect, (PEER, 9)), "ECONNREFUSED")
    index, flags, error, mac, theirs, name = route(s)
    same((index, flags, error, mac, name), (exn, OF_NIC | UP | PLAIN | KNOWN, 0, mine, "exn0"))
    known = shown(f"ip neigh show {PEER} dev exn0")
    assert theirs in known, (theirs, known)
    # Tests IPv6 too: a mapped address, and a link-local address through the interface.
    s = make(6)
    s.setsockopt(LEVEL, RESOLVE, 5000)
    attempt(s.connect, ("::ffff:" + PEER, 9))
    same(route(s)[:5], (exn, OF_NIC | UP | PLAIN | KNOWN, 0, mine, theirs))
    first, rest = theirs.split(":", 1)
    octets = [int(first, 16) ^ 2] + [int(o, 16) for o in rest.split(":")]
    link = "fe80::%x:%xff:fe%02x:%x" % (octets[0] << 8 | octets[1], octets[2], octets[3], octets[4] << 8 | octets[5])
    s = make(6)
    s.setsockopt(LEVEL, RESOLVE, 5000)
    attempt(s.connect, (link, 9, 0, exn))
    same(route(s)[:5], (exn, OF_NIC | UP | PLAIN | KNOWN | V6, 0, mine, theirs))
    s = make(6)
    attempt(s.connect, (link, 9))
    same(attempt(route, s), "EINVAL")
    # Routes without a NIC.
    lo = socket.if_nametoindex("lo")
    for version, host in ((4, "127.0.0.1"), (6, "::1"), (4, "0.0.0.0"), (6, "::")):
        s = make(version)
        attempt(s.connect, (host, 9))
        index, flags = route(s)[:2]
        same((index, flags & ~KNOWN), (lo, UP | PLAIN | (V6 if version == 6 else 0)))
    # Routes that depend on socket options.
    s = make()
    s.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, b"lo")
    s.setblocking(False)
    attempt(s.connect, (PEER, 9))
    seen = attempt(route, s)
    assert seen[0] == lo if isinstance(seen, tuple) else seen.startswith("E"), seen
    s = make(6)
    s.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
    attempt(s.connect, ("::ffff:" + PEER, 9))
    same(attempt(route, s), "ENETUNREACH")
    s = make()
    attempt(s.connect, ("224.0.0.1", 9))
    same(attempt(route, s), "ENETUNREACH")
    # Tests an absent host, and a program that is killed while it waits.
    nobody = PEER.rsplit(".", 1)[0] + ".77"
    s = make()
    s.setsockopt(LEVEL, RESOLVE, 300)
    s.setblocking(False)
    result, took = elapsed(s.connect, (nobody, 9))
    near(took, 0.3)
    same(route(s)[2], errno.ETIMEDOUT)
    s = make()
    s.setsockopt(LEVEL, RESOLVE, 20_000)
    s.setblocking(False)
    result, took = elapsed(s.connect, (nobody, 9))
    same(route(s)[2], errno.EHOSTUNREACH)
    assert took < 10, took
    same(attempt(make().getsockopt, LEVEL, OWN_ROUTE, 40), "ENOTCONN")


def child(run):
    """Runs a function in a child process, and reports its error."""
    inlet, outlet = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            run()
        except Exception as e:
            os.write(outlet, f"{type(e).__name__} {e}".encode()[:4000])
        os._exit(0)
    os.close(outlet)
    os.waitpid(pid, 0)
    wrong = os.read(inlet, 4000).decode()
    os.close(inlet)
    same(wrong, "")


def see_namespace():
    """Routes are those of the socket's namespace, not of the process's."""

    def elsewhere():
        mine = make()
        mine.setblocking(False)
        same(LIBC.unshare(0x40000000), 0)
        s = make()
        attempt(s.connect, (PEER, 9))
        same(attempt(route, s), "ENETUNREACH")
        attempt(mine.connect, (PEER, 9))
        same(route(mine)[5], "exn0")

    child(elsewhere)


def see_storm():
    """Threads make all calls at once, and their processes are killed. The module can be unloaded
    only if all resources are released."""
    end = time.monotonic() + 6

    def work(sockets):
        while True:
            s = random.choice(sockets)
            act = random.randrange(9)
            if act < 3:
                attempt(s.send, bytes(random.randrange(9000)), random.choice((0, socket.MSG_DONTWAIT)))
            elif act < 6:
                attempt(s.recv, random.randrange(1, 9000), random.choice((0, socket.MSG_DONTWAIT, socket.MSG_PEEK | socket.MSG_DONTWAIT)))
            elif act == 6:
                ready(s)
            elif act == 7:
                attempt(s.setsockopt, LEVEL, random.choice((DELAY, OUTLIVE, DELAY)), random.randrange(900))
            elif random.randrange(40) == 0:
                attempt(s.setsockopt, LEVEL, FAIL, errno.ECONNRESET)
            elif random.randrange(200) == 0:
                attempt(s.shutdown, random.randrange(3))

    rounds = 0
    while time.monotonic() < end:
        pids = []
        for _ in range(2):
            pids.append(os.fork())
            if pids[-1] == 0:
                sockets = [make(random.choice((4, 6)), random.randrange(2000)) for _ in range(3)]
                for _ in range(4):
                    threading.Thread(target=work, args=(sockets,)).start()
                time.sleep(60)
        time.sleep(random.random())
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        rounds += 1
    assert rounds >= 3, rounds


def see_interfaces_on_top():
    os.system("ip link add link exn0 name top0 type macvlan mode private && ip addr add 10.77.0.1/24 dev top0 && ip link set top0 up")
    try:
        s = make()
        s.setblocking(False)
        attempt(s.connect, ("10.77.0.2", 9))
        index, flags = route(s)[:2]
        same((index, flags & OF_NIC), (socket.if_nametoindex("top0"), 0))
    finally:
        os.system("ip link del top0")


def see_connections():
    # A TCP connection to this node: its data are TCP's at the other end.
    for version, host in ((4, "127.0.0.1"), (6, "::1")):
        with socket.create_server((host, 0), family=socket.AF_INET6 if version == 6 else socket.AF_INET) as server:
            s = make(version)
            s.connect(server.getsockname())
            other = server.accept()[0]
            same(route(s, OWN_ROUTE)[0], socket.if_nametoindex("lo"))
            same(s.getsockopt(LEVEL, QUEUED, 6), struct.pack("=IBB", 0, 0, 0))
            other.send(bytes(1234))
            # TCP wakes waiting processes.
            time.sleep(0.1)
            same(s.getsockopt(LEVEL, QUEUED, 6), struct.pack("=IBB", 1234, 0, 0))
            s.setsockopt(socket.SOL_TCP, TCP_CORK, 1)
            other.close()
            time.sleep(0.1)
            same(s.getsockopt(LEVEL, QUEUED, 6), struct.pack("=IBB", 1234, 1, 1))
            s.close()


def main():
    global PEER
    PEER = sys.argv[1]
    names = sys.argv[2:] or [n for n in globals() if n.startswith("see_")]
    wrong = 0
    for name in names:
        start = time.monotonic()
        try:
            globals()[name]()
            print(f"{name}: right ({time.monotonic() - start:.1f} s)", flush=True)
        except Exception as e:
            wrong += 1
            at = e.__traceback__
            while at.tb_next and "loop.py" in at.tb_next.tb_frame.f_code.co_filename:
                at = at.tb_next
            print(f"{name}: line {at.tb_lineno}: {type(e).__name__} {e}", flush=True)
    sys.exit(wrong > 0)


if __name__ == "__main__":
    main()
