#!/usr/bin/env python3
"""Exercises the device files of the NIC inside a node: `uapi.py COMMAND [ARG…]`. Exit status 0 means that all was as it should be.

Talks to the kernel by ioctl, mmap and 8-byte stores only, as librma and libvelo do.
"""
import ctypes, errno, fcntl, json, mmap, os, random, select, signal, struct, sys, time

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
        raise AssertionError(f"{what}: got {got!r}, want {want!r}")


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
    """Own anonymous memory."""
    return map_fd(-1, pages * PAGE, 0, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)


class Device:
    def __init__(self, name, flags=os.O_RDWR):
        self.fd = os.open(f"/dev/extoll/{name}", flags | os.O_CLOEXEC)
        self.maps = []

    def ioctl(self, command, arg=0):
        result = libc.ioctl(self.fd, command, arg)
        if result < 0:
            raise OSError(ctypes.get_errno(), f"ioctl {command:#x}")
        return result

    def get(self, command):
        # Filled with ones before: all 8 bytes have to be stored, whatever size the code tells.
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
    def __init__(self, queue=256 << 10):
        super().__init__("rma2")
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

    def put(self, node, vpid, local, remote, size, spec=1 | 4, page=16):
        self.post(page, 3 | 2 << 2 | vpid << 8 | node << 16 | spec << 32 | (size - 1) << 40, local, remote)

    def fetch(self, node, vpid, remote, local, size, spec=4, page=16):
        self.post(page, 3 | vpid << 8 | node << 16 | spec << 32 | (size - 1) << 40, remote, local)

    def notify(self, node, vpid, value, kind=7, spec=4, page=16):
        self.post(page, 3 | 5 << 2 | vpid << 8 | node << 16 | spec << 32 | kind << 40, value, 0)

    def take(self):
        """The next notification (word 0, word 1), or None."""
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
    def __init__(self):
        super().__init__("velo2")
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
    """Runs f in a process of its own, perhaps as another user; its exit status, or minus the signal."""
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


# ---- scenarios


def abi():
    """Numbers, sizes and error codes of the vendor's ABI."""
    r = Device("rma2")
    check("default queue size", r.get(K(0)), 2 << 20)
    check("default segment size", r.get(K(3)), 64 << 10)
    check("nodes, VPIDs", (r.get(K(12)), r.get(K(13))), (65536, 256))
    fails("size that is no page multiple", errno.EFAULT, r.ioctl, K(1, get=False), 4097)
    fails("foreign magic", errno.ENOTTY, r.ioctl, ior(ord("x"), 0, 4), 0)
    fails("number 27", errno.ENOTTY, r.ioctl, K(27), 0)
    check("number 26", r.ioctl(K(26), 0), 0)
    check("unknown word", r.ioctl(K(0, 16), 0), 0)
    fails("bad pointer", errno.EFAULT, r.ioctl, K(0), 8)
    fails("31 requester pages", errno.EINVAL, r.map, 31 * PAGE, 0)
    fails("2 state pages", errno.EINVAL, r.map, 2 * PAGE, 0x20000)
    fails("short queue", errno.EINVAL, r.map, 2 << 20, 0x21000)
    r.ioctl(K(2, get=False), PAGE)
    r.ioctl(K(1, get=False), 1024 * PAGE)
    fails("1024 segments", errno.EINVAL, r.map, 1025 * PAGE, 0x21000)
    fails("private mapping", errno.EINVAL, map_fd, r.fd, PAGE, 0x20000, RW, mmap.MAP_PRIVATE)
    fails("write pointer without queue", errno.EFAULT, r.ioctl, K(4, get=False), 5)
    r.close()
    v = Device("velo2")
    check("nodes, processes", (v.get(K(20)), v.get(K(19))), (1024, 256))
    check("mailbox, segment", (v.get(K(5, 8)), v.get(K(7, 8))), (2 << 20, 64 << 10))
    check("slot size", v.get(K(21)) in (64, 128))
    fails("number 22", errno.ENOTTY, v.ioctl, K(22), 0)
    check("no effect", v.ioctl(K(9, get=False), 1), 0)
    check("identity", v.get(K(18, 8)), v.get(K(12, 8)) | v.get(K(4, 8)) << 16)
    fails("1 requester page", errno.EINVAL, v.map, PAGE, 0)
    v.close()
    s = Device("smfu2")
    check("node", s.get(K(2, 8)), s.get(K(2, 8)))
    fails("number 3", errno.ENOTTY, s.ioctl, K(3, 8), 0)
    s.close()


