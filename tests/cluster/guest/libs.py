#!/usr/bin/env python3
"""Uses the C libraries inside a node: `libs.py COMMAND [ARG…]`. Exit status 0 means that all
checks succeeded."""
import ctypes, errno, fcntl, os, select, signal, struct, sys, time
from ctypes import byref, c_char_p, c_int, c_size_t, c_uint8, c_uint16, c_uint64, c_void_p

from device import PATIENCE, check, main


def library(name, **functions):
    """Returns a library with the result and argument types of its functions."""
    loaded = ctypes.CDLL(name)
    for function, (result, *arguments) in functions.items():
        f = getattr(loaded, function)
        f.restype, f.argtypes = result, arguments
    return loaded


class To(ctypes.Structure):
    _fields_ = [("node", c_uint16), ("vpid", c_uint16), ("tag", c_uint8), ("mtt", c_uint8), ("flags", c_uint8), ("reserved", c_uint8)]


class Message(ctypes.Structure):
    _fields_ = [("node", c_uint16), ("vpid", c_uint16), ("tag", c_uint8), ("mtt", c_uint8), ("len", c_uint16), ("data", c_uint8 * 120)]


class Velo:
    gone = -errno.ENODEV

    def __init__(self):
        P = c_void_p
        self.lib = library(
            "libvelo.so.1",
            velo_open=(c_int, c_char_p, P),
            velo_close=(None, P),
            velo_send=(c_int, P, P, P, c_size_t, c_int),
            velo_recv=(c_int, P, P, c_int),
            velo_drain=(c_int, P, c_int),
            velo_fd=(c_int, P),
            velo_arm=(c_int, P),
            velo_poll_timeout=(c_int, P),
        )
        self.port, self.message = c_void_p(), Message()
        check("velo_open", self.lib.velo_open(None, byref(self.port)), 0)

    def send(self, to, data, timeout=1000 * PATIENCE):
        return self.lib.velo_send(self.port, byref(to), data, len(data), timeout)

    def recv(self, timeout):
        return self.lib.velo_recv(self.port, byref(self.message), timeout)

    def sleep(self):
        return self.recv(-1)

    def afterwards(self):
        """Returns the results of all later calls."""
        lib, port = self.lib, self.port
        for _ in range(2):
            yield "recv", self.recv(0)
            yield "recv", self.recv(1000)
            yield "send", self.send(To(), b"x")
            yield "drain", lib.velo_drain(port, 1000)
            yield "arm", lib.velo_arm(port)
        lib.velo_close(port)


class Rma:
    gone = -17

    def __init__(self):
        P = c_void_p
        self.lib = library(
            "librma.so.2",
            rma2_open=(c_int, P),
            rma2_close=(c_int, P),
            rma2_connect=(c_int, P, c_uint16, c_uint16, c_int, P),
            rma2_disconnect=(c_int, P, P),
            rma2_post_notification=(c_int, P, P, c_uint8, c_uint64, c_int, c_int),
            rma2_noti_get_block=(c_int, P, P),
            rma2_noti_probe=(c_int, P, P),
            rma2_arm=(c_int, P),
            rma2_poll_timeout=(c_int, P),
            rma2_get_nodeid=(c_uint16, P),
            rma2_get_vpid=(c_uint16, P),
        )
        self.port, self.notification, self.handle = c_void_p(), c_void_p(), c_void_p()
        check("rma2_open", self.lib.rma2_open(byref(self.port)), 0)
        itself = self.lib.rma2_get_nodeid(self.port), self.lib.rma2_get_vpid(self.port)
        check("rma2_connect", self.lib.rma2_connect(self.port, *itself, 24, byref(self.handle)), 0)

    def notify(self, value):
        return self.lib.rma2_post_notification(self.port, self.handle, 3, value, 4, 0)

    def sleep(self):
        return self.lib.rma2_noti_get_block(self.port, byref(self.notification))

    def afterwards(self):
        lib, port = self.lib, self.port
        for _ in range(2):
            yield "probe", lib.rma2_noti_probe(port, byref(self.notification))
            yield "block", self.sleep()
            yield "post", self.notify(1)
            yield "arm", lib.rma2_arm(port)
        yield "disconnect", lib.rma2_disconnect(port, self.handle)
        yield "close", lib.rma2_close(port)


