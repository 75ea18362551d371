from shardsrv.vsr.events cimport Request


cdef class Plane:
    cpdef admit(self, Request request)
    cpdef find(self, Request request)
    cpdef prepare(self, Request request, op, timestamp)
    cpdef apply(self, prepare)
