// The PyInterpreter vtable of the recorder's mode; see mode.h.
#include "trace/mode.h"

#include <c10/core/impl/PyInterpreter.h>
#include <c10/core/impl/PyInterpreterHooks.h>
#include <c10/core/impl/PythonDispatcherTLS.h>
#include <c10/core/impl/TorchDispatchModeTLS.h>

#include "trace/composite.h"
#include "trace/recorder_state.h"

namespace ingot::trace {

namespace {

[[noreturn]] void unexpected(const char* what) {
    throw InternalError(std::string("the recording mode was asked for ") + what);
}

/// Only dispatch() is ever called: promises carry no Python key, so questions about metadata never
/// come here.
struct VTable final : c10::impl::PyInterpreterVTable {
    using Impl = c10::TensorImpl;
    std::string name() const override { return "ingot"; }
    void incref(PyObject*) const override {}
    void decref(PyObject*) const override {}
    bool try_incref(const c10::impl::PyObjectSlot&) const override { return false; }
    std::size_t refcnt(PyObject*) const override { return 1; }
    c10::intrusive_ptr<Impl> detach(const Impl*) const override { unexpected("detach"); }
    void dispatch(const c10::OperatorHandle& op, torch::jit::Stack* stack) const override;
    void reportErrorCallback(PyObject*, c10::DispatchKey) const override {}
    /// An operator whose kernel is Python code: Python's own interpreter runs it, under this mode.
    void python_op_registration_trampoline(const c10::OperatorHandle& op, c10::DispatchKey key,
                                           c10::DispatchKeySet keys, torch::jit::Stack* stack,
                                           bool with_keyset, bool with_op) const override {
        c10::impl::PyInterpreter* python = c10::impl::getGlobalPyInterpreter();
        if (python == nullptr) unexpected("an operator registered in Python");
        (*python)->python_op_registration_trampoline(op, key, keys, stack, with_keyset, with_op);
    }
    void throw_abstract_impl_not_imported_error(std::string, const char*,
                                                const char*) const override {
        unexpected("a missing meta function");
    }
    void python_dispatcher(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                           torch::jit::Stack* stack) const override {
        if (!run_composite(op, *stack)) op.redispatchBoxed(keys, stack);
    }
    bool is_contiguous(const Impl*, at::MemoryFormat) const override { unexpected("strides"); }
    c10::SymBool sym_is_contiguous(const Impl*, at::MemoryFormat) const override {
        unexpected("strides");
    }
    bool is_strides_like(const Impl*, at::MemoryFormat) const override { unexpected("strides"); }
    bool is_non_overlapping_and_dense(const Impl*) const override { unexpected("strides"); }
    c10::Device device(const Impl*) const override { unexpected("a device"); }
    std::int64_t dim(const Impl*) const override { unexpected("sizes"); }
    c10::IntArrayRef strides(const Impl*) const override { unexpected("strides"); }
    c10::IntArrayRef sizes(const Impl*) const override { unexpected("sizes"); }
    c10::SymIntArrayRef sym_sizes(const Impl*) const override { unexpected("sizes"); }
    c10::Layout layout(const Impl*) const override { unexpected("a layout"); }
    std::int64_t numel(const Impl*) const override { unexpected("sizes"); }
    c10::SymInt sym_numel(const Impl*) const override { unexpected("sizes"); }
    c10::SymIntArrayRef sym_strides(const Impl*) const override { unexpected("strides"); }
    c10::SymInt sym_storage_offset(const Impl*) const override { unexpected("an offset"); }
    void trace_gpu_event_creation(c10::DeviceType, uintptr_t) const override {}
    void trace_gpu_event_deletion(c10::DeviceType, uintptr_t) const override {}
    void trace_gpu_event_record(c10::DeviceType, uintptr_t, uintptr_t) const override {}
    void trace_gpu_event_wait(c10::DeviceType, uintptr_t, uintptr_t) const override {}
    void trace_gpu_memory_allocation(c10::DeviceType, uintptr_t) const override {}
    void trace_gpu_memory_deallocation(c10::DeviceType, uintptr_t) const override {}
    void trace_gpu_stream_creation(c10::DeviceType, uintptr_t) const override {}
    void trace_gpu_device_synchronization(c10::DeviceType) const override {}
    void trace_gpu_stream_synchronization(c10::DeviceType, uintptr_t) const override {}
    void trace_gpu_event_synchronization(c10::DeviceType, uintptr_t) const override {}
    void reset_backward_hooks(const Impl*) const override {}
};

/// Never freed: PyTorch keeps pointers to interpreters until the process ends.
c10::impl::PyInterpreter& interpreter() {
    static auto* const instance = new c10::impl::PyInterpreter(new VTable);
    return *instance;
}

void VTable::dispatch(const c10::OperatorHandle& op, torch::jit::Stack* stack) const {
    using TLS = c10::impl::TorchDispatchModeTLS;
    const auto& top = TLS::get_stack_at(TLS::stack_len() - 1);
    auto* recorder = reinterpret_cast<RecorderState*>(top->ptr(&interpreter()));
    recorder->dispatch(op, *stack);
}

}  // namespace

void push_mode(RecorderState& recorder) {
    c10::impl::TorchDispatchModeTLS::push_non_infra_mode_onto_stack(
        std::make_shared<c10::impl::PyObject_TorchDispatchMode>(
            reinterpret_cast<PyObject*>(&recorder), &interpreter()));
}

OwnComposites::OwnComposites() : before_(c10::impl::PythonDispatcherTLS::get_state()) {
    c10::impl::PythonDispatcherTLS::set_state(&interpreter());
}
OwnComposites::~OwnComposites() { c10::impl::PythonDispatcherTLS::set_state(before_); }

void pop_mode() { c10::impl::TorchDispatchModeTLS::pop_stack(); }

RecorderState* topmost_recorder() {
    using TLS = c10::impl::TorchDispatchModeTLS;
    const std::int64_t length = TLS::stack_len();
    if (length == 0) return nullptr;
    const auto& top = TLS::get_stack_at(length - 1);
    if (&top->pyinterpreter() != &interpreter()) return nullptr;
    return reinterpret_cast<RecorderState*>(top->ptr(&interpreter()));
}

}  // namespace ingot::trace
