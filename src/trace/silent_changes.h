// Changes of tensors that their version counters do not notice: those through `data`, which is an
// alias with a counter of its own, through an array of NumPy's, or by another process.
//
// Whoever keeps what was computed from a tensor's contents compares this beside the version
// (frozen_calls.cpp). Costs an increment where such an alias is made and a load where contents are
// compared. Storages may share a count by chance, and an alias need not be written to: at worst
// something is computed again.
#pragma once
#include <c10/core/TensorImpl.h>

#include <cstdint>

namespace ingot::trace {

/// An alias of the tensor with a counter of its own was made, or written to.
void note_silent_change(const c10::TensorImpl& tensor);
/// Grows with each such alias of the tensor's storage; 0 if there was none.
std::uint32_t silent_changes(const c10::TensorImpl& tensor);
/// Whether other processes have the tensor's memory, too, and may write to it at any time.
bool is_shared_with_processes(const c10::TensorImpl& tensor);

}  // namespace ingot::trace
