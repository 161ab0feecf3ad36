// See program_object.h. A call checks its inputs, releases Python's lock unless it is very short,
// runs, and wraps the outputs; where the program cannot serve it, `fallback` (any callable) does.
#include "bindings/program_object.h"

#include <ATen/core/grad_mode.h>
#include <c10/util/SmallVector.h>
#include <structmember.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/forward_grad.h>
#include <torch/csrc/autograd/python_variable.h>

#include <algorithm>
#include <map>
#include <optional>
#include <string>

#include "bindings/errors.h"
#include "bindings/lock.h"
#include "runtime/direct_calls.h"

namespace ingot::bindings {
namespace {

struct ProgramObject {
    PyObject_HEAD vectorcallfunc vectorcall;
    PyObject* fallback;
    PyObject* weak_references;
    std::shared_ptr<trace::CompiledFunction> function;        // no input needs a gradient
    std::shared_ptr<trace::DifferentiableFunction> training;  // or: with a backward
    Signature signature;

    bool is_short() const { return function && function->is_short(); }
};

PyTypeObject* program_type = nullptr;

ProgramObject* as_program(PyObject* o) { return reinterpret_cast<ProgramObject*>(o); }

/// What a call returns: tensors and numbers, each in order.
struct Results {
    std::vector<at::Tensor> tensors;
    std::vector<std::int64_t> numbers;
};

/// A new tuple of the results; None for undefined tensors.
PyObject* wrap(Results& results, const std::vector<bool>& is_number) {
    PyObject* tuple = PyTuple_New(static_cast<Py_ssize_t>(is_number.size()));
    if (tuple == nullptr) return nullptr;
    std::size_t next_tensor = 0, next_number = 0;
    for (std::size_t i = 0; i < is_number.size(); ++i) {
        PyObject* item = nullptr;
        if (is_number[i]) {
            item = PyLong_FromLongLong(results.numbers[next_number++]);
        } else {
            at::Tensor& t = results.tensors[next_tensor++];
            item = t.defined() ? THPVariable_Wrap(std::move(t)) : Py_NewRef(Py_None);
        }
        if (item == nullptr) {
            Py_DECREF(tuple);
            return nullptr;
        }
        PyTuple_SET_ITEM(tuple, static_cast<Py_ssize_t>(i), item);
    }
    return tuple;
}

/// Whether a transform of torch.func or forward-mode differentiation is on: the program's kernels
/// would compute with the data alone and lose what is carried beside it (tangents, batch dims).
bool is_transforming() {
    return c10::impl::tls_is_dispatch_key_included(
               c10::DispatchKey::FuncTorchDynamicLayerFrontMode) ||
           torch::autograd::ForwardADLevel::try_get_by_idx(0) != nullptr;
}

/// False if a call's inputs are not tensors and numbers that the program can serve.
using Inputs = c10::SmallVector<c10::TensorImpl*, 64>;
using Numbers = c10::SmallVector<std::int64_t, 8>;
bool unpack(const Signature& signature, PyObject* const* arguments, Py_ssize_t count, bool training,
            Inputs& inputs, Numbers& numbers) {
    if (training && !at::GradMode::is_enabled()) return false;
    if (is_transforming()) return false;
    const bool grad = !training && at::GradMode::is_enabled();
    if (static_cast<std::size_t>(count) != signature.number_arguments.size()) return false;
    for (Py_ssize_t i = 0; i < count; ++i) {
        if (signature.number_arguments[static_cast<std::size_t>(i)]) {
            if (!PyLong_CheckExact(arguments[i])) return false;
            int overflow = 0;
            numbers.push_back(PyLong_AsLongLongAndOverflow(arguments[i], &overflow));
            if (overflow != 0) return false;
            continue;
        }
        if (!THPVariable_Check(arguments[i])) return false;
        c10::TensorImpl* impl = THPVariable_Unpack(arguments[i]).unsafeGetTensorImpl();
        if (grad && impl->requires_grad()) return false;
        inputs.push_back(impl);
    }
    return true;
}

PyObject* run(ProgramObject* self, PyObject* const* arguments, std::size_t flags, PyObject* names) {
    const Py_ssize_t count = PyVectorcall_NARGS(flags);
    if (names != nullptr && PyTuple_GET_SIZE(names) != 0) {
        PyErr_SetString(PyExc_TypeError, "a compiled graph takes no keyword arguments");
        return nullptr;
    }
    trace::CallStatus status = trace::CallStatus::OtherInputs;
    Results results;
    Inputs inputs;
    Numbers numbers;
    const bool usable =
        unpack(self->signature, arguments, count, self->training != nullptr, inputs, numbers);
    if (usable) {
        std::optional<WithoutLock> unlocked;
        if (!self->is_short()) unlocked.emplace();
        status = self->training
                     ? self->training->call(inputs, results.tensors)
                     : self->function->call(inputs, results.tensors, numbers, &results.numbers);
    }
    if (status == trace::CallStatus::Done) return wrap(results, self->signature.number_results);
    if (status == trace::CallStatus::KernelFailure)
        if (const auto failure =
                self->training ? self->training->take_failure() : self->function->take_failure())
            raise_if_final(*failure);
    if (self->fallback != nullptr)
        return PyObject_Vectorcall(self->fallback, arguments, flags, nullptr);
    if (status == trace::CallStatus::KernelFailure && self->function) {
        {
            WithoutLock unlocked;
            results.tensors = self->function->replay(inputs, numbers);
        }
        return wrap(results, self->signature.number_results);
    }
    PyErr_SetString(PyExc_TypeError,
                    "the inputs differ in number, type, size or strides from those that the "
                    "program was compiled for");
    return nullptr;
}

PyObject* vectorcall(PyObject* self, PyObject* const* arguments, std::size_t flags,
                     PyObject* names) {
    return with_python_errors([&] { return run(as_program(self), arguments, flags, names); });
}

void finalize(PyObject* self) {
    ProgramObject* p = as_program(self);
    PyTypeObject* type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    if (p->weak_references != nullptr) PyObject_ClearWeakRefs(self);
    Py_CLEAR(p->fallback);
    p->function.~shared_ptr();
    p->training.~shared_ptr();
    p->signature.~Signature();
    type->tp_free(self);
    Py_DECREF(type);
}

int traverse(PyObject* self, visitproc visit, void* arg) {
    Py_VISIT(as_program(self)->fallback);
    Py_VISIT(Py_TYPE(self));
    return 0;
}

int clear(PyObject* self) {
    Py_CLEAR(as_program(self)->fallback);
    return 0;
}

void add(runtime::CompileReport& a, const runtime::CompileReport& b) {
    for (const auto& [name, seconds] : b.stages) {
        auto same = std::ranges::find(a.stages, name, [](const auto& s) { return s.first; });
        if (same == a.stages.end())
            a.stages.emplace_back(name, seconds);
        else
            same->second += seconds;
    }
    a.kernels += b.kernels;
    a.compiled += b.compiled;
    a.from_disk += b.from_disk;
    a.from_process += b.from_process;
    a.launches += b.launches;
    a.externs += b.externs;
    a.from_text += b.from_text;
    for (const auto& [reason, count] : b.refused) a.refused[reason] += count;
}

/// A dict of numbers by text; null with an exception set.
PyObject* counts(const std::map<std::string, int>& by_text) {
    PyObject* dict = PyDict_New();
    for (const auto& [text, count] : by_text) {
        PyObject* number = dict == nullptr ? nullptr : PyLong_FromLong(count);
        if (number == nullptr || PyDict_SetItemString(dict, text.c_str(), number) != 0)
            Py_CLEAR(dict);
        Py_XDECREF(number);
    }
    return dict;
}

PyObject* report(PyObject* self, PyObject*) {
    const ProgramObject* p = as_program(self);
    runtime::CompileReport r = (p->training ? p->training->forward() : *p->function).report();
    if (p->training) add(r, p->training->backward().report());
    PyObject* stages = PyDict_New();
    if (stages == nullptr) return nullptr;
    for (const auto& [name, seconds] : r.stages) {
        PyObject* number = PyFloat_FromDouble(seconds);
        if (number == nullptr || PyDict_SetItemString(stages, name.c_str(), number) != 0) {
            Py_XDECREF(number);
            Py_DECREF(stages);
            return nullptr;
        }
        Py_DECREF(number);
    }
    int direct = 0;
    std::map<std::string, int> left;
    const auto count_direct = [&](const trace::CompiledFunction& f) {
        const auto calls = f.direct_calls();
        if (!calls) return;
        direct += calls->count();
        for (const auto& [reason, count] : calls->left) left[reason] += count;
    };
    count_direct(p->function ? *p->function : p->training->forward());
    if (p->training) count_direct(p->training->backward());
    PyObject* refused = counts(r.refused);
    PyObject* externs_left = refused == nullptr ? nullptr : counts(left);
    if (externs_left == nullptr) {
        Py_XDECREF(refused);
        Py_DECREF(stages);
        return nullptr;
    }
    const std::string graph = p->function ? p->function->graph_state() : p->training->graph_state();
    const std::string tuning =
        p->function ? p->function->tuning_state() : p->training->tuning_state();
    const auto early = static_cast<int>(p->training ? p->training->early_calls() : 0);
    return Py_BuildValue("{sNsdsisisisisisisisNsssssisNsi}", "stages", stages, "seconds",
                         r.seconds(), "kernels", r.kernels, "compiled", r.compiled, "from_disk",
                         r.from_disk, "from_process", r.from_process, "launches", r.launches,
                         "externs", r.externs, "direct_externs", direct, "externs_left",
                         externs_left, "cuda_graph", graph.c_str(), "autotune", tuning.c_str(),
                         "by_triton", r.from_text, "refused", refused, "early_calls", early);
}

PyObject* release_memory(PyObject* self, PyObject*) {
    return with_python_errors([&] {
        if (as_program(self)->function) as_program(self)->function->release_memory();
        return Py_NewRef(Py_None);
    });
}

const trace::CompiledFunction& function_of(PyObject* self) {
    const ProgramObject* p = as_program(self);
    return p->training ? p->training->forward() : *p->function;
}

PyObject* guards(PyObject* self, void*) {
    return with_python_errors([&]() -> PyObject* {
        const std::vector<std::string> lines = function_of(self).guards();
        PyObject* list = PyList_New(0);
        for (std::size_t i = 0; list != nullptr && i < lines.size(); ++i) {
            PyObject* line = PyUnicode_FromString(lines[i].c_str());
            if (line == nullptr || PyList_Append(list, line) != 0) Py_CLEAR(list);
            Py_XDECREF(line);
        }
        return list;
    });
}
PyObject* freeze_count(PyObject* self, void*) {
    return PyLong_FromLongLong(function_of(self).freeze_count());
}
PyObject* frozen_bytes(PyObject* self, void*) {
    return PyLong_FromLongLong(function_of(self).frozen_bytes());
}
PyObject* saved_bytes(PyObject* self, void*) {
    const ProgramObject* p = as_program(self);
    return PyLong_FromLongLong(p->training ? p->training->saved_bytes() : 0);
}

PyMethodDef methods[] = {
    {"report", report, METH_NOARGS, "What the compilation did: times by stage, counts of kernels."},
    {"release_memory", release_memory, METH_NOARGS,
     "Frees frozen values; a call makes them again."},
    {nullptr, nullptr, 0, nullptr}};

PyGetSetDef properties[] = {
    {"guards", guards, nullptr, "Relations between sizes under which the program is valid.",
     nullptr},
    {"freeze_count", freeze_count, nullptr, "How often frozen values were computed.", nullptr},
    {"saved_bytes", saved_bytes, nullptr,
     "Memory that lives from a forward to its backward besides inputs and results.", nullptr},
    {"frozen_bytes", frozen_bytes, nullptr, "Memory of folded and packed parameters.", nullptr},
    {nullptr, nullptr, nullptr, nullptr, nullptr}};

PyMemberDef members[] = {
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(ProgramObject, vectorcall), READONLY, nullptr},
    {"__weaklistoffset__", T_PYSSIZET, offsetof(ProgramObject, weak_references), READONLY, nullptr},
    {"fallback", T_OBJECT, offsetof(ProgramObject, fallback), 0,
     "Called with the same inputs where the program cannot serve them."},
    {nullptr, 0, 0, 0, nullptr}};

}  // namespace

