#!/usr/bin/env python3
"""Accesses BAR 0 of a PCI device of this node: `bar.py DEVICE WORD…` with DEVICE like
0000:01:00.0. `R8` reads and `W8=0x1` writes 32 bits at an offset in the BAR; `Q0` reads and
`D8=0x1` writes 64 bits. Prints the values read. `P` pauses for 150 ms; `S1000:8=0x1` stores 32 bits a
thousand times."""
import ctypes, mmap, os, re, sys, time

from device import map_fd

WIDTH = {"R": ctypes.c_uint32, "W": ctypes.c_uint32, "Q": ctypes.c_uint64, "D": ctypes.c_uint64}


def main():
    f = os.open(f"/sys/bus/pci/devices/{sys.argv[1]}/resource0", os.O_RDWR)
    base = map_fd(f, os.fstat(f).st_size, 0, mmap.PROT_READ | mmap.PROT_WRITE)
    for word in sys.argv[2:]:
        if word == "P":
            time.sleep(0.15)
            continue
        if word[0] == "S":
            times, at, value = re.fullmatch(r"S(\d+):(\w+)=(\w+)", word).groups()
            place, value = ctypes.c_uint32.from_address(base + int(at, 0)), int(value, 0)
            for _ in range(int(times)):
                place.value = value
            continue
        kind, at, value = re.fullmatch(r"(\w)(\w+)(?:=(\w+))?", word).groups()
        place = WIDTH[kind].from_address(base + int(at, 0))
        if kind in "WD":
            place.value = int(value, 0)
        else:
            print(place.value)


if __name__ == "__main__":
    main()
