# A worker without an event loop: it reads what another thread, or any process, writes to the stream.

import threading

import diskq


def work() -> None:
    with diskq.StreamReader("clicks", group="billing") as reader:
        for message in reader:  # waits for more
            if message.value == b"end":
                reader.commit(message)
                return
            print(message.value.decode())
            reader.commit(message)  # the next reader of the group begins after it


with diskq.Stream("clicks", partition_count=1) as stream:
    worker = threading.Thread(target=work)
    worker.start()
    for text in (b"one", b"two", b"end"):
        stream.append(text, key=b"ada")
    worker.join()