def loop_back():
    """PUT, GET and notifications to oneself; everything is compared."""
    r = Rma()
    a, b = memory(260), memory(260)
    nla_a, nla_b = r.register(a, 260), r.register(b, 260)
    for n, (size, skew) in enumerate([(1, 0), (8, 1), (119, 3), (496, 0), (497, 7), (4096, 0), (4097, 5), (1 << 20, 9)]):
        data = pattern(size, n)
        fill(a + skew, data)
        ctypes.memset(b, 0, 260 * PAGE)
        r.put(r.node, r.vpid, nla_a + skew, nla_b + skew + 1, size)
        r.wait_type(1)
        w0, w1 = r.wait_type(4)
        check("total size", w0 - (nla_b + skew + 1) + (w1 & 0x7FFFFF) + 1, size)
        check(f"PUT of {size}", ctypes.string_at(b + skew, size + 2), b"\0" + data + b"\0")
        ctypes.memset(a, 0, 260 * PAGE)
        r.fetch(r.node, r.vpid, nla_b + skew + 1, nla_a + skew + 1, size, spec=6)
        r.wait_type(2)
        r.wait_type(4)
        check(f"GET of {size}", ctypes.string_at(a + skew, size + 2), b"\0" + data + b"\0")
    r.notify(r.node, r.vpid, 0x1234_5678_9ABC_DEF0)
    w0, w1 = r.wait_type(4)
    check("notification PUT", (w0, w1 & 0xFF), (0x1234_5678_9ABC_DEF0, 7))
    # What is unregistered is out of reach.
    r.unregister(nla_b, 260)
    fails("unregistered twice", errno.EFAULT, r.unregister, nla_b, 260)
    ctypes.memset(b, 0x55, PAGE)
    r.put(r.node, r.vpid, nla_a, nla_b, 64, spec=4)
    check("completer's error", r.wait()[1] >> 61, 4)
    check("memory untouched", ctypes.string_at(b, 64), b"\x55" * 64)
    # A queue of another size replaces the first, whose mapping is dead.
    old = r.queue
    r.ioctl(K(1, get=False), 64 << 10)
    r.queue_map(64 << 10)
    dies_by("access to the old queue", signal.SIGBUS, load, old)
    for i in range(3 * r.slots):
        r.notify(r.node, r.vpid, i)
        check("value", r.wait_type(4)[0], i)
    r.close()


def events():
    """poll: sleeps until an interrupt, for both units."""
    r, v = Rma(), Velo()
    for device, send in ((r, lambda: r.notify(r.node, r.vpid, 1, page=24)), (v, lambda: v.send(v.node, v.vpid, b"x" * 8, irq=True))):
        p = select.poll()
        p.register(device.fd, select.POLLIN)
        check("nothing there", p.poll(50), [])
        for _ in range(20):
            check("armed", device.ioctl(ARM, device.rp), 0)
            pid = os.fork()
            if pid == 0:
                time.sleep(0.05)
                send()
                os._exit(0)
            check("poll", p.poll(PATIENCE * 1000), [(device.fd, select.POLLIN)])
            check("waits already", device.ioctl(ARM, device.rp), 1)
            device.wait()
            os.waitpid(pid, 0)
        fails("slot outside", errno.EINVAL, device.ioctl, ARM, device.slots)
    r.close()
    v.close()


def velo_loop_back():
    v = Velo()
    for n in range(1, 121):
        v.send(v.node, v.vpid, pattern(n, n), tag=n & 0xFF)
        node, vpid, data = v.wait()
        check("source", (node, vpid), (v.node, v.vpid))
        check("message", data, pattern(n, n))
    v.close()


def serve(path):
    """Offers memory and a mailbox; answers each message by its reverse, until killed."""
    r, v = Rma(), Velo()
    b = memory(256)
    fill(b, pattern(1 << 20, 1))
    offer = {"node": r.node, "rma": r.vpid, "nla": r.register(b, 256), "velo": v.vpid, "protection": r.info()["protection"]}
    with open(path + ".new", "w") as f:
        json.dump(offer, f)
    os.rename(path + ".new", path)
    while True:
        m = v.take()
        if m:
            v.send(m[0], m[1], m[2][::-1])
        n = r.take()
        if n:
            r.notify(n[1] >> 32 & 0xFFFF, n[1] >> 23 & 0xFF, int(n[0]) + 1)
        if not m and not n:
            time.sleep(0.001)


