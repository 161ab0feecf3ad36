// Operators as they are, called while others may be recording or differentiating on this thread.
#pragma once
#include <ATen/core/LegacyTypeDispatch.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/core/impl/PythonDispatcherTLS.h>

namespace ingot::trace {

/// While it lives, operators are below autograd and unseen by what records this thread.
class Unrecorded {
  public:
    Unrecorded() : dispatcher_(c10::impl::PythonDispatcherTLS::get_state()) {
        c10::impl::PythonDispatcherTLS::reset_state();
    }
    ~Unrecorded() { c10::impl::PythonDispatcherTLS::set_state(dispatcher_); }
    Unrecorded(const Unrecorded&) = delete;
    Unrecorded& operator=(const Unrecorded&) = delete;

  private:
    c10::impl::PyInterpreter* dispatcher_;
    c10::impl::ExcludeDispatchKeyGuard modes_{
        c10::DispatchKeySet({c10::DispatchKey::Python, c10::DispatchKey::PythonTLSSnapshot})};
    at::AutoDispatchBelowADInplaceOrView autograd_;
};

}  // namespace ingot::trace
