"""Tests the order of datagrams of two alternating sizes. Datagrams of one size are sent as messages,
the others are announced.

order.py listen PORT FILE          writes "ready" to FILE, and then the result: number of datagrams,
                                   number out of order, greatest distance
order.py send HOST PORT N FLOWS    sends N datagrams, of one flow (1) or of one for each size (2), then
                                   sends end marks until the listener ends, because any may be dropped
"""
import os
import socket
import struct
import sys
import time

SIZES = 24, 1404
END = 0xFFFFFFFF


def tell(path, text):
    with open(path + ".new", "w") as f:
        f.write(text)
    os.rename(path + ".new", path)


def listen(port, path):
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    s.setsockopt(socket.SOL_SOCKET, 33, 16 << 20)  # SO_RCVBUFFORCE
    s.settimeout(60)
    s.bind(("0.0.0.0", port))
    tell(path, "ready")
    came = wrong = most = 0
    last = -1
    while True:
        data = s.recv(2048)
        number = struct.unpack("<I", data[:4])[0]
        if number == END:
            break
        if len(data) != SIZES[number % 2]:
            raise SystemExit(f"{number} has {len(data)} bytes")
        came += 1
        if number < last:
            wrong += 1
            most = max(most, last - number)
        last = max(last, number)
    tell(path, f"{came} {wrong} {most}")


def send(host, port, count, flows):
    sockets = [socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(flows)]
    for s in sockets:
        s.connect((host, port))
    for number in range(count):
        s = sockets[number % flows]
        s.send(struct.pack("<I", number).ljust(SIZES[number % 2], b"x"))
    for _ in range(1200):
        try:
            sockets[0].send(struct.pack("<I", END))
        except ConnectionRefusedError:
            return  # The listener has ended.
        time.sleep(0.05)
    raise SystemExit("the listener does not end")


if sys.argv[1] == "listen":
    listen(int(sys.argv[2]), sys.argv[3])
else:
    send(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), int(sys.argv[5]))
