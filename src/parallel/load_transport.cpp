#include "parallel/load_transport.h"

#include <dlfcn.h>

#include <filesystem>

#include "core/error.h"

namespace inlay::parallel {

std::unique_ptr<Transport> load_transport() {
  std::error_code error;
  const std::filesystem::path program = std::filesystem::read_symlink("/proc/self/exe", error);
  if (error) user_error("/proc/self/exe cannot be read ({}), so the MPI library is not found", error.message());
  const std::filesystem::path folder = program.parent_path();
  std::filesystem::path file = folder / "inlay_mpi.so";
  if (!std::filesystem::exists(file, error)) file = folder.parent_path() / "lib" / "inlay" / "inlay_mpi.so";
  if (!std::filesystem::exists(file, error)) {
    user_error(
        "several processes need MPI, and this inlay was built without it: neither {} nor {} exists; install Open MPI "
        "(Debian: libopenmpi-dev and openmpi-bin) and build again",
        (folder / "inlay_mpi.so").string(), file.string());
  }
  // Global: Open MPI loads libraries of its own that look for its symbols. Never closed, for the same reason.
  void* const library = ::dlopen(file.c_str(), RTLD_NOW | RTLD_GLOBAL);
  if (library == nullptr) {
    user_error("several processes need MPI, and it cannot be loaded ({}); install Open MPI (Debian: openmpi-bin)",
               ::dlerror());
  }
  const auto make = reinterpret_cast<MakeTransport>(::dlsym(library, make_transport_name));
  if (make == nullptr) user_error("{} belongs to another version of inlay; build again", file.string());
  std::string problem;
  std::unique_ptr<Transport> transport(make(problem));
  if (transport == nullptr) user_error("MPI cannot be used: {}", problem);
  return transport;
}

}  // namespace inlay::parallel
