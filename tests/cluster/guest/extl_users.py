"""Clients and servers without code for AF_EXTL, where Debian has no program that checks the data.

extl_users.py asyncio-serve PORT          echoes with asyncio
extl_users.py asyncio HOST PORT COUNT     makes COUNT connections at the same time; prints "same" if all data came back
extl_users.py memcached HOST PORT COUNT   sets and gets COUNT values; prints "same"
"""
import asyncio
import random
import socket
import sys


async def echo(reader, writer):
    while data := await reader.read(70000):
        writer.write(data)
        await writer.drain()
    writer.close()


async def serve(port):
    server = await asyncio.start_server(echo, "0.0.0.0", port)
    await server.serve_forever()


async def talk(host, port, seed):
    rng = random.Random(seed)
    reader, writer = await asyncio.open_connection(host, port)
    for _ in range(5):
        data = rng.randbytes(rng.choice([1, 100, 3000, 200000]))
        writer.write(data)
        assert await reader.readexactly(len(data)) == data
    # Data in flight come back after the end of the direction too.
    data = rng.randbytes(50000)
    writer.write(data)
    writer.write_eof()
    assert await reader.read(-1) == data
    writer.close()
    await writer.wait_closed()


async def talk_all(host, port, count):
    await asyncio.gather(*(talk(host, port, seed) for seed in range(count)))
    print("same")


def memcached(host, port, count):
    rng = random.Random(count)
    values = {f"key{n}": rng.randbytes(rng.choice([0, 1, 90, 1000, 100000])) for n in range(count)}
    with socket.create_connection((host, port)) as s, s.makefile("rwb") as f:
        for key, value in values.items():
            f.write(f"set {key} 0 0 {len(value)}\r\n".encode() + value + b"\r\n")
            f.flush()
            assert f.readline() == b"STORED\r\n"
        keys = list(values)
        rng.shuffle(keys)
        # Several requests at once.
        for at in range(0, count, 10):
            some = keys[at:at + 10]
            f.write(f"get {' '.join(some)}\r\n".encode())
            f.flush()
            for key in some:
                words = f.readline().split()
                assert words[:2] == [b"VALUE", key.encode()], words
                assert f.read(int(words[3]) + 2) == values[key] + b"\r\n"
            assert f.readline() == b"END\r\n"
    print("same")


if __name__ == "__main__":
    command, words = sys.argv[1], sys.argv[2:]
    if command == "asyncio-serve":
        asyncio.run(serve(int(words[0])))
    elif command == "asyncio":
        asyncio.run(talk_all(words[0], int(words[1]), int(words[2])))
    else:
        memcached(words[0], int(words[1]), int(words[2]))
