// What a sanitized build reports as leaks of these processes is to be ours alone: Open MPI keeps hundreds of small
// allocations to the end, and so do the libraries that it brings. Its plugins are unloaded by then, so a leak is known
// by the libraries further up its stack, which only the slow unwinder finds. Nothing calls these functions where there
// is no sanitizer.
#define INLAY_FOR_SANITIZERS extern "C" __attribute__((visibility("default")))

INLAY_FOR_SANITIZERS const char* __asan_default_options() { return "fast_unwind_on_malloc=0"; }

INLAY_FOR_SANITIZERS const char* __lsan_default_suppressions() {
  return "leak:libmpi.so\nleak:libopen-rte.so\nleak:libopen-pal.so\nleak:libpmix.so\nleak:libhwloc.so\n"
         "leak:libevent";
}