def between(offer):
    """Against serve on another node: data both ways, messages, notifications."""
    o = json.loads(offer)
    r, v = Rma(), Velo()
    a = memory(256)
    nla = r.register(a, 256)
    size = 1 << 20
    r.fetch(o["node"], o["rma"], o["nla"], nla, size)
    r.wait_type(4)
    check("GET", ctypes.string_at(a, size), pattern(size, 1))
    for n, part in enumerate((5, 4096, 100_001)):
        data = pattern(part, n + 2)
        fill(a + 3, data)
        r.put(o["node"], o["rma"], nla + 3, o["nla"] + 77, part, spec=1)
        r.wait_type(1)
        ctypes.memset(a, 0, size)
        r.fetch(o["node"], o["rma"], o["nla"] + 77, nla + 11, part)
        r.wait_type(4)
        check("PUT and GET", ctypes.string_at(a + 11, part), data)
    r.notify(o["node"], o["rma"], 41)
    check("notification", r.wait_type(4)[0], 42)
    for n in range(200):
        data = pattern(1 + n % 120, n)
        v.send(o["node"], o["velo"], data)
        check("answer", v.wait(), (o["node"], o["velo"], data[::-1]))
    r.close()
    v.close()


def strangers(offer):
    """A user other than that of serve reaches nothing of it."""
    o = json.loads(offer)
    r, v = Rma(), Velo()
    check("protection differs", r.info()["protection"] != o["protection"])
    a = memory(1)
    nla = r.register(a, 1)
    r.fetch(o["node"], o["rma"], o["nla"], nla, 8)
    r.put(o["node"], o["rma"], nla, o["nla"], 8, spec=0)
    r.notify(o["node"], o["rma"], 1)
    v.send(o["node"], o["velo"], b"hello")
    # exn's ports, too.
    v.send(o["node"], 254, b"x" * 60)
    r.notify(o["node"], 254, 1)
    time.sleep(1)
    check("no answers", (r.take(), v.take()), (None, None))
    check("no data", ctypes.string_at(a, 8), bytes(8))
    r.close()
    v.close()


def denied():
    """What an unprivileged process must not do."""
    fails("pmap", errno.EACCES, Device, "pmap")
    fails("rf_access", errno.EACCES, Device, "extoll_rf_access")
    r, v = Rma(), Velo()
    check("pages", r.info()["pages"], 0x0F0F_0000)
    check("flags", r.info()["flags"] & 3, 0)
    check("protection", r.info()["protection"], USER & 0xFFFF)
    check("its descriptors", (r.get(K(21)), v.get(K(14, 8)), v.get(K(16, 8))), (USER & 0xFFFF,) * 3)
    for page in range(32):
        if 0x0F0F_0000 >> page & 1:
            check(f"page {page}", child(load, r.pages + page * PAGE), 0)
        else:
            dies_by(f"page {page}", signal.SIGBUS, store, r.pages + page * PAGE, 0)
    for nr in (14, 16, 18, 20, 22, 24):
        fails(f"rma2 SET {nr}", errno.EPERM, r.ioctl, K(nr, get=False), 0)
        r.get(K(nr + 1))
    for nr in (13, 15, 17):
        fails(f"velo2 SET {nr}", errno.EPERM, v.ioctl, K(nr, 8, False), 5)
    check("identity", v.get(K(18, 8)), v.node | v.vpid << 16)
    s = Device("smfu2")
    fails("SMFU window", errno.EPERM, s.map, PAGE, 0)
    fails("exported memory", errno.EPERM, s.map, PAGE, PAGE)
    fails("cache flush", errno.EPERM, s.ioctl, K(1, 8), 0)
    # A VPID cannot use what another one registered, not even of the same process.
    other, a, b = Rma(), memory(1), memory(1)
    nla_a, nla_b = r.register(a, 1), other.register(b, 1)
    fill(b, b"secret!!")
    r.put(r.node, r.vpid, nla_b, nla_a, 8, spec=1)
    check("requester's error", r.wait()[1] >> 61, 1)
    r.fetch(r.node, r.vpid, nla_b, nla_a, 8, spec=4)
    check("an error", r.wait()[1] >> 61 != 0)
    check("no data", ctypes.string_at(a, 8), bytes(8))
    # Memory that is gone, or that it may not write, is out of reach.
    libc.munmap(a, PAGE)
    r.put(other.node, other.vpid, nla_a, nla_b, 8, spec=1)
    check("an error after munmap", r.wait()[1] >> 61, 1)
    fails("registering nothing", errno.EFAULT, r.register, 4096, 1)
    queue_page = r.queue
    try:
        r.register(queue_page, 1)
        raise AssertionError("the queue itself was registered")
    except OSError:
        pass
    for d in (r, v, s, other):
        d.close()


