"""extl_options.py [all]: reads and sets all possible socket options on sockets of TCP and of AF_EXTL in all states, and compares values and errors.

Without "all" the two kinds of AF_EXTL sockets alternate, and accepted sockets are left out.

Prints each difference and the number of options.
"""
import socket
import struct
import sys

from extl import attempt, listener, make, pair

LEVELS = {"socket": (socket.SOL_SOCKET, 90), "tcp": (socket.IPPROTO_TCP, 50), "ip": (socket.IPPROTO_IP, 60), "ipv6": (socket.IPPROTO_IPV6, 90), "none": (999, 3)}
SO_BINDTODEVICE, SO_RCVTIMEO, SO_SNDTIMEO, SO_LINGER, SO_LOCK_FILTER = 25, 20, 21, 13, 44
TCP_ULP, IPV6_ADDRFORM = 31, 1
#: Options whose value is specific to a socket or moment. Only success and length are compared.
OWN = {
    ("socket", 28),  # SO_PEERNAME: contains the port
    ("socket", 49),  # SO_INCOMING_CPU
    ("socket", 55),  # SO_MEMINFO
    ("socket", 56),  # SO_INCOMING_NAPI_ID
    ("socket", 57),  # SO_COOKIE
    ("ip", 52),  # IP_PROTOCOL: for TCP the port
    ("tcp", 11),  # TCP_INFO
    ("tcp", 24),  # TCP_TIMESTAMP
    ("tcp", 26),  # TCP_CC_INFO
    ("tcp", 35),  # TCP_ZEROCOPY_RECEIVE
}
#: Options that AF_EXTL rejects (docs/af_extl.md).
REFUSED = {("tcp", TCP_ULP), ("ipv6", IPV6_ADDRFORM)}


def states(kind):
    """Returns functions that create a socket in each state, with an object that must live as
    long."""
    def connected():
        a, b = pair(kind)
        return a, b

    def accepted():
        a, b = pair(kind)
        return b, a

    return {
        "new": lambda: (make(kind), None),
        "listening": lambda: (listener(kind), None),
        "connected": connected,
        "accepted": accepted,
    }


def values(level, option):
    """Returns the values to set."""
    yield struct.pack("i", 1)
    yield struct.pack("i", 70000)
    yield struct.pack("i", -1)
    yield b""
    if (level, option) == ("socket", SO_BINDTODEVICE):
        yield b"lo"
        yield b"nothing0"
    if level == "socket" and option in (SO_RCVTIMEO, SO_SNDTIMEO):
        yield struct.pack("ll", 3, 500_000)
        yield struct.pack("ll", 0, 2_000_000)
    if (level, option) == ("socket", SO_LINGER):
        yield struct.pack("ii", 1, 7)
    if (level, option) == ("tcp", 13):
        yield b"reno"
        yield b"nothing"


def look(kind, state, level, number, option):
    """Returns the value of an option, and the results of setting each value."""
    own = (level, option) in OWN
    seen = []
    s, other = states(kind)[state]()
    for size in (0, 1, 4, 256):
        value = attempt(s.getsockopt, number, option, size) if size else attempt(s.getsockopt, number, option)
        seen.append(type(value).__name__ if own and not isinstance(value, str) else value)
    for value in values(level, option):
        s, other = states(kind)[state]()
        seen.append(attempt(s.setsockopt, number, option, value))
        after = attempt(s.getsockopt, number, option, 256)
        seen.append(type(after).__name__ if own and not isinstance(after, str) else after)
    del other
    return seen


def main():
    everything = sys.argv[1:] == ["all"]
    looked = bad = 0
    for version in "46":
        for level, (number, most) in LEVELS.items():
            for option in range(most):
                if (level, option) in REFUSED:
                    continue
                for state in states("tcp4"):
                    if state == "accepted" and not everything:
                        continue
                    tcp = look("tcp" + version, state, level, number, option)
                    # Most numbers are undefined.
                    if state != "new" and all(x in ("ENOPROTOOPT", "EINVAL", "EOPNOTSUPP") for x in tcp):
                        continue
                    looked += 1
                    kinds = ("extl", "alias")
                    for kind in kinds if everything else kinds[option % 2 :][:1]:
                        other = look(kind + version, state, level, number, option)
                        if other != tcp:
                            bad += 1
                            print(f"{level} {option} of a {state} socket, {kind}{version}:\n  {tcp}\n  {other}")
    print(f"{looked} looked at")
    sys.exit(bad > 0)


if __name__ == "__main__":
    main()
