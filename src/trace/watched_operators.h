// Notes what operators write without counting it in version counters (silent_changes.h).
//
// PyTorch counts writes in kernels of the dispatch key ADInplaceOrView, which most operators that
// write have and some have not: fused optimizers, collectives, batch norm's statistics, operators
// of extensions. Those get one from here that calls the operator and notes its written tensors.
// Which ones is found by asking the dispatcher for every operator whose schema says that it writes,
// also for those that libraries register later; what writes although its schema does not say so
// stands in a table (watched_operators.cpp). tests/trust/test_unseen_writes.py goes through all
// operators of the installed PyTorch and looks whether any is left.
//
// Costs an operator so watched a boxed call (some 1 us), eager batch norm some 20 ns, others
// nothing.
#pragma once
#include <string>
#include <vector>

namespace ingot::trace {

/// Watches all operators there are by now, and steps of optimizers; a look at a flag where nothing
/// is new. Safe from many threads.
void watch_operators();
/// The names of those that are watched, as 'aten::_fused_adam_'.
std::vector<std::string> watched_operators();

}  // namespace ingot::trace