def limits():
    """Exhaustion of VPIDs and of pinned memory gives errors, and ends when something is closed."""
    ports = []
    try:
        while len(ports) < 300:
            ports.append(Device("rma2"))
    except OSError as e:
        check("the error", e.errno, errno.EDQUOT)
    check("ports per user", len(ports), 125)
    ports.pop().close()
    ports.append(Device("rma2"))
    for p in ports:
        p.close()
    r = Device("velo2")
    r.ioctl(K(8, 8, False), 1 << 20)
    r.ioctl(K(6, 8, False), 64 << 20)
    fails("a queue beyond RLIMIT_MEMLOCK", errno.ENOMEM, r.map, (64 << 20) + PAGE, 0x10000)
    r.ioctl(K(6, 8, False), 1 << 20)
    r.map((1 << 20) + PAGE, 0x10000)
    r.close()


def churn(count):
    a = memory(4)
    for _ in range(int(count)):
        r = Rma(64 << 10)
        nla = r.register(a, 4)
        r.put(r.node, r.vpid, nla, nla + PAGE, 100, spec=4)
        r.wait_type(4)
        r.close()
        d = Device("velo2")
        d.ioctl(K(6, 8, False), 64 << 10)
        d.map((64 << 10) + PAGE, 0x10000)
        d.close()


def hold(ready):
    """Works until killed; tells by a byte that it begins."""
    r, v = Rma(), Velo()
    a = memory(256)
    os.write(ready, b"r")
    while True:
        nla = r.register(a, 256)
        for _ in range(4):
            r.put(r.node, r.vpid, nla, nla + (512 << 10), 512 << 10, spec=4)
            v.send(v.node, v.vpid, b"y" * 120)
        for _ in range(4):
            r.wait()
        while v.take():
            pass
        r.unregister(nla, 256)


def killed(count):
    """Kills processes at many moments of register, transfer, unregister. The last words of each are how long its end took."""
    longest = 0
    for i in range(int(count)):
        ready, there = os.pipe()
        pid = os.fork()
        if pid == 0:
            hold(there)
        os.close(there)
        check("child is ready", os.read(ready, 1), b"r")
        os.close(ready)
        time.sleep(i * 37 % 100 / 200)
        os.kill(pid, signal.SIGKILL)
        begin = time.time()
        check("killed", os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), -signal.SIGKILL)
        longest = max(longest, time.time() - begin)
    print(f"longest end: {longest:.3f} s")


# Words of a descriptor that a process leaves in each of its eight pages.
LEFT = [(0,), (1,), (2,), (0, 1), (0, 2), (1, 2), (2,), (1, 2)]
PAGES = [16, 17, 18, 19, 24, 25, 26, 27]
# Words of a VELO message.
LEFT_VELO = [range(0, 1), range(1, 16), range(0, 15), range(15, 16), range(1, 2), range(5, 9)]


def leave(turn, witness, place):
    """Dies between the words of descriptors to the witness."""
    r, v = Rma(), Velo()
    store(place, r.vpid << 16 | v.vpid)
    words = [3 | 5 << 2 | witness << 8 | r.node << 16 | 7 << 32, 0xDEAD, 0]
    for n, page in enumerate(PAGES):
        for i in LEFT[(n + turn) % len(LEFT)]:
            store(r.pages + page * PAGE + 8 * i, words[i])
    for i in LEFT_VELO[turn]:
        store(v.page + 8 * i, v.node | v.vpid << 16 | 120 << 48 if i == 0 else 0xDEAD)
    # And counts that make no sense.
    store(r.state, 0xFF00_0001_0000_0055)
    os.kill(os.getpid(), signal.SIGKILL)


