# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""What the processes of a node say to each other in shared memory: lanes, wake words, counters.

Invariants:

* one writer per datum: only the sender of a lane moves its tail, only the receiver its head, only the owning shard
  writes a counter slot;
* publishing is a release store; before the look at a sleeping word there is a full fence, because a store followed by
  a load of another word may otherwise be reordered by the processor and a wake-up is lost;
* full is an answer, never a wait.

Byte layouts (lane, wake word, counter slot) are written at their classes; all integers are little-endian. The regions
that these objects lie in, and the arena, come from `_arena` and are offered here too.
"""

cimport cython
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy
from posix.time cimport CLOCK_MONOTONIC, clock_gettime, timespec
from posix.unistd cimport write

from shardsrv.bus._arena cimport Region

from shardsrv.bus import _arena
from shardsrv.errors import OurFault

cdef extern from "<sched.h>" nogil:
    int sched_yield()

cdef extern from * nogil:
    """
    #include <stdint.h>
    #define load_relaxed(p) __atomic_load_n((p), __ATOMIC_RELAXED)
    #define load_acquire(p) __atomic_load_n((p), __ATOMIC_ACQUIRE)
    #define store_relaxed(p, v) __atomic_store_n((p), (v), __ATOMIC_RELAXED)
    #define store_release(p, v) __atomic_store_n((p), (v), __ATOMIC_RELEASE)
    #define exchange(p, v) __atomic_exchange_n((p), (v), __ATOMIC_ACQ_REL)
    #define fence_acquire() __atomic_thread_fence(__ATOMIC_ACQUIRE)
    #define fence_release() __atomic_thread_fence(__ATOMIC_RELEASE)
    #define fence_full() __atomic_thread_fence(__ATOMIC_SEQ_CST)
    #if defined(__x86_64__) || defined(__i386__)
    #define relax() __builtin_ia32_pause()
    #else
    #define relax() fence_acquire()
    #endif
    """
    uint64_t load_relaxed(uint64_t* place)
    uint64_t load_acquire(uint64_t* place)
    void store_relaxed(uint64_t* place, uint64_t value)
    void store_release(uint64_t* place, uint64_t value)
    uint32_t load_word "load_relaxed"(uint32_t* place)
    void store_word "store_relaxed"(uint32_t* place, uint32_t value)
    uint32_t exchange(uint32_t* place, uint32_t value)
    void fence_acquire()
    void fence_release()
    void fence_full()
    void relax()

# The name Region is a C type in here, so the Python names are bound through the module's dictionary.
globals().update(Arena=_arena.Arena, Buffer=_arena.Buffer, Region=_arena.Region)

SLOT_SIZE = 64
LANE_HEADER_SIZE = 128
"""Bytes before the records of a lane: head and tail, each on a cache line of its own."""
WAKE_SIZE = 64
"""A wake word has a cache line of its own."""

cdef enum:
    RECORD_HEADER = 8
    PAD = 0xFFFF               # kind of the record that fills the end of a ring
    PARTS_MAX = 16
    SLOT_WORDS = 8
    SEQUENCE_TRIES = 200000    # with a yield every 256: far beyond any preempted writer

# --- lanes -----------------------------------------------------------------------------------------------------------


@cython.final
cdef class Lane:
    """One single-producer single-consumer ring in shared memory, at `offset` of a region.

    Layout:
        0    8  u64  head: bytes consumed since the start, written by the receiver (release), alone on its cache line
        64   8  u64  tail: bytes published since the start, written by the sender (release), alone on its cache line
        128  capacity bytes of records, `capacity` a power of two; position = counter modulo capacity

    Record, at a multiple of 8:
        0  4  u32  length of the payload
        4  2  u16  kind; 0xFFFF is a pad up to the end of the ring
        6  2  u16  flags, 0
        8  length bytes, then zero to seven bytes up to a multiple of 8
    A record never wraps. Both ends may live in one process; each end has one Lane object.
    """

    def __cinit__(self, Region region, size_t offset, size_t capacity):
        cdef uint8_t* place = region.at(offset, LANE_HEADER_SIZE + capacity)
        if capacity < 256 or capacity & (capacity - 1) or offset & 63:
            raise OurFault(f"lane: capacity {capacity} at {offset}; want a power of two from 256, at a multiple of 64")
        self.region = region
        self.capacity = capacity
        # A record of half the ring fits an empty ring wherever its cursor stands, pad included.
        self.record_max = capacity // 2 - RECORD_HEADER
        self.shared_head = <uint64_t*>place
        self.shared_tail = <uint64_t*>(place + 64)
        self.ring = place + 128
        self.head = load_acquire(self.shared_head)
        self.tail = load_acquire(self.shared_tail)
        self.seen_head = self.head

    cdef bint push_c(self, uint32_t kind, size_t total, uint8_t** place) noexcept nogil:
        """Room for a record of `total` payload bytes: its header is written, `place` points at the payload. False when
        full.
        """
        cdef size_t size = (RECORD_HEADER + total + 7) & ~<size_t>7
        cdef size_t position = self.tail & (self.capacity - 1)
        cdef size_t pad = self.capacity - position if self.capacity - position < size else 0
        if self.tail + pad + size - self.seen_head > self.capacity:
            self.seen_head = load_acquire(self.shared_head)
            if self.tail + pad + size - self.seen_head > self.capacity:
                return False
        if pad:
            (<uint32_t*>(self.ring + position))[0] = <uint32_t>(pad - RECORD_HEADER)
            (<uint32_t*>(self.ring + position))[1] = PAD
            position = 0
        (<uint32_t*>(self.ring + position))[0] = <uint32_t>total
        (<uint32_t*>(self.ring + position))[1] = kind
        place[0] = self.ring + position + RECORD_HEADER
        self.tail += pad + size
        return True

    def push(self, uint32_t kind, parts):
        """Append a record of `kind` (0..0xFFFE) whose payload is the concatenation of `parts`; visible after `publish`.

        Returns False when the lane is full: the caller keeps the record and counts.
        Raises OurFault for a kind or a payload (`record_max` bytes) that can never be carried.
        """
        cdef Py_buffer views[PARTS_MAX]
        cdef Py_ssize_t taken = 0
        cdef Py_ssize_t index
        cdef size_t total = 0
        cdef uint8_t* place = NULL
        if len(parts) > PARTS_MAX:
            parts = (b"".join(parts),)
        try:
            for part in parts:
                PyObject_GetBuffer(part, &views[taken], PyBUF_SIMPLE)
                total += <size_t>views[taken].len
                taken += 1
            if kind >= PAD or total > self.record_max:
                raise OurFault(f"lane: record of kind {kind} with {total} bytes; at most {self.record_max}")
            if not self.push_c(kind, total, &place):
                return False
            for index in range(taken):
                memcpy(place, views[index].buf, <size_t>views[index].len)
                place += views[index].len
            return True
        finally:
            for index in range(taken):
                PyBuffer_Release(&views[index])

    cdef void publish_c(self) noexcept nogil:
        store_release(self.shared_tail, self.tail)

    def publish(self):
        """Release store of the tail for all that was pushed since the last publish."""
        self.publish_c()

    def deliver(self, Wake wake not None):
        """`publish`, then ``wake.notify()``. Returns whether a sleeper was woken."""
        self.publish_c()
        return wake.notify_c()

    cdef bint pending_c(self) noexcept nogil:
        return load_acquire(self.shared_tail) != self.head

    def pending(self):
        """Receiver: whether published records wait."""
        return self.pending_c()

    def drain(self, on_record, Py_ssize_t limit):
        """Consume up to `limit` records, ``on_record(kind, payload)`` each; the payload is copied out. Returns how
        many.

        When `on_record` raises, its record is consumed and the ones behind it are still there. Raises OurFault for a
        record that contradicts the published tail.
        """
        cdef Py_ssize_t count = 0
        cdef uint64_t tail = load_acquire(self.shared_tail)
        cdef size_t length
        cdef size_t size
        cdef uint32_t kind
        cdef uint8_t* record
        try:
            while count < limit and self.head != tail:
                record = self.ring + (self.head & (self.capacity - 1))
                length = (<uint32_t*>record)[0]
                kind = (<uint32_t*>record)[1] & 0xFFFF
                size = (RECORD_HEADER + length + 7) & ~<size_t>7
                if size > tail - self.head:
                    raise OurFault(f"lane: record of {length} bytes at {self.head}, published up to {tail}")
                if kind == PAD:
                    self.head += size
                    continue
                payload = PyBytes_FromStringAndSize(<char*>(record + RECORD_HEADER), <Py_ssize_t>length)
                self.head += size
                count += 1
                on_record(kind, payload)
        finally:
            store_release(self.shared_head, self.head)
        return count


cdef struct Tail:
    uint64_t* shared
    uint64_t consumed


cdef bint any_pending(Tail* tails, Py_ssize_t count) noexcept nogil:
    cdef Py_ssize_t index
    for index in range(count):
        if load_acquire(tails[index].shared) != tails[index].consumed:
            return True
    return False


cdef uint64_t now_ns() noexcept nogil:
    cdef timespec now
    clock_gettime(CLOCK_MONOTONIC, &now)
    return <uint64_t>now.tv_sec * 1000000000 + <uint64_t>now.tv_nsec


cdef bint spin(Tail* tails, Py_ssize_t count, uint64_t duration) noexcept nogil:
    cdef uint64_t limit = now_ns() + duration
    cdef int turn
    while now_ns() < limit:
        for turn in range(16):
            relax()
        if any_pending(tails, count):
            return True
    return False


@cython.final
cdef class Wake:
    """The sleeping word (u32 at `offset` of a region, alone on its cache line) and the eventfd of one receiver.

    A producer publishes, then `notify()`: full fence, and if the receiver sleeps, one write to its eventfd; it also
    takes the word down, so that several producers wake a sleeper once. A receiver calls `prepare_sleep()` (sets the
    word, full fence), looks at its lanes once more, sleeps in epoll, then `awake()`. The two fences make it impossible
    that the producer misses the word and the receiver misses the tail.

    `fd` belongs to the caller who made it.
    """

    def __cinit__(self, Region region, size_t offset, int fd):
        if offset & 63:
            raise OurFault(f"wake word at {offset}: want a multiple of 64")
        self.word = <uint32_t*>region.at(offset, 64)
        self.region = region
        self.fd = fd

    cdef bint notify_c(self) noexcept nogil:
        cdef uint64_t one = 1
        fence_full()
        if load_word(self.word) == 0 or exchange(self.word, 0) == 0:
            return False
        # Fails only when the counter would overflow: the receiver is then awake anyway.
        write(self.fd, &one, 8)
        self.wakes += 1
        return True

    def notify(self):
        """Wake the receiver if it sleeps. Returns whether its eventfd was written."""
        return self.notify_c()

    def prepare_sleep(self):
        """Announce sleep. The caller looks at its lanes once more before it sleeps."""
        store_word(self.word, 1)
        fence_full()

    def awake(self):
        """Take the word down: no wake-up is needed any more."""
        store_word(self.word, 0)

    def may_sleep(self, lanes, double spin_us=0.0):
        """Spin up to `spin_us` microseconds (without the interpreter lock) on `lanes`, then `prepare_sleep` and look
        once more.

        Args:
            lanes: a list of the lanes to this receiver.
            spin_us: 0 on machines where the producer shares the core.
        Returns:
            True with the word set: sleep now. False with the word down: a lane has records.
        """
        cdef Py_ssize_t count = len(lanes)
        cdef Py_ssize_t index
        cdef Lane lane
        cdef bint found
        cdef uint64_t duration = <uint64_t>(spin_us * 1000) if spin_us > 0 else 0
        cdef Tail* tails = <Tail*>malloc((count + 1) * sizeof(Tail))
        if tails == NULL:
            raise MemoryError
        try:
            for index in range(count):
                lane = lanes[index]
                tails[index].shared = lane.shared_tail
                tails[index].consumed = lane.head
            with nogil:
                found = any_pending(tails, count)
                if not found and duration:
                    found = spin(tails, count, duration)
                if not found:
                    store_word(self.word, 1)
                    fence_full()
                    found = any_pending(tails, count)
                    if found:
                        store_word(self.word, 0)
        finally:
            free(tails)
        return not found

    @property
    def sleeping(self):
        """Whether the word is set."""
        return load_word(self.word) != 0

# --- counters --------------------------------------------------------------------------------------------------------


@cython.final
cdef class Counters:
    """Slots of 64 bytes at `offset` of a region, one a partition; written by its owning shard, read by anyone.

    Slot:
        0   8  u64  sequence: odd while the writer is inside
        8   8  u64  created_revision
        16  8  u64  messages
        24  8  u64  bytes
        32  8  u64  current_offset
        40  8  u64  first_offset
        48  4  u32  segments
        52  4  u32  flags: bit 0 = in use
        56  8  u64  reserved, 0
    """

    def __cinit__(self, Region region, size_t offset, size_t slots):
        if offset & 63 or slots > region.size // 64:
            raise OurFault(f"counters: {slots} slots at {offset}; want a multiple of 64 inside {region.size} bytes")
        self.base = <uint64_t*>region.at(offset, slots * 64)
        self.region = region
        self.slots = slots

    cdef uint64_t* at(self, Py_ssize_t slot) except NULL:
        if slot < 0 or <size_t>slot >= self.slots:
            raise OurFault(f"counter slot {slot} of {self.slots}")
        return self.base + slot * SLOT_WORDS

    def write(
        self, Py_ssize_t slot, uint64_t created_revision, uint64_t messages, uint64_t bytes_, uint64_t current_offset,
        uint64_t first_offset, uint32_t segments,
    ):
        """Replace a slot; only by the owner of the partition. Raises OurFault for a slot that does not exist."""
        cdef uint64_t* words = self.at(slot)
        cdef uint64_t[SLOT_WORDS] values
        values[1] = created_revision
        values[2] = messages
        values[3] = bytes_
        values[4] = current_offset
        values[5] = first_offset
        values[6] = <uint64_t>segments | <uint64_t>1 << 32
        values[7] = 0
        store_slot(words, values)

    def clear(self, Py_ssize_t slot):
        """Make a slot read as zeros again; only by its writer."""
        cdef uint64_t[SLOT_WORDS] values
        cdef int index
        for index in range(SLOT_WORDS):
            values[index] = 0
        store_slot(self.at(slot), values)

    def read(self, Py_ssize_t slot):
        """(created_revision, messages, bytes, current_offset, first_offset, segments), a consistent set; zeros when
        unused.

        Raises OurFault when the slot never comes to rest: its writer died inside.
        """
        cdef uint64_t* words = self.at(slot)
        cdef uint64_t[SLOT_WORDS] values
        if not load_slot(words, values):
            raise OurFault(f"counter slot {slot} does not come to rest")
        return values[1], values[2], values[3], values[4], values[5], <uint32_t>values[6]

    def in_use(self, Py_ssize_t slot):
        """Whether the slot was written since it was last cleared."""
        return (load_acquire(self.at(slot) + 6) >> 32) & 1 == 1


cdef void store_slot(uint64_t* words, uint64_t* values) noexcept nogil:
    cdef uint64_t sequence = load_relaxed(words)
    cdef int index
    store_relaxed(words, sequence + 1)
    fence_release()
    for index in range(1, SLOT_WORDS):
        store_relaxed(words + index, values[index])
    store_release(words, sequence + 2)


cdef bint load_slot(uint64_t* words, uint64_t* values) noexcept nogil:
    cdef uint64_t before
    cdef int index
    cdef int tries
    for tries in range(SEQUENCE_TRIES):
        before = load_acquire(words)
        if before & 1 == 0:
            for index in range(1, SLOT_WORDS):
                values[index] = load_relaxed(words + index)
            fence_acquire()
            if load_relaxed(words) == before:
                return True
        relax()
        if tries & 255 == 255:
            sched_yield()
    return False
