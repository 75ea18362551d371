"""A thread that syncs files and never asks for the interpreter: the pump goes on undisturbed.

Owns the thread, its list of work and the eventfd by which it tells that it is done. Invariants: one round of work is out at a time; the
list is written by one side and read by the other, in turns, under the mutex; signals are never delivered to the thread.
"""

cimport cython
from libc.errno cimport EINTR, errno
from libc.stdint cimport uint64_t
from libc.stdlib cimport free, malloc

import os

cdef extern from "<signal.h>" nogil:
    ctypedef struct sigset_t:
        pass
    enum: SIG_BLOCK
    int sigfillset(sigset_t* set)

cdef extern from "<pthread.h>" nogil:
    ctypedef struct pthread_t:
        pass
    ctypedef struct pthread_mutex_t:
        pass
    ctypedef struct pthread_cond_t:
        pass
    int pthread_create(pthread_t* thread, const void* attributes, void* (*entry)(void*) noexcept nogil, void* argument)
    int pthread_join(pthread_t thread, void** result)
    int pthread_mutex_init(pthread_mutex_t* mutex, const void* attributes)
    int pthread_mutex_lock(pthread_mutex_t* mutex)
    int pthread_mutex_unlock(pthread_mutex_t* mutex)
    int pthread_mutex_destroy(pthread_mutex_t* mutex)
    int pthread_cond_init(pthread_cond_t* condition, const void* attributes)
    int pthread_cond_wait(pthread_cond_t* condition, pthread_mutex_t* mutex)
    int pthread_cond_signal(pthread_cond_t* condition)
    int pthread_cond_destroy(pthread_cond_t* condition)
    int pthread_sigmask(int how, const sigset_t* set, sigset_t* old)

cdef extern from "<unistd.h>" nogil:
    int fdatasync(int fd)
    int gettid()
    ssize_t write(int fd, const void* data, size_t length)

cdef enum:
    IDLE = 0
    WORK = 1
    DONE = 2
    END = 3


cdef struct Work:
    pthread_mutex_t mutex
    pthread_cond_t changed
    int state
    int event
    int tid
    int* files
    Py_ssize_t count
    Py_ssize_t index           # of the file that failed
    int error


cdef void* serve(void* argument) noexcept nogil:
    """Sync what is asked for until the end."""
    cdef Work* work = <Work*>argument
    cdef sigset_t every
    cdef uint64_t one = 1
    sigfillset(&every)
    pthread_sigmask(SIG_BLOCK, &every, NULL)
    pthread_mutex_lock(&work.mutex)
    work.tid = gettid()
    write(work.event, &one, sizeof(one))
    while work.state != END:
        if work.state != WORK:
            pthread_cond_wait(&work.changed, &work.mutex)
            continue
        pthread_mutex_unlock(&work.mutex)
        work.error = 0
        work.index = 0
        while work.index < work.count:
            if fdatasync(work.files[work.index]) == 0:
                work.index += 1
            elif errno != EINTR:
                work.error = errno
                break
        pthread_mutex_lock(&work.mutex)
        if work.state == WORK:
            work.state = DONE
        write(work.event, &one, sizeof(one))
    pthread_mutex_unlock(&work.mutex)
    return NULL


@cython.final
cdef class SyncThread:
    """See the type stub."""

    cdef Work* work
    cdef pthread_t thread
    cdef readonly int event_fd

    def __cinit__(self):
        self.work = NULL
        self.event_fd = -1

    def __init__(self, affinity):
        cdef Work* work = <Work*>malloc(sizeof(Work))
        cdef int error
        if work == NULL:
            raise MemoryError("no memory for the thread that syncs")
        self.event_fd = os.eventfd(0, os.EFD_CLOEXEC)
        work.event = self.event_fd
        work.state = IDLE
        work.files = NULL
        work.count = work.index = 0
        work.error = work.tid = 0
        pthread_mutex_init(&work.mutex, NULL)
        pthread_cond_init(&work.changed, NULL)
        error = pthread_create(&self.thread, NULL, serve, <void*>work)
        if error:
            pthread_mutex_destroy(&work.mutex)
            pthread_cond_destroy(&work.changed)
            free(work)
            os.close(self.event_fd)
            raise OSError(error, os.strerror(error))
        self.work = work
        os.eventfd_read(self.event_fd)
        os.set_blocking(self.event_fd, False)
        # It inherited the processor pin of its shard and would compete with the pump.
        os.sched_setaffinity(work.tid, affinity)

    def start(self, list files not None):
        cdef Work* work = self.open()
        cdef Py_ssize_t count = len(files)
        cdef Py_ssize_t index
        if work.state != IDLE:
            raise RuntimeError("a round of syncs is out")
        work.files = <int*>malloc((count + 1) * sizeof(int))
        if work.files == NULL:
            raise MemoryError("no memory for a round of syncs")
        for index in range(count):
            work.files[index] = files[index]
        work.count = count
        pthread_mutex_lock(&work.mutex)
        work.state = WORK
        pthread_cond_signal(&work.changed)
        pthread_mutex_unlock(&work.mutex)

    def finish(self):
        cdef Work* work = self.open()
        os.eventfd_read(self.event_fd)
        pthread_mutex_lock(&work.mutex)
        work.state = IDLE
        pthread_mutex_unlock(&work.mutex)
        free(work.files)
        work.files = NULL
        return (work.index, work.error) if work.error else None

    def close(self):
        cdef Work* work = self.work
        if work == NULL:
            return
        self.work = NULL
        pthread_mutex_lock(&work.mutex)
        work.state = END
        pthread_cond_signal(&work.changed)
        pthread_mutex_unlock(&work.mutex)
        with nogil:
            pthread_join(self.thread, NULL)
        pthread_mutex_destroy(&work.mutex)
        pthread_cond_destroy(&work.changed)
        free(work.files)
        free(work)
        os.close(self.event_fd)
        self.event_fd = -1

    cdef Work* open(self) except NULL:
        if self.work == NULL:
            raise RuntimeError("the thread that syncs has ended")
        return self.work
