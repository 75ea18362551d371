"""C view of regions and the arena: what the reactor needs without going through the interpreter."""

from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t

cdef enum:
    CACHED_ORDERS = 5          # classes of 4 KiB to 64 KiB keep freed blocks ready
    CACHED_BLOCKS = 32         # a class; at most 4 MiB in all
    ORDERS = 16                # 4 KiB << 0 ... 4 KiB << 15 = 128 MiB


cdef uint64_t forks() noexcept nogil


cdef class Region:
    cdef uint8_t* address
    cdef readonly size_t size
    cdef readonly int fd
    cdef readonly str name
    cdef uint8_t* at(self, size_t offset, size_t length) except NULL


cdef class Window:
    """Exports `length` bytes at `address` through the buffer protocol and keeps `owner` alive."""
    cdef object owner
    cdef uint8_t* address
    cdef Py_ssize_t length
    cdef bint readonly


cdef memoryview window(object owner, uint8_t* address, Py_ssize_t length, bint readonly)


cdef class Arena:
    cdef readonly Region region
    cdef readonly bint owner
    cdef readonly size_t capacity
    cdef readonly size_t in_use
    cdef readonly size_t keep_bytes
    cdef readonly uint64_t frees                    # grows with every block freed: whether room may be back
    cdef readonly size_t idle_bytes                 # touched, but free as whole granules
    cdef uint64_t generation                        # forks() at the time this process became the owner
    cdef uint32_t pages
    cdef uint32_t granules
    cdef uint8_t* state                             # by page: FREE | order or TAKEN | order at a block's head, else 0
    cdef uint32_t* following                        # free lists, doubly linked by page number
    cdef uint32_t* previous
    cdef uint32_t heads[ORDERS]
    cdef uint32_t cached[CACHED_ORDERS][CACHED_BLOCKS]
    cdef uint32_t cached_count[CACHED_ORDERS]
    cdef uint16_t* granule_pages                    # pages taken in each granule of 1 MiB
    cdef uint8_t* granule_touched
    cdef uint32_t sweep
    cdef Buffer allocate_c(self, size_t size)
    cdef uint32_t take(self, uint32_t order) noexcept nogil
    cdef void give(self, uint32_t page, uint32_t order) noexcept nogil
    cdef void insert(self, uint32_t page, uint32_t order) noexcept nogil
    cdef void remove(self, uint32_t page, uint32_t order) noexcept nogil
    cdef void free_block(self, uint32_t page, uint32_t order) noexcept nogil
    cdef void drain_caches(self) noexcept nogil
    cdef void account(self, uint32_t page, uint32_t order, bint taken) noexcept nogil
    cdef void return_pages(self) noexcept nogil


cdef class Buffer:
    cdef Arena arena
    cdef uint8_t* address
    cdef readonly size_t offset
    cdef readonly size_t size
    cdef readonly size_t capacity
    cdef uint32_t order