def unbound(name, ready):
    """Sleeps in a blocking call until the NIC is removed."""
    port = {"libvelo": Velo, "librma": Rma}[name]()
    open(ready, "w").close()
    check("the blocking call", port.sleep(), port.gone)
    for what, got in port.afterwards():
        check(what, got, port.gone)


def signals(name):
    """A signal interrupts a blocking call."""
    port = {"libvelo": Velo, "librma": Rma}[name]()
    interrupted = {"libvelo": -errno.EINTR, "librma": -27}[name]
    seen = []
    signal.signal(signal.SIGALRM, lambda *_: seen.append(1))
    # The signal arrives long after the call has begun to sleep, or shortly after.
    for seconds in (2, 0.3, 0.02):
        del seen[:]
        # The first signal may precede the call.
        signal.setitimer(signal.ITIMER_REAL, seconds, 1)
        check("the blocking call", port.sleep(), interrupted)
        signal.setitimer(signal.ITIMER_REAL, 0)
        check("the handler ran", len(seen) > 0)


def wait_readable(fd, milliseconds):
    poller = select.poll()
    poller.register(fd, select.POLLIN)
    # The wait has a time-out here, to detect that the library requested none.
    end = PATIENCE * 1000
    if not poller.poll(end if milliseconds < 0 else milliseconds) and milliseconds < 0:
        raise AssertionError("poll(2) slept without end")


def velo_loop(node, vpid, rounds):
    """Receives echoes from `extoll-ping --listen` in an event loop."""
    velo = Velo()
    fd, to = velo.lib.velo_fd(velo.port), To(node=int(node), vpid=int(vpid), mtt=1)
    for n in range(int(rounds)):
        to.tag = n % 256
        data = bytes(range(n % 8, n % 120 + 8))
        check("send", velo.send(to, data), 0)
        end = time.time() + PATIENCE
        while True:
            check("arm", velo.lib.velo_arm(velo.port), 0)
            got = velo.recv(0)
            if got != -errno.EAGAIN:
                break
            check("patience", time.time() < end, True)
            wait_readable(fd, velo.lib.velo_poll_timeout(velo.port))
        check("recv", (got, velo.message.tag, bytes(velo.message.data[: velo.message.len])), (0, n % 256, data))
    check("drain", velo.lib.velo_drain(velo.port, 1000 * PATIENCE), 0)
    velo.lib.velo_close(velo.port)


def rma_loop(rounds):
    """Receives notifications to its own port, in an event loop and in a blocking call."""
    rma = Rma()
    lib, port = rma.lib, rma.port
    lib.rma2_get_fd.argtypes = [c_void_p]
    lib.rma2_noti_get_notiput_payload.argtypes = [c_void_p]
    lib.rma2_noti_get_notiput_payload.restype = c_uint64
    lib.rma2_noti_free.argtypes = [c_void_p, c_void_p]
    fd = lib.rma2_get_fd(port)
    for n in range(int(rounds)):
        check("post", rma.notify(n), 0)
        end = time.time() + PATIENCE
        while n % 2 == 0:
            check("arm", lib.rma2_arm(port), 0)
            if lib.rma2_noti_probe(port, byref(rma.notification)) == 0:
                break
            check("patience", time.time() < end, True)
            wait_readable(fd, lib.rma2_poll_timeout(port))
        if n % 2:
            check("block", rma.sleep(), 0)
        check("value", lib.rma2_noti_get_notiput_payload(rma.notification), n)
        check("free", lib.rma2_noti_free(port, rma.notification), 0)
    check("disconnect", lib.rma2_disconnect(port, rma.handle), 0)
    check("close", lib.rma2_close(port), 0)


