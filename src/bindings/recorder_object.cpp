// See recorder_object.h.
#include "bindings/recorder_object.h"

#include <torch/csrc/utils/python_symnode.h>

#include "bindings/errors.h"
#include "bindings/program_object.h"
#include "bindings/settings.h"
#include "trace/compiled_function.h"
#include "trace/differentiable.h"
#include "trace/output_tensor.h"
#include "trace/recorder.h"

namespace py = pybind11;

namespace ingot::bindings {
namespace {

class PythonRecorder {
  public:
    explicit PythonRecorder(const py::dict& options) : settings_(options) {
        recorder_.set_number_reader(read_number);
    }

    /// sizes: by dim, None or (symbol, least, most).
    using SizeSpec = std::optional<std::tuple<std::string, std::int64_t, std::int64_t>>;

    at::Tensor input(const at::Tensor& value, bool frozen, std::string name,
                     const std::vector<SizeSpec>& sizes, bool gradient,
                     const std::optional<c10::Device>& as) {
        std::vector<trace::SymbolicSize> symbolic;
        for (const SizeSpec& s : sizes) symbolic.push_back(s ? symbol(*s) : trace::SymbolicSize{});
        at::Tensor promise = recorder_.add_input(value, frozen, std::move(name), symbolic, as);
        if (gradient) promise.set_requires_grad(true);
        examples_.push_back(value);
        promises_.push_back(promise);
        signature_.number_arguments.push_back(false);
        return promise;
    }

    c10::SymInt number(std::int64_t value, const std::string& name, std::int64_t least,
                       std::int64_t most) {
        signature_.number_arguments.push_back(true);
        return recorder_.add_number(value, symbol({name, least, most}));
    }

    void enter() { scopes_.push_back(std::make_unique<trace::Recorder::Scope>(recorder_)); }

    void exit(const py::object& type, const py::object&, const py::object&) {
        check(!scopes_.empty(), "a recorder is left that was not entered");
        scopes_.pop_back();
        // What the recorder could not follow comes out of PyTorch's frames as some RuntimeError.
        if (!type.is_none() && recorder_.failure() &&
            PyErr_GivenExceptionMatches(type.ptr(), PyExc_Exception))
            throw NotSupported(*recorder_.failure());
    }

    py::object compile(const std::vector<py::object>& returned) {
        std::vector<at::Tensor> outputs;
        std::vector<c10::SymInt> numbers;
        for (const py::object& o : returned) {
            const bool number = torch::is_symint(o);
            signature_.number_results.push_back(number);
            if (number)
                numbers.push_back(o.cast<c10::SymInt>());
            else
                outputs.push_back(o.is_none() ? at::Tensor() : o.cast<at::Tensor>());
        }
        auto compiler = Compilers::instance().get(settings_.compiler);
        std::shared_ptr<trace::CompiledFunction> function;
        {
            py::gil_scoped_release unlocked;
            trace::Recording recording = recorder_.finish(outputs, numbers);
            recording.graph.round_intermediates = settings_.rounds(recording.device.is_cuda());
            function = std::make_shared<trace::CompiledFunction>(
                std::move(recording), examples_, promises_, std::move(outputs), std::move(compiler),
                settings_.compile, interrupted);
        }
        examples_.clear();
        PyObject* program = make_program(std::move(function), std::move(signature_));
        if (program == nullptr) throw py::error_already_set();
        return py::reinterpret_steal<py::object>(program);
    }

    py::object compile_training(std::vector<std::optional<at::Tensor>> returned) {
        std::vector<at::Tensor> outputs;
        for (auto& t : returned) outputs.push_back(t.value_or(at::Tensor()));
        signature_.number_results.assign(outputs.size(), false);
        auto compiler = Compilers::instance().get(settings_.compiler);
        std::shared_ptr<trace::DifferentiableFunction> function;
        {
            py::gil_scoped_release unlocked;
            trace::JointRecording joint = recorder_.finish_joint(outputs);
            outputs.insert(outputs.end(), joint.hidden.begin(), joint.hidden.end());
            joint.recording.graph.round_intermediates =
                settings_.rounds(joint.recording.device.is_cuda());
            function = std::make_shared<trace::DifferentiableFunction>(
                std::move(joint), examples_, promises_, std::move(outputs), std::move(compiler),
                settings_.compile, settings_.memory_budget, interrupted);
        }
        examples_.clear();
        PyObject* program = make_program(std::move(function), std::move(signature_));
        if (program == nullptr) throw py::error_already_set();
        return py::reinterpret_steal<py::object>(program);
    }

