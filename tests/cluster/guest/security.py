"""Tests accesses that processes must not make, and data that they must not leave behind."""
import glob
from device import *


def compat():
    """With compat_unsafe, an old binary has the access that the vendor's driver gave, except to
    files of root."""
    fails("pmap", errno.EACCES, Device, "pmap")
    fails("rf_access", errno.EACCES, Device, "extoll_rf_access")
    r, v, s = Rma(), Velo(), Device("smfu2")
    check("pages", r.info()["pages"], 0xFFFF_FFFF)
    for device, numbers, size in ((r, (14, 16, 18, 20, 22, 24), 4), (v, (13, 15), 8)):
        for nr in numbers:
            # Sets the current values: the number of SET is adjacent to that of GET.
            now = device.get(K(nr + 1, size))
            device.ioctl(K(nr, size, False), now)
            check(f"SET {nr}", device.get(K(nr + 1, size)), now)
    a = memory(1)
    nla = r.register(a, 1)
    # Writes and reads a register through an untranslated and a translated page with RRA.
    here = r.node, r.vpid
    for n, page in enumerate((4, 20)):
        r.post(page, 3 | 6 << 2 | r.vpid << 8 | r.node << 16 | 1 << 32 | 7 << 40, 0x8068, 0xCAFE + n)
        r.wait_type(1)
        r.fetch(*here, 0x8068, nla, 8, page=20)
        r.wait_type(4)
        check("register", load(a), 0xCAFE + n)
    s.map(PAGE, PAGE)
    # Ports of root admit its packets. These ports have protection descriptor 0.
    check("protection", r.info()["protection"], 0)
    for d in (r, v, s):
        d.close()


def misroute():
    """Sends packets to nodes without a route."""
    r, v = Rma(), Velo()
    for node in (500, 501, 60000):
        r.notify(node, 5, 1)
        v.send(node, 5, b"nobody")
    check("nothing came back", (r.take(), v.take()), (None, None))
    r.close()
    v.close()


# Effects of commands to another user's port, if they are admitted.
LOCK, ADDED = 3, 41
GIFT = b"a gift!!"


def strangers(offer):
    """Another user than serve's reaches none of its resources."""
    o = json.loads(offer)
    r, v = Rma(), Velo()
    check("protection differs", r.info()["protection"] != o["protection"])
    a = memory(1)
    nla = r.register(a, 1)
    r.fetch(o["node"], o["rma"], o["nla"], nla, 8)
    r.put(o["node"], o["rma"], nla, o["nla"], 8, spec=0)
    r.post(16, 3 | 6 << 2 | o["rma"] << 8 | o["node"] << 16 | 7 << 40, o["nla"] + 64, 0x5555)
    r.lock(o["node"], o["rma"], LOCK, ADDED)
    r.notify(o["node"], o["rma"], 1)
    v.send(o["node"], o["velo"], b"hello")
    # Ports of exn are protected too.
    v.send(o["node"], 254, b"x" * 60)
    r.notify(o["node"], 254, 1)
    time.sleep(1)
    check("no answers", (r.take(), v.take()), (None, None))
    check("no data", ctypes.string_at(a, 8), bytes(8))
    r.close()
    v.close()


def relatives(offer):
    """Another process of serve's user can't use serve's registrations, neither as local memory
    nor for its own VPID."""
    o = json.loads(offer)
    r = Rma()
    check("protection is the same", r.info()["protection"], o["protection"])
    a = memory(1)
    nla = r.register(a, 1)
    other = o["nla"] if o["nla"] != nla else nla + PAGE
    there = o["node"], o["rma"]
    here = r.node, r.vpid
    fill(a, GIFT)
    # As the source of a PUT to itself and the destination of a GET, by requester and completer of
    # this node.
    r.put(*here, other, nla, 8, spec=1)
    check("PUT from it", r.wait()[1] >> 61, 1)
    r.fetch(*here, nla, other, 8)
    check("GET into it", r.wait()[1] >> 61 != 0)
    # As remote memory: serve's NLA with its own VPID, on this node and on serve's node, where
    # another port or none has the VPID.
    r.put(*here, nla, other, 8, spec=4)
    check("PUT into it", r.wait()[1] >> 61, 4)
    r.fetch(*here, other, nla, 8)
    check("GET from it", r.wait()[1] >> 61 != 0)
    check("no data", ctypes.string_at(a, 8), GIFT)
    r.close()


