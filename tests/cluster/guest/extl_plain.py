"""Programs without code for AF_EXTL, for the switch and for the tools that show sockets.

extl_plain.py serve PORT         accepts connections without reading; prints "ready"
extl_plain.py send HOST PORT N   sends N bytes and waits until it is killed; prints "ready"
extl_plain.py echo PORT N        sends N bytes to itself and receives them; prints the number
extl_plain.py list PORT          listens, and prints the lists in /proc/net that show its port: "extl", "tcp"
extl_plain.py make SECONDS       creates sockets of IPv4 and IPv6 with short pauses; prints the number
"""
import socket
import sys
import threading
import time


def listener(port, host=""):
    s = socket.create_server((host, port))
    s.listen(16)
    return s


def serve(port):
    s = listener(int(port))
    print("ready", flush=True)
    kept = []
    while True:
        kept.append(s.accept())


def send(host, port, count):
    s = socket.create_connection((host, int(port)))
    s.sendall(bytes(int(count)))
    print("ready", flush=True)
    time.sleep(600)


def echo(port, count):
    count = int(count)
    with listener(int(port)) as s:

        def one():
            c, _ = s.accept()
            with c:
                while data := c.recv(65536):
                    c.sendall(data)

        thread = threading.Thread(target=one)
        thread.start()
        got = 0
        with socket.create_connection(("127.0.0.1", int(port))) as c:
            sent = bytes(i % 251 for i in range(count))
            sender = threading.Thread(target=lambda: (c.sendall(sent), c.shutdown(socket.SHUT_WR)))
            sender.start()
            while data := c.recv(65536):
                assert data == sent[got : got + len(data)]
                got += len(data)
            sender.join()
        thread.join()
    print(got)


def where(port):
    """Prints the lists of this namespace that show a listener with the port."""
    with listener(port):
        found = []
        try:
            with open("/proc/self/net/extl") as f:
                if any(l.split()[0].endswith(f":{port}") for l in f):
                    found.append("extl")
        except FileNotFoundError:
            pass
        with open("/proc/self/net/tcp") as f:
            if any(l.split()[1].endswith(f":{port:04X}") for l in f):
                found.append("tcp")
    print(*found)


def make(seconds):
    end, made = time.monotonic() + float(seconds), 0
    while time.monotonic() < end:
        for family in socket.AF_INET, socket.AF_INET6:
            # An error ends the program.
            with socket.socket(family, socket.SOCK_STREAM) as s:
                s.bind(("", 0))
            made += 1
        if made % 40 == 0:
            time.sleep(0.02)
    print(made)


def main():
    words = sys.argv[1:]
    if words[0] == "list":
        where(int(words[1]))
    else:
        {"serve": serve, "send": send, "echo": echo, "make": make}[words[0]](*words[1:])


if __name__ == "__main__":
    main()
