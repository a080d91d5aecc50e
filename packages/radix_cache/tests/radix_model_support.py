"""A model of the cache that is slow and plain: it keeps single pages and looks at all of them.

It shares no code with the package. A page is named by its namespace and the pages from the root up
to it, each page by one symbol. Every page has metadata of its own, so nothing is ever split: the
tree's nodes appear only as *runs*, since two things depend on where nodes end, the rank of policy
`cost` (it reads a node's position) and what one `Backup` covers. A page that starts a node has
`head` set, and a run is a head with what follows it on its path up to the next head.

Where the contract left room, the model holds this:

- A match covers its host part too: that part's hits and times change as those of the device part.
- An insert over pages that only the host has keeps their metadata (`created`, `age`, `hits`): the
  tokens were brought before, only the values are new.
- `loaded` is no use of its own: it sets no times, floors or hits.
- A handle is stale once the device copy where it ends left, also if another came in its place.
- A page may be named for backup if the device has it, the host does not, no copy of it is under way
  and hits + 1 >= write_through. It must be named if a match or an insert covered it since this
  began; whether it is due again without that, after its copy failed or left, is the tree's choice.
- A backup pins the device path to its end and those host copies of this path that exist when it is
  handed out, as a load pins the device path to its start and the host path to its end.
- Retention is over at the very moment `retained_until`.
- The floor of `cost` is the highest rank that a leaf had before eviction cut it, on the device.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

DEVICE, HOST = 0, 1


@dataclass(eq=False)
class Copy:
    """The values of one page in one tier."""

    values: list
    pins: int = 0


@dataclass(eq=False)
class Page:
    namespace: tuple
    path: tuple
    size: int
    age: int
    created: float
    head: bool
    last_access: float = 0.0
    floor: float = 0.0
    hits: int = 0
    priority: int = 0
    retained_until: float = -math.inf
    copying: bool = False
    used: bool = False
    copies: list = field(default_factory=lambda: [None, None])

    @property
    def start(self):
        return self.end - self.size

    @property
    def end(self):
        return len(self.path) * self.size


def _cost(run):
    start, end = run[0].start, run[-1].end
    length = end - start
    return run[0].floor + run[0].hits * (length * (1 + (start + end) / 2 / 8192)) / length


RANKS = {
    "lru": lambda run: (run[0].last_access,),
    "lfu": lambda run: (run[0].hits, run[0].last_access),
    "fifo": lambda run: (run[0].created,),
    "filo": lambda run: (-run[0].created,),
    "mru": lambda run: (-run[0].last_access,),
    "priority": lambda run: (run[0].priority, run[0].last_access),
    "slru": lambda run: (run[0].hits >= 2, run[0].last_access),
    "cost": lambda run: (_cost(run),),
}


class Model:
    """Operations take paths of symbols and answer with pages; `now` is set by whoever drives it."""

    def __init__(self, page_size, policy, write_through=1):
        self.page_size = page_size
        self.rank = RANKS[policy]
        self.write_through = write_through
        self.pages = {}
        self.now = 0.0
        self.floor = 0.0
        self.inserts = 0

    def cached(self, namespace, path):
        """The pages of the longest prefix that any tier has."""
        ends = range(1, len(path) + 1)
        pages = [self.pages.get((namespace, path[:end])) for end in ends]
        return pages[: pages.index(None)] if None in pages else pages

    def held(self, pages, tier=DEVICE):
        return [page for page in pages if page.copies[tier]]

    def match(self, namespace, path):
        found = self.cached(namespace, path)
        for page in found:
            page.hits += 1
        self._cover(found)
        return found

    def insert(self, namespace, path, values, priority=0, retain_for=None, tier=DEVICE):
        """`values`: a list for each page. Returns all pages of the path and which were declined."""
        known = self.cached(namespace, path)
        if known:
            self._cut_after(known[-1])
        declined = self.held(known, tier)
        for end in range(len(known) + 1, len(path) + 1):
            first = end == len(known) + 1
            page = Page(namespace, path[:end], self.page_size, self.inserts, self.now, first)
            page.priority = priority
            self.pages[namespace, path[:end]] = page
        self.inserts += 1
        pages = self.cached(namespace, path)
        for page, given in zip(pages, values):
            page.copies[tier] = page.copies[tier] or Copy(given)
            page.priority = max(page.priority, priority)
            if retain_for is not None:
                page.retained_until = max(page.retained_until, self.now + retain_for)
        self._cover(pages)
        return pages, declined

    def _cover(self, pages):
        for page in pages:
            page.last_access = self.now
            page.floor = self.floor
            page.used = self._may_be_copied(page)
        if pages:
            self._cut_after(pages[-1])

    def _cut_after(self, page):
        """What follows `page` on any path is of another node from now on."""
        for other in self._children(page):
            other.head = True

    def _children(self, page):
        depth = len(page.path) + 1
        return [
            other
            for other in self.pages.values()
            if other.namespace == page.namespace
            and len(other.path) == depth
            and other.path[:-1] == page.path
        ]

    def path_to(self, page):
        return self.cached(page.namespace, page.path)

    def run(self, page):
        """The pages of the node that `page` is in, from the node's head up to `page`."""
        path = self.path_to(page)
        return path[max(at for at, other in enumerate(path) if other.head) :]

    def pinned(self, pages, tier):
        """Pins these pages' copies of one tier; what `unpin` takes back."""
        copies = [page.copies[tier] for page in pages if page.copies[tier]]
        for copy in copies:
            copy.pins += 1
        return copies

    def unpin(self, copies):
        for copy in copies:
            copy.pins -= 1

    def leaves(self, tier):
        """Unpinned copies without another below them in that tier, in the order of eviction."""
        copied = [page for page in self.pages.values() if page.copies[tier]]
        inner = {(page.namespace, page.path[:-1]) for page in copied}
        return sorted(
            (
                page
                for page in copied
                if (page.namespace, page.path) not in inner and not page.copies[tier].pins
            ),
            key=lambda page: (page.retained_until > self.now, self.rank(self.run(page)), page.age),
        )

    def evict(self, tokens, tier=DEVICE):
        """The pages' values in the order in which they go."""
        gone = []
        while len(gone) * self.page_size < tokens and (leaves := self.leaves(tier)):
            run = self.run(leaves[0])
            if tier == DEVICE:
                rank = self.rank(run)[0]
                if self.floor == 0.0 or rank > self.floor:
                    self.floor = rank
            while run and len(gone) * self.page_size < tokens:
                lowest = run.pop()
                gone.append(self.let_go(lowest, tier))
            lowest.head = True
        return gone

    def let_go(self, page, tier):
        values = page.copies[tier].values
        page.copies[tier] = None
        if page.copies == [None, None]:
            del self.pages[page.namespace, page.path]
        return values

    def drop(self, namespaces):
        """Everything unpinned; lists of values for the device and for the host."""
        return self._let_go_of([p for p in self.pages.values() if p.namespace in namespaces])

    def evict_idle(self, before):
        return self._let_go_of(
            [
                page
                for page in self.pages.values()
                if page.last_access < before and page.retained_until <= self.now
            ]
        )

    def _let_go_of(self, pages):
        gone = ([], [])
        for page in pages:
            for tier in (DEVICE, HOST):
                if page.copies[tier] and not page.copies[tier].pins:
                    gone[tier].append(self.let_go(page, tier))
        return gone

    def due(self):
        """The pages that may be named for backup, and those of them that must be."""
        may = [page for page in self.pages.values() if self._may_be_copied(page)]
        return may, [page for page in may if page.used]

    def _may_be_copied(self, page):
        return (
            page.copies[DEVICE]
            and not page.copies[HOST]
            and not page.copying
            and page.hits + 1 >= self.write_through
        )

    def begin_copy(self, pages):
        for page in pages:
            page.copying, page.used = True, False
        path = self.path_to(pages[-1])
        return self.pinned(path, DEVICE) + self.pinned(path, HOST)

    def adopt(self, pages, values, tier):
        """Give pages copies where they lack one and their parent has one; returns the declined."""
        declined = []
        for page, given in zip(pages, values):
            parents = self.path_to(page)[:-1][-1:]
            if page.copies[tier] or not all(parent.copies[tier] for parent in parents):
                declined.append(page)
            else:
                page.copies[tier] = Copy(given)
        return declined

    def tokens(self, tier, pinned):
        copies = [page.copies[tier] for page in self.pages.values() if page.copies[tier]]
        return sum(self.page_size for copy in copies if bool(copy.pins) == pinned)

    def values(self, tier):
        copies = [page.copies[tier] for page in self.pages.values() if page.copies[tier]]
        return sorted(value for copy in copies for value in copy.values)
