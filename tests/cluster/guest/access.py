#!/usr/bin/env python3
"""Accesses registers of nodes and an interval of the SMFU: `access.py START SIZE WORD…`. The
interval starts at START and has SIZE bytes. `w1:0x5500=0x1` writes and `r1:0x5600` reads a register
of node 1. `W8=0x1` writes and `R0` reads 32 bits at an offset of the interval; `D8=0x1` writes and
`Q0` reads 64 bits. Prints the values read. `T` prints the microseconds since the last `T`; `P`
pauses for two milliseconds."""
import ctypes, fcntl, mmap, os, re, struct, sys, time

from device import iow, map_fd


def main():
    f = os.open("/dev/extoll/extoll_rf_access", os.O_RDWR)
    # Registers are written by RMA with a long time-out, because the lender's SMFU is not enabled
    # yet.
    for number, value in (3, 0), (5, 10_000_000):
        fcntl.ioctl(f, iow(ord("n"), number, 8), struct.pack("=Q", value))
    s = os.open("/dev/extoll/smfu2", os.O_RDWR)
    window = None
    then = time.monotonic()
    for word in sys.argv[3:]:
        if word == "T":
            now = time.monotonic()
            print(int((now - then) * 1e6))
            then = now
            continue
        if word == "P":
            time.sleep(0.002)
            continue
        kind, node, at, value = re.fullmatch(r"(\w)(?:(\d+):)?(\w+)(?:=(\w+))?", word).groups()
        at = int(at, 0)
        if kind in "rw":
            os.lseek(f, int(node) << 32 | at, os.SEEK_SET)
            if kind == "w":
                os.write(f, struct.pack("=Q", int(value, 0)))
            else:
                print(struct.unpack("=Q", os.read(f, 8))[0])
            continue
        if window is None:
            start, size = int(sys.argv[1]), int(sys.argv[2])
            window = map_fd(s, start + size, 0, mmap.PROT_READ | mmap.PROT_WRITE)
        width = ctypes.c_uint32 if kind in "RW" else ctypes.c_uint64
        place = width.from_address(window + start + at)
        if kind in "WD":
            place.value = int(value, 0)
        else:
            print(place.value)


if __name__ == "__main__":
    main()
