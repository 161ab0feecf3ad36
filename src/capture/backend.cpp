// See backend.h.
#include "capture/backend.h"

#include <ATen/ops/scalar_tensor.h>
#include <torch/csrc/jit/python/pybind_utils.h>

#include <algorithm>
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

/// A symbolic integer, as Python writes it.
struct Size {
    std::string text;
};

/// A `torch.Size` that may have symbolic integers in it.
struct Shape {
    py::tuple items;
};

bool is_number(const at::Tensor& t) { return t.unsafeGetTensorImpl()->is_wrapped_number(); }

/// Writes a log as Python data.
class LogWriter {
  public:
    explicit LogWriter(const LogParts& parts) : parts_(parts) {
        for (const trace::InputSource& s : parts.inputs)
            if (s.captured.defined()) captured_[s.promise.unsafeGetTensorImpl()] = s.captured;
    }

    std::int64_t number(const at::Tensor& t) {
        const auto next = static_cast<std::int64_t>(numbers_.size());
        return numbers_.try_emplace(t.unsafeGetTensorImpl(), next).first->second;
    }

    void write(bool grad_mode) {
        const auto log = parts_.log;
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
            // Only version counters tell `data` from `detach`.
            std::string name = schema.name() == "aten::data" ? "aten::detach" : schema.name();
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

    /// Whether a call gives a number for every symbol of the expression.
    bool is_given(Expr e) const {
        return !e.is_constant() && std::ranges::all_of(symbols(e), [&](Expr symbol) {
            return std::ranges::find(parts_.sizes, symbol) != parts_.sizes.end();
        });
    }
    std::int64_t example(Expr e) const {
        return e.is_constant() ? e.constant() : parts_.symbols.hint(e);
    }
    /// (sizes, strides) of an input, symbolic ones as text; None if there are none.
    py::object shape(const at::Tensor& promise) const {
        bool any = false;
        const auto list = [&](c10::SymIntArrayRef values) {
            py::list written;
            for (const c10::SymInt& value : values) {
                const Expr e = trace::unwrap(value);
                any = any || is_given(e);
                written.append(is_given(e) ? py::object(py::str(to_string(e)))
                                           : py::object(py::int_(example(e))));
            }
            return written;
        };
        const py::list sizes = list(promise.sym_sizes()), strides = list(promise.sym_strides());
        return any ? py::object(py::make_tuple(sizes, strides)) : py::object(py::none());
    }

  private:
    py::object integer(const c10::SymInt& value) const {
        const Expr e = trace::unwrap(value);
        return is_given(e) ? py::cast(Size{to_string(e)}) : py::object(py::int_(example(e)));
    }
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
            case Kept::Kind::Size:
                return py::cast(Shape{py::tuple(items)});
            case Kept::Kind::Number:
                return integer(k.number);
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
        if (v.isSymInt()) return integer(v.toSymInt());
        if (v.isSymFloat())
            if (const at::Tensor number = trace::contents(v.toSymFloat()); number.defined())
                return write(number);
        if (!v.isList()) return torch::jit::toPyObject(v);
        py::list list;
        for (const c10::IValue& element : v.toListRef()) list.append(data(element, write));
        return list;
    }

    const LogParts& parts_;
    py::list calls_;
    std::unordered_map<const c10::TensorImpl*, std::int64_t> numbers_;
    std::unordered_map<const c10::TensorImpl*, at::Tensor> captured_;
};

}  // namespace

py::tuple describe(const LogParts& parts, bool grad_mode) {
    LogWriter writer(parts);
    py::dict given, sizes;
    py::list wanted, shapes;
    for (std::size_t i = 0; i < parts.promises.size(); ++i) {
        const at::Tensor& example = parts.examples[i];
        given[py::int_(writer.number(parts.promises[i]))] =
            is_number(parts.promises[i]) ? py::object(py::float_(example.item().toDouble()))
                                         : py::cast(example);
        shapes.append(writer.shape(parts.promises[i]));
    }
    for (const Expr symbol : parts.sizes)
        sizes[py::str(to_string(symbol))] = parts.symbols.hint(symbol);
    writer.write(grad_mode);
    for (const at::Tensor& t : parts.outputs) {
        const py::object value = writer.tensor(t);
        if (!py::isinstance<Value>(value))
            throw NotSupported("an output that the log of calls does not have");
        wanted.append(value.attr("index"));
    }
    return py::make_tuple(writer.calls(), given, wanted, sizes, shapes);
}

Backend::Backend(py::object run, std::size_t outputs) : run_(std::move(run)), outputs_(outputs) {
    serves_ = py::getattr(run_, "serves", py::none());
    if (py::hasattr(run_, "fixes")) fixes_ = run_.attr("fixes").cast<std::vector<std::string>>();
    if (py::hasattr(run_, "fixes_floats"))
        fixes_floats_ = run_.attr("fixes_floats").cast<std::vector<std::size_t>>();
}

std::shared_ptr<Backend> Backend::make(PyObject* compile, const LogParts& parts, bool grad_mode) {
    py::object run = py::reinterpret_borrow<py::object>(compile)(*describe(parts, grad_mode));
    return std::shared_ptr<Backend>(new Backend(std::move(run), parts.outputs.size()));
}

std::optional<std::vector<at::Tensor>> Backend::call(std::span<c10::TensorImpl* const> inputs,
                                                     std::span<const std::int64_t> numbers) const {
    const py::gil_scoped_acquire lock;
    py::list given;
    py::tuple arguments(numbers.size() + inputs.size());
    for (std::size_t i = 0; i < numbers.size(); ++i) {
        given.append(py::int_(numbers[i]));
        arguments[i] = given[i];
    }
    for (std::size_t i = 0; i < inputs.size(); ++i) {
        at::Tensor t = trace::borrow(inputs[i]);
        if (is_number(t)) {
            const double value = t.item().toDouble();
            given.append(py::float_(value));
            t = at::scalar_tensor(value, at::kDouble);  // a tensor like others
        }
        arguments[numbers.size() + i] = py::cast(t);
    }
    if (!serves_.is_none() && !serves_(*given).cast<bool>()) return std::nullopt;
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
    Py_VISIT(serves_.ptr());
    return 0;
}

void add_value_types(py::module_& module) {
    py::class_<Size>(module, "Size", "A symbolic integer of a recording's log, as text.")
        .def_readonly("text", &Size::text)
        .def("__repr__", [](const Size& s) { return "Size(" + s.text + ")"; });
    py::class_<Shape>(module, "Shape", "A torch.Size of a recording's log.")
        .def_readonly("items", &Shape::items);
    py::class_<Value>(module, "Value", "A tensor of a recording's log, by number.")
        .def_readonly("index", &Value::index)
        .def("__repr__", [](const Value& v) { return "Value(" + std::to_string(v.index) + ")"; });
}

}  // namespace ingot::capture
