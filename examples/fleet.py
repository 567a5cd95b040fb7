"""Ten machines, one table: each keeps the complete segments of its stream in one place, which anybody reads.

    pip install 'diskqueue[arrow]'
    python examples/fleet.py

Here a process is a machine, and a directory the object store: into="s3://bucket/lake" is the only difference.
"""

import multiprocessing

import pyarrow.dataset

import diskq

HOSTS = [f"web{number}" for number in range(1, 11)]
LAKE = "lake"


def serve(host: str) -> None:
    """Do on each machine: write the stream, and bring its table up to date now and then."""
    table = diskq.open_table(f"{host}/clicks", LAKE, host=host)
    with diskq.Stream(f"{host}/clicks", partition_count=2, segment_size=10_000) as stream:
        for burst in range(10):
            stream.append_many([(b"user-%d" % (number % 7), b"/page/%d" % burst) for number in range(100)])
            stream.sync()  # a segment that a power cut could take is not in the table yet
            table.update()


def main() -> None:
    machines = [multiprocessing.Process(target=serve, args=(host,)) for host in HOSTS]
    for machine in machines:
        machine.start()
    for machine in machines:
        machine.join()
    lake = pyarrow.dataset.dataset(LAKE, partitioning="hive").to_table(["host", "partition", "offset"])
    rows = lake.group_by(["host", "partition", "offset"]).aggregate([])
    # What is not in the table yet is in the stream of its machine, where read_arrow reads both.
    both = 0
    for host in HOSTS:
        table = diskq.open_table(f"{host}/clicks", LAKE, host=host)
        both += diskq.read_arrow(f"{host}/clicks", table=table).read_all().num_rows
    hosts = len(lake.column("host").unique())
    print(f"{hosts} machines in one table, each message once: {len(rows) == len(lake)}")
    print(f"{both} messages in table and streams")


if __name__ == "__main__":
    main()
