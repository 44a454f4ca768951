#include "parallel/nccl_communicator.h"

#include <dlfcn.h>
#include <nccl.h>

#include <cstring>

#include "backend/cuda/context_internal.h"
#include "core/error.h"
#include "parallel/activity.h"

namespace inlay::parallel {

namespace {

using backend::Lane;
using backend::cuda::gpu;

// NCCL is not linked: a run of one process does without. These are its functions, by their own names.
struct Nccl {
#define INLAY_NCCL(function) decltype(&nccl##function) function = load<decltype(&nccl##function)>("nccl" #function)
  Nccl() = default;
  void* library = open();
  INLAY_NCCL(GetUniqueId);
  INLAY_NCCL(CommInitRank);
  INLAY_NCCL(CommDestroy);
  INLAY_NCCL(CommAbort);
  INLAY_NCCL(CommGetAsyncError);
  INLAY_NCCL(GetLastError);
  INLAY_NCCL(GetErrorString);
  INLAY_NCCL(AllReduce);
  INLAY_NCCL(ReduceScatter);
  INLAY_NCCL(AllGather);
  INLAY_NCCL(Reduce);
  INLAY_NCCL(Broadcast);
  INLAY_NCCL(Send);
  INLAY_NCCL(Recv);
  INLAY_NCCL(GroupStart);
  INLAY_NCCL(GroupEnd);
#undef INLAY_NCCL

 private:
  static void* open() {
    void* const found = ::dlopen("libnccl.so.2", RTLD_NOW | RTLD_GLOBAL);
    if (found == nullptr) {
      user_error("several processes with GPUs need NCCL, and it cannot be loaded ({}); Debian, Ubuntu: libnccl2",
                 ::dlerror());
    }
    return found;
  }
  template <class Function>
  Function load(const char* name) const {
    const auto found = reinterpret_cast<Function>(::dlsym(library, name));
    if (found == nullptr) user_error("the NCCL that was found has no {}; a newer one is needed", name);
    return found;
  }
};

const Nccl& nccl() {
  static const Nccl library;
  return library;
}

std::string words_of(ncclResult_t status, ncclComm_t communicator) {
  const char* const last = nccl().GetLastError(communicator);
  const bool more = last != nullptr && *last != '\0';
  return fmt::format("NCCL error {} ({}{}{})", static_cast<int>(status), nccl().GetErrorString(status),
                     more ? "; " : "", more ? last : "");
}

void check(ncclResult_t status, ncclComm_t communicator, std::string_view what) {
  if (status != ncclSuccess && status != ncclInProgress) {
    throw InternalError(fmt::format("{}: {}", what, words_of(status, communicator)));
  }
}

ncclDataType_t type_of(DType dtype) { return dtype == DType::f64 ? ncclFloat64 : ncclFloat32; }

// The rows of a rank in a whole tensor.
View rows_of(const CutTensor& t, int rank) { return t.whole.slice_rows(t.cut->begin(rank), t.cut->end(rank)); }

class NcclCommunicator final : public Communicator {
 public:
  explicit NcclCommunicator(std::shared_ptr<HostCommunicator> host)
      : Communicator(host->rank(), host->size()), host_(std::move(host)) {
    // Loading may fail on one host alone, and the others must not wait for it.
    ncclUniqueId id{};
    together(*host_, "loading NCCL", [&] {
      nccl();
      if (leads()) started(nccl().GetUniqueId(&id), "finding an address for NCCL");
    });
    const std::string bytes = host_->from_leader({id.internal, sizeof id.internal}, "meeting through NCCL");
    std::memcpy(id.internal, bytes.data(), sizeof id.internal);
    together(*host_, "starting NCCL",
             [&] { started(nccl().CommInitRank(&nccl_, size(), id, rank()), "starting NCCL"); });
    check_ = activity().add_check([this] { return trouble(); });
  }

  // After a fault the others may be gone, and an orderly end would wait for them.
  ~NcclCommunicator() override {
    activity().remove_check(check_);
    std::uncaught_exceptions() > 0 ? nccl().CommAbort(nccl_) : nccl().CommDestroy(nccl_);
  }

  std::vector<std::string> exchange(std::string_view mine, std::string_view what) override {
    return host_->exchange(mine, what);
  }
  std::shared_ptr<Communicator> split(int colour) override {
    return std::make_shared<NcclCommunicator>(host_->split_host(colour));
  }
  std::string name_of(int rank) const override { return host_->name_of(rank); }

 protected:
  void do_all_reduce(Exec& exec, std::span<const View> tensors, std::string_view what) override {
    if (!exec.on_cuda()) return host_->all_reduce(exec, tensors, what);
    grouped(exec, what, [&](cudaStream_t stream) {
      for (const View& t : tensors) {
        INLAY_ASSERT(t.contiguous(), "{}: a tensor that is exchanged has gaps", what);
        if (t.size() == 0) continue;
        check(nccl().AllReduce(t.data(), t.data(), count(t), type_of(t.dtype()), ncclSum, nccl_, stream), nccl_, what);
      }
    });
  }

