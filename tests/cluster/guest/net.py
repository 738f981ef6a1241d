"""Small programs for tests of the network interface.

net.py raw INTERFACE HEX        sends a raw frame
net.py busy PORT FILE SECONDS   receives a datagram, writes "ready" to FILE, and waits for another one for
                                SECONDS while it polls the interface (SO_BUSY_POLL); also binds the next
                                port, without reading from it
net.py pace HOST PORT N         sends N datagrams, 200 per second
net.py room HOST PORT SECONDS   sends datagrams for SECONDS without blocking, on a socket that holds few of
                                them; prints the number sent
"""
import os
import select
import socket
import struct
import sys
import time

SO_BUSY_POLL = 46


def raw(interface, text):
    s = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
    s.bind((interface, 0))
    s.send(bytes.fromhex(text))


def busy(port, path, seconds):
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    s.bind(("0.0.0.0", port))
    unread = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    unread.bind(("0.0.0.0", port + 1))
    # Busy polling uses the interface that the last datagram came from.
    s.recv(100)
    s.setsockopt(socket.SOL_SOCKET, SO_BUSY_POLL, int(seconds * 1_000_000))
    s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", int(seconds) + 1, 0))
    with open(path + ".new", "w") as f:
        f.write("ready")
    os.rename(path + ".new", path)
    try:
        s.recv(100)
    except BlockingIOError:
        pass
    unread.close()


def pace(host, port, count):
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    s.connect((host, port))
    for _ in range(count):
        s.send(b"x")
        time.sleep(0.005)


def room(host, port, seconds):
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    s.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 8192)
    s.setblocking(False)
    s.connect((host, port))
    end, sent = time.monotonic() + seconds, 0
    while time.monotonic() < end:
        try:
            s.send(b"x" * 1400)
            sent += 1
        except BlockingIOError:
            select.select([], [s], [], 0.05)
        except ConnectionRefusedError:
            pass
    print(sent)


if sys.argv[1] == "raw":
    raw(sys.argv[2], sys.argv[3])
elif sys.argv[1] == "busy":
    busy(int(sys.argv[2]), sys.argv[3], float(sys.argv[4]))
elif sys.argv[1] == "pace":
    pace(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
else:
    room(sys.argv[2], int(sys.argv[3]), float(sys.argv[4]))