bool add_program_type(PyObject* module) {
    static PyType_Slot slots[] = {{Py_tp_dealloc, reinterpret_cast<void*>(finalize)},
                                  {Py_tp_traverse, reinterpret_cast<void*>(traverse)},
                                  {Py_tp_clear, reinterpret_cast<void*>(clear)},
                                  {Py_tp_call, reinterpret_cast<void*>(PyVectorcall_Call)},
                                  {Py_tp_methods, methods},
                                  {Py_tp_getset, properties},
                                  {Py_tp_members, members},
                                  {0, nullptr}};
    static PyType_Spec spec = {"ingot._ingot.Program", sizeof(ProgramObject), 0,
                               Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC |
                                   Py_TPFLAGS_HAVE_VECTORCALL | Py_TPFLAGS_DISALLOW_INSTANTIATION,
                               slots};
    program_type =
        reinterpret_cast<PyTypeObject*>(PyType_FromModuleAndSpec(module, &spec, nullptr));
    return program_type != nullptr && PyModule_AddType(module, program_type) == 0;
}

namespace {
PyObject* make_program(std::shared_ptr<trace::CompiledFunction> function,
                       std::shared_ptr<trace::DifferentiableFunction> training,
                       Signature signature) {
    auto* self = PyObject_GC_New(ProgramObject, program_type);
    if (self == nullptr) return nullptr;
    self->vectorcall = vectorcall;
    self->fallback = nullptr;
    self->weak_references = nullptr;
    new (&self->function) std::shared_ptr<trace::CompiledFunction>(std::move(function));
    new (&self->training) std::shared_ptr<trace::DifferentiableFunction>(std::move(training));
    new (&self->signature) Signature(std::move(signature));
    PyObject_GC_Track(self);
    return reinterpret_cast<PyObject*>(self);
}
}  // namespace

PyObject* make_program(std::shared_ptr<trace::CompiledFunction> function, Signature signature) {
    return make_program(std::move(function), nullptr, std::move(signature));
}
PyObject* make_program(std::shared_ptr<trace::DifferentiableFunction> function,
                       Signature signature) {
    return make_program(nullptr, std::move(function), std::move(signature));
}

}  // namespace ingot::bindings
