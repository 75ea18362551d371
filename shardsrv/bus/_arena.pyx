# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""Regions of shared memory and the arena that allocates in one.

Invariants:

* a region is mapped before the fork and inherited; it is unmapped only when the last object that points into it goes,
  and an unmapping in one process never touches another;
* only the owner of an arena allocates and frees in it; its book-keeping is private memory of the owner, and a buffer
  that is inherited by a forked child frees nothing there;
* blocks never overlap, start at a multiple of their size, and come back whole: buddies are joined when both are free.
"""

cimport cython
from cpython.buffer cimport PyBuffer_FillInfo
from cpython.memoryview cimport PyMemoryView_FromObject
from libc.errno cimport errno
from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free
from posix.unistd cimport close, ftruncate

import os

from shardsrv.errors import OurFault

cdef extern from "<pthread.h>" nogil:
    ctypedef void (*fork_handler)() noexcept nogil
    int pthread_atfork(fork_handler prepare, fork_handler parent, fork_handler child)

cdef extern from "<sys/mman.h>" nogil:
    int memfd_create(const char* name, unsigned int flags)
    void* mmap(void* address, size_t length, int protection, int flags, int fd, long offset)
    int munmap(void* address, size_t length)
    int madvise(void* address, size_t length, int advice)
    void* MAP_FAILED
    int MAP_SHARED, PROT_READ, PROT_WRITE, MADV_REMOVE, MFD_CLOEXEC

cdef extern from * nogil:
    """
    #define leading_zeros(v) __builtin_clz(v)
    """
    int leading_zeros(uint32_t value)

cdef enum:
    PAGE = 4096
    PAGE_SHIFT = 12
    GRANULE_PAGES = 256        # 1 MiB: the unit in which pages go back to the kernel
    GRANULE_ORDER = 8
    FREE = 0x80
    TAKEN = 0x40
    NONE_PAGE = 0xFFFFFFFF
    SWEEP_GRANULES = 2         # at most 2 MiB go back per freed block: about 100 us, so that no turn stalls

# --- forks -----------------------------------------------------------------------------------------------------------

cdef uint64_t fork_count = 0


cdef void after_fork_in_child() noexcept nogil:
    global fork_count
    fork_count += 1


cdef uint64_t forks() noexcept nogil:
    """How many forks lie between the first process and this one. Cheaper than getpid() where objects ask who they
    belong to.
    """
    return fork_count


if pthread_atfork(NULL, NULL, after_fork_in_child) != 0:
    raise OurFault("pthread_atfork failed")

# --- regions ---------------------------------------------------------------------------------------------------------


@cython.no_gc
@cython.freelist(64)
@cython.final
cdef class Window:
    """Exports bytes that `owner` keeps alive."""

    def __init__(self):
        raise TypeError("windows are made by the owner of the memory")

    def __getbuffer__(self, Py_buffer* view, int flags):
        PyBuffer_FillInfo(view, self, self.address, self.length, self.readonly, flags)


cdef memoryview window(object owner, uint8_t* address, Py_ssize_t length, bint readonly):
    cdef Window made = Window.__new__(Window)
    made.owner = owner
    made.address = address
    made.length = length
    made.readonly = readonly
    return PyMemoryView_FromObject(made)


@cython.final
cdef class Region:
    """An anonymous shared mapping (memfd), inherited by forked children.

    `close()` closes the descriptor; the mapping itself goes with the last view, lane or arena that points into it.
    Raises OSError when the kernel refuses the memory.
    """

    def __cinit__(self, str name, size_t size):
        cdef void* address
        self.address = NULL
        self.fd = -1
        self.name = name
        self.size = (size + PAGE - 1) & ~<size_t>(PAGE - 1)
        if size == 0:
            raise OurFault(f"region {name}: size 0")
        text = name.encode()
        self.fd = memfd_create(text, MFD_CLOEXEC)
        if self.fd < 0:
            raise OSError(errno, os.strerror(errno), f"memfd_create {name}")
        if ftruncate(self.fd, <long>self.size) != 0:
            raise OSError(errno, os.strerror(errno), f"ftruncate {name} to {self.size} bytes")
        address = mmap(NULL, self.size, PROT_READ | PROT_WRITE, MAP_SHARED, self.fd, 0)
        if address == MAP_FAILED:
            raise OSError(errno, os.strerror(errno), f"mmap {name}, {self.size} bytes")
        self.address = <uint8_t*>address

    def __dealloc__(self):
        if self.address != NULL:
            munmap(self.address, self.size)
        if self.fd >= 0:
            close(self.fd)

    cdef uint8_t* at(self, size_t offset, size_t length) except NULL:
        if offset > self.size or length > self.size - offset:
            raise OurFault(f"region {self.name}: {length} bytes at {offset} of {self.size}")
        return self.address + offset

    def view(self, size_t offset, size_t length):
        """A writable memoryview of `length` bytes at `offset`. Raises OurFault outside the region."""
        return window(self, self.at(offset, length), <Py_ssize_t>length, False)

    def close(self):
        """Close the memfd. Idempotent."""
        if self.fd >= 0:
            close(self.fd)
            self.fd = -1

# --- arena -----------------------------------------------------------------------------------------------------------


@cython.no_gc
@cython.freelist(256)
@cython.final
cdef class Buffer:
    """A piece of an arena, writable through the buffer protocol. Returned to its arena when the last reference goes."""

    def __init__(self):
        raise TypeError("buffers are made by Arena.allocate")

    def __getbuffer__(self, Py_buffer* view, int flags):
        PyBuffer_FillInfo(view, self, self.address, <Py_ssize_t>self.size, 0, flags)

    def __len__(self):
        return self.size

    def __dealloc__(self):
        # A forked child holds a copy of this object, but neither the memory nor the book-keeping behind it.
        if self.arena is not None and self.arena.generation == fork_count:
            self.arena.in_use -= self.capacity
            self.arena.free_block(<uint32_t>(self.offset >> PAGE_SHIFT), self.order)


@cython.no_gc
@cython.final
cdef class Arena:
    """Allocator over a region: blocks of 4 KiB to 128 MiB in powers of two, buddies joined when both are free.

    The process that makes it with ``owner=True`` (after the fork) allocates; every other one only looks, by
    descriptor. Small blocks that are freed stay ready in a bounded cache; when nothing else is left the cache is
    joined too. When more than `keep_bytes` lie idle as whole touched granules of 1 MiB, pages go back to the kernel
    (MADV_REMOVE), going round in address order and a few at a time, so that a block in constant use is not faulted in
    again and again.

    Args:
        region: the memory; all of it belongs to this arena.
        owner: whether this process allocates.
        keep_bytes: idle bytes that are not given back.
    """

    def __cinit__(self, Region region, *, bint owner, size_t keep_bytes=64 << 20):
        cdef uint32_t page
        cdef int order
        self.region = region
        self.owner = owner
        self.generation = fork_count
        self.capacity = region.size
        self.keep_bytes = keep_bytes
        self.pages = 0
        if not owner:
            return
        if region.size >> PAGE_SHIFT >= NONE_PAGE:
            raise OurFault(f"arena {region.name}: {region.size} bytes are too many")
        self.pages = <uint32_t>(region.size >> PAGE_SHIFT)
        self.granules = (self.pages + GRANULE_PAGES - 1) // GRANULE_PAGES
        # calloc leaves untouched pages to the kernel: the tables cost memory only where the arena is used.
        self.state = <uint8_t*>calloc(self.pages, 1)
        self.following = <uint32_t*>calloc(self.pages, sizeof(uint32_t))
        self.previous = <uint32_t*>calloc(self.pages, sizeof(uint32_t))
        self.granule_pages = <uint16_t*>calloc(self.granules, sizeof(uint16_t))
        self.granule_touched = <uint8_t*>calloc(self.granules, 1)
        if not (self.state and self.following and self.previous and self.granule_pages and self.granule_touched):
            raise MemoryError
        for order in range(ORDERS):
            self.heads[order] = NONE_PAGE
        # Largest aligned blocks first; inserted from the end, so that low addresses are taken first.
        page = self.pages
        while page > 0:
            order = 0
            while order < ORDERS - 1 and page & ((<uint32_t>2 << order) - 1) == 0:
                order += 1
            page -= <uint32_t>1 << order
            self.insert(page, <uint32_t>order)

    def __dealloc__(self):
        free(self.state)
        free(self.following)
        free(self.previous)
        free(self.granule_pages)
        free(self.granule_touched)

    def allocate(self, size_t size):
        """A Buffer of `size` bytes, or None when nothing is left: the caller parks or refuses.

        Raises OurFault when this process does not own the arena, or for more than 128 MiB.
        """
        if not self.owner or self.generation != fork_count:
            raise OurFault(f"arena {self.region.name}: allocate by a process that does not own it")
        if size > <size_t>PAGE << (ORDERS - 1):
            raise OurFault(f"arena {self.region.name}: {size} bytes are more than a block can have")
        return self.allocate_c(size)

    cdef Buffer allocate_c(self, size_t size):
        cdef uint32_t order = 0
        cdef uint32_t page = NONE_PAGE
        cdef Buffer made
        if size > <size_t>PAGE << (ORDERS - 1) or self.pages == 0:
            return None
        if size > PAGE:
            order = 32 - leading_zeros(<uint32_t>((size - 1) >> PAGE_SHIFT))
        if order < CACHED_ORDERS and self.cached_count[order] > 0:
            self.cached_count[order] -= 1
            page = self.cached[order][self.cached_count[order]]
        else:
            page = self.take(order)
            if page == NONE_PAGE:
                self.drain_caches()
                page = self.take(order)
                if page == NONE_PAGE:
                    return None
        made = Buffer.__new__(Buffer)
        made.offset = <size_t>page << PAGE_SHIFT
        made.address = self.region.address + made.offset
        made.size = size
        made.capacity = <size_t>PAGE << order
        made.order = order
        made.arena = self
        self.in_use += made.capacity
        return made

    def view(self, size_t offset, size_t length):
        """A writable view by descriptor, in any process. Raises OurFault outside the arena."""
        return self.region.view(offset, length)

    cdef void insert(self, uint32_t page, uint32_t order) noexcept nogil:
        self.state[page] = FREE | order
        self.following[page] = self.heads[order]
        self.previous[page] = NONE_PAGE
        if self.heads[order] != NONE_PAGE:
            self.previous[self.heads[order]] = page
        self.heads[order] = page

    cdef void remove(self, uint32_t page, uint32_t order) noexcept nogil:
        cdef uint32_t after = self.following[page]
        cdef uint32_t before = self.previous[page]
        if before == NONE_PAGE:
            self.heads[order] = after
        else:
            self.following[before] = after
        if after != NONE_PAGE:
            self.previous[after] = before
        self.state[page] = 0

    cdef uint32_t take(self, uint32_t order) noexcept nogil:
        """Page number of a block of `order`, split off the smallest that fits; NONE_PAGE when there is none."""
        cdef uint32_t found = order
        cdef uint32_t page
        while found < ORDERS and self.heads[found] == NONE_PAGE:
            found += 1
        if found == ORDERS:
            return NONE_PAGE
        page = self.heads[found]
        self.remove(page, found)
        while found > order:
            found -= 1
            self.insert(page + (<uint32_t>1 << found), found)
        self.state[page] = TAKEN | order
        self.account(page, order, True)
        return page

    cdef void give(self, uint32_t page, uint32_t order) noexcept nogil:
        """Free a block and join it with its buddy as long as that is free as a whole."""
        cdef uint32_t buddy
        self.account(page, order, False)
        self.state[page] = 0
        while order < ORDERS - 1:
            buddy = page ^ (<uint32_t>1 << order)
            if buddy >= self.pages or self.state[buddy] != (FREE | order):
                break
            self.remove(buddy, order)
            page = min(page, buddy)
            order += 1
        self.insert(page, order)

    cdef void free_block(self, uint32_t page, uint32_t order) noexcept nogil:
        self.frees += 1
        if self.idle_bytes > self.keep_bytes:
            self.return_pages()
        if order < CACHED_ORDERS and self.cached_count[order] < CACHED_BLOCKS:
            self.cached[order][self.cached_count[order]] = page
            self.cached_count[order] += 1
            return
        self.give(page, order)

    cdef void drain_caches(self) noexcept nogil:
        cdef int order
        for order in range(CACHED_ORDERS):
            while self.cached_count[order] > 0:
                self.cached_count[order] -= 1
                self.give(self.cached[order][self.cached_count[order]], <uint32_t>order)

    cdef void account(self, uint32_t page, uint32_t order, bint taken) noexcept nogil:
        """Keep the count of taken pages of every granule that the block lies in, and of idle bytes."""
        cdef uint32_t granule = page // GRANULE_PAGES
        cdef uint32_t count = 1
        cdef uint16_t share = GRANULE_PAGES
        if order >= GRANULE_ORDER:
            count = <uint32_t>1 << (order - GRANULE_ORDER)
        else:
            share = <uint16_t>(<uint32_t>1 << order)
        for granule in range(granule, granule + count):
            if taken:
                if self.granule_pages[granule] == 0 and self.granule_touched[granule]:
                    self.idle_bytes -= GRANULE_PAGES << PAGE_SHIFT
                self.granule_pages[granule] += share
                self.granule_touched[granule] = 1
            else:
                self.granule_pages[granule] -= share
                if self.granule_pages[granule] == 0:
                    self.idle_bytes += GRANULE_PAGES << PAGE_SHIFT

    cdef void return_pages(self) noexcept nogil:
        cdef uint32_t looked = 0
        cdef uint32_t returned = 0
        cdef size_t offset
        cdef size_t length
        cdef size_t goal = self.keep_bytes - self.keep_bytes // 4
        while looked < self.granules and returned < SWEEP_GRANULES and self.idle_bytes > goal:
            looked += 1
            self.sweep = self.sweep + 1 if self.sweep + 1 < self.granules else 0
            if not self.granule_touched[self.sweep] or self.granule_pages[self.sweep] != 0:
                continue
            offset = <size_t>self.sweep * GRANULE_PAGES << PAGE_SHIFT
            length = min(<size_t>GRANULE_PAGES << PAGE_SHIFT, self.capacity - offset)
            # A kernel that refuses keeps the pages: they stay counted as touched and are asked for again later.
            if madvise(self.region.address + offset, length, MADV_REMOVE) == 0:
                self.granule_touched[self.sweep] = 0
                self.idle_bytes -= GRANULE_PAGES << PAGE_SHIFT
                returned += 1