def wait_go(ready):
    while open(ready).read() != "go\n":
        time.sleep(0.02)


def offer(ready, vpid):
    with open(ready, "w") as f:
        print(vpid, file=f)
    # Root continues here.
    os.chmod(ready, 0o666)
    wait_go(ready)


def lost_velo(ready):
    """The first of three messages to its own port is never written."""
    velo = Velo()
    velo.lib.velo_vpid.argtypes = velo.lib.velo_node.argtypes = [c_void_p]
    itself = To(node=velo.lib.velo_node(velo.port), vpid=velo.lib.velo_vpid(velo.port))
    offer(ready, itself.vpid)
    for tag in range(3):
        itself.tag = tag
        check("send", velo.send(itself, b"data"), 0)
    check("what was lost", velo.recv(1000 * PATIENCE), -errno.EIO)
    for tag in 1, 2:
        check("recv", (velo.recv(1000 * PATIENCE), velo.message.tag), (0, tag))
    check("nothing", velo.recv(500), -errno.ETIMEDOUT)
    velo.lib.velo_close(velo.port)


def lost_rma(ready):
    """The first of three notifications to its own port is never written. Also tests probing."""
    rma = Rma()
    lib, port = rma.lib, rma.port
    lib.rma2_noti_get_notiput_payload.argtypes = [c_void_p]
    lib.rma2_noti_free.argtypes = [c_void_p, c_void_p]
    offer(ready, lib.rma2_get_vpid(port))
    for value in range(3):
        check("post", rma.notify(value), 0)
    got, end = -9, time.time() + PATIENCE
    while got == -9 and time.time() < end:
        got = lib.rma2_noti_probe(port, byref(rma.notification))
    check("what was lost", got, -1)
    for value in 1, 2:
        check("block", rma.sleep(), 0)
        check("value", lib.rma2_noti_get_notiput_payload(rma.notification), value)
        check("free", lib.rma2_noti_free(port, rma.notification), 0)
    check("disconnect", lib.rma2_disconnect(port, rma.handle), 0)
    check("close", lib.rma2_close(port), 0)


class Smfu:
    def __init__(self):
        P = c_void_p
        self.lib = library(
            "libsmfu.so.1",
            smfu_open=(c_int, c_char_p, P),
            smfu_close=(None, P),
            smfu_node=(c_uint16, P),
            smfu_exported=(c_uint64, P),
            smfu_map_window=(c_int, P, c_size_t, P),
            smfu_map_local=(c_int, P, c_size_t, P),
            smfu_address=(c_void_p, P),
            smfu_length=(c_size_t, P),
            smfu_unmap=(None, P),
            smfu_flush=(None,),
        )
        self.handle = c_void_p()
        check("smfu_open", self.lib.smfu_open(None, byref(self.handle)), 0)

    def map(self, f, size):
        mapping = c_void_p()
        check("map", f(self.handle, size, byref(mapping)), 0)
        check("length", self.lib.smfu_length(mapping), size)
        return mapping

    def close(self, mapping):
        """A mapping outlives its handle."""
        address = self.lib.smfu_address(mapping)
        self.lib.smfu_close(self.handle)
        value = word(address).value
        self.lib.smfu_unmap(mapping)
        return value


def word(address):
    return c_uint64.from_address(address)


def words(seed):
    return [n * 0x9E37_79B9_7F4A_7C15 + seed & (1 << 64) - 1 for n in range(512)]


def wait_word(address, value):
    end = time.time() + PATIENCE
    while word(address).value != value:
        check("patience", time.time() < end, True)
        time.sleep(0.001)


