"""A minimal io_uring ring for other programs of this directory: one request at a time, by system
calls."""
import ctypes
import errno
import mmap
import struct

LIBC = ctypes.CDLL(None, use_errno=True)
SETUP, ENTER = 425, 426
SQES, CQ = 0x10000000, 0x8000000
POLL_ADD, ACCEPT, CONNECT, SEND, RECV, SEND_ZC = 6, 13, 16, 26, 27, 47
#: Flag of POLL_ADD in the length field: the request stays armed after an event.
MULTISHOT = 1
#: Flags of a completion. MORE: more completions of the request follow. NOTIFICATION: the completion
#: is the notification of SEND_ZC.
MORE, NOTIFICATION = 2, 8


def call(number, *words):
    result = LIBC.syscall(number, *words)
    if result < 0:
        raise OSError(ctypes.get_errno(), "io_uring")
    return result


class Ring:
    def __init__(self):
        params = ctypes.create_string_buffer(120)
        self.fd = call(SETUP, 8, params)
        self.sq_entries, cq_entries = struct.unpack_from("II", params, 0)
        self.sq = struct.unpack_from("7I", params, 40)
        self.cq = struct.unpack_from("7I", params, 80)
        size = max(self.sq[6] + 4 * self.sq_entries, self.cq[5] + 16 * cq_entries)
        # Newer kernels have both rings in one mapping.
        self.ring = mmap.mmap(self.fd, size, offset=0)
        self.sqes = mmap.mmap(self.fd, 64 * self.sq_entries, offset=SQES)
        self.kept = []

    def word(self, at):
        return struct.unpack_from("I", self.ring, at)[0]

    def begin(self, op, fd, addr=0, length=0, flags=0, off=0, user=1):
        """Submits a request. Its buffers must live until its completion."""
        tail = self.word(self.sq[1])
        slot = tail & self.word(self.sq[2])
        self.sqes[64 * slot : 64 * slot + 64] = struct.pack("=BBHiQQIIQ24x", op, 0, 0, fd, off, addr, length, flags, user)
        struct.pack_into("I", self.ring, self.sq[6] + 4 * slot, slot)
        struct.pack_into("I", self.ring, self.sq[1], tail + 1)
        call(ENTER, self.fd, 1, 0, 0, None, 0)

    def next(self, wait=True):
        """Returns a completion as (request, result or name of its error, flags), or None if
        there is none."""
        head = self.word(self.cq[0])
        if head == self.word(self.cq[1]):
            if not wait:
                return None
            call(ENTER, self.fd, 0, 1, 1, None, 0)
        user, result, flags = struct.unpack_from("=QiI", self.ring, self.cq[5] + 16 * (head & self.word(self.cq[2])))
        struct.pack_into("I", self.ring, self.cq[0], head + 1)
        return user, errno.errorcode[-result] if result < 0 else result, flags

    def bytes(self, data):
        """Returns address and length of a buffer that lives as long as the ring, and the buffer."""
        room = ctypes.create_string_buffer(data, len(data)) if isinstance(data, bytes) else ctypes.create_string_buffer(data)
        self.kept.append(room)
        return ctypes.addressof(room), len(room), room
