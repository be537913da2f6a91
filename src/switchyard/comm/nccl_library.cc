// SPDX-License-Identifier: Apache-2.0
#include "switchyard/comm/nccl_library.h"

#include <dlfcn.h>

#include <cstring>

#include "switchyard/base/check.h"

namespace switchyard::comm {
namespace {

constexpr const char* kPhase = "creation of an NCCL communicator";
constexpr const char* kLibrary = "libnccl.so.2";

/// As in NCCL's interface, version 2.
struct Id {
  char bytes[128];
};
enum NcclType : int { kHalf = 6, kFloat = 7, kBfloat16 = 9 };
constexpr int kSum = 0;

struct Library {
  int (*version)(int*) = nullptr;
  int (*unique_id)(Id*) = nullptr;
  int (*init_rank)(void**, int, Id, int) = nullptr;
  int (*all_reduce)(const void*, void*, std::size_t, int, int, void*, void*) = nullptr;
  int (*destroy)(void*) = nullptr;
  const char* (*error_text)(int) = nullptr;

  void check(int status, const char* what) const {
    if (status != 0) throw DeviceError(cat("NCCL: ", what, " failed: ", error_text(status)));
  }
};

template <class F>
void find(void* handle, const char* name, F& out) {
  out = reinterpret_cast<F>(dlsym(handle, name));
  if (out == nullptr) throw DeviceError(cat(kLibrary, " has no ", name));
}

/// Opens the library once. Errors: DeviceError.
const Library& library() {
  static const Library opened = [] {
    void* handle = dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL);
    if (handle == nullptr)
      throw DeviceError(cat("NCCL was not found: ", dlerror(),
                            "; put its folder on "
                            "LD_LIBRARY_PATH"));
    Library l;
    find(handle, "ncclGetVersion", l.version);
    find(handle, "ncclGetUniqueId", l.unique_id);
    find(handle, "ncclCommInitRank", l.init_rank);
    find(handle, "ncclAllReduce", l.all_reduce);
    find(handle, "ncclCommDestroy", l.destroy);
    find(handle, "ncclGetErrorString", l.error_text);
    return l;
  }();
  return opened;
}

int type_of(Dtype t) { return t == Dtype::kBf16 ? kBfloat16 : t == Dtype::kFp16 ? kHalf : kFloat; }

}  // namespace

NcclSum::NcclSum(Group& group) {
  Id id{};
  try {
    guarded(group, kPhase, [&] {
      int number = 0;
      library().check(library().version(&number), "version");
      version_ = cat("NCCL ", number / 10000, ".", number / 100 % 100, ".", number % 100);
      if (group.rank() == 0) library().check(library().unique_id(&id), "unique id");
    });
  } catch (const PeerError&) {
    throw;
  } catch (const UsageError& e) {  // nobody's mistake: what the machine lacks
    throw DeviceError(e.what());
  }
  const std::string first =
      group.all_gather(std::string_view(id.bytes, sizeof id.bytes), kPhase)[0];
  std::memcpy(id.bytes, first.data(), sizeof id.bytes);
  // NCCL's call is collective too and knows no deadline: where it refuses one rank at once, the
  // others stay in it until NCCL itself gives up, and only then hear of it from the group.
  const auto leave = [&] {
    if (communicator_ != nullptr) library().destroy(communicator_);
  };
  try {
    guarded(group, kPhase, [&] {
      library().check(library().init_rank(&communicator_, group.size(), id, group.rank()),
                      "creation of a communicator");
    });
  } catch (const UsageError& e) {
    leave();
    throw DeviceError(e.what());
  } catch (...) {
    leave();
    throw;
  }
}

NcclSum::~NcclSum() { library().destroy(communicator_); }

void NcclSum::all_reduce(const void* in, void* out, std::int64_t count, Dtype dtype,
                         Stream stream) {
  library().check(library().all_reduce(in, out, std::size_t(count), type_of(dtype), kSum,
                                       communicator_, stream.handle),
                  "all-reduce");
}

}  // namespace switchyard::comm