def smfu_export():
    """Lets another node read and write memory, and checks the data written."""
    smfu = Smfu()
    memory = smfu.map(smfu.lib.smfu_map_local, 8192)
    at = smfu.lib.smfu_address(memory)
    for n, value in enumerate(words(1)):
        word(at + 8 * n).value = value
    word(at + 4096).value = 0
    print("ready", smfu.lib.smfu_node(smfu.handle), flush=True)
    wait_word(at + 4096, 1)
    check("what was written", [word(at + 8 * n).value for n in range(512)], words(2))
    word(at + 4096).value = 2
    wait_word(at + 4096, 3)
    check("the end", smfu.close(memory), words(2)[0])


def smfu_use(node, first, *registers):
    """Reads and writes another node's memory from byte `first` of the window on. `registers` are
    the registers of an interval (control, start, end) and the register with the window's address."""
    node, first = int(node), int(first)
    f = os.open("/dev/extoll/extoll_rf_access", os.O_RDWR)
    for number in (3, 4):
        fcntl.ioctl(f, 1 << 30 | 8 << 16 | ord("n") << 8 | number, struct.pack("=Q", 2))

    def register(at, value=None):
        os.lseek(f, at, os.SEEK_SET)
        if value is None:
            return struct.unpack("=Q", os.read(f, 8))[0]
        os.write(f, struct.pack("=Q", value))

    control, start, end, window, to_node = (int(r) for r in registers)
    base = register(window) + first
    register(control, 0)
    register(start, base)
    register(end, base + 8192)
    register(control, to_node)
    try:
        smfu = Smfu()
        mapping = smfu.map(smfu.lib.smfu_map_window, first + 8192)
        at = smfu.lib.smfu_address(mapping) + first
        check("memory of the other node", [word(at + 8 * n).value for n in range(512)], words(1))
        for n, value in enumerate(words(2)):
            word(at + 8 * n).value = value
        smfu.lib.smfu_flush()
        word(at + 4096).value = 1
        smfu.lib.smfu_flush()
        wait_word(at + 4096, 2)
        word(at + 4096).value = 3
        smfu.lib.smfu_flush()
        smfu.close(mapping)
    finally:
        register(control, 0)


def smfu_errors():
    smfu = Smfu()
    lib, handle, to = smfu.lib, smfu.handle, c_void_p()
    size = lib.smfu_exported(handle)
    check("exported memory", size > 0, True)
    for what, want, got in (
        ("open nothing", errno.EINVAL, lib.smfu_open(None, None)),
        ("no device", errno.ENODEV, lib.smfu_open(b"/nonexistent", byref(to))),
        ("no handle", errno.EINVAL, lib.smfu_map_local(None, 4096, byref(to))),
        ("nowhere to", errno.EINVAL, lib.smfu_map_window(handle, 4096, None)),
        ("nothing of the window", errno.EINVAL, lib.smfu_map_window(handle, 0, byref(to))),
        ("nothing of the memory", errno.EINVAL, lib.smfu_map_local(handle, 0, byref(to))),
        ("more than the memory", errno.EINVAL, lib.smfu_map_local(handle, size + 1, byref(to))),
        ("more than the window", errno.EINVAL, lib.smfu_map_window(handle, 1 << 40, byref(to))),
    ):
        check(what, got, -want)
    check("nothing was stored", to.value, None)
    mapping = smfu.map(lib.smfu_map_local, size)
    lib.smfu_unmap(mapping)
    os.setresuid(1000, 1000, 1000)
    # Permissions are checked when the file is opened.
    lib.smfu_unmap(smfu.map(lib.smfu_map_window, 4096))
    other = Smfu()
    for f in (lib.smfu_map_window, lib.smfu_map_local):
        check("an ordinary user", f(other.handle, 4096, byref(to)), -errno.EPERM)
    lib.smfu_close(other.handle)
    lib.smfu_close(handle)


if __name__ == "__main__":
    main(unbound, signals, velo_loop, rma_loop, lost_velo, lost_rma, smfu_export, smfu_use, smfu_errors)
