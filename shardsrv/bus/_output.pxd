"""Queue of the buffers that wait to be written to one socket.

Invariants: a part keeps its owner alive until its last byte is written; the queue is a plain array that starts at
`head` and is empty again when `count` reaches it; a part of no length is never queued.
"""

from cpython.ref cimport Py_XDECREF, PyObject
from libc.stdint cimport uint8_t, uint32_t
from libc.stdlib cimport free, realloc
from libc.string cimport memmove

from shardsrv.bus._sys cimport iovec

cdef enum:
    SPARE_PARTS = 16           # an empty queue larger than this gives its memory back


cdef struct Part:
    PyObject* owner
    uint8_t* data
    size_t length


cdef struct Output:
    Part* parts
    uint32_t head
    uint32_t count             # end of the queue
    uint32_t capacity
    size_t bytes


cdef inline bint output_push(Output* queue, PyObject* owner, uint8_t* data, size_t length) noexcept:
    """Take over one reference to `owner`. False when there is no memory."""
    cdef Part* grown
    cdef uint32_t capacity
    if queue.count == queue.capacity:
        if queue.head > 0:
            memmove(queue.parts, queue.parts + queue.head, (queue.count - queue.head) * sizeof(Part))
            queue.count -= queue.head
            queue.head = 0
        else:
            capacity = queue.capacity * 2 if queue.capacity else 4
            grown = <Part*>realloc(queue.parts, capacity * sizeof(Part))
            if grown == NULL:
                return False
            queue.parts = grown
            queue.capacity = capacity
    queue.parts[queue.count].owner = owner
    queue.parts[queue.count].data = data
    queue.parts[queue.count].length = length
    queue.count += 1
    queue.bytes += length
    return True


cdef inline void output_cut(Output* queue, uint32_t parts) noexcept:
    """Take back the last `parts` parts, of which nothing was written."""
    cdef PyObject* owner
    while parts > 0:
        parts -= 1
        queue.count -= 1
        queue.bytes -= queue.parts[queue.count].length
        owner = queue.parts[queue.count].owner
        Py_XDECREF(owner)


cdef inline uint32_t output_vector(Output* queue, iovec* vector, uint32_t limit) noexcept nogil:
    """Describe the first parts; returns how many."""
    cdef uint32_t used = 0
    while used < limit and queue.head + used < queue.count:
        vector[used].iov_base = queue.parts[queue.head + used].data
        vector[used].iov_len = queue.parts[queue.head + used].length
        used += 1
    return used


cdef inline void output_written(Output* queue, size_t length) noexcept:
    """Drop what was written. An owner's destructor may run: the queue is in order before each."""
    cdef PyObject* owner
    cdef Part* first
    queue.bytes -= length
    while length > 0 and queue.count > 0:
        first = queue.parts + queue.head
        if length < first.length:
            first.data += length
            first.length -= length
            break
        length -= first.length
        owner = first.owner
        queue.head += 1
        if queue.head == queue.count:
            queue.head = 0
            queue.count = 0
        Py_XDECREF(owner)
    if queue.count == 0 and queue.capacity > SPARE_PARTS:
        free(queue.parts)
        queue.parts = NULL
        queue.capacity = 0


cdef inline void output_clear(Output* queue) noexcept:
    """Forget everything. The array is detached first, because destructors may run."""
    cdef Part* parts = queue.parts
    cdef uint32_t index = queue.head
    cdef uint32_t count = queue.count
    queue.parts = NULL
    queue.head = 0
    queue.count = 0
    queue.capacity = 0
    queue.bytes = 0
    while index < count:
        Py_XDECREF(parts[index].owner)
        index += 1
    free(parts)
