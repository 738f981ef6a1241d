"""MPI processes that send data of all sizes in a ring and all to all; the first prints "same"."""
from mpi4py import MPI


def main():
    world = MPI.COMM_WORLD
    rank, size = world.Get_rank(), world.Get_size()
    for n in (1, 100, 4000, 100000, 2000000):
        data = bytes((rank + i) % 251 for i in range(min(n, 5000))) * (n // min(n, 5000))
        left = (rank - 1) % size
        got = world.sendrecv(data, dest=(rank + 1) % size, source=left)
        assert got == bytes((left + i) % 251 for i in range(min(n, 5000))) * (n // min(n, 5000)), n
    assert world.allreduce(rank) == size * (size - 1) // 2
    assert world.alltoall([1000 * rank + to for to in range(size)]) == [1000 * of + rank for of in range(size)]
    world.Barrier()
    if rank == 0:
        print("same", flush=True)


if __name__ == "__main__":
    main()
