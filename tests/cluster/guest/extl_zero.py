"""Large calls on sockets of AF_EXTL, whose data must not be copied.

extl_zero.py serve PORT              serves clients of this program; prints "ready"
extl_zero.py move HOST PORT SEED     sends and receives with calls of many sizes and alignments, and compares
extl_zero.py aligned HOST PORT N     sends and receives N times 1 MiB by one call each; prints the uncopied bytes of both ends
extl_zero.py interrupted HOST PORT   signals, time-outs and resets end calls early: exactly the returned length was sent
extl_zero.py memory HOST PORT        forks, and unmaps memory, while it is being sent; sends with little lockable memory
extl_zero.py hold HOST PORT          sends to a peer that never reads; prints "ready", and in the end the error
extl_zero.py later HOST PORT N       sends N times 1 MiB with MSG_ZEROCOPY; prints the copied and the uncopied bytes
extl_zero.py polled HOST PORT        sends 2 MiB by non-blocking calls of 8 KiB with MSG_ZEROCOPY; prints the uncopied bytes
extl_zero.py shared HOST PORT        kills a child during a call on a connection that it shares; prints "ready" before
extl_zero.py files HOST PORT         sends from mapped files and receives into them; some are truncated
"""
import ctypes
import errno
import hashlib
import mmap
import os
import random
import resource
import select
import signal
import socket
import struct
import sys
import threading
import time

import extl

HEAD = struct.Struct("=QIIIB")
# Requests of a client. READS: the server reads by calls. SENDS: it sends by calls. LATE: it reads up
# to the end after one second or the given number of seconds. RESETS: it resets the connection after
# the given number of seconds.
READS, SENDS, LATE, RESETS = 0, 1, 2, 3
MIB = 1 << 20
LIBC = ctypes.CDLL(None, use_errno=True)


class Memory:
    """Memory that starts at an offset within a page."""

    def __init__(self, count, offset=0):
        # The mapping is private, so that children get copies.
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        self.map = mmap.mmap(-1, count + offset + mmap.PAGESIZE, flags=flags)
        self.view = memoryview(self.map)[offset : offset + count]

    def address(self):
        return ctypes.addressof(ctypes.c_char.from_buffer(self.view))


def data_of(seed, count):
    return random.Random(seed).randbytes(count)


def digest(data):
    return hashlib.sha256(data).digest()


def read_by_calls(s, count, call, offset):
    """Reads by calls of a given size, into memory with an offset."""
    memory = Memory(count, offset)
    done = 0
    while done < count:
        most = min(call, count - done)
        flags = socket.MSG_WAITALL if (done // call) % 2 == 0 else 0
        n = s.recv_into(memory.view[done : done + most], most, flags)
        if n == 0:
            break
        done += n
    return memory.view[:done]


def send_by_calls(s, data, call, offset):
    memory = Memory(len(data), offset)
    memory.view[:] = data
    for at in range(0, len(data), call):
        s.sendall(memory.view[at : at + call])
    # The data were sent, so later contents do not matter.
    memory.view[:] = bytes(len(data))


def serve_one(s):
    with s:
        while head := s.recv(HEAD.size, socket.MSG_WAITALL):
            count, seed, call, offset, what = HEAD.unpack(head)
            if what == READS:
                got = read_by_calls(s, count, call, offset)
                s.sendall(digest(got) + struct.pack("=Q", len(got)))
            elif what == SENDS:
                send_by_calls(s, data_of(seed, count), call, offset)
            elif what == RESETS:
                time.sleep(count)
                s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("=ii", 1, 0))
                break
            else:
                time.sleep(count or 1)
                hashed, total = hashlib.sha256(), 0
                while piece := s.recv(300_000):
                    hashed.update(piece)
                    total += len(piece)
                s.sendall(hashed.digest() + struct.pack("=Q", total))


def serve_until_over(s):
    try:
        serve_one(s)
    except OSError:
        # The client has closed the connection.
        pass


def serve(port):
    listener = extl.listener("alias4", port=port, host="0.0.0.0")
    print("ready", flush=True)
    while True:
        s, _ = listener.accept()
        threading.Thread(target=serve_until_over, args=(s,), daemon=True).start()


def connected(host, port):
    s = extl.make("alias4")
    s.connect(extl.resolve("alias4", host, port))
    return s


def answer(s, data):
    said = extl.exactly(s, 40)
    assert said == digest(data) + struct.pack("=Q", len(data)), (len(data), struct.unpack("=Q", said[32:]))


def give(s, data, call, offset, there=(MIB, 0)):
    """Sends, and compares with the data that the server read."""
    s.sendall(HEAD.pack(len(data), 0, *there, READS))
    send_by_calls(s, data, call, offset)
    answer(s, data)


