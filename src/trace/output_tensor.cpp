// See output_tensor.h.
#include "trace/output_tensor.h"

#include <ATen/ATen.h>
#include <ATen/EmptyTensor.h>
#include <c10/core/CPUAllocator.h>

#include <new>

#include "runtime/memory.h"
#include "trace/dtypes.h"
#include "trace/gpu.h"

namespace ingot::trace {
namespace {

/// Below, the C library recycles by itself, for the vendor's calls and optimizers as well: with
/// blocks from 1 MiB on, ResNet-18's peak in training was 4 % higher.
constexpr std::int64_t kPooledFrom = 4 << 20;
/// Of unused memory: a step's gradients, once freed, are what its next forward is made of.
constexpr std::size_t kPoolBytes = std::size_t{1} << 30;
/// Of it, what stays between a backward and the next forward.
constexpr std::size_t kKeptBetweenPrograms = std::size_t{16} << 20;

/// Never destroyed: tensors may be freed while the process ends.
runtime::BlockPool& pool() {
    static auto* const instance = new runtime::BlockPool(kPoolBytes);
    return *instance;
}

void release(void* lent) {
    runtime::BlockPool::release(static_cast<runtime::BlockPool::Lent*>(lent));
}

c10::DataPtr allocate(std::size_t bytes, WhenFreed then) {
    if (then == WhenFreed::Returned || bytes < static_cast<std::size_t>(kPooledFrom) ||
        bytes > kPoolBytes)
        return c10::GetCPUAllocator()->allocate(bytes);
    runtime::BlockPool::Lent* lent = nullptr;
    try {
        lent = pool().take(bytes);
    } catch (const std::bad_alloc&) {
        pool().trim(0);  // may be room enough; else this raises what eager raises
        return c10::GetCPUAllocator()->allocate(bytes);
    }
    return {runtime::BlockPool::data(lent), lent, &release, c10::Device(c10::kCPU)};
}

at::Tensor over(c10::intrusive_ptr<c10::StorageImpl> storage, const runtime::Layout& layout,
                c10::DispatchKey key) {
    at::Tensor t = at::detail::make_tensor<c10::TensorImpl>(
        c10::Storage(std::move(storage)), c10::DispatchKeySet(key),
        c10::scalarTypeToTypeMeta(to_scalar_type(layout.dtype)));
    t.unsafeGetTensorImpl()->set_sizes_and_strides(layout.sizes, layout.strides);
    return t;
}

}  // namespace

at::Tensor make_output(const runtime::Layout& layout, c10::Device device, WhenFreed then) {
    const auto bytes = static_cast<std::size_t>(layout.bytes);
    if (!device.is_cpu()) {
        c10::Allocator* allocator = c10::GetAllocator(device.type());
        return over(
            c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(), bytes,
                                                  allocator->allocate(bytes), allocator, true),
            layout, key_of(device));
    }
    // Resizable as any tensor: growing takes memory from PyTorch's allocator.
    auto storage =
        c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(), bytes,
                                              allocate(bytes, then), c10::GetCPUAllocator(), true);
    return over(std::move(storage), layout, c10::DispatchKey::CPU);
}

void trim_output_pool(std::size_t keep_bytes) { pool().trim(keep_bytes); }
void trim_between_programs() { trim_output_pool(kKeptBetweenPrograms); }

}  // namespace ingot::trace