def friends(offer):
    """Positive control: the same commands succeed for the right user and port."""
    o = json.loads(offer)
    r = Rma()
    a = memory(1)
    nla = r.register(a, 1)
    # The attempts of strangers did not change the lock.
    r.lock(o["node"], o["rma"], LOCK, ADDED)
    w0, w1 = r.wait_type(4)
    check("lock", (w0 & 0xFFFFFF, w0 >> 32), (LOCK, ADDED))
    r.fetch(o["node"], o["rma"], o["nla"], nla, 8)
    r.wait_type(4)
    check("GET", ctypes.string_at(a, 8), pattern(1 << 20, 1)[:8])
    fill(a, GIFT)
    r.put(o["node"], o["rma"], nla, o["nla"], 8, spec=1)
    r.wait_type(1)
    r.fetch(o["node"], o["rma"], o["nla"], nla + 64, 8)
    r.wait_type(4)
    check("PUT", ctypes.string_at(a + 64, 8), GIFT)
    r.close()


def denied():
    """Calls that an unprivileged process must not make."""
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
    # A VPID can't use the registration of another VPID, even within one process.
    other, a, b = Rma(), memory(1), memory(1)
    nla_a, nla_b = r.register(a, 1), other.register(b, 1)
    fill(b, b"secret!!")
    r.put(r.node, r.vpid, nla_b, nla_a, 8, spec=1)
    check("requester's error", r.wait()[1] >> 61, 1)
    r.fetch(r.node, r.vpid, nla_b, nla_a, 8, spec=4)
    check("an error", r.wait()[1] >> 61 != 0)
    check("no data", ctypes.string_at(a, 8), bytes(8))
    # The NIC can't reach unmapped memory or write read-only memory.
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


def locked():
    """Under kernel lockdown, root reaches no register and no physical memory, and has the
    permissions of an ordinary user."""
    fails("pmap", errno.EPERM, Device, "pmap")
    fails("rf_access", errno.EPERM, Device, "extoll_rf_access")
    files = sorted(glob.glob("/sys/bus/pci/drivers/extoll/*/extoll_rf/*"))
    check("there are register files", len(files) > 100)
    for path in files[::37]:
        for flag, access in ((os.O_RDONLY, lambda fd: os.read(fd, 8)), (os.O_WRONLY, lambda fd: os.write(fd, b"0"))):
            if os.stat(path).st_mode & (0o400 if flag == os.O_RDONLY else 0o200):
                fd = os.open(path, flag)
                fails(path, errno.EPERM, access, fd)
                os.close(fd)
    for path in glob.glob("/sys/kernel/debug/extoll-*/event_mask"):
        fails(path, errno.EPERM, os.open, path, os.O_WRONLY)
    r, v, s = Rma(), Velo(), Device("smfu2")
    check("pages", r.info()["pages"], 0x0F0F_0000)
    check("protection", r.info()["protection"], 0xFFFF)
    # Untranslated pages, with and without interrupts, and registers of other nodes.
    for page in (0, 8, 20):
        dies_by(f"page {page}", signal.SIGBUS, store, r.pages + page * PAGE, 0)
    fails("protection descriptor", errno.EPERM, r.ioctl, K(20, get=False), 0)
    fails("identity", errno.EPERM, v.ioctl, K(17, 8, False), 5)
    fails("SMFU window", errno.EPERM, s.map, PAGE, 0)
    fails("exported memory", errno.EPERM, s.map, PAGE, PAGE)
    for d in (r, v, s):
        d.close()


def limits():
    """Exhaustion of VPIDs and of pinned memory gives errors, and ends when a file is closed."""
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
    r = Rma()
    maps = []
    try:
        while len(maps) < 1000:
            maps.append(map_fd(r.fd, 32 * PAGE, 0, mmap.PROT_WRITE))
    except OSError as e:
        check("the error", e.errno, errno.ENOMEM)
    check("mappings of a port", len(maps) + len(r.maps), 128)
    libc.munmap(maps.pop(), 32 * PAGE)
    maps.append(map_fd(r.fd, 32 * PAGE, 0, mmap.PROT_WRITE))
    for address in maps:
        libc.munmap(address, 32 * PAGE)
    r.close()
    # The limit is exact to the page. The pages need not be contiguous, so no lack of memory causes the
    # error.
    queue, size = 64 << 10, 16
    memlock((queue + size * PAGE) - 1)
    a = memory(size + 1)
    r = Rma(queue)
    fails("registering one page too many", errno.ENOMEM, r.register, a, size)
    nla = r.register(a, size - 1)
    r.unregister(nla, size - 1)
    memlock(queue + size * PAGE)
    nla = r.register(a, size)
    fails("registering one page more", errno.ENOMEM, r.register, a + size * PAGE, 1)
    v = Device("velo2")
    for nr, bytes in ((8, 16 << 10), (6, 64 << 10)):
        v.ioctl(K(nr, 8, False), bytes)
    fails("a queue with nothing left", errno.ENOMEM, v.map, (64 << 10) + PAGE, 0x10000)
    r.unregister(nla, size)
    v.map((64 << 10) + PAGE, 0x10000)
    fails("registering where the queue is", errno.ENOMEM, r.register, a, 1)
    v.close()
    nla = r.register(a, size)
    check("a second process of the user", child(no_more), 0)
    r.unregister(nla, size)
    r.unregister(r.register(a, size), size)
    r.close()
    budget()