def take(s, seed, count, call, offset, there=(MIB, 0)):
    s.sendall(HEAD.pack(count, seed, *there, SENDS))
    got = read_by_calls(s, count, call, offset)
    assert bytes(got) == data_of(seed, count), ("received something else", count, call, offset)


def columns(s):
    """Returns the kernel's entry for this end."""
    with open("/proc/net/extl", encoding="ascii") as lines:
        names = next(lines).split()
        inode = str(os.fstat(s.fileno()).st_ino)
        for line in lines:
            row = dict(zip(names, line.split()))
            if row["inode"] == inode:
                return row
    raise AssertionError("no such socket")


def move(host, port, seed):
    s = connected(host, port)
    sizes = [MIB, 2 * MIB + 17, 300_000, 262_144, 5_000]
    for n, count in enumerate(sizes):
        for offset in (0, 16, 4095):
            for call in (count, 400_000):
                there = ((MIB, 0), (count, 16), (700_001, 77))[(n + offset) % 3]
                seed += 1
                give(s, data_of(seed, count), call, offset, there)
                take(s, seed, count, call, offset, there)
    assert extl.info(s)[0] == 3
    print("same")


def aligned(host, port, times):
    s = connected(host, port)
    for n in range(times):
        give(s, data_of(n, MIB), MIB, 0)
        take(s, n, MIB, MIB, 0)
    row = columns(s)
    print(row["lent"], row["sunk"])


def raw_send(s, memory, count):
    n = LIBC.send(s.fileno(), ctypes.c_void_p(memory.address()), ctypes.c_size_t(count), 0)
    return n if n >= 0 else -ctypes.get_errno()


def interrupted(host, port):
    for way in ("signal", "timeout", "killed later"):
        s = connected(host, port)
        count = 4 * MIB
        data = data_of(len(way), count)
        memory = Memory(count)
        memory.view[:] = data
        s.sendall(HEAD.pack(0, 0, 0, 0, LATE))
        if way == "timeout":
            s.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("=qq", 0, 300_000))
        else:
            signal.signal(signal.SIGALRM, lambda *_: None)
            signal.siginterrupt(signal.SIGALRM, True)
            signal.setitimer(signal.ITIMER_REAL, 0.3)
        began = time.monotonic()
        n = raw_send(s, memory, count)
        took = time.monotonic() - began
        # Unsent memory must not be read any more, so it is overwritten.
        memory.view[:] = bytes(count)
        if n < 0:
            assert n in (-errno.EINTR, -errno.EAGAIN), (way, n)
            n = 0
        assert n < count, (way, n)
        assert took < 0.9, (way, "was not ended", took)
        s.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("=qq", 0, 0))
        memory.view[: count - n] = data[n:]
        s.sendall(memory.view[: count - n])
        s.shutdown(socket.SHUT_WR)
        answer(s, data)
        print(way, n, file=sys.stderr)
    reset(host, port)
    print("same")


def reset(host, port):
    """A call that waits fails when the connection is reset, while it waits for the peer or for
    leased memory."""
    for flags, lent in ((0, 0), (MSG_ZEROCOPY, 4)):
        s = connected(host, port)
        s.setsockopt(socket.SOL_SOCKET, SO_ZEROCOPY, 1)
        s.sendall(HEAD.pack(3, 0, 0, 0, RESETS))
        # The peer has no space for later data.
        s.setblocking(False)
        try:
            while True:
                s.send(bytes(4096))
        except BlockingIOError:
            s.setblocking(True)
        memory = Memory(MIB)
        said = []
        try:
            while len(said) < 10:
                said.append(s.send(memory.view, flags))
        except ConnectionResetError:
            said.append("reset")
        assert said == [MIB] * lent + ["reset"], (flags, said)


