// What a sanitized build reports as leaks of these processes is to be ours alone: Open MPI keeps hundreds of small
// allocations to the end. Its plugins are unloaded by then, so a leak is known by the libraries further up its stack,
// which only the slow unwinder finds. Nothing calls these functions where there is no sanitizer.
extern "C" const char* __asan_default_options();
extern "C" const char* __lsan_default_suppressions();

const char* __asan_default_options() { return "fast_unwind_on_malloc=0"; }

const char* __lsan_default_suppressions() {
  return "leak:libmpi.so\nleak:libopen-rte.so\nleak:libopen-pal.so\nleak:libpmix.so\nleak:libhwloc.so\n";
}