  void do_reduce_scatter(Exec& exec, std::span<const CutTensor> tensors, std::string_view what) override {
    if (!exec.on_cuda()) return host_->reduce_scatter(exec, tensors, what);
    grouped(exec, what, [&](cudaStream_t stream) {
      for (const CutTensor& t : tensors) {
        const ncclDataType_t type = type_of(t.whole.dtype());
        if (t.whole.size() > 0 && t.cut->uniform()) {
          check(nccl().ReduceScatter(t.whole.data(), t.share.data(), count(t.share), type, ncclSum, nccl_, stream),
                nccl_, what);
          continue;
        }
        for (int owner = 0; owner < size(); ++owner) {
          const View rows = rows_of(t, owner);
          if (rows.size() == 0) continue;
          void* const out = owner == rank() ? t.share.data() : rows.data();
          check(nccl().Reduce(rows.data(), out, count(rows), type, ncclSum, owner, nccl_, stream), nccl_, what);
        }
      }
    });
  }

  void do_all_gather(Exec& exec, std::span<const CutTensor> tensors, std::string_view what) override {
    if (!exec.on_cuda()) return host_->all_gather(exec, tensors, what);
    grouped(exec, what, [&](cudaStream_t stream) {
      for (const CutTensor& t : tensors) {
        if (t.whole.size() > 0 && t.cut->uniform()) {
          check(nccl().AllGather(t.share.data(), t.whole.data(), t.share.bytes(), ncclUint8, nccl_, stream), nccl_,
                what);
          continue;
        }
        for (int owner = 0; owner < size(); ++owner) {
          const View rows = rows_of(t, owner);
          if (rows.size() == 0) continue;
          const void* const from = owner == rank() ? t.share.data() : rows.data();
          check(nccl().Broadcast(from, rows.data(), rows.bytes(), ncclUint8, owner, nccl_, stream), nccl_, what);
        }
      }
    });
  }

  void do_broadcast(Exec& exec, std::span<const View> tensors, int root, std::string_view what) override {
    if (!exec.on_cuda()) return host_->broadcast(exec, tensors, root, what);
    grouped(exec, what, [&](cudaStream_t stream) {
      for (const View& t : tensors) {
        INLAY_ASSERT(t.contiguous(), "{}: a tensor that is exchanged has gaps", what);
        if (t.size() == 0) continue;
        check(nccl().Broadcast(t.data(), t.data(), t.bytes(), ncclUint8, root, nccl_, stream), nccl_, what);
      }
    });
  }

  void do_all_to_all(Exec& exec, View to, ConstView from, std::string_view what) override {
    if (!exec.on_cuda()) return host_->all_to_all(exec, to, from, what);
    const std::size_t bytes = to.bytes() / static_cast<std::size_t>(size());
    grouped(exec, what, [&](cudaStream_t stream) {
      for (int other = 0; bytes > 0 && other < size(); ++other) {
        const std::size_t at = static_cast<std::size_t>(other) * bytes;
        const char* const out = static_cast<const char*>(from.data()) + at;
        check(nccl().Send(out, bytes, ncclUint8, other, nccl_, stream), nccl_, what);
        check(nccl().Recv(static_cast<char*>(to.data()) + at, bytes, ncclUint8, other, nccl_, stream), nccl_, what);
      }
    });
  }

 private:
  static std::size_t count(ConstView tensor) { return static_cast<std::size_t>(tensor.size()); }

  static void started(ncclResult_t status, std::string_view what) {
    if (status != ncclSuccess) user_error("{}: {}", what, words_of(status, nullptr));
  }

  // All calls as one launch, whose end the watchdog can ask for.
  template <class Calls>
  void grouped(Exec& exec, std::string_view what, const Calls& calls) {
    const cudaStream_t stream = gpu(exec).stream(Lane::network);
    check(nccl().GroupStart(), nccl_, what);
    calls(stream);
    check(nccl().GroupEnd(), nccl_, what);
    const auto ended = std::static_pointer_cast<CUevent_st>(backend::cuda::make_event());
    backend::cuda::check(cudaEventRecord(ended.get(), stream), what);
    activity().launched(what, [ended] {
      backend::cuda::use_bound_device();
      return cudaEventQuery(ended.get()) != cudaErrorNotReady;
    });
  }

  std::string trouble() const {
    ncclResult_t status = ncclSuccess;
    nccl().CommGetAsyncError(nccl_, &status);
    return status == ncclSuccess || status == ncclInProgress ? std::string() : words_of(status, nccl_);
  }

  std::shared_ptr<HostCommunicator> host_;
  ncclComm_t nccl_ = nullptr;
  std::list<Activity::Check>::iterator check_;
};

}  // namespace

std::shared_ptr<Communicator> nccl_communicator(std::shared_ptr<HostCommunicator> host) {
  return std::make_shared<NcclCommunicator>(std::move(host));
}

}  // namespace inlay::parallel