def heir():
    """The next owner of a VPID gets nothing of what a killed process left in the requester."""
    witness, place = Rma(), map_fd(-1, PAGE, 0, flags=mmap.MAP_SHARED | mmap.MAP_ANONYMOUS)
    for turn in range(len(LEFT_VELO)):
        check("child", child(leave, turn, witness.vpid, place), -signal.SIGKILL)
        r, v = Rma(), Velo()
        check("VPIDs", (r.vpid, v.vpid), (load(place) >> 16, load(place) & 0xFFFF))
        for n, page in enumerate(PAGES):
            r.notify(r.node, r.vpid, 1000 + n, page=page)
            check(f"turn {turn}, page {page}", r.wait_type(4)[0], 1000 + n)
            check("commands", load(r.state) & 0xFF, n + 1)
        for n in range(3):
            v.send(v.node, v.vpid, pattern(120 - 50 * n, n))
            check(f"turn {turn}, message {n}", v.wait()[2], pattern(120 - 50 * n, n))
        check("nothing else", (r.take(), v.take(), witness.take()), (None, None, None))
        r.close()
        v.close()


def storm(path, seconds):
    """Interrupts itself as often as it can, by both units; then waits for messages as everybody does."""
    r, v = Rma(), Velo()
    open(path, "w").close()
    end = time.time() + float(seconds)
    while time.time() < end:
        v.send(v.node, v.vpid, b"x" * 8, irq=True)
        r.notify(r.node, r.vpid, 1, page=24)
        while not v.take():
            pass
        while not r.take():
            pass
        store(v.box, v.rp | 1 << 32)
        store(r.rp_page, r.rp | 1 << 32)
    p = select.poll()
    p.register(v.fd, select.POLLIN)
    for n in range(100):
        check("armed", v.ioctl(ARM, v.rp), 0)
        v.send(v.node, v.vpid, b"x" * 8, irq=True)
        check(f"poll {n}", p.poll(PATIENCE * 1000), [(v.fd, select.POLLIN)])
        v.wait()
    r.close()
    v.close()


def unbound(ready, go):
    """Open files and mappings while the NIC goes: errors and SIGBUS, and a close that works."""
    r, v, s = Rma(), Velo(), Device("smfu2")
    p, f = Device("pmap"), Device("extoll_rf_access")
    p.ioctl(K(0, get=False), 0)
    p.ioctl(K(4, get=False), 1 << 16)
    buffer = p.map(1 << 16, 0)
    store(buffer, 1)
    registers = f.map(32 << 20, 0)
    window = s.map(PAGE, 0)
    a = memory(16)
    nla = r.register(a, 16)
    fine = [r.rp_page, r.queue, r.pages + 16 * PAGE, r.state, v.box, v.box + PAGE, v.page + PAGE, buffer, registers + 0x8000]
    for address in fine:
        load(address)
    open(ready, "w").close()
    end = time.time() + 120
    while not os.path.exists(go) and time.time() < end:
        time.sleep(0.02)
    for address in fine + [window]:
        dies_by("access after unbind", signal.SIGBUS, load, address)
    for d in (r, v, s, p, f):
        fails("ioctl", errno.ENODEV, d.get, ior(ord("n" if d is f else "k"), 1 if d is p else 0, 8 if d in (s, f) else 4))
        fails("mmap", errno.ENODEV, d.map, {r: PAGE, v: 2 * PAGE, s: PAGE, p: PAGE, f: 32 << 20}[d], 0x20000 if d is r else 0)
    fails("unregister", errno.EFAULT, r.unregister, nla, 16)
    poller = select.poll()
    poller.register(r.fd, select.POLLIN)
    check("poll", poller.poll(0)[0][1] & (select.POLLERR | select.POLLHUP) != 0)
    for d in (r, v, s, p, f):
        d.close()