def budget():
    """RLIMIT_MEMLOCK: one account per user for queues and registered memory of all processes,
    balanced in every kind of end."""
    total = resource.getrlimit(resource.RLIMIT_MEMLOCK)[1] // PAGE
    memlock(total * PAGE)
    half, queue = total // 2, 64
    a = memory(total)

    def rest(pages):
        """Checks that exactly this many pages are left."""
        end = time.time() + PATIENCE
        while True:
            try:
                nla = r.register(a, pages)
                break
            except OSError as e:
                # Memory of a process that has ended is returned a moment later.
                check("the error", (e.errno, time.time() < end), (errno.ENOMEM, True))
                time.sleep(0.01)
        fails("one page more", errno.ENOMEM, other.register, memory(1), 1)
        r.unregister(nla, pages)

    def in_child():
        fails("too much in a child", errno.ENOMEM, r.register, memory(half), half)
        q = Rma(queue * PAGE)
        fails("too much by its own file", errno.ENOMEM, q.register, memory(half), half)
        q.register(memory(half - 4 * queue), half - 4 * queue)
        r.register(memory(queue), queue)

    def executes():
        r.register(memory(half), half)
        os.execv("/bin/true", ["true"])

    r, other = Rma(queue * PAGE), Rma(queue * PAGE)
    left = total - 2 * queue
    rest(left)
    nla = r.register(a, half)
    fails("the other file", errno.ENOMEM, other.register, memory(half), half)
    for _ in range(3):
        check("child", child(in_child), 0)
        rest(left - half)
    r.unregister(nla, half)
    check("child that executes", child(executes), 0)
    rest(left)
    # A child registers memory, and its parent releases it.
    come, go = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.write(go, struct.pack("=Q", r.register(memory(half), half)))
        time.sleep(60)
        os._exit(1)
    nla = struct.unpack("=Q", os.read(come, 8))[0]
    rest(left - half)
    r.unregister(nla, half)
    rest(left)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    # Failed calls take no memory from the limit.
    for _ in range(20):
        fails("not mapped", errno.EFAULT, r.register, 4096, half)
    rest(left)
    status = open("/proc/self/status").read()
    check("VmPin", [l.split()[1] for l in status.splitlines() if l.startswith("VmPin")], ["0"])
    r.close()
    other.close()


def no_more():
    """Runs in another process and checks that the user's limit is used up."""
    d = Device("rma2")
    raw = bytearray(80)
    b = memory(1)
    struct.pack_into("=QQIIQQ", raw, 16, b, 0, 1, 0, b + PAGE, PAGE)
    raw = (ctypes.c_char * 80).from_buffer(raw)
    fails("registering in a second process", errno.ENOMEM, d.ioctl, K(10, 8, False), ctypes.addressof(raw))
    d.close()


def memlock(bytes):
    """Sets the limit, up to the hard limit."""
    resource.setrlimit(resource.RLIMIT_MEMLOCK, (bytes, resource.getrlimit(resource.RLIMIT_MEMLOCK)[1]))


def all_vpids():
    """Root, without a limit, takes all VPIDs of both units. The next open fails, and a released
    VPID can be taken."""
    for name in ("rma2", "velo2"):
        ports = []
        try:
            while len(ports) < 300:
                ports.append(Device(name))
        except OSError as e:
            check("the error", errno.errorcode[e.errno], "ENOSPC")
        # VPIDs 0…250, some of which kernel modules may use.
        check(f"{name} ports", 200 < len(ports) <= 251)
        fails("once more", errno.ENOSPC, Device, name)
        ports.pop(100).close()
        ports.append(Device(name))
        fails("and full again", errno.ENOSPC, Device, name)
        for p in ports:
            p.close()
    r = Rma()
    r.notify(r.node, r.vpid, 5)
    check("a port works", r.wait_type(4)[0], 5)
    r.close()


