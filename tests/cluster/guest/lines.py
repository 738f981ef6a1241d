#!/usr/bin/env python3
"""lines.py PORT FILE: writes the datagrams received on a UDP port to a file, which exists as soon as the port is bound. Ends when it is killed.

The socket's buffer holds a whole burst, whatever the limits of the system.
"""
import socket
import sys

SO_RCVBUFFORCE = 33

s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 16 << 20)
s.bind(("0.0.0.0", int(sys.argv[1])))
with open(sys.argv[2], "wb", buffering=0) as f:
    while True:
        f.write(s.recv(65536))