def memory(host, port):
    s = connected(host, port)
    count = 3 * MIB
    # A child gets copies of the pages, whether it writes to them or not.
    data = data_of(1, count)
    lent = Memory(count)
    lent.view[:] = data
    s.sendall(HEAD.pack(0, 0, 0, 0, LATE))
    sender = threading.Thread(target=s.sendall, args=(lent.view,))
    sender.start()
    time.sleep(0.2)
    child = os.fork()
    if child == 0:
        lent.view[:] = bytes(count)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    sender.join()
    s.shutdown(socket.SHUT_WR)
    answer(s, data)
    # The memory is unmapped while it is being sent.
    s = connected(host, port)
    s.sendall(HEAD.pack(0, 0, 0, 0, LATE))
    at = LIBC.mmap
    at.restype = ctypes.c_void_p
    start = at(None, ctypes.c_size_t(MIB), 3, 0x22, -1, ctypes.c_long(0))
    ctypes.memmove(start, data, MIB)
    sent = []
    sender = threading.Thread(
        target=lambda: sent.append(LIBC.send(s.fileno(), ctypes.c_void_p(start), ctypes.c_size_t(MIB), 0))
    )
    sender.start()
    time.sleep(0.2)
    assert LIBC.munmap(ctypes.c_void_p(start), ctypes.c_size_t(MIB)) == 0
    sender.join()
    s.shutdown(socket.SHUT_WR)
    assert sent == [MIB], sent
    answer(s, data[:MIB])
    # Data of a user without lockable memory are copied.
    child = os.fork()
    if child == 0:
        try:
            resource.setrlimit(resource.RLIMIT_MEMLOCK, (0, 0))
            os.setuid(65_534)
            s = connected(host, port)
            give(s, data, MIB, 0)
            take(s, 7, count, MIB, 0)
            assert columns(s)["lent"] == "0" and columns(s)["sunk"] == "0", columns(s)
        except BaseException as e:
            print(repr(e), file=sys.stderr, flush=True)
            os._exit(1)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    # Leased memory counts once against the limit, also in calls with a completion.
    child = os.fork()
    if child == 0:
        try:
            resource.setrlimit(resource.RLIMIT_MEMLOCK, (MIB * 3 // 2, MIB * 3 // 2))
            os.setuid(65_534)
            s = connected(host, port)
            s.setsockopt(socket.SOL_SOCKET, SO_ZEROCOPY, 1)
            s.sendall(HEAD.pack(0, 0, 0, 0, LATE))
            lent = Memory(MIB)
            lent.view[:] = data[:MIB]
            assert s.send(lent.view, MSG_ZEROCOPY) == MIB
            s.shutdown(socket.SHUT_WR)
            answer(s, data[:MIB])
            assert columns(s)["lent"] == str(MIB), columns(s)
        except BaseException as e:
            print(repr(e), file=sys.stderr, flush=True)
            os._exit(1)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    print("same")


SO_ZEROCOPY, MSG_ZEROCOPY, IP_RECVERR = 60, 0x4000000, 11
# struct sock_extended_err: errno, origin, type, code, padding, info, data.
EXTENDED = struct.Struct("=IBBBBII")
ORIGIN_ZEROCOPY, CODE_COPIED = 5, 1


def completions(s):
    """Returns the range of completed calls and the flag "copied", or None without a completion."""
    try:
        _, control, _, _ = s.recvmsg(0, 512, socket.MSG_ERRQUEUE)
    except BlockingIOError:
        return None
    kind = (socket.SOL_IP, IP_RECVERR)
    # An address may follow the structure.
    [said] = [EXTENDED.unpack_from(data) for level, what, data in control if (level, what) == kind]
    number, origin, _, code, _, first, last = said
    assert (number, origin) == (0, ORIGIN_ZEROCOPY), said
    return range(first, last + 1), code & CODE_COPIED


def later(host, port, times):
    s = connected(host, port)
    s.setsockopt(socket.SOL_SOCKET, SO_ZEROCOPY, 1)
    data = data_of(times, times * MIB)
    pieces = [Memory(MIB) for _ in range(times)]
    s.sendall(HEAD.pack(0, 0, 0, 0, LATE))
    began = time.monotonic()
    waiting, copied = set(), 0
    first = None
    for n, piece in enumerate(pieces):
        piece.view[:] = data[n * MIB : (n + 1) * MIB]
        assert s.send(piece.view, MSG_ZEROCOPY) == MIB
        waiting.add(n)
        first = first or time.monotonic() - began
        if n == 0:
            # The peer does not read yet, and the ring is shorter than the data.
            assert first < 0.8, first
            assert completions(s) is None
    s.shutdown(socket.SHUT_WR)
    while waiting:
        if (some := completions(s)) is None:
            with select.epoll() as poll:
                poll.register(s, 0)
                assert poll.poll(20), waiting
            continue
        over, code = some
        assert waiting.issuperset(over), (waiting, over)
        waiting.difference_update(over)
        copied += len(over) * code
        for n in over:
            # The memory belongs to the program again.
            pieces[n].view[:] = bytes(MIB)
    row = columns(s)
    answer(s, data)
    print(copied, row["lent"])


def polled(host, port):
    s = connected(host, port)
    s.setsockopt(socket.SOL_SOCKET, SO_ZEROCOPY, 1)
    count, call = 2 * MIB, 8192
    data = data_of(9, count)
    memory = Memory(count)
    memory.view[:] = data
    s.sendall(HEAD.pack(0, 0, 0, 0, LATE))
    done = calls = 0
    with select.epoll() as poll:
        poll.register(s, select.EPOLLOUT)
        while done < count:
            [(_, events)] = poll.poll(20) or [(0, 0)]
            while completions(s):
                pass
            if events & select.EPOLLOUT:
                # A call after POLLOUT must not fail for lack of space.
                flags = MSG_ZEROCOPY | socket.MSG_DONTWAIT
                done += s.send(memory.view[done : done + call], flags)
                calls += 1
            else:
                assert events, "nothing comes"
    assert calls <= count // 512, calls
    s.shutdown(socket.SHUT_WR)
    answer(s, data)
    print(columns(s)["lent"])


def shared(host, port):
    s = connected(host, port)
    # The other end reads later.
    s.sendall(HEAD.pack(6, 0, 0, 0, LATE))
    data = data_of(13, 8 * MIB)
    memory = Memory(len(data))
    memory.view[:] = data
    child = os.fork()
    if child == 0:
        s.sendall(memory.view)
        os._exit(0)
    time.sleep(0.3)
    print("ready", flush=True)
    # Waits until the peer's node does not answer any more.
    sys.stdin.readline()
    os.kill(child, signal.SIGKILL)
    began = time.monotonic()
    assert os.waitpid(child, 0)[1] == signal.SIGKILL
    took = time.monotonic() - began
    assert 1.9 < took < 5, took
    # The connection survives for other processes, and continues behind the data that the peer has
    # received.
    s.sendall(b"behind")
    s.shutdown(socket.SHUT_WR)
    said = extl.exactly(s, 40)
    [total] = struct.unpack("=Q", said[32:])
    assert 6 <= total <= len(data) + 6, total
    assert said[:32] == digest(data[: total - 6] + b"behind"), total
    print(f"{took:.1f} {total}", flush=True)


def files(host, port):
    count = 2 * MIB
    data = data_of(5, count)
    for where in ("/tmp", "/dev/shm"):
        path = f"{where}/extl_zero.{os.getpid()}"
        with open(path, "w+b") as file:
            file.write(data)
            file.flush()
            s = connected(host, port)
            # Sends from a file, with a shared and with a private mapping.
            for flags in (mmap.MAP_SHARED, mmap.MAP_PRIVATE):
                mapped = mmap.mmap(file.fileno(), count, flags=flags)
                s.sendall(HEAD.pack(count, 0, MIB, 0, READS))
                s.sendall(mapped)
                answer(s, data)
            # Receives into a file.
            mapped = mmap.mmap(file.fileno(), count, flags=mmap.MAP_SHARED)
            s.sendall(HEAD.pack(count, 11, MIB, 0, SENDS))
            done = 0
            while done < count:
                done += s.recv_into(memoryview(mapped)[done:], count - done, socket.MSG_WAITALL)
            file.seek(0)
            assert file.read() == data_of(11, count), where
            # The truncated part is missing; the data before it are sent.
            file.truncate(MIB)
            start = ctypes.addressof(ctypes.c_char.from_buffer(mapped))
            # A new connection, because the server would not answer.
            s = connected(host, port)
            s.sendall(HEAD.pack(0, 0, 0, 0, LATE))
            sent = LIBC.send(s.fileno(), ctypes.c_void_p(start), ctypes.c_size_t(count), 0)
            assert sent == MIB, (where, sent, ctypes.get_errno())
            at = ctypes.c_void_p(start + MIB)
            sent = LIBC.send(s.fileno(), at, ctypes.c_size_t(MIB), 0)
            assert (sent, ctypes.get_errno()) == (-1, errno.EFAULT), (where, sent)
            s.shutdown(socket.SHUT_WR)
            answer(s, data_of(11, count)[:MIB])
        os.unlink(path)
    print("same")


def hold(host, port):
    s = connected(host, port)
    s.sendall(HEAD.pack(0, 0, 0, 0, LATE))
    lent = Memory(64 * MIB)
    # Waits until data are in flight.
    threading.Timer(0.3, lambda: print("ready", flush=True)).start()
    try:
        while True:
            s.sendall(lent.view)
    except OSError as e:
        print(errno.errorcode[e.errno], flush=True)


def main(words):
    what, *rest = words
    if what == "serve":
        serve(int(rest[0]))
    host, port = rest[0], int(rest[1])
    calls = {"interrupted": interrupted, "memory": memory, "hold": hold, "files": files, "polled": polled, "shared": shared}
    if what == "move":
        move(host, port, int(rest[2]))
    elif what in ("aligned", "later"):
        {"aligned": aligned, "later": later}[what](host, port, int(rest[2]))
    else:
        calls[what](host, port)


if __name__ == "__main__":
    main(sys.argv[1:])