def one_table():
    """With a single address table of 1 GiB, memory can be registered until it is full, and again
    after a release."""
    r, a = Rma(), memory(PIECE)
    fill(a, GIFT)
    nlas = []
    for turn in range(3):
        try:
            while len(nlas) < 100:
                nlas.append(r.register(a, PIECE))
        except OSError as e:
            check("the error", errno.errorcode[e.errno], "ENOSPC")
        # Page 0 is never assigned.
        check("pieces", len(nlas), (1 << 18) // PIECE - 1)
        fails("once more", errno.ENOSPC, r.register, a, PIECE)
        ctypes.memset(a + PAGE, 0, 8)
        r.put(r.node, r.vpid, nlas[turn], nlas[-1] + PAGE, 8, spec=4)
        r.wait_type(4)
        check("a transfer", ctypes.string_at(a + PAGE, 8), GIFT)
        for _ in range(turn + 1):
            r.unregister(nlas.pop(turn), PIECE)
        nlas.append(r.register(a, PIECE))
    r.close()
    r = Rma()
    r.unregister(r.register(a, PIECE), PIECE)
    r.close()


# Pages of a registration of 32 MiB.
PIECE = 8192


# Descriptor words that a process leaves in each of its eight pages.
LEFT = [(0,), (1,), (2,), (0, 1), (0, 2), (1, 2), (2,), (1, 2)]
PAGES = [16, 17, 18, 19, 24, 25, 26, 27]
# Words of a VELO message that a process leaves.
LEFT_VELO = [range(0, 1), range(1, 16), range(0, 15), range(15, 16), range(1, 2), range(5, 9)]


def leave(turn, witness, place):
    """Ends between the words of descriptors that target the witness."""
    r, v = Rma(), Velo()
    store(place, r.vpid << 16 | v.vpid)
    words = [3 | 5 << 2 | witness << 8 | r.node << 16 | 7 << 32, 0xDEAD, 0]
    for n, page in enumerate(PAGES):
        for i in LEFT[(n + turn) % len(LEFT)]:
            store(r.pages + page * PAGE + 8 * i, words[i])
    for i in LEFT_VELO[turn]:
        store(v.page + 8 * i, v.node | v.vpid << 16 | 120 << 48 if i == 0 else 0xDEAD)
    # Invalid counts too.
    store(r.state, 0xFF00_0001_0000_0055)
    os.kill(os.getpid(), signal.SIGKILL)


def inherit(turn, place):
    """Opens the VPIDs stored at `place`. The NIC must execute and count exactly this process's
    commands."""
    r, v = Rma(vpid=load(place) >> 16), Velo(vpid=load(place) & 0xFFFF)
    store(v.page + PAGE, 0)

    def counted(state, number):
        # The count may change after the notification, and must count only this command.
        end = time.time() + PATIENCE
        while load(state) & 0xFF < number and time.time() < end:
            time.sleep(0.001)
        check("counted", load(state) & 0xFF, number)

    for n, page in enumerate(PAGES):
        r.notify(r.node, r.vpid, 1000 + n, page=page)
        check(f"turn {turn}, page {page}", r.wait_type(4)[0], 1000 + n)
        counted(r.state, n + 1)
    for n in range(3):
        v.send(v.node, v.vpid, pattern(120 - 50 * n, n))
        check(f"turn {turn}, message {n}", v.wait()[2], pattern(120 - 50 * n, n))
        counted(v.page + PAGE, n + 1)
    check("nothing else", (r.take(), v.take()), (None, None))
    r.close()
    v.close()


def heir():
    """The next owner of a VPID inherits no descriptor words that a killed process left in the
    requester."""
    witness, place = Rma(), map_fd(-1, PAGE, 0, flags=mmap.MAP_SHARED | mmap.MAP_ANONYMOUS)
    for turn in range(len(LEFT_VELO)):
        check("child", child(leave, turn, witness.vpid, place), -signal.SIGKILL)
        inherit(turn, place)
        check("nothing came", witness.take(), None)


def storm(path, stop):
    """Interrupts itself through both units as often as possible until the file `stop` exists,
    then waits for messages normally."""
    r, v = Rma(), Velo()
    open(path, "w").close()
    end = time.time() + 120
    while not os.path.exists(stop) and time.time() < end:
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
    for n in range(30):
        check("armed", v.ioctl(ARM, v.rp), 0)
        v.send(v.node, v.vpid, b"x" * 8, irq=True)
        check(f"poll {n}", p.poll(PATIENCE * 1000), [(v.fd, select.POLLIN)])
        v.wait()
    r.close()
    v.close()
