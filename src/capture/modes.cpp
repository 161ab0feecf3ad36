// See modes.h.
#include "capture/modes.h"

#include <ATen/Context.h>
#include <ATen/PythonTorchFunctionTLS.h>
#include <ATen/SavedTensorHooks.h>
#include <ATen/autocast_mode.h>
#include <c10/core/DefaultDtype.h>
#include <c10/core/GradMode.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/core/impl/TorchDispatchModeTLS.h>
#include <torch/csrc/autograd/anomaly_mode.h>
#include <torch/csrc/autograd/forward_grad.h>

namespace ingot::capture {

namespace {

/// PyTorch's hands on GPUs where a tensor's device may be one of several; null elsewhere.
const c10::impl::DeviceGuardImplInterface* several_gpus() {
    static const c10::impl::DeviceGuardImplInterface* const found = [] {
        const auto* guard =
            c10::impl::device_guard_impl_registry[static_cast<std::size_t>(c10::kCUDA)].load();
        return guard != nullptr && guard->deviceCount() > 1 ? guard : nullptr;
    }();
    return found;
}

}  // namespace

Modes Modes::now() {
    Modes m;
    m.grad = c10::GradMode::is_enabled();
    m.inference = c10::InferenceMode::is_enabled();
    m.autocast_cpu = at::autocast::is_autocast_enabled(at::kCPU);
    m.autocast_cuda = at::autocast::is_autocast_enabled(at::kCUDA);
    // A program may ask for these where autocast is off, too.
    m.autocast_cache = at::autocast::is_autocast_cache_enabled();
    m.autocast_cpu_type = at::autocast::get_autocast_dtype(at::kCPU);
    m.autocast_cuda_type = at::autocast::get_autocast_dtype(at::kCUDA);
    m.deterministic = at::globalContext().deterministicAlgorithms();
    m.default_type = c10::get_default_dtype_as_scalartype();
    m.saved_hooks = !at::SavedTensorDefaultHooks::get_tls_state().stack.empty();
    m.anomaly = torch::autograd::AnomalyMode::is_enabled();
    m.transform =
        c10::impl::tls_is_dispatch_key_included(c10::DispatchKey::FuncTorchDynamicLayerFrontMode);
    m.forward_level = torch::autograd::ForwardADLevel::try_get_by_idx(0) != nullptr;
    m.function_modes =
        static_cast<std::int32_t>(at::impl::PythonTorchFunctionTLS::stack_len()) * 4 +
        static_cast<std::int32_t>(at::impl::PythonTorchFunctionTLS::get_disabled_state());
    m.dispatch_modes = static_cast<std::int32_t>(c10::impl::TorchDispatchModeTLS::stack_len());
    if (const auto* gpus = several_gpus()) m.gpu = gpus->getDevice().index();
    return m;
}

const char* Modes::obstacle() const {
    if (grad && saved_hooks) return "saved-tensor hooks are in force";
    if (grad && anomaly) return "anomaly detection is on";
    if (transform) return "it is called within a transform of torch.func";
    if (forward_level) return "forward-mode differentiation is on";
    return nullptr;
}

bool Modes::reachable_from(const Modes& from) const {
    Modes target = *this;
    target.grad = from.grad;
    target.autocast_cpu = from.autocast_cpu;
    target.autocast_cpu_type = from.autocast_cpu_type;
    target.autocast_cuda_type = from.autocast_cuda_type;
    target.autocast_cache = from.autocast_cache;
    return target == from;
}

void Modes::establish(const Modes& from) const {
    if (grad != from.grad) c10::GradMode::set_enabled(grad);
    if (autocast_cpu != from.autocast_cpu) {
        at::autocast::set_autocast_enabled(at::kCPU, autocast_cpu);
        if (autocast_cpu)
            at::autocast::increment_nesting();
        else if (at::autocast::decrement_nesting() == 0)
            at::autocast::clear_cache();
    }
    if (autocast_cpu_type != from.autocast_cpu_type)
        at::autocast::set_autocast_dtype(at::kCPU, autocast_cpu_type);
    if (autocast_cuda_type != from.autocast_cuda_type)
        at::autocast::set_autocast_dtype(at::kCUDA, autocast_cuda_type);
    if (autocast_cache != from.autocast_cache)
        at::autocast::set_autocast_cache_enabled(autocast_cache);
}

std::string Modes::difference(const Modes& o) const {
    if (grad != o.grad) return "grad mode";
    if (inference != o.inference) return "inference mode";
    if (autocast_cpu != o.autocast_cpu || autocast_cuda != o.autocast_cuda ||
        autocast_cpu_type != o.autocast_cpu_type || autocast_cuda_type != o.autocast_cuda_type ||
        autocast_cache != o.autocast_cache)
        return "autocast";
    if (deterministic != o.deterministic) return "deterministic algorithms";
    if (saved_hooks != o.saved_hooks) return "saved-tensor hooks";
    if (anomaly != o.anomaly) return "anomaly detection";
    if (transform != o.transform) return "a transform of torch.func";
    if (forward_level != o.forward_level) return "forward-mode differentiation";
    if (default_type != o.default_type) return "the default dtype";
    if (function_modes != o.function_modes) return "a torch function mode";
    if (gpu != o.gpu) return "the current GPU";
    return "a dispatch mode";
}

}  // namespace ingot::capture
