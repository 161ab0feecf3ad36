// Backwards that are recorded run in the thread that records them.
//
// PyTorch's engine keeps a thread for each GPU and executes the nodes of its tensors there. What a
// recording of Python listens to (frames, callables) belongs to one thread, so custom functions'
// backwards would go by unseen. Nothing is computed while promises are differentiated: another
// thread would bring nothing.
#pragma once
#include <c10/core/AutogradState.h>

namespace ingot::trace {

/// While it lives, backwards that begin in this thread stay there, whatever device they are for.
class OneThread {
  public:
    OneThread() : before_(state().get_multithreading_enabled()) {
        state().set_multithreading_enabled(false);
    }
    ~OneThread() { state().set_multithreading_enabled(before_); }
    OneThread(const OneThread&) = delete;
    OneThread& operator=(const OneThread&) = delete;

  private:
    static c10::AutogradState& state() { return c10::AutogradState::get_tls_state(); }
    bool before_;
};

}  // namespace ingot::trace
