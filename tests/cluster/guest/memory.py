#!/usr/bin/env python3
"""Registered memory that its process changes, as root: `memory.py COMMAND [ARG…]`."""
import glob
from device import *

HUGE = 2 << 20


def call(name, *args):
    """Makes a system call with addresses and numbers."""
    f = getattr(libc, name)
    arguments, result = f.argtypes, f.restype
    f.argtypes, f.restype = None, ctypes.c_void_p
    r = f(*[ctypes.c_void_p(a) for a in args])
    f.argtypes, f.restype = arguments, result
    if r == 2**64 - 1:
        raise OSError(ctypes.get_errno(), name)
    return r


def until(what, f):
    end = time.time() + PATIENCE
    while not f():
        check(f"{what} in time", time.time() < end)
        time.sleep(0.01)


def gauge(name):
    """Returns a value in the debugfs file of the address translation unit."""
    for path in glob.glob("/sys/kernel/debug/extoll-*/atu"):
        for line in open(path).read().splitlines():
            if line.startswith(name + " "):
                return int(line.split()[1])
    raise AssertionError(f"no {name}")


class Reader:
    """Reads registered memory through the NIC."""

    def __init__(self, size):
        self.rma, self.size, self.sink = Rma(), size, memory(size // PAGE)
        self.to = self.rma.register(self.sink, size // PAGE)

    def fetch(self, nla):
        """Reads the memory by the NIC. Returns true if all of it was read."""
        ctypes.memset(self.sink, 0, self.size)
        self.rma.fetch(self.rma.node, self.rma.vpid, nla, self.to, self.size)
        return self.rma.wait()[1] >> 61 == 0

    def reads(self, what, nla, data):
        check(f"{what} is read", self.fetch(nla))
        check(what, ctypes.string_at(self.sink, self.size), data)


def changed(what):
    """Registers memory, changes it as `what` says, and checks what the NIC reads before and afterwards."""
    huge, shared = what in ("huge", "protect"), what in ("pageout", "none", "punch", "shrink")
    size = HUGE if huge else 64 << 10
    raw = call("mmap", 0, size + 3 * HUGE, 3, 0x22, 2**64 - 1, 0)
    at = (raw + HUGE - 1) & ~(HUGE - 1)
    if huge:
        call("madvise", at, 2 * HUGE, 14)
    if shared:
        file = os.memfd_create("memory")
        os.ftruncate(file, size)
        at = map_fd(file, size, 0)
    old, new = pattern(size, 1), pattern(size, 2)

    def entered():
        with open("/proc/self/pagemap", "rb") as f:
            f.seek(at // PAGE * 8)
            return sum(n >> 63 for (n,) in struct.iter_unpack("=Q", f.read(size // PAGE * 8)))

    fill(at, old)
    if what == "huge":
        ctypes.memset(at + HUGE, 1, HUGE)
    reader = Reader(size)
    own = gauge("pages")
    if what == "exit":
        # Memory of a child, registered by the same open file.
        (there, told), (over, end) = os.pipe(), os.pipe()
        pid = os.fork()
        if pid == 0:
            os.write(told, struct.pack("=Q", reader.rma.register(at, size // PAGE)))
            os.read(over, 1)
            os._exit(0)
        nla = struct.unpack("=Q", os.read(there, 8))[0]
    else:
        nla = reader.rma.register(at, size // PAGE)
    if huge:
        check("huge pages", gauge("nlps_2048KiB"), 1)
    reader.reads("memory", nla, old)
    if shared:
        # Removes the page table entries; the pages stay, because they are pinned.
        if what == "none":
            call("mprotect", at, size, 0)
        check("entered pages", entered(), size // PAGE)
        for _ in range(100):
            # Pages on a list of another processor are not reclaimed yet.
            call("madvise", at, size, 21)
            if not entered():
                break
            time.sleep(0.05)
        check("entered pages", entered(), 0)
        time.sleep(0.3)
    if what == "pageout":
        fill(at, new)
    elif what == "punch":
        call("madvise", at, PAGE, 9)
    elif what == "shrink":
        os.ftruncate(file, size - PAGE)
    elif what == "protect":
        # Splits the huge page and makes half of it inaccessible.
        call("mprotect", at, HUGE // 2, 0)
        time.sleep(0.3)
    elif what == "munmap":
        call("munmap", at + PAGE, PAGE)
    elif what == "mremap":
        call("mremap", at, size, size, 3, raw if at - raw > size else at + size + HUGE)
    elif what == "dontneed":
        call("madvise", at, PAGE, 4)
    elif what == "huge":
        call("munmap", at + HUGE, PAGE)
    elif what == "fork":
        check("child", child(fill, at, bytes(size)), 0)
        fill(at, new)
    elif what == "exit":
        os.write(end, b"x")
        os.waitpid(pid, 0)
    if what in ("fork", "pageout"):
        reader.reads("changed memory", nla, new)
    elif what == "none" or huge:
        reader.reads("memory that is still there", nla, old)
    else:
        if what in ("dontneed", "punch", "shrink"):
            until("the region ends", lambda: not reader.fetch(nla))
        check("lost memory is read", reader.fetch(nla), False)
        # The pages are released although no process unregisters the memory.
        until("the pages are unpinned", lambda: gauge("pages") == own)
    reader.rma.close()


def gigantic(*starts):
    """Registers a page of 1 GiB and reads parts of it."""
    size, part = 1 << 30, 65536
    at = call("mmap", 0, size, 3, 0x40022 | 30 << 26, 2**64 - 1, 0)
    reader = Reader(part)
    nla = reader.rma.register(at, size // PAGE)
    check("gigantic pages", gauge("nlps_1048576KiB"), 1)
    for start in map(int, starts):
        data = pattern(part, start)
        fill(at + start, data)
        reader.reads(f"part at {start}", nla + start, data)
    reader.rma.unregister(nla, size // PAGE)
    check("gigantic pages afterwards", gauge("nlps_1048576KiB"), 0)
    reader.rma.close()


def refused():
    """Tries to register addresses that cannot be registered."""
    pages = 256
    size = pages * PAGE
    at, read_only = memory(pages), map_fd(-1, size, 0, mmap.PROT_READ, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    r = Rma()
    r.unregister(r.register(at, pages), pages)
    fails("unaligned", errno.EINVAL, r.register, at + 8, 1)
    fails("not mapped", errno.EFAULT, r.register, 4096, 1)
    fails("kernel", errno.EFAULT, r.register, 2**64 - (1 << 40), 1)
    fails("read-only", errno.EFAULT, r.register, read_only, pages)
    call("munmap", at + size // 2, PAGE)
    fails("with a hole", errno.EFAULT, r.register, at, pages)
    r.close()


if __name__ == "__main__":
    main(changed, gigantic, refused)
