// See backend.h.
#include "capture/backend.h"

#include <torch/csrc/jit/python/pybind_utils.h>

#include <unordered_map>

#include "capture/custom_function.h"
#include "trace/tensors.h"

namespace py = pybind11;

namespace ingot::capture {
namespace {

/// A recorded tensor, by number.
struct Value {
    std::int64_t index = 0;
};

/// Writes a log as Python data.
class LogWriter {
  public:
    explicit LogWriter(std::span<const trace::InputSource> inputs) {
        for (const trace::InputSource& s : inputs)
            if (s.captured.defined()) captured_[s.promise.unsafeGetTensorImpl()] = s.captured;
    }

    std::int64_t number(const at::Tensor& t) {
        const auto next = static_cast<std::int64_t>(numbers_.size());
        return numbers_.try_emplace(t.unsafeGetTensorImpl(), next).first->second;
    }

    void write(std::span<const trace::LoggedCall> log, bool grad_mode) {
        bool now = grad_mode;
        const auto switch_to = [&](bool wanted) {
            if (now != wanted)
                calls_.append(
                    py::make_tuple("ingot::set_grad_enabled", py::make_tuple(wanted), py::list()));
            now = wanted;
        };
        for (std::size_t i = 0; i < log.size(); ++i) {
            const trace::LoggedCall& call = log[i];
            // A function's forward is recorded without gradients, the function itself with them.
            switch_to(call.grad_mode || call.function != nullptr);
            if (call.function != nullptr) {
                write_function(dynamic_cast<const RecordedFunction&>(*call.function).parts());
                i += call.calls - 1;
                continue;
            }
            const c10::FunctionSchema& schema = call.op.schema();
            std::string name = schema.name();
            if (!schema.overload_name().empty()) name += "." + schema.overload_name();
            py::list arguments, results;
            for (const c10::IValue& v : call.arguments)
                arguments.append(data(v, [this](const at::Tensor& t) { return tensor(t); }));
            for (const c10::IValue& v : call.results)
                results.append(data(v, [this](const at::Tensor& t) { return result(t); }));
            calls_.append(py::make_tuple(name, arguments, results));
        }
        switch_to(grad_mode);
    }
    const py::list& calls() const { return calls_; }

    py::object tensor(const at::Tensor& t) {
        if (!t.defined()) return py::none();
        c10::TensorImpl* impl = t.unsafeGetTensorImpl();
        if (const auto known = numbers_.find(impl); known != numbers_.end())
            return py::cast(Value{known->second});
        const auto real = captured_.find(impl);
        if (real != captured_.end()) return py::cast(real->second);
        if (trace::is_promise(t))
            throw NotSupported("the log of calls uses a tensor that no call made");
        return py::cast(t);
    }

  private:
    /// The program's own function, called as a whole, as it has a backward of its own.
    void write_function(const RecordedFunction::Parts& parts) {
        py::list arguments, outputs;
        for (const Kept& k : parts.arguments) arguments.append(kept(k));
        for (const at::Tensor& t : parts.outputs) outputs.append(result(t));
        py::list results;
        if (parts.result.kind == Kept::Kind::Tuple)
            results.append(outputs);
        else
            results = outputs;
        calls_.append(py::make_tuple(
            "ingot::apply",
            py::make_tuple(py::reinterpret_borrow<py::object>(parts.function.get()), arguments),
            results));
    }
    py::object kept(const Kept& k) {
        py::list items;
        for (const Kept& item : k.items) items.append(kept(item));
        switch (k.kind) {
            case Kept::Kind::Tensor:
                return tensor(k.tensor);
            case Kept::Kind::Constant:
                return py::reinterpret_borrow<py::object>(k.constant.get());
            case Kept::Kind::List:
                return items;
            case Kept::Kind::Tuple:
                return py::tuple(items);
            default:
                throw NotSupported("an argument of a custom function for a backend");
        }
    }
    py::object result(const at::Tensor& t) {
        return t.defined() ? py::cast(Value{number(t)}) : py::none();
    }
    /// A boxed value as Python data, its tensors by `write`.
    template <class Write>
    py::object data(const c10::IValue& v, Write&& write) {
        if (v.isTensor()) return write(v.toTensor());
        if (!v.isList()) return torch::jit::toPyObject(v);
        py::list list;
        for (const c10::IValue& element : v.toListRef()) list.append(data(element, write));
        return list;
    }

    py::list calls_;
    std::unordered_map<const c10::TensorImpl*, std::int64_t> numbers_;
    std::unordered_map<const c10::TensorImpl*, at::Tensor> captured_;
};

}  // namespace

py::tuple describe(const LogParts& parts, bool grad_mode) {
    LogWriter writer(parts.inputs);
    py::dict given;
    for (std::size_t i = 0; i < parts.promises.size(); ++i)
        given[py::int_(writer.number(parts.promises[i]))] = py::cast(parts.examples[i]);
    writer.write(parts.log, grad_mode);
    py::list wanted;
    for (const at::Tensor& t : parts.outputs) {
        const py::object value = writer.tensor(t);
        if (!py::isinstance<Value>(value))
            throw NotSupported("an output that the log of calls does not have");
        wanted.append(value.attr("index"));
    }
    return py::make_tuple(writer.calls(), given, wanted);
}

std::shared_ptr<Backend> Backend::make(PyObject* compile, const LogParts& parts, bool grad_mode) {
    py::object run = py::reinterpret_borrow<py::object>(compile)(*describe(parts, grad_mode));
    return std::shared_ptr<Backend>(new Backend(std::move(run), parts.outputs.size()));
}

std::vector<at::Tensor> Backend::call(std::span<c10::TensorImpl* const> inputs) const {
    const py::gil_scoped_acquire lock;
    py::tuple arguments(inputs.size());
    for (std::size_t i = 0; i < inputs.size(); ++i)
        arguments[i] = py::cast(trace::borrow(inputs[i]));
    const py::sequence results = run_(*arguments);
    if (results.size() != outputs_) {
        PyErr_Format(PyExc_ValueError, "a backend's program returned %zu values instead of %zu",
                     results.size(), outputs_);
        throw py::error_already_set();
    }
    std::vector<at::Tensor> tensors;
    for (const py::handle& one : results) tensors.push_back(one.cast<at::Tensor>());
    return tensors;
}

int Backend::traverse(visitproc visit, void* arg) const {
    Py_VISIT(run_.ptr());
    return 0;
}

void add_value_type(py::module_& module) {
    py::class_<Value>(module, "Value", "A tensor of a recording's log, by number.")
        .def_readonly("index", &Value::index)
        .def("__repr__", [](const Value& v) { return "Value(" + std::to_string(v.index) + ")"; });
}

}  // namespace ingot::capture
