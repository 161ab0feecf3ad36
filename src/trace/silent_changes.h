// Changes of tensors that their version counters do not notice: those through `data`, which is an
// alias with a counter of its own, through an array of NumPy's, or by another process.
//
// Whoever keeps what was computed from a tensor's contents compares this beside the version
// (frozen_calls.cpp). Costs some 30 ns where such an alias is made and a load where contents are
// compared, for a storage that has had one some 5 ns. An alias need not be written to: at worst
// something is computed again.
#pragma once
#include <c10/core/TensorImpl.h>

#include <cstdint>
#include <optional>

namespace ingot::trace {

/// An alias of the tensor with a counter of its own is there now, or was written to.
void note_silent_change(const c10::TensorImpl& tensor);
/// Grows with each such alias of the tensor's storage, 0 if there was none; nothing while one may
/// be alive. What else uses the storage, a view that another thread has made, may be taken for an
/// alias until the storage was seen without.
std::optional<std::uint32_t> silent_changes(const c10::TensorImpl& tensor);
/// Whether other processes have the tensor's memory, too, and may write to it at any time.
bool is_shared_with_processes(const c10::TensorImpl& tensor);

}  // namespace ingot::trace
