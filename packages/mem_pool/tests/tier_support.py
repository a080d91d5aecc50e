"""Copies and stores for tests: late, failing or dead on demand."""

import numpy as np

from phloem.mem_pool.array_transfer import ArrayTransfer


class LateTransfer(ArrayTransfer):
    """Copies nothing before `run`; then in order, as a thread or a stream would.

    Attributes:
        refuse: kinds ("backup", "load", "read", "write") that raise when asked for.
        fail: how many of the next backups are to fail while they are made.
        dead: nothing is made any more.
    """

    def __init__(self, num_device_slots, num_host_slots, dtype=np.int64):
        super().__init__(np.full(num_device_slots, -1, dtype), np.full(num_host_slots, -1, dtype))
        self.waiting = []
        self.refuse = set()
        self.fail = 0
        self.dead = False

    def _enqueue(self, kind, ticket, copy):
        if kind in self.refuse:
            raise OSError(f"no {kind} today")
        self.waiting.append((ticket, copy))
        return ticket

    def loads_wait(self):
        """Whether a load was asked for and is not made."""
        return any(ticket.get("load") for ticket, _ in self.waiting)

    def up_to_the_last_load(self):
        """How many copies to make so that no load waits."""
        loads = [i for i, (ticket, _) in enumerate(self.waiting) if ticket.get("load")]
        return loads[-1] + 1 if loads else 0

    def run(self, n=None):
        """Make the next `n` copies, or all."""
        while self.waiting and not self.dead and n != 0:
            ticket, copy = self.waiting.pop(0)
            try:
                copy()
                ticket["state"] = "done"
            except OSError as error:
                ticket["state"] = error
            n = None if n is None else n - 1

    def backup(self, device_slots, host_slots):
        def copy():
            if self.fail:
                self.fail -= 1
                raise OSError("this copy failed")
            ArrayTransfer.backup(self, device_slots, host_slots)

        return self._enqueue("backup", {"state": "waiting"}, copy)

    def done(self, ticket, wait=0.0):
        if wait:
            self.run(1)
        if isinstance(ticket["state"], OSError):
            raise ticket["state"]
        return ticket["state"] == "done"

    def load(self, host_slots, device_slots):
        self._enqueue(
            "load", {"load": True}, lambda: ArrayTransfer.load(self, host_slots, device_slots)
        )

    def read(self, host_slots, then):
        self._enqueue("read", {}, lambda: ArrayTransfer.read(self, host_slots, then))

    def write(self, host_slots, data):
        self._enqueue("write", {}, lambda: ArrayTransfer.write(self, host_slots, bytes(data)))

    def close(self):
        self.run()


class MemoryStore:
    """A store in memory.

    Attributes:
        refuse: methods ("find", "get", "put") that raise.
        full: nothing more is taken.
        lost: names that are found but not there when asked for.
    """

    def __init__(self):
        self.blocks = {}
        self.refuse = set()
        self.full = False
        self.lost = set()
        self.closed = False

    def _may(self, what):
        if what in self.refuse:
            raise OSError(f"no {what} today")

    def find(self, names):
        self._may("find")
        return next((i for i, name in enumerate(names) if name not in self.blocks), len(names))

    def get(self, name):
        self._may("get")
        return None if name in self.lost else self.blocks.get(name)

    def put(self, name, data, *, replace=False):
        self._may("put")
        if not self.full and (replace or name not in self.blocks):
            self.blocks[name] = data

    def close(self):
        self.closed = True