def superuser():
    """What only the superuser may do works for it: physical buffers, registers of this and another node."""
    r = Rma()
    check("all pages", r.info()["pages"], 0xFFFF_FFFF)
    check("protection", r.info()["protection"], 0)
    p = Device("pmap")
    fails("physical memory at will", errno.EOPNOTSUPP, p.ioctl, K(0, get=False), 1)
    fails("no mapping before the size", errno.EFAULT, p.map, PAGE, 0)
    p.ioctl(K(0, get=False), 0)
    p.ioctl(K(4, get=False), 2 * PAGE)
    b = p.map(2 * PAGE, 0)
    at = p.get(K(6))
    check("zeroed", ctypes.string_at(b, 2 * PAGE), bytes(2 * PAGE))
    check("key", p.get(K(7)) != p.get(K(7)), False)
    p.ioctl(K(9, get=False), 0)
    check("address again", p.get(K(6)), at)
    fails("unknown key", errno.EFAULT, p.ioctl, K(9, get=False), 99)
    fill(b, pattern(64, 1))
    r.put(r.node, r.vpid, at, at + PAGE, 64, spec=4, page=0)
    r.wait_type(4)
    check("physical PUT", ctypes.string_at(b + PAGE, 64), pattern(64, 1))
    # Settings that are the superuser's.
    r.ioctl(K(20, get=False), 0x1234)
    check("protection descriptor", r.get(K(21)), 0x1234)
    r.ioctl(K(18, get=False), 0x03020100)
    check("traffic classes", r.get(K(19)), 0x03020100)
    f = Device("extoll_rf_access")
    fails("no node", errno.EFAULT, os.read, f.fd, 8)
    os.lseek(f.fd, r.node << 32 | 0x8008, os.SEEK_SET)
    check("own node register", struct.unpack("=Q", os.read(f.fd, 8))[0] >> 24 & 0xFFFF, r.node)
    fails("4 bytes", errno.EFAULT, os.read, f.fd, 4)
    # The default of a millisecond is for real hardware.
    patience = ctypes.c_uint64(10_000_000)
    f.ioctl(iow(ord("n"), 5, 8), ctypes.addressof(patience))
    check("time-out", f.get(ior(ord("n"), 2, 8)), 10_000_000)
    peer = 1 - r.node
    os.lseek(f.fd, peer << 32 | 0x8008, os.SEEK_SET)
    check("remote node register", struct.unpack("=Q", os.read(f.fd, 8))[0] >> 24 & 0xFFFF, peer)
    os.lseek(f.fd, peer << 32 | 0x8070, os.SEEK_SET)
    check("written", os.write(f.fd, struct.pack("=Q", 0xCAFE)), 8)
    check("remote scratchpad", struct.unpack("=Q", os.read(f.fd, 8))[0], 0xCAFE)
    method = ctypes.c_uint64(2)
    f.ioctl(iow(ord("n"), 4, 8), ctypes.addressof(method))
    check("local read", struct.unpack("=Q", os.read(f.fd, 8))[0] != 0xCAFE)
    registers = f.map(32 << 20, 0)
    check("mapped register", load(registers + 0x8008) >> 24 & 0xFFFF, r.node)
    s = Device("smfu2")
    s.map(PAGE, PAGE)
    for d in (r, p, f, s):
        d.close()


def shared():
    """Threads and forked children that race on one file."""
    import threading

    r = Rma()
    end, faults = time.time() + 5, []

    def work(seed):
        rng = random.Random(seed)
        mine, a = [], memory(8)
        while time.time() < end:
            try:
                if rng.random() < 0.5:
                    mine.append(r.register(a, 8))
                elif mine:
                    r.unregister(mine.pop(), 8)
                else:
                    libc.munmap(map_fd(r.fd, PAGE, 0x20000), PAGE)
            except OSError as e:
                if e.errno not in (errno.ENOSPC, errno.ENOMEM, errno.EAGAIN, errno.EBADF, errno.ENODEV):
                    faults.append(repr(e))

    for _ in range(2):
        if os.fork() == 0:
            work(os.getpid())
            os._exit(len(faults) > 0)
    threads = [threading.Thread(target=work, args=(n,)) for n in range(3)]
    for t in threads:
        t.start()
    time.sleep(2)
    # The queue is recreated, and the descriptor closed, under them.
    for _ in range(10):
        r.queue_map(256 << 10)
    os.close(r.fd)
    for t in threads:
        t.join()
    for _ in range(2):
        check("child", os.wait()[1], 0)
    check("errors", faults, [])


