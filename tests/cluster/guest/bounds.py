#!/usr/bin/env python3
"""Tests limits that apply to a user: `bounds.py [--user UID] COMMAND [ARG…]`."""
from device import *


BLOCK = 8192


def sparse(most):
    """Registers a large block repeatedly, and keeps one page of each address table that it
    reaches, until an error or `most` tables. Prints the number of tables, and 1 after an
    error; -1 if it took longer than the hold-off time of NLAs, 10 s. Keeps the pages until
    /tmp/go exists. Then checks that it can still register memory in its tables."""
    r, a, kept, refused, rounds = Rma(), memory(BLOCK), {}, 0, 0
    end = time.time() + 9
    while len(kept) < int(most) and not refused and time.time() < end:
        try:
            nla = r.register(a, BLOCK)
        except OSError as e:
            check("error", errno.errorcode.get(e.errno), "EDQUOT")
            refused = 1
            break
        try:
            one = r.register(a, 1)
        except OSError as e:
            check("error", errno.errorcode.get(e.errno), "EDQUOT")
            refused = 1
        else:
            if one >> 30 in kept:
                r.unregister(one, 1)
            else:
                kept[one >> 30] = one
        r.unregister(nla, BLOCK)
        rounds += 1
    if time.time() >= end:
        print(-1, rounds, "rounds, tables", sorted(kept), flush=True)
    else:
        print(len(kept), refused, flush=True)
    open("/tmp/registered", "w").close()
    end = time.time() + 60
    while not os.path.exists("/tmp/go") and time.time() < end:
        time.sleep(0.05)
    while True:
        try:
            nla = r.register(a, 8)
            break
        except OSError as e:
            # Retries until the released NLAs are usable again.
            check("error", errno.errorcode.get(e.errno), "EDQUOT")
            check("time", time.time() < end, True)
            time.sleep(0.5)
    check("table", not refused or nla >> 30 in kept, True)
    r.close()


def block():
    """Registers one block."""
    r = Rma()
    r.register(memory(BLOCK), BLOCK)
    r.close()


def stranger(uid):
    """A user without a protection descriptor can't open the device files."""
    for name in ("rma2", "velo2"):
        check(name, child(lambda: fails("open", errno.EPERM, Device, name), uid=int(uid)), 0)


if __name__ == "__main__":
    main(sparse, block, stranger)
