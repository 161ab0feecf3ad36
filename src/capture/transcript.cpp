// See transcript.h.
#include "capture/transcript.h"

#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <optional>
#include <unordered_map>
#include <unordered_set>

#include "bindings/errors.h"
#include "capture/histories.h"
#include "capture/objects.h"
#include "trace/replay.h"
#include "trace/tensors.h"

namespace ingot::capture {
namespace {

/// Gives a promise its contents, and its place in PyTorch's graph; the Python object and all that
/// refer to it stay.
void fulfil(const at::Tensor& promise, at::Tensor real) {
    if (!trace::is_promise(promise)) return;
    // Of another class: what PyTorch keeps beside its memory, a promise has no place for.
    check(real.layout() == c10::kStrided && !real.is_quantized() && !real.is_nested(),
          "an operator gives a tensor of another kind than it has promised");
    if (real.use_count() > 1) {  // somebody else knows it
        at::AutoGradMode grad(true);
        real = real.requires_grad() ? real.alias() : real.detach();
    }
    c10::TensorImpl* impl = promise.unsafeGetTensorImpl();
    c10::TensorImpl* source = real.unsafeGetTensorImpl();
    impl->shallow_copy_from(real.getIntrusivePtr());
    if (!real.is_inference()) impl->set_version_counter(source->version_counter());
    autograd_meta_of(*impl) = std::move(autograd_meta_of(*source));
}

}  // namespace

namespace {

/// Views of a tensor that a promise is going to be are views of that promise, so that what is
/// written to one of them later gives the others their history.
void move_bases(const std::vector<at::Tensor>& promises, const std::vector<at::Tensor>& reals) {
    std::unordered_map<const c10::TensorImpl*, const at::Tensor*> becomes;
    for (std::size_t i = 0; i < promises.size(); ++i)
        if (reals[i].defined() && trace::is_promise(promises[i]))
            becomes.emplace(reals[i].unsafeGetTensorImpl(), &promises[i]);
    for (const at::Tensor& real : reals) {
        if (!real.defined()) continue;
        auto* const meta = torch::autograd::impl::get_view_autograd_meta(real);
        if (meta == nullptr || !meta->has_bw_view()) continue;
        at::Tensor& base = const_cast<torch::autograd::ViewInfo&>(meta->get_backward_view()).base_;
        const auto found = becomes.find(base.unsafeGetTensorImpl());
        if (found != becomes.end()) base = *found->second;
    }
}

}  // namespace

void fulfil_all(const std::vector<at::Tensor>& promises, std::vector<at::Tensor> reals) {
    move_bases(promises, reals);
    for (std::size_t i = 0; i < promises.size(); ++i) fulfil(promises[i], std::move(reals[i]));
}

/// The log holds every result, so PyTorch keeps one reference to its Python object, if there is
/// one.
std::vector<at::Tensor> Transcript::live(std::span<const Ref> contexts) const {
    std::vector<at::Tensor> live;
    std::unordered_map<PyObject*, Py_ssize_t> held;
    for (const Ref& context : contexts) {
        PyObject** dict = _PyObject_GetDictPtr(context.get());
        Py_ssize_t at = 0;
        PyObject *key = nullptr, *value = nullptr;
        while (dict != nullptr && *dict != nullptr && PyDict_Next(*dict, &at, &key, &value))
            ++held[value];
    }
    std::unordered_set<c10::TensorImpl*> seen;
    const auto look = [&](const at::Tensor& t) {
        if (!t.defined() || !trace::is_promise(t) || !seen.insert(t.unsafeGetTensorImpl()).second)
            return;
        PyObject* object = python_object(t);
        if (object != nullptr && Py_REFCNT(object) > 1 + held[object]) live.push_back(t);
    };
    for (const trace::LoggedCall& call : log)
        for (const c10::IValue& r : call.results) trace::for_each_tensor(r, look);
    for (const trace::InputSource& s : inputs) look(s.promise);  // stood in for the tensor
    return live;
}

bool Transcript::writes() const {
    return std::ranges::any_of(
        log, [](const trace::LoggedCall& call) { return call.op.schema().is_mutable(); });
}

bool Transcript::draws() const {
    return std::ranges::any_of(log, [](const trace::LoggedCall& call) {
        return call.op.hasTag(at::Tag::nondeterministic_seeded);
    });
}

std::vector<at::Tensor> Transcript::run(const std::vector<at::Tensor>& promises) const {
    auto replay =
        std::make_optional<trace::Replay>([this](Expr symbol) { return symbols->hint(symbol); });
    for (const trace::InputSource& s : inputs)
        if (s.captured.defined()) replay->bind(s.promise, s.captured);
    at::AutoGradMode grad(true);  // each call knows whether it was on
    try {
        return replay->run(log, promises);
    } catch (...) {
        const std::size_t calls = replay->calls_made();
        std::vector<at::Tensor> all = promises, made;
        all.insert(all.end(), kept.begin(), kept.end());
        for (const at::Tensor& promise : all) made.push_back(replay->find(promise));
        replay.reset();  // nobody else knows them now
        for (std::size_t i = 0; i < made.size(); ++i)
            if (made[i].defined()) fulfil(all[i], std::move(made[i]));
        const pybind11::gil_scoped_acquire lock;
        bindings::with_python_errors([]() -> PyObject* { throw; });
        throw PutOff(calls);
    }
}

void Transcript::fill_all(const std::vector<at::Tensor>& promises) const {
    if (log.empty() && promises.empty()) return;
    fulfil_all(promises, run(promises));
}

}  // namespace ingot::capture
