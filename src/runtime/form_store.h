// The forms of a GPU's kernels that measuring has found best: in this process, and on disk beside
// the kernels, an entry each, so that another process has them at once.
//
// Keyed by the GPU, the version of its code generator and the kernel's own key. An entry that is
// damaged, or of a form that this version does not know, is as none. Costs a look at the file
// system for each new key, once in a process. Used by driver.cpp and gpu_tuner.cpp.
#pragma once
#include <map>
#include <mutex>
#include <optional>
#include <string>

#include "codegen/gpu_forms.h"
#include "runtime/cache.h"

namespace ingot::runtime {

class FormStore {
  public:
    /// `device`: all that makes results of one GPU another's. `cache` must outlive the store.
    FormStore(DiskCache& cache, std::string device) : cache_(cache), device_(std::move(device)) {}

    std::optional<codegen::GpuForm> find(const std::string& kernel);
    void put(const std::string& kernel, const codegen::GpuForm& form);

  private:
    std::string key_of(const std::string& kernel) const;

    DiskCache& cache_;
    std::string device_;
    std::mutex mutex_;
    std::map<std::string, std::optional<codegen::GpuForm>> known_;  // by key, misses too
};

}  // namespace ingot::runtime
