#!/usr/bin/env python3
"""Tests the device files of the NIC inside a node: ABI, data, end of process and NIC, random
calls, and the tests of security.py: `uapi.py [--user UID] COMMAND [ARG…]`."""
from device import *
from security import *


def abi(node="0"):
    """Tests numbers, sizes and error codes of the vendor's ABI on this node."""
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
    check("node", s.get(K(2, 8)), int(node))
    fails("number 3", errno.ENOTTY, s.ioctl, K(3, 8), 0)
    s.close()


def loop_back():
    """PUT, GET and notifications to itself; all data are compared."""
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
    # The NIC can't reach memory after it was unregistered.
    r.unregister(nla_b, 260)
    fails("unregistered twice", errno.EFAULT, r.unregister, nla_b, 260)
    ctypes.memset(b, 0x55, PAGE)
    r.put(r.node, r.vpid, nla_a, nla_b, 64, spec=4)
    check("completer's error", r.wait()[1] >> 61, 4)
    check("memory untouched", ctypes.string_at(b, 64), b"\x55" * 64)
    # A queue of another size replaces the first, whose mapping becomes invalid.
    old = r.queue
    r.ioctl(K(1, get=False), 64 << 10)
    r.queue_map(64 << 10)
    dies_by("access to the old queue", signal.SIGBUS, load, old)
    # The queue wraps around once.
    for i in range(r.slots + 50):
        r.notify(r.node, r.vpid, i)
        check("value", r.wait_type(4)[0], i)
    r.close()


def events():
    """poll() sleeps until an interrupt, for both units."""
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
    """Offers memory and a mailbox; answers each message with its reverse, until killed. While
    PATH.look exists, it writes PATH.seen: whether the memory changed, and the number of queue
    entries received."""
    r, v = Rma(), Velo()
    b = memory(256)
    fill(b, pattern(1 << 20, 1))
    offer = {"node": r.node, "rma": r.vpid, "nla": r.register(b, 256), "velo": v.vpid, "protection": r.info()["protection"]}
    with open(path + ".new", "w") as f:
        json.dump(offer, f)
    os.rename(path + ".new", path)
    visitors = 0
    while True:
        if os.path.exists(path + ".look") and not os.path.exists(path + ".seen"):
            same = ctypes.string_at(b, 1 << 20) == pattern(1 << 20, 1)
            with open(path + ".new", "w") as f:
                f.write(f"memory {'same' if same else 'changed'} visitors {visitors}")
            os.rename(path + ".new", path + ".seen")
        m = v.take()
        if m:
            v.send(m[0], m[1], m[2][::-1])
        n = r.take()
        if n:
            r.notify(n[1] >> 32 & 0xFFFF, n[1] >> 23 & 0xFF, int(n[0]) + 1)
        visitors += (m is not None) + (n is not None)
        if not m and not n:
            time.sleep(0.001)


def between(offer):
    """With serve on another node: data in both directions, messages, notifications."""
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


PHASES = ["open", "register", "transfer", "unregister", "close"]
# Maximum seconds until a killed process has ended on a busy host.
END = 10


def hold(place):
    """Cycles through all phases until killed; the shared word has the current one."""
    a = memory(256)

    def phase(name):
        store(place, PHASES.index(name) + 1)

    while True:
        phase("open")
        r, v = Rma(), Velo()
        phase("register")
        nla = r.register(a, 256)
        phase("transfer")
        for _ in range(4):
            r.put(r.node, r.vpid, nla, nla + (512 << 10), 512 << 10, spec=4)
            v.send(v.node, v.vpid, b"y" * 120)
        for _ in range(4):
            r.wait()
        while v.take():
            pass
        phase("unregister")
        r.unregister(nla, 256)
        phase("close")
        r.close()
        v.close()