  private:
    static trace::SymbolicSize symbol(
        const std::tuple<std::string, std::int64_t, std::int64_t>& s) {
        return {std::get<0>(s), {std::get<1>(s), std::get<2>(s)}};
    }

    Settings settings_;
    trace::Recorder recorder_;
    Signature signature_;
    std::vector<std::unique_ptr<trace::Recorder::Scope>> scopes_;
    std::vector<at::Tensor> examples_, promises_;
};

}  // namespace

// The argument parser leaves the symbolic number it stood 7777777 in for at the tensor.
std::optional<c10::Scalar> read_number(const at::Tensor& stand_in) {
    py::gil_scoped_acquire lock;
    const py::object tensor = py::cast(stand_in);
    if (!py::hasattr(tensor, "_wrapped_number")) return std::nullopt;
    const py::object number = tensor.attr("_wrapped_number");
    if (torch::is_symint(number)) return c10::Scalar(number.cast<c10::SymInt>());
    if (torch::is_symfloat(number)) return c10::Scalar(number.cast<c10::SymFloat>());
    if (torch::is_symbool(number))
        return c10::Scalar(number.cast<c10::SymBool>().guard_bool(__FILE__, __LINE__));
    return std::nullopt;
}

c10::SymFloat own_float(const c10::SymFloat& wrapped) {
    if (!wrapped.is_symbolic()) return wrapped;
    auto* python = dynamic_cast<torch::impl::PythonSymNodeImpl*>(wrapped.toSymNodeImplUnowned());
    if (python == nullptr) return wrapped;
    py::gil_scoped_acquire lock;
    const py::handle node = python->getPyObj();
    return py::isinstance<c10::SymNodeImpl>(node) ? c10::SymFloat(node.cast<c10::SymNode>())
                                                  : wrapped;
}

void add_recorder(py::module_& module) {
    py::register_exception_translator([](std::exception_ptr pointer) {
        try {
            if (pointer) std::rethrow_exception(pointer);
        } catch (const Error&) {
            if (!translate_ingot_error()) throw;
        }
    });
    py::class_<PythonRecorder>(module, "Recorder")
        .def(py::init<const py::dict&>(), py::arg("options"))
        .def("input", &PythonRecorder::input, py::arg("value"), py::arg("frozen") = false,
             py::arg("name") = "", py::arg("sizes") = std::vector<PythonRecorder::SizeSpec>(),
             py::arg("gradient") = false, py::arg("device") = py::none(),
             "A promise that stands for `value` while recording; sizes: by dim None or (symbol, "
             "least, most); gradient: it needs one.")
        .def("number", &PythonRecorder::number, py::arg("value"), py::arg("symbol"),
             py::arg("least"), py::arg("most"), "A symbolic integer, an argument of the program.")
        .def("__enter__",
             [](py::object self) {
                 self.cast<PythonRecorder&>().enter();
                 return self;
             })
        .def("__exit__", &PythonRecorder::exit)
        .def("compile", &PythonRecorder::compile, py::arg("outputs"),
             "Ends the recording: a program over the inputs, in order, that returns a tuple.")
        .def("compile_training", &PythonRecorder::compile_training, py::arg("outputs"),
             "The same with a compiled backward: gradients flow from the results to the inputs "
             "that were recorded with `gradient`.");
    module.def(
        "check_settings",
        [](const py::dict& options) {
            const Settings settings(options);
            Compilers::instance().get(settings.compiler);
        },
        py::arg("options"), "Raises where there is no such processor to generate code for.");
    using Unlocked = py::call_guard<py::gil_scoped_release>;
    module.def("_after_fork", &Compilers::after_fork);
    module.def("_hold_background", &Compilers::hold, Unlocked());
    module.def("_release_background", &Compilers::release, Unlocked());
    module.def("wait_for_background", &Compilers::wait, Unlocked(),
               "Returns when nothing is being compiled in the background.");
    module.def("trim_memory", &trace::trim_output_pool, "Frees the memory kept for later outputs.");
}

}  // namespace ingot::bindings
