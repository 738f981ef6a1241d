"""Connection setup of AF_EXTL: the path of the data, the reason, and the time that a program waits.

extl_connect.py serve KIND HOST PORT OPTION ... echoes; options: deferred (TCP_DEFER_ACCEPT), signed
                                                (TCP_MD5SIG for an unused address), shared (SO_REUSEPORT),
                                                slow=N (accepts each of the first N connections after 1 s)
extl_connect.py ask KIND HOST PORT COUNT        makes COUNT connections in a row, each with an echo; prints mode
                                                and reason of each
extl_connect.py signed KIND HOST PORT           makes one connection like `ask`, from a socket that signs segments to another peer
extl_connect.py ports KIND HOST PORT COUNT      makes COUNT connections in a row; prints the median distance between
                                                consecutive local ports
extl_connect.py many KIND COUNT HOST:PORT ...   makes COUNT connections to each address at the same time, then an echo in each connection
extl_connect.py held KIND HOST PORT COUNT USER  makes COUNT connections of a user; prints mode and reason of each, and
                                                holds them
extl_connect.py dead KIND HOST PORT COUNT       makes COUNT non-blocking connects; prints time in ms, mode and reason
                                                of each
extl_connect.py signal KIND HOST PORT           connects while a signal arrives; prints mode and reason then, and after
                                                the decision
"""
import os
import select
import signal
import socket
import struct
import sys
import threading
import time

import extl

WAITING = 4
IP_LOCAL_PORT_RANGE = 51
TCP_MD5SIG = 14


def sign(s):
    """Signs segments to 10.2.0.99."""
    peer = struct.pack("=HH4B120x", socket.AF_INET, 0, 10, 2, 0, 99)
    s.setsockopt(socket.IPPROTO_TCP, TCP_MD5SIG, peer + struct.pack("=BBHi80s", 0, 0, 4, 0, b"word"))


def said(s):
    mode, reason, _, _ = extl.info(s)
    return f"{mode}/{reason}"


def serve(kind, host, port, options):
    s = extl.make(kind)
    s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    slow = 0
    for option in options:
        if option == "deferred":
            s.setsockopt(socket.IPPROTO_TCP, socket.TCP_DEFER_ACCEPT, 5)
        elif option == "signed":
            sign(s)
        elif option == "shared":
            s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        else:
            slow = int(option.removeprefix("slow="))
    s.bind((host, port))
    s.listen(64)
    print("ready", flush=True)
    while True:
        if slow:
            select.select([s], [], [])
            time.sleep(1)
            slow -= 1
        threading.Thread(target=extl.answer, args=(s.accept()[0],), daemon=True).start()


def connect(kind, host, port):
    s = extl.make(kind)
    # Python's own time-out is off, because it would make the kernel's call non-blocking.
    s.connect((host, port))
    s.settimeout(60)
    return s


def echoes(s):
    data = os.urandom(5000)
    s.sendall(data)
    assert extl.exactly(s, len(data)) == data
    return said(s)


def ask(kind, host, port, count):
    words = []
    for _ in range(count):
        with connect(kind, host, port) as s:
            words.append(echoes(s))
    print(*words)


def signed(kind, host, port):
    with extl.make(kind) as s:
        sign(s)
        s.connect((host, port))
        print(echoes(s))


def ports(kind, host, port, count):
    used = []
    for _ in range(count):
        with connect(kind, host, port) as s:
            used.append(s.getsockname()[1])
    steps = [abs(a - b) for a, b in zip(used, used[1:])]
    print(sorted(steps)[len(steps) // 2])


def many(kind, count, peers):
    all_of = []
    for _ in range(count):
        for peer in peers:
            host, port = peer.split(":")
            all_of.append(connect(kind, host, int(port)))
    # The choice of the port must not leave its option changed.
    assert all(s.getsockopt(socket.IPPROTO_IP, IP_LOCAL_PORT_RANGE) == 0 for s in all_of)
    print(len({s.getsockname()[1] for s in all_of}), "ports:", *(echoes(s) for s in all_of))


def held(kind, host, port, count, user):
    os.setgid(user)
    os.setuid(user)
    all_of = [connect(kind, host, port) for _ in range(count)]
    print("held", *(echoes(s) for s in all_of), flush=True)
    sys.stdin.read()


def dead(kind, host, port, count):
    for _ in range(count):
        with extl.make(kind) as s:
            s.setblocking(False)
            began = time.monotonic()
            extl.attempt(s.connect, (host, port))
            took = time.monotonic() - began
            print(round(took * 1000), said(s))


def interrupted(kind, host, port):
    signal.signal(signal.SIGALRM, lambda *_: None)
    with extl.make(kind) as s:
        s.setblocking(False)
        signal.setitimer(signal.ITIMER_REAL, 0.1)
        began = time.monotonic()
        extl.attempt(s.connect, (host, port))
        assert time.monotonic() - began < 0.6, "the signal did not end the wait"
        first, end = said(s), began + 20
        while extl.info(s)[0] == WAITING and time.monotonic() < end:
            time.sleep(0.05)
        print(first, said(s))


if __name__ == "__main__":
    command, kind, words = sys.argv[1], sys.argv[2], sys.argv[3:]
    if command == "serve":
        serve(kind, words[0], int(words[1]), words[2:])
    elif command == "many":
        many(kind, int(words[0]), words[1:])
    elif command == "signal":
        interrupted(kind, words[0], int(words[1]))
    else:
        {"ask": ask, "signed": signed, "ports": ports, "held": held, "dead": dead}[command](kind, words[0], *(int(n) for n in words[1:]))