def killed(count, seed):
    """Kills processes at random moments of open, register, transfer, unregister and close. Each
    time it waits for one phase, and then for some time within it."""
    rng, longest = random.Random(int(seed)), 0
    place = map_fd(-1, PAGE, 0, flags=mmap.MAP_SHARED | mmap.MAP_ANONYMOUS)
    hits = dict.fromkeys(PHASES, 0)
    for n in range(int(count)):
        store(place, 0)
        pid = os.fork()
        if pid == 0:
            hold(place)
        begin, wanted = time.time(), n % len(PHASES) + 1
        # Some processes die in the first round, in which they do everything for the first time, others
        # in a later round.
        time.sleep(rng.choice([0, rng.random() / 10]))
        while load(place) != wanted and time.time() < begin + PATIENCE:
            pass
        pause = time.time() + rng.choice([0, 1e-4, 1e-3, 1e-2]) * rng.random()
        while time.time() < pause:
            pass
        os.kill(pid, signal.SIGKILL)
        phase = load(place)
        begin = time.time()
        check("killed", os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), -signal.SIGKILL)
        longest = max(longest, time.time() - begin)
        check("a phase", phase > 0)
        hits[PHASES[phase - 1]] += 1
    print(f"seed {seed}: killed in {hits}, longest end {longest:.3f} s")
    check("every phase was hit", min(hits.values()) > int(count) // 50)
    check("the end was in time", longest < END)


def everything():
    """Opens a file of each kind with all mappings. Returns the files, readable addresses in the
    NIC, one in the window, and one in memory."""
    r, v, s = Rma(), Velo(), Device("smfu2")
    p, f = Device("pmap"), Device("extoll_rf_access")
    p.ioctl(K(0, get=False), 0)
    p.ioctl(K(4, get=False), 1 << 16)
    buffer = p.map(1 << 16, 0)
    store(buffer, 1)
    registers = f.map(32 << 20, 0)
    window = s.map(PAGE, 0)
    fine = [r.rp_page, r.queue, r.pages + 16 * PAGE, r.state, v.box, v.box + PAGE, v.page + PAGE, registers + 0x8000]
    for address in fine + [buffer]:
        load(address)
    return (r, v, s, p, f), fine, window, buffer


def await_file(path):
    end = time.time() + 240
    while not os.path.exists(path) and time.time() < end:
        time.sleep(0.02)


def unreachable(ready, go):
    """Mappings of a bound NIC that is unreachable: accesses to NIC pages fail, accesses to
    memory succeed."""
    devices, fine, window, buffer = everything()
    open(ready, "w").close()
    await_file(go)
    for address in fine + [window]:
        dies_by("access to an unreachable NIC", signal.SIGBUS, load, address)
    check("memory", load(buffer), 1)
    r, f = devices[0], devices[4]
    fails("mmap", errno.ENODEV, r.map, PAGE, 0x20000)
    fails("mmap", errno.ENODEV, f.map, 32 << 20, 0)
    for d in devices:
        d.close()


def unbound(ready, go):
    """Open files and mappings during removal of the NIC: errors and SIGBUS, and a close that
    works."""
    (r, v, s, p, f), fine, window, buffer = everything()
    a = memory(16)
    nla = r.register(a, 16)
    open(ready, "w").close()
    await_file(go)
    for address in fine + [window, buffer]:
        dies_by("access after unbind", signal.SIGBUS, load, address)
    for d in (r, v, s, p, f):
        fails("ioctl", errno.ENODEV, d.get, ior(ord("n" if d is f else "k"), 1 if d is p else 0, 8 if d in (s, f) else 4))
        fails("mmap", errno.ENODEV, d.map, {r: PAGE, v: 2 * PAGE, s: PAGE, p: PAGE, f: 32 << 20}[d], 0x20000 if d is r else 0)
    fails("unregister", errno.ENODEV, r.unregister, nla, 16)
    poller = select.poll()
    poller.register(r.fd, select.POLLIN)
    check("poll", poller.poll(0)[0][1] & (select.POLLERR | select.POLLHUP) != 0)
    for d in (r, v, s, p, f):
        d.close()


def asleep(ready, returns=""):
    """Sleeps in poll until the NIC is removed. It is woken by an error, and later calls fail,
    unless it returns at once."""
    devices = Rma(), Velo()
    p = select.poll()
    for d in devices:
        p.register(d.fd, select.POLLIN)
        check("armed", d.ioctl(ARM, d.rp), 0)
    check("nothing there", p.poll(50), [])
    open(ready, "w").close()
    end = time.time() + 240
    gone = select.POLLERR | select.POLLHUP
    check("woken", [bits & gone for _, bits in p.poll(240_000)], [gone] * 2)
    check("in time", time.time() < end)
    for d in devices:
        fails("arming", errno.ENODEV, d.ioctl, ARM, d.rp)
    if not returns:
        fails("opening", errno.ENODEV, Device, "rma2")
    for d in devices:
        d.close()


def superuser():
    """Tests functions for root only: physical buffers, registers of this node and another node."""
    r = Rma()
    check("all pages", r.info()["pages"], 0xFFFF_FFFF)
    # Root has no limit, and only existing pages use memory. The list of 2^26 pages alone would not
    # fit into the node.
    a = memory(1)
    for pages in (1 << 27) + 1, 1 << 28, (1 << 28) + 1, (1 << 32) - 1:
        fails(f"{pages} pages", errno.ENOSPC, r.register, a, pages)
    for pages in 1 << 26, 1 << 27:
        fails(f"{pages} pages that are not there", errno.EFAULT, r.register, a, pages)
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
    # Settings for root only.
    r.ioctl(K(20, get=False), 0x1234)
    check("protection descriptor", r.get(K(21)), 0x1234)
    r.ioctl(K(18, get=False), 0x03020100)
    check("traffic classes", r.get(K(19)), 0x03020100)
    f = Device("extoll_rf_access")
    fails("no node", errno.EFAULT, os.read, f.fd, 8)
    os.lseek(f.fd, r.node << 32 | 0x8008, os.SEEK_SET)
    check("own node register", struct.unpack("=Q", os.read(f.fd, 8))[0] >> 24 & 0xFFFF, r.node)
    fails("4 bytes", errno.EFAULT, os.read, f.fd, 4)
    # The default of 1 ms is for real hardware.
    patience = ctypes.c_uint64(10_000_000)
    f.ioctl(iow(ord("n"), 5, 8), ctypes.addressof(patience))
    check("time-out", f.get(ior(ord("n"), 2, 8)), 10_000_000)
    peer = 1 - r.node
    os.lseek(f.fd, peer << 32 | 0x8008, os.SEEK_SET)
    check("remote node register", struct.unpack("=Q", os.read(f.fd, 8))[0] >> 24 & 0xFFFF, peer)
    os.lseek(f.fd, peer << 32 | 0x8070, os.SEEK_SET)
    check("written", os.write(f.fd, struct.pack("=Q", 0xCAFE)), 8)
    # The write uses SMFU and the read RMA, so they are not ordered.
    end = time.time() + PATIENCE
    while struct.unpack("=Q", os.read(f.fd, 8))[0] != 0xCAFE:
        check("remote scratchpad in time", time.time() < end, True)
    # A write and a read by the same method are in order.
    method = ctypes.c_uint64(1)
    f.ioctl(iow(ord("n"), 4, 8), ctypes.addressof(method))
    for value in range(20):
        check("written", os.write(f.fd, struct.pack("=Q", value)), 8)
        check("remote scratchpad", struct.unpack("=Q", os.read(f.fd, 8))[0], value)
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
    """Threads and forked children race on one file. Each must make progress, before the threads'
    descriptor is closed, and the children also afterwards."""
    import threading

    r = Rma()
    workers, enough = 5, 20
    # Words: number of registrations and number of mappings of each worker, then the word that ends all
    # workers.
    place = map_fd(-1, PAGE, 0, flags=mmap.MAP_SHARED | mmap.MAP_ANONYMOUS)
    over = place + 16 * workers
    faults = []

    def done(worker):
        return load(place + 16 * worker), load(place + 16 * worker + 8)

    def work(worker, closed):
        rng = random.Random(worker)
        mine, a = [], memory(8)
        try:
            while not load(over):
                try:
                    what = rng.randrange(5)
                    if what < 2:
                        mine.append(r.register(a, 8))
                        store(place + 16 * worker, done(worker)[0] + 1)
                    elif what < 4 and mine:
                        r.unregister(mine.pop(), 8)
                    else:
                        libc.munmap(map_fd(r.fd, PAGE, 0x20000), PAGE)
                        store(place + 16 * worker + 8, done(worker)[1] + 1)
                except OSError as e:
                    if e.errno == errno.EBADF and closed():
                        return
                    # Other workers may use up the user's limit of locked memory.
                    if e.errno not in (errno.ENOSPC, errno.ENOMEM):
                        raise
        except BaseException as e:
            faults.append(f"worker {worker}: {e!r}")

    def advance(which):
        """Waits until each of these workers makes progress."""
        goals = [[n + enough for n in done(w)] for w in which]
        end = time.time() + 6 * PATIENCE
        while any(n < goal for w, g in zip(which, goals) for n, goal in zip(done(w), g)):
            check("time", time.time() < end)
            check("errors", faults, [])
            time.sleep(0.01)

    children = []
    for worker in (0, 1):
        pid = os.fork()
        if pid == 0:
            work(worker, lambda: False)
            for fault in faults:
                print(fault, file=sys.stderr, flush=True)
            os._exit(len(faults) > 0)
        children.append(pid)
    is_closed = threading.Event()
    threads = [threading.Thread(target=work, args=(n, is_closed.is_set)) for n in range(2, workers)]
    for t in threads:
        t.start()
    try:
        advance(range(workers))
        # The queue is created again, and later the descriptor is closed, during the race.
        for _ in range(10):
            r.queue_map(256 << 10)
        advance(range(workers))
        is_closed.set()
        os.close(r.fd)
        for t in threads:
            t.join()
        advance((0, 1))
    finally:
        is_closed.set()
        store(over, 1)
    for pid in children:
        check("child", os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), 0)
    check("errors", faults, [])


