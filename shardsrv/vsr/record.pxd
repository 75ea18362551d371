cdef class Record:
    pass
