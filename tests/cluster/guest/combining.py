#!/usr/bin/env python3
"""Sends with or without fences to a NIC that combines stores: `combining.py COMMAND`. Uses
uapi.py."""
from uapi import *

MESSAGES = 40


def text(n):
    return n.to_bytes(8, "little")


def fenced():
    """All messages and commands arrive in order, and all count as committed in the end."""
    v, r = Velo(), Rma()
    check("the NIC wants marks", (v.marks, r.marks), (True, True))
    for n in range(MESSAGES):
        v.send(v.node, v.vpid, text(n))
        check("message", v.wait()[2], text(n))
        r.notify(r.node, r.vpid, n)
        check("notification", r.wait_type(4)[0], n)
    end = time.time() + PATIENCE
    while (load(v.page + PAGE) & 0xFF, load(r.state) & 0xFF) != (MESSAGES, MESSAGES):
        check("the counts come in time", time.time() < end)
        time.sleep(0.001)


def unfenced():
    """Without fences, overwritten messages are lost and others are late. Prints the number of
    messages that arrived."""
    v = Velo()
    v.marks = False
    for n in range(MESSAGES):
        v.send(v.node, v.vpid, text(n))
    # A line is written back after up to a tenth of a second.
    got, end = set(), time.time() + 1
    while time.time() < end:
        m = v.take()
        if m:
            got.add(m[2])
        time.sleep(0.001)
    print(len(got))


def main():
    {f.__name__: f for f in (fenced, unfenced)}[sys.argv[1]]()


main()
