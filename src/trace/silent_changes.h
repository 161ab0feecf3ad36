// Changes of tensors that their version counters do not notice: those through `data`, which is an
// alias with a counter of its own, through an array of NumPy's, by operators that do not count
// (watched_operators.h), or by another process.
//
// Whoever keeps what was computed from a tensor's contents compares this beside the version
// (frozen_calls.cpp). Costs some 30 ns where such an alias is made or written and a load where
// contents are compared, for a storage that has had one some 5 ns. An alias need not be written to:
// at worst something is computed again.
#pragma once
#include <c10/core/Storage.h>
#include <c10/core/TensorImpl.h>

#include <cstdint>
#include <functional>
#include <optional>

namespace ingot::trace {

/// An alias of the tensor with a counter of its own is there now, or was written to.
void note_silent_change(const c10::TensorImpl& tensor);
/// The storage was written, by something that does not count and keeps no hold of it.
void note_write(const c10::Storage& storage);
/// The storage is being written until `done`, which is asked from any thread and may not throw.
void note_write_under_way(const c10::Storage& storage, std::function<bool()> done);
/// Grows with each such alias and write of the tensor's storage, 0 if there was none; nothing while
/// an alias may be alive or a write is under way. What else uses the storage, a view that another
/// thread has made, may be taken for an alias until the storage was seen without.
std::optional<std::uint32_t> silent_changes(const c10::TensorImpl& tensor);
/// Whether other processes have the tensor's memory, too, and may write to it at any time.
bool is_shared_with_processes(const c10::TensorImpl& tensor);

/// Something has run of which nobody knows which tensors it wrote: an optimizer's step, a backward,
/// a training call, an operator that was registered a moment ago.
void note_possible_writes();
/// Grows with each of them.
std::uint64_t possible_writes();
/// The program has replayed a CUDA graph of its own, which writes without PyTorch's knowing.
void note_graph_replay();
/// Grows with each of them.
std::uint64_t graph_replays();

}  // namespace ingot::trace
