#!/usr/bin/env python3
"""What comes late for a port, a VPID or memory that has another owner by then: `late.py [--user UID] COMMAND [ARG…]`."""
from device import *


def leave(offer):
    """Posts commands to a port of another node, which the NIC accepts and cannot execute, and ends. Prints its VPID."""
    o = json.loads(offer)
    r = Rma()
    for n, page in enumerate((16, 17, 18, 19)):
        r.notify(o["node"], o["rma"], 1000 + n, page=page)
    print(r.vpid)


def free():
    """Prints the VPIDs that can be had."""
    found = []
    while True:
        try:
            found.append(Device("rma2"))
        except OSError as e:
            check("error", errno.errorcode.get(e.errno), "ENOSPC")
            break
    print(*(d.info()["vpid"] for d in found))
    for d in found:
        d.close()


def heir(vpid):
    """The next owner of a VPID sends, and nothing comes that he did not ask for."""
    r = Rma(vpid=int(vpid))
    r.notify(r.node, r.vpid, 7)
    check("own notification", r.wait_type(4)[0], 7)
    time.sleep(1)
    check("others", r.take(), None)
    r.close()


def regions(n):
    """Registers n regions and ends with them. Prints how long the end took, in seconds."""
    r = Rma()
    a = memory(int(n))
    for i in range(int(n)):
        r.register(a + i * PAGE, 1)
    open("/tmp/registered", "w").close()
    end = time.time() + 60
    while not os.path.exists("/tmp/go") and time.time() < end:
        time.sleep(0.02)
    start = time.time()
    r.close()
    print(time.time() - start)


def refused(n):
    """Registers without success, n times: the NIC takes no table. Prints how long each attempt took, in seconds."""
    r = Rma()
    a = memory(1)
    for i in range(int(n)):
        start = time.time()
        fails(f"registration {i}", errno.ETIMEDOUT, r.register, a, 1)
        print(time.time() - start)
    r.close()


def buffer(size):
    """Memory with a bus address, and that address."""
    p = Device("pmap")
    p.ioctl(K(0, get=False), 0)
    p.ioctl(K(4, get=False), size)
    return p, p.map(size, 0), p.get(K(6))


def serve_bus(path, size=1 << 20):
    """Offers memory by its bus address, until killed."""
    r = Rma()
    p, at, bus = buffer(size)
    fill(at, bytes([0xEE]) * size)
    with open(path + ".new", "w") as f:
        json.dump({"node": r.node, "rma": r.vpid, "bus": bus, "size": size}, f)
    os.rename(path + ".new", path)
    while True:
        time.sleep(1)


def ask(offer):
    """Asks for what is at a bus address, does not wait for the answer, frees the memory for it, and ends. Prints the VPID."""
    o = json.loads(offer)
    r = Rma()
    p, at, bus = buffer(2 << 20)
    r.fetch(o["node"], o["rma"], o["bus"], bus, o["size"], page=0)
    check("nothing came", r.take(), None)
    p.ioctl(K(8))
    dies_by("access to freed memory", signal.SIGBUS, load, at)
    print(r.vpid)
    r.close()
    p.close()


def inherit(vpid):
    """Has a VPID, so that what is for it comes in, until it may go."""
    r = Rma(vpid=int(vpid))
    open("/tmp/inherited", "w").close()
    end = time.time() + 120
    while not os.path.exists("/tmp/go") and time.time() < end:
        time.sleep(0.02)
    seen = 0
    while r.take():
        seen += 1
    print(seen)
    r.close()


def stranger(uid):
    """A user without a protection descriptor of his own opens nothing."""
    for name in ("rma2", "velo2"):
        check(name, child(lambda: fails("open", errno.EPERM, Device, name), uid=int(uid)), 0)


if __name__ == "__main__":
    main(leave, free, heir, regions, refused, serve_bus, ask, inherit, stranger)
