// A call of PyTorch's engine while recording; see backwards.h.
#include <torch/csrc/autograd/python_variable.h>

#include <functional>

#include "bindings/errors.h"
#include "bindings/lock.h"
#include "capture/objects.h"
#include "capture/perform.h"
#include "capture/recording.h"

namespace ingot::capture {
namespace {

/// The tensors of a tuple; `stand_in`: what takes the place of one.
std::vector<at::Tensor> tensors_of(PyObject* tuple,
                                   const std::function<at::Tensor(PyObject*)>& stand_in) {
    if (tuple == nullptr || !PyTuple_Check(tuple)) throw Puzzle("a backward of something else");
    std::vector<at::Tensor> found;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(tuple); ++i) {
        PyObject* o = PyTuple_GET_ITEM(tuple, i);
        if (!THPVariable_CheckExact(o)) throw Puzzle("a backward of something else");
        found.push_back(stand_in(o));
    }
    return found;
}

/// The arguments of a plain call as a tuple and a dict.
std::pair<Ref, Ref> plain_arguments(const Event& event) {
    if (event.operation != Operation::call) throw Puzzle("a call of the autograd engine");
    PyObject* names = event.keyword_names;
    const auto named =
        names == nullptr ? std::size_t{0} : static_cast<std::size_t>(PyTuple_GET_SIZE(names));
    const std::size_t plain = event.operands.size() - 1 - named;
    Ref tuple = Ref::steal(PyTuple_New(static_cast<Py_ssize_t>(plain)));
    Ref dict = Ref::steal(PyDict_New());
    if (!tuple || !dict) throw Puzzle("no memory");
    for (std::size_t i = 0; i < plain; ++i)
        PyTuple_SET_ITEM(tuple.get(), static_cast<Py_ssize_t>(i), Py_NewRef(event.operands[1 + i]));
    for (std::size_t i = 0; i < named; ++i)
        PyDict_SetItem(dict.get(), PyTuple_GET_ITEM(names, static_cast<Py_ssize_t>(i)),
                       event.operands[1 + plain + i]);
    return {std::move(tuple), std::move(dict)};
}

}  // namespace

bool Recording::is_engine(PyObject* function) {
    auto* f = reinterpret_cast<PyFunctionObject*>(function);
    if (PyUnicode_CompareWithASCIIString(f->func_name, "_engine_run_backward") != 0) return false;
    return f->func_module != nullptr && PyUnicode_Check(f->func_module) &&
           PyUnicode_CompareWithASCIIString(f->func_module, "torch.autograd.graph") == 0;
}

bool Recording::may_go_backward(PyObject* tensor, PyObject* method) const {
    if (text_of(reinterpret_cast<PyFunctionObject*>(method)->func_name) != "backward") return false;
    return context_.settings.training &&
           backwards_.obstacle(THPVariable_Unpack(tensor), *recorder_).empty();
}

BackwardCall Recording::parse_backward(const Event& event) const {
    static const char* names[] = {"t_outputs",       "grad_tensors", "keep_graph",
                                  "create_graph",    "inputs",       "allow_unreachable",
                                  "accumulate_grad", nullptr};
    PyObject *roots = nullptr, *tangents = nullptr, *inputs = nullptr;
    int keeps = 0, creates = 0, may_miss = 0, accumulates = 0;
    const auto [positional, keywords] = plain_arguments(event);
    if (!PyArg_ParseTupleAndKeywords(positional.get(), keywords.get(), "OOpp|Opp",
                                     const_cast<char**>(names), &roots, &tangents, &keeps, &creates,
                                     &inputs, &may_miss, &accumulates)) {
        PyErr_Clear();
        throw Puzzle("a call of the autograd engine");
    }
    const std::function<at::Tensor(PyObject*)> stand_in = [&](PyObject* o) {
        const Ref other = numbers_->stand_in(o);
        return THPVariable_Unpack(other ? other.get() : o);
    };
    BackwardCall call;
    call.roots = tensors_of(roots, [](PyObject* o) { return THPVariable_Unpack(o); });
    call.tangents = tensors_of(tangents, stand_in);
    if (inputs != nullptr) call.inputs = tensors_of(inputs, stand_in);
    call.keeps = keeps != 0;
    call.creates = creates != 0;
    call.may_miss = may_miss != 0;
    call.accumulates = accumulates != 0;
    if (call.roots.empty() || call.roots.size() != call.tangents.size())
        throw Puzzle("a call of the autograd engine");
    if (call.creates && call.accumulates) throw Puzzle("gradients with a history in `grad`");
    return call;
}

Verdict Recording::on_backward(const Event& event, PyObject** result) {
    if (strict_ == Strict::Transform) return on_backward_of_level(event, result);
    if (!context_.settings.training) throw Puzzle("a backward that is not compiled");
    const BackwardCall call = parse_backward(event);
    const Backwards::Walk walk = backwards_.walk(call, *recorder_, histories_);
    const Backwards::StandIn stand_in = [&](const at::Tensor& t) {
        const Ref other = numbers_->stand_in(python_object(t));
        return other ? THPVariable_Unpack(other.get()) : t;
    };
    if (call.accumulates) Backwards::prepare(walk, *world_, *recorder_, stand_in);
    for (const at::Tensor& leaf : walk.met)
        if (leaf.defined()) world_->refuse_hooks(python_object(leaf));
    std::vector<at::Tensor> gradients;
    recorder_->clear_failure();
    try {
        const Strictly strictly(*this, Strict::Backward);
        const Observed observed;
        const bindings::WithoutLock unlocked;
        gradients = Backwards::run(call, walk);
    } catch (const std::exception& e) {
        PyErr_Clear();
        const std::string what = !abandoned_.empty()    ? std::exchange(abandoned_, {})
                                 : recorder_->failure() ? *recorder_->failure()
                                                        : e.what();
        recorder_->clear_failure();
        throw Puzzle("in the backward: " + what.substr(0, what.find('\n')));
    }
    if (!abandoned_.empty()) throw Puzzle("in the backward: " + std::exchange(abandoned_, {}));
    if (!call.may_miss)
        for (const at::Tensor& g : gradients)
            if (!g.defined()) throw Puzzle("an input that the result does not depend on");
    if (call.accumulates) backwards_.accumulate(walk, gradients, *world_, *recorder_, stand_in);
    if (!call.keeps) backwards_.spend(walk);
    if (call.accumulates) {
        *result = Py_NewRef(Py_None);
        return finish_result(event, result);
    }
    backwards_.note();
    const Ref tuple = Ref::steal(PyTuple_New(static_cast<Py_ssize_t>(gradients.size())));
    for (std::size_t i = 0; tuple && i < gradients.size(); ++i) {
        PyObject* o = gradients[i].defined() ? THPVariable_Wrap(gradients[i]) : Py_NewRef(Py_None);
        if (o == nullptr) return Verdict::raise;
        PyTuple_SET_ITEM(tuple.get(), static_cast<Py_ssize_t>(i), o);
    }
    if (!tuple) return Verdict::raise;
    *result = numbers_->settled(Py_NewRef(tuple.get()));
    return finish_result(event, result);
}

}  // namespace ingot::capture
