#!/usr/bin/env python3
"""Fragments of memory that extoll_bench pins: `pieces.py WORDS BYTES`.

WORDS names a peer's memory of BYTES bytes."""
import ctypes, errno, mmap, os, random, resource, sys

PAGE = 4096


class Memory:
    """Pages of this process that fragments are taken from."""

    def __init__(self, pages, prot=mmap.PROT_READ | mmap.PROT_WRITE):
        self.map = mmap.mmap(-1, pages * PAGE, prot=prot)
        self.view = memoryview(self.map)
        self.address = None
        if prot & mmap.PROT_WRITE:
            self.address = ctypes.addressof(ctypes.c_char.from_buffer(self.map))
            assert self.address % PAGE == 0

    def pieces(self, list):
        return [self.view[at : at + n] for at, n in list]


def command(fd, text, views=()):
    """Writes a command followed by memory. Returns the lines of its result."""
    os.writev(fd, [text.encode() + b"\n", *views])
    return lines(fd)


def lines(fd):
    return dict(line.split(" ", 1) for line in os.read(fd, 65536).decode().splitlines())


def fetch(fd, text, views):
    """Lets a command fetch into memory. Returns the lines of its result."""
    os.writev(fd, [text.encode() + b"\n"])
    n = os.readv(fd, views)
    assert n == sum(len(v) for v in views), n
    return lines(fd)


def refused(error, call, *args):
    try:
        r = call(*args)
    except OSError as e:
        assert e.errno == error, e
        return
    raise AssertionError(f"not refused: {r}")


def expected(pieces):
    """Returns fragments (page in the list, offset, length) and the number of pages for a list of
    ranges (start, length)."""
    joined = []
    for at, n in pieces:
        if n == 0:
            continue
        if joined and sum(joined[-1]) == at:
            joined[-1][1] += n
        else:
            joined.append([at, n])
    out, pages = [], 0
    for at, n in joined:
        if out and at % PAGE == 0 and sum(out[-1][1:]) + out[-1][0] * PAGE == pages * PAGE:
            out[-1][2] += n
        else:
            out.append([pages, at % PAGE, n])
        pages += (at % PAGE + n + PAGE - 1) // PAGE
    return out, pages


def compare(shown, pieces):
    fragments, pages = expected(pieces)
    number = range(min(16, len(fragments)))
    got = [[int(x) for x in shown[f"fragment{i}"].split()] for i in number]
    assert got == fragments[:16], (got, fragments)
    last = fragments[-1]
    want = {
        "fragments": len(fragments),
        "pages": pages,
        "offset": fragments[0][1],
        "bytes": sum(n for _, n in pieces),
        "span": last[0] * PAGE + last[1] + last[2] - fragments[0][1],
    }
    assert {k: int(shown[k]) for k in want} == want, (shown, want)


def places(fd):
    """Checks pages and runs without a transfer."""
    m = Memory(40)
    for pieces in [
        [(0, PAGE)],
        [(100, 7)],
        [(4090, 12)],
        [(100, 3 * PAGE)],
        # Two ranges that are adjacent in memory, and one that is not.
        [(100, 50), (150, 50), (300, 50)],
        # Ranges that are adjacent in the list: one ends at a page boundary, the next starts at
        # one.
        [(PAGE + 10, PAGE - 10), (9 * PAGE, 2 * PAGE), (20 * PAGE, 5)],
        [(0, 0), (5, 5), (0, 0), (3 * PAGE + 1, 1), (0, 0)],
        [(i * 8000 % (39 * PAGE), 1 + i) for i in range(100)],
    ]:
        shown = command(fd, "pieces dir=put", m.pieces(pieces))
        compare(shown, pieces)
        compare(fetch(fd, "pieces", m.pieces(pieces)), pieces)
    aligned = m.pieces([(PAGE + 10, PAGE - 10), (9 * PAGE, 7)])
    strict = command(fd, "pieces dir=put strict=1", aligned)
    assert strict == {"pages": "2", "offset": "10", "bytes": str(PAGE - 3)}, strict
    for gap in [[(0, 10), (PAGE, 10)], [(0, PAGE), (2 * PAGE + 1, 10)]]:
        refused(errno.EINVAL, command, fd, "pieces dir=put strict=1", m.pieces(gap))
        assert lines(fd)["error"].startswith("cannot pin"), "no reason"


def bad_memory(fd):
    libc = ctypes.CDLL(None, use_errno=True)
    m = Memory(4)
    libc.munmap(ctypes.c_void_p(m.address + PAGE), ctypes.c_size_t(PAGE))
    refused(errno.EFAULT, command, fd, "pieces dir=put", m.pieces([(10, 2 * PAGE)]))
    # A device must not write memory that the process may not write.
    libc.mprotect(ctypes.c_void_p(m.address + 2 * PAGE), ctypes.c_size_t(PAGE), mmap.PROT_READ)
    refused(errno.EFAULT, fetch, fd, "pieces", m.pieces([(2 * PAGE + 5, 10)]))
    command(fd, "pieces dir=put", m.pieces([(2 * PAGE + 5, 10)]))
    refused(errno.EINVAL, command, fd, "status", m.pieces([(0, 5)]))


def limits(fd):
    """An ordinary user can pin no more than the limit."""
    pid = os.fork()
    if pid == 0:
        resource.setrlimit(resource.RLIMIT_MEMLOCK, (8 * PAGE, 8 * PAGE))
        os.setuid(12345)
        m = Memory(16)
        for word in ["", "strict=1"]:
            command(fd, f"pieces dir=put {word}", m.pieces([(100, 7 * PAGE)]))
            more = m.pieces([(100, 8 * PAGE)])
            refused(errno.ENOMEM, command, fd, f"pieces dir=put {word}", more)
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0


def data(fd, peer, size):
    """Sends fragments, and fetches them into others."""
    rng = random.Random(size)
    here, there = Memory(64), Memory(64)
    for _ in range(6):
        out, into, total = [], [], 0
        at = rng.randrange(100)
        while total < size // 2 and at < 60 * PAGE:
            n = rng.choice([1, 7, 8, 100, 496, 500, PAGE, 5000])
            out.append((at, n))
            total += n
            at += n + rng.choice([0, 0, 1, 300, PAGE])
        here.map[:] = rng.randbytes(64 * PAGE)
        sent = b"".join(bytes(v) for v in here.pieces(out))
        shown = command(fd, f"pieces dir=put {peer} offset=8", here.pieces(out))
        assert shown["result"] == "ok", shown
        left, at = total, rng.randrange(PAGE)
        while left:
            n = min(left, rng.choice([3, 64, 1000, PAGE, 9000]))
            into.append((at, n))
            left -= n
            at += n + rng.choice([0, 1, 77])
        there.map[:] = before = rng.randbytes(64 * PAGE)
        shown = fetch(fd, f"pieces dir=get {peer} offset=8", there.pieces(into))
        assert shown["result"] == "ok", shown
        assert b"".join(bytes(v) for v in there.pieces(into)) == sent, "other bytes came back"
        # The memory around them is unchanged.
        wanted = bytearray(before)
        at = 0
        for a, n in into:
            wanted[a : a + n] = sent[at : at + n]
            at += n
        assert bytes(wanted) == bytes(there.map), "bytes between the pieces have changed"
    status = open("/proc/self/status").read()
    assert "VmPin:\t       0 kB" in status, "something stays pinned"


def main():
    peer, size = sys.argv[1], int(sys.argv[2])
    fd = os.open("/dev/extoll_bench", os.O_RDWR)
    places(fd)
    bad_memory(fd)
    limits(fd)
    data(fd, peer, size)
    print("done")


main()
