"""The device files of the NIC for programs of the nodes, and shared helpers.

Uses only ioctl, mmap and 8-byte stores, like librma and libvelo.
"""
import ctypes, errno, fcntl, json, mmap, os, random, resource, select, signal, struct, sys, time

libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
libc.ioctl.argtypes = [ctypes.c_int, ctypes.c_ulong, ctypes.c_ulong]
PAGE = 4096
RW = mmap.PROT_READ | mmap.PROT_WRITE
USER = 65534
PATIENCE = 20


def check(what, got, want=True):
    if got != want:
        kind = "wrong data: " if isinstance(want, bytes) else ""
        raise AssertionError(f"{what}: {kind}got {got!r}, want {want!r}")


def fails(what, want, f, *args):
    try:
        got = f(*args)
    except OSError as e:
        check(what, errno.errorcode.get(e.errno), errno.errorcode[want])
        return
    raise AssertionError(f"{what}: succeeded with {got!r}, want {errno.errorcode[want]}")


def ior(magic, nr, size):
    return 2 << 30 | size << 16 | magic << 8 | nr


def iow(magic, nr, size):
    return 1 << 30 | size << 16 | magic << 8 | nr


def K(nr, size=4, get=True):
    return (ior if get else iow)(ord("k"), nr, size)


INFO, ARM = ior(0xE7, 0, 48), iow(0xE7, 1, 8)


MARKS, MARK = 8, 0xFF8


def load(address):
    return ctypes.c_uint64.from_address(address).value


def store(address, value):
    ctypes.c_uint64.from_address(address).value = value & (1 << 64) - 1


def map_fd(fd, length, offset, prot=RW, flags=mmap.MAP_SHARED):
    address = libc.mmap(None, length, prot, flags, fd, offset)
    if address == ctypes.c_void_p(-1).value:
        raise OSError(ctypes.get_errno(), "mmap")
    return address


def memory(pages):
    """Returns private anonymous memory."""
    return map_fd(-1, pages * PAGE, 0, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)


class Device:
    def __init__(self, name, flags=os.O_RDWR, vpid=None):
        """Opens a device file. With a VPID, opens it again until this VPID is assigned, because VPIDs
        are assigned in turn."""
        for _ in range(600):
            self.fd = os.open(f"/dev/extoll/{name}", flags | os.O_CLOEXEC)
            self.maps = []
            if vpid is None or self.info()["vpid"] == vpid:
                # Only these files accept descriptors and have the flag.
                told = name.split(".")[0] in ("velo2", "rma2")
                self.marks = told and self.info()["flags"] & MARKS != 0
                return
            os.close(self.fd)
        raise AssertionError(f"{name}: VPID {vpid} does not come")

    def ioctl(self, command, arg=0):
        result = libc.ioctl(self.fd, command, arg)
        if result < 0:
            raise OSError(ctypes.get_errno(), f"ioctl {command:#x}")
        return result

    def fence(self, page):
        """Fences a descriptor. Must be called after each descriptor. A real CPU writes its buffers
        back before the slow interpreter continues, but an emulator needs an explicit fence."""
        if self.marks:
            store(page + MARK, 0)

    def get(self, command):
        # Pre-filled, because all 8 bytes must be stored whatever size the code encodes.
        value = ctypes.c_uint64(0xAAAA_AAAA_AAAA_AAAA)
        self.ioctl(command, ctypes.addressof(value))
        return value.value

    def info(self):
        raw = ctypes.create_string_buffer(48)
        self.ioctl(INFO, ctypes.addressof(raw))
        names = "version flags nic node vpid pages slot_bytes slots protection"
        return dict(zip(names.split(), struct.unpack("12I", raw.raw)))

    def map(self, length, offset, prot=RW):
        address = map_fd(self.fd, length, offset, prot)
        self.maps.append((address, length))
        return address

    def close(self):
        for address, length in self.maps:
            libc.munmap(address, length)
        os.close(self.fd)


