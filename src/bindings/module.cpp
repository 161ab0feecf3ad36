// The extension module `_ingot`: what crosses the border between Python and the C++ stages. The
// whole list: Recorder, Program, Unsupported, InternalError, MissingCompiler, trim_memory,
// wait_for_background, unseen_writes.h, and capture/capture.h.
#include <torch/csrc/utils/pybind.h>

#include "bindings/errors.h"
#include "bindings/program_object.h"
#include "bindings/recorder_object.h"
#include "bindings/unseen_writes.h"
#include "capture/backend.h"
#include "capture/capture.h"

PYBIND11_MODULE(_ingot, module) {
    module.doc() = "Ingot's compiler. Use the package `ingot`; this module may change.";
    if (!ingot::bindings::add_error_types(module.ptr()) ||
        !ingot::bindings::add_program_type(module.ptr()) ||
        !ingot::capture::add_to_module(module.ptr()))
        throw pybind11::error_already_set();
    ingot::bindings::add_recorder(module);
    ingot::capture::add_value_types(module);
    ingot::bindings::add_unseen_writes(module);
    module.attr("on_unseen_write")(pybind11::module_::import("ingot._unseen_writes").attr("told"));
    using pybind11::arg;
    pybind11::module_::import("os").attr("register_at_fork")(
        arg("before") = module.attr("_hold_background"),
        arg("after_in_parent") = module.attr("_release_background"),
        arg("after_in_child") = module.attr("_after_fork"));
    pybind11::module_::import("atexit").attr("register")(module.attr("_hold_background"));
}
