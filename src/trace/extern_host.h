// Carries out a program's extern steps with ATen: recorded calls, and the vendor's form of prims.
//
// A step's buffers become tensors over the program's memory (no copy, about 0.2 µs each); results
// that ATen allocates are handed over as they are where the plan allows it, else copied into the
// planned memory. Part of the PyTorch layer; implements runtime/host.h.
#pragma once
#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <vector>

#include "runtime/host.h"
#include "trace/recorder.h"

namespace ingot::trace {

/// The table must be the recording's the plan was made from.
class TorchExterns final : public runtime::ExternHost {
  public:
    TorchExterns(std::vector<ExternCallee> table, c10::Device device);
    /// The same for one set of sizes: `value` gives the symbols their numbers while it is used.
    TorchExterns at(std::function<std::int64_t(Expr symbol)> value) const {
        TorchExterns sized = *this;
        sized.value_ = std::move(value);
        return sized;
    }
    std::unique_ptr<runtime::ExternCall> prepare(
        const ExternStep& step, std::span<const runtime::Layout> inputs,
        std::span<const runtime::Layout> outputs) const override;
    const std::vector<ExternCallee>& table() const { return *table_; }
    const runtime::DeviceHost* device() const override { return gpu_.get(); }
    /// The recorded call behind a step; null for the vendor's form of a prim.
    const ExternCallee* callee(const ExternStep& step) const {
        return step.index >= 0 ? &table_->at(static_cast<std::size_t>(step.index)) : nullptr;
    }

  private:
    std::shared_ptr<const std::vector<ExternCallee>> table_;
    std::function<std::int64_t(Expr)> value_;
    c10::Device device_;
    std::shared_ptr<const runtime::DeviceHost> gpu_;  // outlives the programs that use it
};

/// PyTorch's own thread pool.
class TorchThreads final : public runtime::Threads {
  public:
    int count() const override;
    void run(int tasks, void (*body)(void*, int), void* context) const override;
};

/// A tensor over memory that somebody else owns.
at::Tensor tensor_over(void* data, const runtime::Layout& layout, c10::Device device);
/// A fresh tensor of this layout with contents of any value.
at::Tensor empty_tensor(const runtime::Layout& layout, c10::Device device);
/// Whether the tensor's elements lie as the layout says.
bool has_layout(const at::Tensor& tensor, const runtime::Layout& layout);

}  // namespace ingot::trace