class Rma(Device):
    def __init__(self, queue=256 << 10, vpid=None):
        super().__init__("rma2", vpid=vpid)
        self.ioctl(K(2, get=False), 64 << 10)
        self.ioctl(K(1, get=False), queue)
        check("queue size", self.get(K(0)), queue)
        self.node, self.vpid = self.get(K(8)), self.get(K(9))
        self.slots, self.rp, self.sent = queue // 16, 0, 0
        self.queue_map(queue)
        self.pages = self.map(32 * PAGE, 0, mmap.PROT_WRITE)
        self.state = self.map(PAGE, 0x20000)
        store(self.state, 0)

    def queue_map(self, queue):
        self.rp_page = self.map(queue + PAGE, 0x21000)
        self.queue = self.rp_page + PAGE
        self.ioctl(K(4, get=False), 0)
        self.ioctl(K(5, get=False), 0)
        self.rp, self.slots = 0, queue // 16

    def register(self, address, pages):
        raw = bytearray(80)
        size = pages * PAGE
        struct.pack_into("=QQIIQQ", raw, 16, address, 0, pages, 0, address + size, size)
        raw = (ctypes.c_char * 80).from_buffer(raw)
        self.ioctl(K(10, 8, False), ctypes.addressof(raw))
        return struct.unpack_from("=Q", raw, 24)[0]

    def unregister(self, nla, pages):
        raw = bytearray(80)
        struct.pack_into("=QQIIQQ", raw, 16, 0, nla, pages, 0, 0, pages * PAGE)
        raw = (ctypes.c_char * 80).from_buffer(raw)
        self.ioctl(K(11, 8, False), ctypes.addressof(raw))

    def post(self, page, w0, w1, w2):
        at = self.pages + page * PAGE
        for i, w in enumerate((w0, w1, w2)):
            store(at + 8 * i, w)
        self.fence(at)

    def put(self, node, vpid, local, remote, size, spec=1 | 4, page=16):
        self.post(page, 3 | 2 << 2 | vpid << 8 | node << 16 | spec << 32 | (size - 1) << 40, local, remote)

    def fetch(self, node, vpid, remote, local, size, spec=4, page=16):
        self.post(page, 3 | vpid << 8 | node << 16 | spec << 32 | (size - 1) << 40, remote, local)

    def notify(self, node, vpid, value, kind=7, spec=4, page=16):
        self.post(page, 3 | 5 << 2 | vpid << 8 | node << 16 | spec << 32 | kind << 40, value, 0)

    def lock(self, node, vpid, number, add, spec=4, page=16):
        """Adds a number to a lock unconditionally. The completer executes the command."""
        self.post(page, 3 | 12 << 2 | vpid << 8 | node << 16 | spec << 32, 0x7FFF_FFFF << 32 | number, (add & 0xFFFF_FFFF) << 32)

    def take(self):
        """Returns the next notification (word 0, word 1), or None."""
        at = self.queue + 16 * self.rp
        w1 = load(at + 8)
        if w1 == 0:
            return None
        w0 = load(at)
        store(at + 8, 0)
        self.rp = (self.rp + 1) % self.slots
        store(self.rp_page, self.rp)
        return w0, w1

    def wait(self, patience=PATIENCE):
        end = time.time() + patience
        while time.time() < end:
            n = self.take()
            if n:
                return n
            time.sleep(0.001)
        raise AssertionError("no notification in time")

    def wait_type(self, kind):
        w0, w1 = self.wait()
        check("errors in the notification", w1 >> 61, 0)
        check("type of the notification", w1 >> 48 & 7, kind)
        return w0, w1


class Velo(Device):
    def __init__(self, vpid=None):
        super().__init__("velo2", vpid=vpid)
        self.node, self.vpid = self.get(K(12, 8)), self.get(K(4, 8))
        self.slot = self.get(K(21))
        size = self.get(K(5, 8))
        self.box = self.map(size + PAGE, 0x10000)
        self.page = self.map(2 * PAGE, 0)
        self.slots, self.rp = size // self.slot, 0

    def send(self, node, vpid, data, tag=0, irq=False):
        words = [node | vpid << 16 | irq << 34 | tag << 40 | len(data) << 48]
        data = data + bytes(-len(data) % 8)
        words += struct.unpack(f"={len(data) // 8}Q", data)
        for i, w in enumerate(words):
            store(self.page + 8 * i, w)
        self.fence(self.page)

    def take(self):
        at = self.box + PAGE + self.slot * self.rp
        status = load(at + self.slot - 8)
        if status == 0:
            return None
        size = status >> 48 & 0xFFF
        start = at + self.slot - 8 - (size + 7) // 8 * 8
        data = ctypes.string_at(start, size)
        store(at + self.slot - 8, 0)
        self.rp = (self.rp + 1) % self.slots
        store(self.box, self.rp)
        return status & 0xFFFF, status >> 16 & 0xFF, data

    def wait(self, patience=PATIENCE):
        end = time.time() + patience
        while time.time() < end:
            m = self.take()
            if m:
                return m
            time.sleep(0.001)
        raise AssertionError("no message in time")


def pattern(n, seed):
    return random.Random(seed).randbytes(n)


def fill(address, data):
    ctypes.memmove(address, data, len(data))


def child(f, *args, uid=None):
    """Runs f in a child process, possibly as another user. Returns its exit status, or the negative
    number of the signal that killed it."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            if uid is not None:
                become(uid)
            f(*args)
            code = 0
        except BaseException as e:
            print(f"{f.__name__}: {type(e).__name__} {e}", file=sys.stderr, flush=True)
        os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def become(uid):
    os.setgroups([])
    os.setgid(uid)
    os.setuid(uid)


def dies_by(what, number, f, *args):
    check(what, child(f, *args), -number)


def main(*functions):
    """Runs the function named by the first argument with the other arguments. `--user UID` in
    front of them selects a user. The exit status is 0 if all checks succeeded."""
    commands = {f.__name__: f for f in functions}
    args = sys.argv[1:]
    if args and args[0] == "--user":
        become(int(args[1]))
        args = args[2:]
    try:
        commands[args[0]](*args[1:])
    except (AssertionError, OSError) as e:
        import traceback

        traceback.print_exc()
        sys.exit(f"{args[0]}: {e}")
