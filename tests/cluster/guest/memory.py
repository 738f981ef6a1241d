#!/usr/bin/env python3
"""Memory of a process that extoll_bench registers: `memory.py COMMAND [ARG…]`. Tells by files /tmp/mem-NAME how far it is, and waits
for such files."""
import ctypes, errno, os, resource, struct, sys, time

PAGE, HUGE = 4096, 2 << 20
libc = ctypes.CDLL(None, use_errno=True)


def call(name, *args):
    """A system call with addresses and numbers."""
    f = getattr(libc, name)
    f.restype = ctypes.c_void_p
    r = f(*[ctypes.c_void_p(a) for a in args])
    if r == 2**64 - 1:
        raise OSError(ctypes.get_errno(), name)
    return r


def tell(name, text=""):
    with open("/tmp/mem-new", "w") as f:
        f.write(text)
    os.rename("/tmp/mem-new", "/tmp/mem-" + name)


def wait(name):
    for _ in range(1200):
        if os.path.exists("/tmp/mem-" + name):
            return
        time.sleep(0.05)
    sys.exit("nobody said " + name)


def pattern(seed, start, size):
    """What extoll_bench compares with, from byte `start` of the region on."""
    out = bytearray()
    for i in range(start // 8, (start + size) // 8):
        x = ((i ^ seed) * 0x9E37_79B9_7F4A_7C15) & (2**64 - 1)
        out += (x ^ (x >> 29)).to_bytes(8, "little")
    return bytes(out)


def offer(at, size):
    """Registers memory; the file that keeps it so."""
    fd = os.open("/dev/extoll_bench", os.O_RDWR)
    os.write(fd, f"offer kind=user start={at} bytes={size}".encode())
    tell("offer", os.read(fd, 4096).decode())
    return fd


def pinned():
    """The line of the pages that the process has pinned."""
    status = open("/proc/self/status").read()
    return [line for line in status.splitlines() if line.startswith("VmPin")][0]


def changed(what, size, seed):
    """Offers memory, and does something to it when it is told to go on."""
    size, seed = int(size), int(seed)
    span = size + 3 * HUGE
    raw = call("mmap", 0, span, 3, 0x22, 2**64 - 1, 0)
    at = (raw + HUGE - 1) & ~(HUGE - 1)
    shared = what in ("pageout", "none", "punch", "shrink")
    if what in ("huge", "protect"):
        call("madvise", at, 2 * HUGE, 14)
    if shared:
        file = os.memfd_create("memory")
        os.ftruncate(file, size)
        at = call("mmap", 0, size, 3, 1, file, 0)

    def fill(seed):
        ctypes.memmove(at, pattern(seed, 0, size), size)

    def entered():
        with open("/proc/self/pagemap", "rb") as f:
            f.seek(at // PAGE * 8)
            return sum(n >> 63 for (n,) in struct.iter_unpack("=Q", f.read(size // PAGE * 8)))

    fill(seed)
    if what == "huge":
        ctypes.memset(at + HUGE, 1, HUGE)
    fd = offer(at, size)
    wait("go")
    if shared:
        # Takes the page table entries away, while the pages stay: they are pinned.
        if what == "none":
            call("mprotect", at, size, 0)
        if entered() != size // PAGE:
            sys.exit("not all pages are entered")
        for _ in range(100):
            # Not those that another processor is still about to put into a list.
            call("madvise", at, size, 21)
            if not entered():
                break
            time.sleep(0.05)
        else:
            sys.exit(f"{entered()} pages are still entered")
        time.sleep(0.3)
    if what == "pageout":
        fill(seed + 1)
    elif what == "punch":
        call("madvise", at, PAGE, 9)
    elif what == "shrink":
        os.ftruncate(file, size - PAGE)
    elif what == "protect":
        # The huge page is split, and half of it cannot be accessed any more.
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
        if os.fork() == 0:
            fill(seed + 1000)
            tell("child")
            wait("quit")
            os._exit(0)
        wait("child")
        fill(seed + 1)
    elif what == "exit":
        tell("done")
        sys.exit(0)
    tell("done", pinned())
    wait("quit")
    os.close(fd)


def gigantic(*starts):
    """Offers a page of 1 GiB with the pattern in some places."""
    size = 1 << 30
    at = call("mmap", 0, size, 3, 0x40022 | 30 << 26, 2**64 - 1, 0)
    for start in map(int, starts):
        data = pattern(7, start, 65536)
        ctypes.memmove(at + start, data, len(data))
    fd = offer(at, size)
    wait("quit")
    os.close(fd)


def limits():
    """Limits as an unprivileged process meets them, and addresses that cannot be."""
    size = 1 << 20
    at = call("mmap", 0, size, 3, 0x22, 2**64 - 1, 0)
    read_only = call("mmap", 0, size, 1, 0x22, 2**64 - 1, 0)
    fd = os.open("/dev/extoll_bench", os.O_RDWR)

    def register(start, bytes, access="rw"):
        try:
            os.write(fd, f"offer kind=user start={start} bytes={bytes} access={access}".encode())
        except OSError as e:
            return errno.errorcode[e.errno]
        os.write(fd, b"withdraw")
        return "ok"

    def want(what, got, expected):
        if got != expected:
            sys.exit(f"{what}: {got} instead of {expected}")

    want("plain", register(at, size), "ok")
    want("unaligned", register(at + 8, 4096), "EINVAL")
    want("wraps around", register(2**64 - 4096, 8192), "EINVAL")
    want("not mapped", register(4096, 4096), "EFAULT")
    want("kernel", register(2**64 - (1 << 40), 4096), "EFAULT")
    want("read-only for writing", register(read_only, size), "EFAULT")
    want("read-only for reading", register(read_only, size, "r"), "ok")
    call("munmap", at + size // 2, 4096)
    want("with a hole", register(at, size), "EFAULT")
    resource.setrlimit(resource.RLIMIT_MEMLOCK, (65536, 65536))
    want("privileged", register(at, 131072), "ok")
    os.setresuid(65534, 65534, 65534)
    want("over the limit", register(at, 131072), "ENOMEM")
    want("within the limit", register(at, 65536), "ok")
    for _ in range(200):
        want("again", register(at, 65536), "ok")
    want("pinned at the end", pinned().split()[1], "0")


if __name__ == "__main__":
    commands = {f.__name__: f for f in (changed, gigantic, limits)}
    commands[sys.argv[1]](*sys.argv[2:])