# Actions that random calls must succeed in, because the test would prove nothing otherwise.
FEATS = ["opened", "asked", "mapped", "registered", "stored"]


def fuzz_once(rng, end, place):
    """Makes random calls and stores until `end`, which must harm no other process. Counts
    successes in words at `place`."""

    def succeeded(feat):
        at = place + 8 * FEATS.index(feat)
        store(at, load(at) + 1)

    resource_limits()
    names = ["velo2", "rma2", "smfu2"]
    files, maps, nlas = [], [], []
    while time.time() < end:
        try:
            k = rng.randrange(12)
            if k == 0 or not files:
                files.append((d := rng.choice(names), os.open(f"/dev/extoll/{d}", rng.choice([os.O_RDWR, os.O_RDONLY]))))
                succeeded("opened")
            elif k == 1 and len(files) > 3:
                os.close(files.pop(rng.randrange(len(files)))[1])
            elif k in (2, 3, 4):
                name, fd = rng.choice(files)
                command = rng.choice([ior, iow])(rng.choice([ord("k"), ord("k"), ord("n"), 0xE7]), rng.randrange(30), rng.choice([4, 8, 48]))
                buffer = ctypes.create_string_buffer(rng.randbytes(80), 4096)
                arg = rng.choice([0, 1, 4096, 64 << 10, rng.getrandbits(64), rng.getrandbits(32), ctypes.addressof(buffer), ctypes.addressof(buffer)])
                if libc.ioctl(fd, command, arg) >= 0:
                    succeeded("asked")
            elif k in (5, 6):
                name, fd = rng.choice(files)
                length = rng.choice([1, 2, 17, 32, 65, 513]) * PAGE
                prot = rng.choice([RW, mmap.PROT_READ, mmap.PROT_WRITE, RW | mmap.PROT_EXEC])
                maps.append((map_fd(fd, length, rng.choice([0, 0, 0x1000, 0x20000, 0x21000, rng.getrandbits(40) << 12]), prot), length))
                succeeded("mapped")
            elif k == 7 and maps:
                address, length = maps.pop(rng.randrange(len(maps)))
                # Possibly a part of the mapping.
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
                registers = rng.randrange(2) == 0
                if libc.ioctl(fd, K(10 if registers else 11, 8, False), ctypes.addressof(raw)) >= 0 and registers:
                    succeeded("registered")
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
                succeeded("stored")
        except OSError:
            pass


