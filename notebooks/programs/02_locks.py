"""Lock the same range of memory twice, first when no page was ever touched, and count the pages that are there."""

import ctypes
import mmap
import resource

from course_utils.rank import report, timer

libc = ctypes.CDLL(None, use_errno=True)


def in_memory(address, nbytes):
    """How many pages of a range are in memory, or -1 where the system doesn't say."""
    there = (ctypes.c_ubyte * (nbytes // mmap.PAGESIZE))()
    failed = libc.mincore(ctypes.c_void_p(address), ctypes.c_size_t(nbytes), there)
    return -1 if failed else sum(page & 1 for page in there)


def main():
    allowed, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    nbytes = 4 << 20
    if allowed != resource.RLIM_INFINITY:
        nbytes = min(nbytes, allowed // 2 // mmap.PAGESIZE * mmap.PAGESIZE)
    for attempt in range(12 if nbytes else 0):
        memory = mmap.mmap(-1, nbytes)  # fresh from the system, never touched
        address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        whole = ctypes.c_void_p(address), ctypes.c_size_t(nbytes)
        before = in_memory(address, nbytes)
        for state in ("cold", "warm"):
            with timer() as t:
                failed = libc.mlock(*whole)
            if not failed and attempt >= 2:
                report(state=state, lock_s=t.seconds, before=before, after=in_memory(address, nbytes))
            libc.munlock(*whole)
    report(nbytes=nbytes, pages=nbytes // mmap.PAGESIZE)


if __name__ == "__main__":
    main()
