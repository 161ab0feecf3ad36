// See text_compiler.h.
#include "bindings/text_compiler.h"

#include <torch/csrc/utils/pybind.h>

#include "runtime/driver.h"

namespace py = pybind11;

namespace ingot::bindings {
namespace {

std::string text_of(const py::error_already_set& error) {
    return py::str(error.value()).cast<std::string>();
}

/// f(the module that finds Triton), with Python's lock and the core's errors.
template <class F>
auto in_python(const F& f) {
    const py::gil_scoped_acquire lock;
    try {
        return f(py::module_::import("ingot._triton"));
    } catch (py::error_already_set& error) {
        if (error.matches(PyExc_ImportError)) throw runtime::MissingCompiler(text_of(error));
        if (error.matches(PyExc_Exception)) throw InternalError(text_of(error));
        error.restore();  // a signal's
        throw runtime::Interrupted("the compilation was interrupted");
    }
}

class TritonCompiler final : public runtime::TextCompiler {
  public:
    std::string version() const override {
        return in_python(
            [](const py::module_& module) { return module.attr("version")().cast<std::string>(); });
    }

    std::vector<runtime::TextCode> compile(std::span<const runtime::TextKernel> kernels,
                                           int capability, int threads) const override {
        return in_python([&](const py::module_& module) {
            py::list wanted;
            for (const runtime::TextKernel& k : kernels)
                wanted.append(py::make_tuple(k.source, k.function, py::cast(k.arguments), k.x_block,
                                             k.r_block, k.warps));
            const py::list made = module.attr("compile_kernels")(wanted, capability, threads);
            std::vector<runtime::TextCode> codes;
            for (const py::handle one : made) {
                runtime::TextCode& code = codes.emplace_back();
                if (py::isinstance<py::str>(one)) {
                    code.refusal = one.cast<std::string>();
                    continue;
                }
                const auto fields = one.cast<py::tuple>();
                const auto image = fields[0].cast<std::string>();
                code.image.assign(image.begin(), image.end());
                code.entry = fields[1].cast<std::string>();
                code.threads = fields[2].cast<unsigned>();
                code.shared_bytes = fields[3].cast<std::int64_t>();
            }
            return codes;
        });
    }

    void count(int made, const std::map<std::string, int>& refused) const override {
        in_python([&](const py::module_& module) {
            py::dict reasons;
            for (const auto& [reason, kernels] : refused) reasons[py::str(reason)] = kernels;
            module.attr("count")(made, reasons);
            return 0;
        });
    }
};

}  // namespace

std::shared_ptr<const runtime::TextCompiler> triton_compiler() {
    return std::make_shared<const TritonCompiler>();
}

}  // namespace ingot::bindings