def resource_limits():
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    libc.prctl(1, signal.SIGKILL, 0, 0, 0)


def fuzz(seed, seconds):
    """Runs children that make random calls; those killed by SIGBUS or SIGSEGV are replaced."""
    end, n, ends = time.time() + float(seconds), 0, {}
    # Each simultaneous child has a line of words.
    place = map_fd(-1, PAGE, 0, flags=mmap.MAP_SHARED | mmap.MAP_ANONYMOUS)
    while time.time() < end:
        batch = []
        for line in range(3):
            pid = os.fork()
            if pid == 0:
                code = 1
                try:
                    fuzz_once(random.Random(int(seed) * 100_003 + n), min(end, time.time() + 4), place + 64 * line)
                    code = 0
                except BaseException:
                    import traceback

                    traceback.print_exc()
                os._exit(code)
            batch.append(pid)
            n += 1
        for pid in batch:
            status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
            ends[status] = ends.get(status, 0) + 1
    feats = {feat: sum(load(place + 64 * line + 8 * k) for line in range(3)) for k, feat in enumerate(FEATS)}
    print(f"seed {seed}: {n} processes, ended {ends}, succeeded {feats}")
    check("something of each kind succeeded", [feat for feat, times in feats.items() if not times], [])
    check("ends", set(ends) <= {0, -signal.SIGBUS, -signal.SIGSEGV})


if __name__ == "__main__":
    main(
        abi,
        loop_back,
        events,
        velo_loop_back,
        serve,
        between,
        strangers,
        relatives,
        friends,
        denied,
        locked,
        limits,
        all_vpids,
        one_table,
        churn,
        killed,
        heir,
        storm,
        unbound,
        unreachable,
        asleep,
        compat,
        misroute,
        superuser,
        shared,
        fuzz,
    )