def fuzz_once(rng, end):
    """Random calls and stores until end. Never meant to succeed, only to harm nobody."""
    resource_limits()
    names = ["velo2", "rma2", "smfu2"]
    files, maps, nlas = [], [], []
    while time.time() < end:
        try:
            k = rng.randrange(12)
            if k == 0 or not files:
                files.append((d := rng.choice(names), os.open(f"/dev/extoll/{d}", rng.choice([os.O_RDWR, os.O_RDONLY]))))
            elif k == 1 and len(files) > 3:
                os.close(files.pop(rng.randrange(len(files)))[1])
            elif k in (2, 3, 4):
                name, fd = rng.choice(files)
                command = rng.choice([ior, iow])(rng.choice([ord("k"), ord("k"), ord("n"), 0xE7]), rng.randrange(30), rng.choice([4, 8, 48]))
                buffer = ctypes.create_string_buffer(rng.randbytes(80), 4096)
                arg = rng.choice([0, 1, 4096, 64 << 10, rng.getrandbits(64), rng.getrandbits(32), ctypes.addressof(buffer), ctypes.addressof(buffer)])
                libc.ioctl(fd, command, arg)
            elif k in (5, 6):
                name, fd = rng.choice(files)
                length = rng.choice([1, 2, 17, 32, 65, 513]) * PAGE
                prot = rng.choice([RW, mmap.PROT_READ, mmap.PROT_WRITE, RW | mmap.PROT_EXEC])
                maps.append((map_fd(fd, length, rng.choice([0, 0, 0x1000, 0x20000, 0x21000, rng.getrandbits(40) << 12]), prot), length))
            elif k == 7 and maps:
                address, length = maps.pop(rng.randrange(len(maps)))
                # Perhaps only a piece.
                libc.munmap(address + PAGE * rng.randrange(2), max(PAGE, length - PAGE))
            elif k == 8 and files:
                name, fd = rng.choice(files)
                a = memory(4)
                raw = bytearray(80)
                pages = rng.choice([1, 4, 5, rng.getrandbits(32)])
                size = rng.choice([pages * PAGE, rng.getrandbits(64)])
                start = rng.choice([a, a + 1, rng.getrandbits(64)])
                struct.pack_into("=QQIIQQ", raw, 16, start, rng.getrandbits(64), pages, 0, 0, size)
                raw = (ctypes.c_char * 80).from_buffer(raw)
                libc.ioctl(fd, K(10 + rng.randrange(2), 8, False), ctypes.addressof(raw))
                nlas.append(struct.unpack_from("=Q", raw, 24)[0])
                if rng.random() < 0.5:
                    libc.munmap(a, 4 * PAGE)
            elif maps:
                address, length = rng.choice(maps)
                at = address + rng.randrange(length // PAGE) * PAGE
                w0 = rng.choice([rng.getrandbits(64), 3 | rng.randrange(16) << 2 | rng.getrandbits(12) << 8 | rng.getrandbits(7) << 32 | rng.getrandbits(12) << 40,
                                 rng.getrandbits(21) | rng.getrandbits(10) << 32 | rng.randrange(130) << 48])
                addresses = nlas or [0]
                words = [w0] + [rng.choice([rng.choice(addresses), rng.getrandbits(64)]) for _ in range(rng.choice([0, 2, 2, 15]))]
                for i, w in enumerate(words):
                    store(at + 8 * i, w)
        except OSError:
            pass


def resource_limits():
    import resource

    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    libc.prctl(1, signal.SIGKILL, 0, 0, 0)


def fuzz(seed, seconds):
    """Children that do random things; those killed by SIGBUS or SIGSEGV are replaced."""
    end, n, ends = time.time() + float(seconds), 0, {}
    while time.time() < end:
        batch = []
        for _ in range(3):
            pid = os.fork()
            if pid == 0:
                try:
                    fuzz_once(random.Random(int(seed) * 100_003 + n), min(end, time.time() + 4))
                finally:
                    os._exit(0)
            batch.append(pid)
            n += 1
        for pid in batch:
            status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
            ends[status] = ends.get(status, 0) + 1
    print(f"seed {seed}: {n} processes, ended {ends}")
    check("ends", set(ends) <= {0, -signal.SIGBUS, -signal.SIGSEGV})


def main():
    commands = {f.__name__: f for f in (abi, loop_back, events, velo_loop_back, serve, between, strangers, denied, limits, churn, killed, heir, storm, unbound, superuser, shared, fuzz)}
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


main()
