// See view_history.h.
#include "trace/view_history.h"

#include "trace/mode.h"
#include "trace/recorder_state.h"

namespace ingot::trace {

void settle_history(const at::Tensor& t) {
    if (!t.defined() || !t.requires_grad() || !t.is_view()) return;
    const Promise* const promise = as_promise(t.unsafeGetTensorImpl());
    if (promise == nullptr) return;
    auto& recorder = const_cast<RecorderState&>(*promise->cell()->owner);
    if (recorder.graph.shared_pool() == nullptr) return;  // the graph is gone
    push_mode(recorder);
    try {
        (void)t.grad_fn();
    } catch (const std::exception&) {
        // PyTorch refuses it one, and does so again when it is asked for.
    }
    pop_mode();
}

}  // namespace ingot::trace
